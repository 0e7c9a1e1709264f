"""Texts that repeat another process's failure, or that wait. They never name a cause by themselves."""

from longspan.doctor.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="engine-core-failed", cause="", kind="wrapper", words="engine enginecore frontend", pattern=r"Engine core initialization failed|EngineCore failed to start"
        r"|EngineCore encountered a fatal error|EngineCore hit an exception|Frontend process failed during engine core initialization|engine core exited unexpectedly"
        r"|Engine process failed to start|Engine loop is not running|EngineCore encountered an issue",
        example="RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        source="vllm 0.33.0 source: vllm/v1/engine/utils.py:1474",
    ),
    Rule(
        id="engine-dead", cause="", kind="wrapper", words="enginedeaderror asyncenginedeaderror asyncllm mqenginedeaderror",
        pattern=r"EngineDeadError|AsyncEngineDeadError|AsyncLLM output_handler failed|MQEngineDeadError",
        example="vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        source="https://github.com/eugr/spark-vllm-docker/issues/257",
    ),
    Rule(
        id="worker-failed", cause="", kind="wrapper", words="workerproc worker workers executing executor",
        pattern=r"WorkerProc (?:initialization )?failed|WorkerProc hit an exception|Worker failed with error|Worker \d+ failed to initialize|Ray workers have not started|Executor failed"
        r"|Error executing method|Exception in worker \S+ while processing",
        example="Exception: WorkerProc initialization failed due to an exception in a background process.",
        source="vllm 0.33.0 source: vllm/v1/executor/multiproc_executor.py:891",
    ),
    Rule(
        id="actor-died", cause="", kind="wrapper", words="actordiederror rayactorerror actor raytaskerror processexitedexception childfailederror actorunavailableerror",
        pattern=r"ActorDiedError|RayActorError|ActorUnavailableError|RayTaskError|The actor died unexpectedly|ProcessExitedException|ChildFailedError",
        example="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        source="https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html",
    ),
    Rule(
        id="server-error", cause="", kind="wrapper", words="internal", pattern=r'HTTP/[\d.]+" 500 Internal Server Error', any_level=True,
        example='INFO:     10.0.0.40:51514 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        source="https://www.uvicorn.org/",
    ),
    Rule(
        id="unit-failed", cause="", kind="wrapper", words="exited failure crashloopbackoff restarting backoff", any_level=True,
        pattern=r"Main process exited, code=exited, status=[1-9]|Failed with result 'exit-code'|CrashLoopBackOff|Back-off restarting failed container|[Ee]xited with exit code [1-9]",
        example="Nov 02 12:00:01 gpu02 systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE",
        source="https://www.freedesktop.org/software/systemd/man/systemd.exec.html",
    ),
    Rule(
        id="engine-start-timeout", cause="insufficient-evidence", kind="generic", words="timed", weight=0.5,
        pattern=r"Timed out waiting for engine core processes to",
        example="TimeoutError: Timed out waiting for engine core processes to start.",
        source="vllm 0.33.0 source: vllm/v1/engine/core_client.py:765",
        remedy="Raise VLLM_ENGINE_READY_TIMEOUT_S if the weights were still loading; otherwise send the workers' logs.",
    ),
    Rule(
        id="image-pull", cause="insufficient-evidence", kind="generic", words="imagepullbackoff errimagepull pull manifest", weight=0.6, any_level=True,
        pattern=r"ImagePullBackOff|ErrImagePull|[Ff]ailed to pull image|manifest (?:for \S+ not found|unknown)|pull access denied", launch_only=True,
        example='Warning  Failed  kubelet  Failed to pull image "vllm/vllm-openai:v9": manifest unknown',
        source="https://kubernetes.io/docs/concepts/containers/images/",
        remedy="The container never started: correct the image's name, tag or pull secret (`kubectl describe pod`), and send the log of the next start.",
    ),
    Rule(
        id="traceback", cause="insufficient-evidence", kind="generic", words="traceback", weight=0.3,
        pattern=r"Traceback \(most recent call last\)",
        example="Traceback (most recent call last):",
        source="https://docs.python.org/3/library/traceback.html",
    ),
    Rule(
        id="exception", cause="insufficient-evidence", kind="generic", weight=0.4,
        words="runtimeerror valueerror typeerror assertionerror keyerror attributeerror indexerror oserror notimplementederror exception timeouterror "
        "connectionerror permissionerror acceleratorerror nameerror zerodivisionerror validationerror *error",
        pattern=r"(?<!raise )\b(?:[a-z_]\w*\.)*(?!EngineDeadError|RayTaskError|RayActorError|ActorDiedError)[A-Z]\w*(?:Error|Exception): \S",
        example="TypeError: unhashable type: 'dict'",
        source="https://docs.python.org/3/library/exceptions.html",
    ),
    # Waiting for ranks.
    Rule(
        id="core-wait", cause="nccl-init-hang", kind="wait", phase=4, words="engine", weight=0.6, any_level=True, decide="hang_phase",
        pattern=r"Waiting for \d+ (?:local, \d+ remote )?(?:core )?engine (?:core )?proc\(s\) to start",
        example="DEBUG 11-02 10:03:00 [utils.py:1402] Waiting for 1 local, 0 remote core engine proc(s) to start.",
        source="https://github.com/vllm-project/vllm/issues/51533",
    ),
    Rule(
        id="shm-broadcast", cause="collective-hang", kind="wait", phase=0, words="broadcast block", weight=0.65, any_level=True, decide="hang_phase",
        pattern=r"No available (?:shared memory broadcast )?block found in \d+ seconds?",
        example="INFO 11-02 10:03:00 [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds.",
        source="https://github.com/vllm-project/vllm/issues/46097", also=("nccl-init-hang",),
    ),
    Rule(
        id="rpc-timeout", cause="collective-hang", kind="symptom", words="rpc timed", weight=0.75, decide="hang_phase",
        pattern=r"RPC call to \w+ timed out|TimeoutError: RPC call|execute_model timed out",
        example="TimeoutError: RPC call to sample_tokens timed out.",
        source="https://github.com/vllm-project/vllm/issues/41530",
    ),
    Rule(
        id="task-blocked", cause="collective-hang", kind="symptom", words="blocked", weight=0.6,
        pattern=r"task \S+ blocked for more than \d+ seconds",
        example="INFO: task VLLM::Worker_TP:4212 blocked for more than 120 seconds.",
        source="https://github.com/vllm-project/vllm/issues/46097", any_level=True,
    ),
    Rule(
        id="stack-comm-init", cause="nccl-init-hang", kind="wait", phase=7, words="ncclcomminitrank nccl_comm_init_rank", weight=0.7, any_level=True,
        pattern=r"^\s*ncclCommInitRank\w* \(\S+:\d+\)",
        example="    ncclCommInitRank (vllm/distributed/device_communicators/pynccl_wrapper.py:311)",
        source="https://github.com/vllm-project/vllm/issues/58290",
    ),
    Rule(
        id="stack-collective", cause="collective-hang", kind="wait", phase=11, words="all_reduce all_gather broadcast synchronize all_gatherv reduce_scatter barrier",
        weight=0.6, any_level=True,
        pattern=r"^\s*(?:all_reduce|all_gatherv?|broadcast|reduce_scatter|barrier|synchronize) \(\S+:\d+\)",
        example="    all_reduce (vllm/distributed/device_communicators/pynccl.py:170)",
        source="https://github.com/vllm-project/vllm/issues/46097",
    ),
    Rule(
        id="rendezvous", cause="nccl-init-hang", kind="wait", phase=7, words="rendezvous symm_mem _symmetric_memory", weight=0.6, any_level=True,
        pattern=r"_?symmetric_memory\S*rendezvous|, in rendezvous\b|rendezvous \(torch/distributed/_symmetric_memory|symm_mem.{0,40}rendezvous",
        example='  File "/opt/torch/distributed/_symmetric_memory/__init__.py", line 1801, in rendezvous',
        source="https://github.com/vllm-project/vllm/issues/45800",
    ),
)  # fmt: skip
