"""Lines that are no fault: how far the launch came, that it serves, that someone stopped it."""

from longspan.doctor.rules.rule import Mark

PHASES = (
    "start", "ray connected", "GPUs reserved", "workers started", "collectives ready", "loading weights",
    "weights loaded", "profiled", "KV cache allocated", "graphs captured", "ready", "serving",
)  # fmt: skip

MARKS: tuple[Mark, ...] = (
    # A launch begins.
    Mark(
        id="api-server-start", means="start", words="version",
        pattern=r"vLLM API server version|▄▄ ▄█ .*version \d|Initializing an LLM engine \(v|vLLM server version",
        example="(APIServer pid=1) INFO 11-02 10:00:00 [api_utils.py:286] vLLM API server version 0.32.0",
    ),
    Mark(
        id="launch-command", means="start", words="vllm ray_start started starting longspan restarting",
        pattern=r"^(?:\+|\$|#) (?:exec )?(?:vllm serve|python3? -m vllm)|systemd\[\d+\]: (?:Started|Starting) .*vllm"
        r"|Restarting vllm|=+ ?(?:attempt|retry|try) \d",
        example="+ vllm serve /models/llama --tensor-parallel-size 8",
    ),
    Mark(
        id="attempt-banner", means="start", words="attempt retry try restart",
        pattern=r"(?:^|[\]=#*>-] ?)(?:attempt|retry|try|restart) ?#?\d+(?: of \d+)?\b",
        example="=== attempt 2 ===",
    ),
    # Progress.
    Mark(
        id="ray-connected", means="progress", phase=1, words="connected runtime",
        pattern=r"Connected to Ray cluster|Ray runtime started|Started a local Ray instance",
        example="2026-11-02 10:00:13,337\tINFO worker.py:2038 -- Connected to Ray cluster.",
    ),
    Mark(
        id="world", means="world", phase=3, words="world_size",
        pattern=r"world_size=(?P<world>\d+) rank=(?P<rank>\d+) local_rank=(?P<local>\d+)"
        r"(?: distributed_init_method=(?:tcp|env)://(?P<addr>[^\s:]+))?",
        example="INFO 11-02 10:00:28 [parallel_state.py:1906] world_size=3 rank=1 local_rank=1 "
        "distributed_init_method=tcp://10.0.0.11:40297 backend=gloo",
    ),
    Mark(
        id="nccl-starts", means="progress", phase=3, words="nccl",
        pattern=r"(?:vLLM is using nccl==|\bNCCL version (?=[\d.]+\+cuda))(?P<nccl>[\d.]+)",
        example="INFO 11-02 10:00:26 [pynccl.py:148] vLLM is using nccl==2.28.9",
    ),
    Mark(
        id="init-start", means="init-start", words="init",
        pattern=r"rank (?P<rank>\d+) nranks (?P<world>\d+) .*Init START",
        example="node-1:880:880 [0] NCCL INFO ncclCommInitRank comm 0x55d9607ee240 rank 1 nranks 2 cudaDev 0 "
        "nvmlDev 0 busId 61000 commId 0x3c - Init START",
    ),
    Mark(
        id="init-done", means="init-done", phase=4, words="init",
        pattern=r"rank (?P<rank>\d+) nranks (?P<world>\d+) .*Init COMPLETE",
        example="node-1:880:880 [0] NCCL INFO ncclCommInitRank comm 0x55d9607ee240 rank 1 nranks 2 cudaDev 0 "
        "nvmlDev 0 busId 61000 commId 0x3c - Init COMPLETE",
    ),
    Mark(
        id="rank-assigned", means="progress", phase=4, words="assigned",
        pattern=r"rank (?P<rank>\d+) in world size (?P<world>\d+) is assigned as",
        example="INFO 11-02 10:00:29 [parallel_state.py:2350] rank 2 in world size 3 is assigned as DP rank 0",
    ),
    Mark(
        id="load-start", means="progress", phase=5, words="starting loading",
        pattern=r"Starting to load model|Loading safetensors checkpoint shards|Loading pt checkpoint shards"
        r"|Loading model weights",
        example="(Worker_TP2 pid=2) INFO 11-02 10:00:29 [gpu_model_runner.py:5040] Starting to load model /models/m...",
    ),
    Mark(
        id="load-done", means="progress", phase=6, words="loading",
        pattern=r"Loading weights took|[Mm]odel loading took|Loading model weights took",
        example="(Worker_TP0 pid=1) INFO 11-02 10:01:59 [gpu_model_runner.py:5150] Model loading took 41.34 GiB memory "
        "and 81.814113 seconds",
    ),
    Mark(
        id="profiled", means="progress", phase=7, words="compilation compile torch available memory warming",
        pattern=r"torch\.compile takes|Available KV cache memory|Memory profiling (?:takes|results)|Warming up model"
        r"|Compiling a graph|Cache the graph",
        example="(Worker_TP0 pid=1) INFO 11-02 10:02:10 [gpu_worker.py:298] Available KV cache memory: 21.34 GiB",
    ),
    Mark(
        id="kv-cache", means="progress", phase=8, words="kv blocks",
        pattern=r"[GC]PU KV cache size:|# (?:GPU|CUDA|cuda) blocks:|Maximum concurrency for|for KV cache on node",
        example="(EngineCore pid=1) INFO 11-02 10:02:12 [kv_cache_utils.py:1087] GPU KV cache size: 139,776 tokens",
    ),
    Mark(
        id="capture", means="progress", phase=8, words="capturing",
        pattern=r"Capturing (?:the model for )?CUDA graphs?|Capturing the model|Capturing cudagraphs",
        example="Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  61%|██████    | 31/51 [00:06<00:04,  4.88it/s]",
    ),
    Mark(
        id="captured", means="progress", phase=9, words="capturing graph init",
        pattern=r"Graph capturing finished|init engine \(profile, create kv cache",
        example="(EngineCore pid=1) INFO 11-02 10:02:58 [core.py:402] init engine (profile, create kv cache, warmup "
        "model) took 26.86 s",
    ),
    Mark(
        id="autotune-start", means="progress", phase=7, words="autotune autotuning flashinfer_autotune",
        pattern=r"(?i)autotun(?:e|ing).*(?:start|begin)|flashinfer_autotune|Running FlashInfer autotun",
        example="(Worker_TP0 pid=1) INFO 11-02 10:02:10 [kernel_warmup.py:60] Running FlashInfer autotune...",
    ),
    # It serves.
    Mark(
        id="startup-complete", means="ready", phase=10, words="startup uvicorn",
        pattern=r"Application startup complete|Uvicorn running on",
        example="INFO:     Application startup complete.",
    ),
    Mark(
        id="health-ok", means="ready", phase=10, words="health models",
        pattern=r'"(?:GET|HEAD) /(?:health|ping|v1/models)\S* HTTP/[\d.]+" 200',
        example='INFO:     10.0.0.50:40220 - "GET /health HTTP/1.1" 200 OK',
    ),
    Mark(
        id="request-ok", means="answered", phase=11, words="post",
        pattern=r'"POST /(?:v1|v2|generate|invocations|score|pooling|tokenize)\S* HTTP/[\d.]+" 200',
        example='INFO:     10.0.0.11:53078 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    ),
    Mark(
        id="throughput", means="serving", phase=11, words="generation",
        pattern=r"generation throughput: (?!0\.0 )[\d.]+ tokens/s",
        example="INFO 11-02 10:03:30 [loggers.py:335] Engine 000: Avg prompt throughput: 65.6 tokens/s, Avg generation "
        "throughput: 49.6 tokens/s, Running: 16 reqs, Waiting: 0 reqs",
    ),
    Mark(
        id="throughput-zero", means="stalled", words="generation",
        pattern=r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s, Running: [1-9]\d* reqs",
        example="INFO 11-02 10:03:30 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 0.0 tokens/s, Running: 16 reqs, Waiting: 4 reqs",
    ),
    Mark(
        id="throughput-idle", means="idle", words="generation",
        pattern=r"generation throughput: 0\.0 tokens/s, Running: 0 reqs, (?:Swapped: 0 reqs, )?(?:Waiting|Pending): 0 reqs",
        example="INFO 11-02 10:03:30 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs",
    ),
    # No fault, and worth knowing when it is slow.
    Mark(
        id="queue", means="hint", words="waiting",
        pattern=r"Running: [1-9]\d* reqs, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>[1-9]\d*) reqs",
        example="INFO 11-02 10:03:30 [loggers.py:335] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 5.0 "
        "tokens/s, Running: 256 reqs, Waiting: 31 reqs",
    ),
    Mark(
        id="tcp-sockets", means="hint", words="socket net",
        pattern=r"NCCL INFO (?:Using network Socket|Channel .* via NET/Socket|NET/IB ?: No device found)",
        example="n1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0",
    ),
    Mark(
        id="no-gpudirect", means="hint", words="direct gpu nvidia_peermem gdrdma",
        pattern=r"GPU Direct RDMA Disabled|nvidia[_-]peermem.{0,40}not (?:loaded|found)|GDRDMA (?:not|disabled)",
        example="n1:7:7 [0] NCCL INFO GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    ),
    Mark(
        id="tp-spans-nodes", means="hint", words="tensor_parallel_size",
        pattern=r"tensor_parallel_size=\d+ is bigger than a reserved number of",
        example="WARNING 11-02 10:00:13 [ray_utils.py:321] tensor_parallel_size=3 is bigger than a reserved number of GPUs (2 GPUs) in a node 66",
    ),
    Mark(
        id="preempted", means="hint", words="preempted",
        pattern=r"is preempted by PreemptionMode",
        example="WARNING 11-02 10:05:13 [scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode",
    ),
    Mark(
        id="headless", means="headless", words="headless front",
        pattern=r"(?:--|'|\b)headless\b|(?:HELLO|handshake|front-end).{0,40}tcp://(?!127\.|localhost)[\w.\[\]:-]+",
        example="(EngineCore_DP8 pid=9) DEBUG 11-02 10:00:00 [core.py:612] HELLO local engine 8 to front-end at tcp://10.0.3.1:29550",
    ),
    Mark(
        id="offline-done", means="answered", phase=11, words="processed",
        pattern=r"Processed prompts: 100%",
        example="Processed prompts: 100%|##########| 1000/1000 [01:20<00:00, 12.4it/s]",
    ),
    # Someone stopped it.
    Mark(
        id="shutdown-asked", means="stop", words="shutdown",
        pattern=r"\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received signal)",
        example="(APIServer pid=1) INFO 11-02 10:30:00 [launcher.py:254] [shutdown] API server: shutdown triggered",
    ),
    Mark(
        id="signal", means="stop", words="sigterm sigint keyboardinterrupt signal c",
        pattern=r"\*\*\* SIG(?:TERM|INT) received|KeyboardInterrupt|[Rr]eceived (?:signal |SIG)(?:TERM|INT|15\b|2\b)"
        r"|got SIGTERM|Caught signal (?:15|2)\b|\^C|terminated by signal 15",
        example="*** SIGTERM received at time=1796052600 on cpu 0 ***",
    ),
    Mark(
        id="raylet-stop", means="stop", words="sigterm graceful",
        pattern=r"received SIGTERM; draining|received SIGTERM\. Existing local drain"
        r"|graceful shutdown triggered with death info: reason: (?!UNEXPECTED)",
        example="[2026-11-30 19:53:17,860 I 13 13] (raylet) main.cc:481: Raylet graceful shutdown triggered with death info: reason: "
        "EXPECTED_TERMINATION",
    ),
    Mark(
        id="service-stop", means="stop", words="stopping stopped scancel cancelled deleting terminating scaled killing",
        pattern=r"systemd\[\d+\]: Stopp(?:ing|ed) |JOB \d+ ON \S+ CANCELLED AT (?!.*DUE TO TIME LIMIT)"
        r"|Killing\s+.*Stopping container|Scaled down replica set|Stopping container",
        example="Nov 02 10:30:00 gpu01 systemd[1]: Stopping vllm.service - vLLM server...",
    ),
    Mark(
        id="uvicorn-stop", means="stopping", words="shutting finished application",
        pattern=r"^INFO:\s+Shutting down|Application shutdown complete|Finished server process",
        example="INFO:     Shutting down",
    ),
    # Where in the program an exception came from.
    Mark(
        id="frame-weights", means="frame-weights",
        words="create_weights load_model load_weights initialize_model fusedmoe get_model __init__ model_loader "
        "process_weights_after_loading",
        pattern=r", in (?:create_weights|load_model|load_weights|initialize_model|get_model"
        r"|process_weights_after_loading)\b|/model_loader/|/models/\w+\.py\", line \d+, in __init__",
        example='  File "/opt/vllm/v1/worker/gpu_worker.py", line 594, in load_model',
    ),
    Mark(
        id="frame-runtime", means="frame-runtime",
        words="capture_model execute_model profile_run _dummy_run _dummy_sampler_run compile_or_warm_up_model "
        "determine_available_memory sample_tokens warm_up_model kernel_warmup",
        pattern=r", in (?:capture_model|execute_model|profile_run|_dummy_run|_dummy_sampler_run"
        r"|compile_or_warm_up_model|determine_available_memory|sample_tokens|warm_up_model|kernel_warmup)\b",
        example='  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 4012, in capture_model',
    ),
    Mark(
        id="frame-kv", means="frame-kv",
        words="initialize_kv_cache _allocate_kv_cache _allocate_kv_cache_tensors initialize_from_config initialize_cache",
        pattern=r", in (?:initialize_kv_cache|_allocate_kv_cache\w*|initialize_from_config|initialize_cache)\b",
        example='  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 4012, in initialize_kv_cache',
    ),
    Mark(
        id="frame-shm", means="frame-shm", words="shared_memory shm_broadcast sharedmemory",
        pattern=r"/shared_memory\.py\"|/shm_broadcast\.py\"|SharedMemory\(",
        example='  File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 104, in __init__',
    ),
    Mark(
        id="frame-header", means="frame-header", words="parse_safetensors_file_metadata get_safetensors_params_metadata length_of_metadata safe_open",
        pattern=r", in (?:parse_safetensors_file_metadata|get_safetensors_params_metadata)\b|f\.read\(length_of_metadata\)",
        example='  File "/opt/vllm/transformers_utils/repo_utils.py", line 88, in parse_safetensors_file_metadata',
    ),
    # What follows is told and borne: a side service that is done without.
    Mark(
        id="tolerated", means="tolerated", words="metrics ignored usage telemetry",
        pattern=r"[Ee]xception occurred while starting the metrics server|Exception ignored in\b|Failed to (?:start|launch) (?:the )?metrics"
        r"|Failed to (?:report|send|collect) (?:usage|telemetry)",
        example="2026-11-30 17:48:10,283\tERROR monitor.py:218 -- An exception occurred while starting the metrics server.",
    ),
    # What the decisions ask for.
    Mark(
        id="nccl-bootstrap", means="address", words="bootstrap",
        pattern=r"Bootstrap ?: ?Using (?P<nic>[\w.@-]+):(?P<addr>[^<\s]+)",
        example="gpu:77:77 [0] NCCL INFO Bootstrap : Using ens3:172.16.0.16<0>",
    ),
    Mark(
        id="ray-gpus", means="gpus", words="gpu",
        pattern=r"(?:^|[\s:|\]])\s*(?P<used>[\d.]+)/(?P<total>[\d.]+) GPU\b(?: \((?P<pgused>[\d.]+) used of (?P<reserved>[\d.]+) reserved)?",
        example=" 8.0/8.0 GPU (8.0 used of 8.0 reserved in placement groups)",
    ),
    Mark(
        id="node-resources", means="resources", words="node",
        pattern=r"(?P<resources>\{[^{}]*'node:[\d.]+'[^{}]*\})",
        example="Total: {'CPU': 96.0, 'memory': 1.0e12, 'node:10.0.0.12': 1.0}",
    ),
    Mark(
        id="driver-version", means="driver", words="driver",
        pattern=r"Driver Version: (?P<driver>\d+\.\d+[\d.]*)",
        example="| NVIDIA-SMI 535.161.07   Driver Version: 535.161.07   CUDA Version: 12.2 |",
    ),
    Mark(
        id="nixl", means="side-channel", words="nixl side_channel nixl_connector nixlconnector vllm_nixl_side_channel_host",
        pattern=r"(?i)nixl.{0,80}(?:side.?channel|handshake|agent|connector)|VLLM_NIXL_SIDE_CHANNEL|nixl_connector",
        example='  File "/opt/vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py", line 402, in __init__',
    ),
    Mark(
        id="env-forwarded", means="env-forwarded", words="copying environment forwarding",
        pattern=r"(?:[Cc]opying|[Ff]orwarding).{0,80}environment variables.{0,400}(?:_IFNAME|HOST_IP|SIDE_CHANNEL)",
        example="INFO 11-02 10:00:10 [ray_env.py:65] Copying the following environment variables to workers: ['NCCL_SOCKET_IFNAME']",
    ),
    Mark(
        id="quote", means="quote", words="prompt content",
        pattern=r"(?:\b[Pp]rompt['\"]?: ?|[\"'](?:content|prompt)[\"']: ?|\bprompt=)['\"]",
        example="INFO 11-02 10:00:10 [logger.py:42] Received request cmpl-1: prompt: 'Explain: CUDA out of memory', params: x",
    ),
    Mark(
        id="section", means="section", words="log out err",
        pattern=r"^(?:==> (?P<section>\S.*?) <==$|(?:=+|-+|#+) ?(?:file|log|node|host)?:? ?(?P<named>[\w./-]+\.(?:log|out|err))"
        r" ?[=#-]*$)",
        example="==> /var/log/vllm/node-b.log <==",
    ),
)  # fmt: skip
