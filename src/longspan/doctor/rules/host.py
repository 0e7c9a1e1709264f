"""Texts of the operating system and its container: killed processes, memory, disks, /dev/shm, ports."""

from longspan.doctor.rules.rule import Rule

_VLLM = "https://github.com/vllm-project/vllm/issues/"

# What C libraries print for ENOSPC, EADDRINUSE in the locales that were met in reports.
_NO_SPACE = (
    r"[Nn]o space left on device|[Ee]rrno:? ?28\b|\bENOSPC\b|Kein Speicherplatz|kein Speicherplatz|Aucun espace disponible"
    r"|No queda espacio|Não há espaço|Spazio esaurito|不允许写入|设备上没有空间|空き領域がありません|남은 공간이 없|Недостаточно места"
    r"|На устройстве не осталось|没有空间"
)
_IN_USE = (
    r"[Aa]ddress already in use|\bEADDRINUSE\b|[Ee]rrno:? ?98\b|Adresse wird bereits verwendet|Adresse déjà utilisée"
    r"|La dirección ya se está usando|Indirizzo già in uso|地址已(?:被|在)使用|アドレスは既に使用中|Адрес уже используется|이미 사용 중"
)

RULES: tuple[Rule, ...] = (
    # Host memory.
    Rule(
        id="kernel-oom", cause="oom-host-ram", decide="oom_victim", words="oom memory oom_kill oom_reaper", weight=0.93, any_level=True,
        pattern=r"(?:Out of memory|Memory cgroup out of memory):? Kill(?:ed)? process \d+ \((?P<victim>[^)]*)\)|oom-kill:constraint=\S*task=(?P<victim2>[^,\s]+)"
        r"|oom_reaper: reaped process \d+ \((?P<victim3>[^)]*)\)",
        example="Nov 02 12:00:01 gpu02 kernel: Memory cgroup out of memory: Killed process 4212 (VLLM::Worker_TP) total-vm:98765432kB",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html",
    ),
    Rule(
        id="ray-oom", cause="oom-host-ram", words="pressure outofmemoryerror memory", weight=0.93, any_level=True,
        pattern=r"(?<!\b0 Workers \(tasks / actors\) )killed due to memory pressure|running low on memory"
        r"|ray\.exceptions\.OutOfMemoryError|killed (?:worker|due to).{0,40}(?:memory pressure|node memory)|memory usage (?:on the node )?.{0,60}exceeds? the.{0,20}threshold",
        example="(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node.",
        source=_VLLM + "1160",
    ),
    Rule(
        id="container-oom", cause="oom-host-ram", words="oomkilled oom_kill oom killer kill", weight=0.92, any_level=True,
        pattern=r"OOMKilled|[Dd]etected \d+ oom[-_ ]kill|(?<!\bprocess was )(?<!\bprocess is )killed by the (?:cgroup out-of-memory handler|OOM killer)(?! due to high memory usage)|result 'oom-kill'"
        r"|exceeded (?:job |step )?memory limit|System OOM encountered",
        example="slurmstepd: error: Detected 1 oom_kill event in StepId=4412.0. Some of the step tasks have been OOM Killed.",
        source="https://slurm.schedmd.com/slurm.conf.html",
    ),
    Rule(
        id="host-alloc", cause="oom-host-ram", decide="host_alloc", also=("weights-corrupt",), words="defaultcpuallocator bad_alloc memoryerror allocate mmap malloc", weight=0.85,
        pattern=r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|^(?:\S+ )*MemoryError\b|OSError: \[Errno 12\]"
        r"|(?:fork|clone|mmap|unable to mmap)\b.{0,80}Cannot allocate memory|numpy\S*_ArrayMemoryError",
        example="RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)",
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/CPUAllocator.cpp",
    ),
    Rule(
        id="cpu-memory", cause="oom-host-ram", words="available", weight=0.75, launch_only=True,
        pattern=r"Available memory on node \d+ .{0,60}less than desired CPU memory utilization",
        example="ValueError: Available memory on node 0 (3.1/31.0 GiB) on startup is less than desired CPU memory utilization (0.9, 27.9 GiB).",
        source="vllm 0.32.0 source: vllm/v1/worker/cpu_worker.py", versions="CPU build",
    ),
    # Killed, and the log does not say why.
    Rule(
        id="worker-proc-died", cause="worker-killed", kind="symptom", decide="worker_exit", words="died", weight=0.75,
        pattern=r"Worker (?:proc \S+|VllmWorkerProcess pid \d+) died(?: unexpectedly)?,? ?\(?exit code: (?P<code>-?\d+)"
        r"|Worker proc \S+ died unexpectedly|Engine core proc \S+ died unexpectedly|ApiServer\S* .*died.*exit code",
        also=("nccl-peer-died-first",),
        example="(EngineCore pid=7) ERROR 11-02 12:00:01 [multiproc_executor.py:315] Worker proc VllmWorker-3 died unexpectedly (exit code: -9), "
        "shutting down executor.",
        source=_VLLM + "42609",
    ),
    Rule(
        id="segfault", cause="worker-killed", kind="symptom", decide="worker_exit", words="segfault segmentation sigsegv sigbus sigabrt sigkill aborted bus killed speicherzugriffsfehler segmentación segmento 段错误",
        weight=0.75, any_level=True,
        pattern=r"!+ ?Segfault encountered|\bBus error\b|Segmentation fault|Fatal Python error: \w+|\bsegfault at [0-9a-f]+|\*\*\* SIG(?:SEGV|BUS|ABRT|ILL|FPE) received"
        r"|traps: \S+\[\d+\].*(?:general protection|trap)|killed by signal(?: \d+)?[: ]+(?:SIGKILL|Killed|9|11)|received signal SIG(?:KILL|SEGV)"
        r"|signal 9 \(SIGKILL\)|code=killed, (?:status|signal)=(?:9|11|6)|Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento|段错误",
        example="Nov 02 12:00:01 gpu02 kernel: VLLM::Worker_TP[4212]: segfault at 18 ip 00007f2 sp 00007ff error 4 in libnccl.so.2",
        source=_VLLM + "2269",
    ),
    Rule(
        id="ended-from-outside", cause="worker-killed", kind="symptom", decide="ended_from_outside", words="liveness startup limit preemption preempted", weight=0.7, any_level=True,
        pattern=r"failed (?:liveness|startup) probe, will be restarted|CANCELLED AT .* DUE TO (?:TIME LIMIT|PREEMPTION)|\bpod was preempted\b|Preempted by",
        example="Normal  Killing  2m  kubelet  Container vllm failed startup probe, will be restarted",
        source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/",
        remedy="Give the probe or job more time than the model needs to load (initialDelaySeconds, failureThreshold, --time).",
    ),
    Rule(
        id="exit-137", cause="worker-killed", kind="symptom", words="exit exited code exitcode killed getötet tué processus matado 已杀死", weight=0.65, any_level=True,
        pattern=r"[Ee]xit(?:ed)?(?: with)?(?: [Cc]ode|Code|_code)?:?\s*(?:137|139|-9|-11)\b|\b\d+ (?:Killed|Getötet|Tué|Processus arrêté|Matado|已杀死) +"
        r"|^(?:\S+: )?(?:line \d+: )?Killed\b|task \d+: Killed|exitcode ?: ?-(?:9|11|6)\b",
        example="srun: error: gpu02: task 3: Killed",
        source="https://tldp.org/LDP/abs/html/exitcodes.html",
    ),
    Rule(
        id="core-proc-signal", cause="worker-killed", kind="symptom", decide="worker_exit", words="core", weight=0.6,
        pattern=r"Failed core proc\(s\): \{[^}]*: ?(?P<code>-(?:9|11|6|7|4))\b",
        example="RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}",
        source="vllm 0.32.0 source: vllm/v1/engine/utils.py",
    ),
    # File systems.
    Rule(
        id="no-space", cause="disk-full", decide="no_space", weight=0.92, also=("shm-too-small",),
        words="space errno enospc speicherplatz espace espacio espaço spazio oserror места осталось device 设备上没有空间 没有空间",
        pattern=_NO_SPACE,
        example="OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub/models--m/blobs/3f.incomplete'",
        source="https://github.com/ai-dynamo/dynamo/issues/1408", question="`df -h` of /dev/shm, the model cache and /tmp: which is full?",
    ),
    Rule(
        id="shm-segment", cause="shm-too-small", words="shm shared nccl dataloader", weight=0.93,
        pattern=r"Error while (?:creating|attaching to) shared memory segment|failed to extend /dev/shm/|(?:attach|open|creat)\w* .{0,40}/dev/shm/(?:nccl|psm|sem)\S*.{0,60}(?:fail|error|No such)"
        r"|insufficient shared memory|out of shared memory|/dev/shm.{0,60}(?:too small|full\b|only has)",
        example="n0:3663:4044 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab (size 33030528), "
        "error: No space left on device (28)",
        source="https://github.com/llm-d/llm-d/issues/352", question="`df -h /dev/shm` and `ls -la /dev/shm`: small mount or stale segments?",
    ),
    Rule(
        id="ray-shm-small", cause="shm-too-small", kind="wait", phase=4, words="shm", weight=0.5, any_level=True,
        pattern=r"object store is using /tmp instead of /dev/shm because /dev/shm has only",
        example="2026-11-02 10:00:00,100\tWARNING services.py:2070 -- WARNING: The object store is using /tmp instead of /dev/shm because "
        "/dev/shm has only 67108864 bytes available.",
        source="ray source: ray/_private/services.py",
    ),
    Rule(
        id="disk-quota", cause="disk-full", words="quota disk diskpressure evicted ephemeral", weight=0.88,
        pattern=r"Disk quota exceeded|Not enough free disk space|DiskPressure|ephemeral[- ]storage.{0,60}(?:exceed|limit|low)|low on resource: ephemeral-storage|[Oo]ut of disk\b"
        r"|OutOfDiskError|disk usage exceeded",
        example="OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/huggingface/hub/blobs/1'",
        source="https://github.com/hiyouga/LlamaFactory/issues/327",
    ),
    Rule(
        id="ray-disk", cause="disk-full", kind="wait", phase=9, words="over full", weight=0.6, any_level=True,
        pattern=r"file_system_monitor.{0,80}is over \d+% full",
        example="[2026-11-02 10:00:00,1 E 7 9] (raylet) file_system_monitor.cc:111: /tmp/ray/session is over 95% full, available space: "
        "1.2 GB; capacity: 98 GB. Object creation will fail if spilling is required.",
        source="ray source: file_system_monitor.cc",
    ),
    # Ports.
    Rule(
        id="address-in-use", cause="port-in-use", weight=0.9, words="address errno eaddrinuse adresse dirección indirizzo адрес 地址已被使用 地址已在使用",
        # NCCL's RAS thread shares one port per host on purpose and does without it.
        pattern=rf"^(?!.*\bras/client_support).*?(?:{_IN_USE})(?!.{{0,60}}trying)",
        example="OSError: [Errno 98] Address already in use",
        source="vllm 0.33.0 source: vllm/config/parallel.py stateless_init_dp_group", launch_only=True,
        question="`ss -ltnp` on that port: which process holds it?",
    ),
    Rule(
        id="ray-port-in-use", cause="port-in-use", words="port running", weight=0.85, launch_only=True,
        pattern=r"port number \d+ that is used by other components|[Pp]ort \d+ is (?:already in use|occupied|not available)(?!, trying)"
        r"|[Pp]ort is already allocated|Ray is trying to start at \S+, but is already running|Failed to (?:bind|listen) (?:to|on) (?:address|port)",
        example="ValueError: Ray component gcs_server is trying to use a port number 6379 that is used by other components.",
        source="ray source: ray/_private/node.py",
    ),
    # A provider answered.
    Rule(
        id="provider-401", cause="provider-auth", kind="symptom", words="api_key unauthorized authenticationerror invalid_api_key code upstream provider api", weight=0.55,
        pattern=r"openai\.AuthenticationError|Incorrect API key provided|invalid_api_key|(?:upstream|provider|litellm).{0,80}\b401\b"
        r"|Error code: 401",
        example="openai.AuthenticationError: Error code: 401 - {'error': 'Unauthorized'}",
        source="vllm 0.33.0 source: vllm/entrypoints/serve/middleware/authenticate.py:60",
        question="`curl -H 'Authorization: Bearer …' BASE/models`: 401 with the key, 404 without /v1?",
    ),
)  # fmt: skip
