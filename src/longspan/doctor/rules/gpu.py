"""Texts of CUDA, the driver and the GPU itself, and of its memory."""

from longspan.doctor.rules.rule import Rule

_VLLM = "https://github.com/vllm-project/vllm/issues/"

RULES: tuple[Rule, ...] = (
    Rule(
        id="no-gpu", cause="no-gpu-detected", words="infer gpus nvidia device devices nvml cuda libcuda", weight=0.9, launch_only=True,
        pattern=r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE"
        r"|couldn't communicate with the NVIDIA driver|Failed to initialize NVML: (?:Driver Not Loaded|Unknown Error)|could not select device driver"
        r"|NVML Shared Library Not Found|you might not have a CUDA gpu|libcuda\.so\.1: cannot open|Device string must not be empty"
        r"|NVMLError_(?:LibraryNotFound|DriverNotLoaded|NoPermission)|nvidia-container-cli: (?:initialization error|device error)"
        r"|No devices were found|CUDA unknown error - this may be due",
        example="RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
    ),
    Rule(
        id="driver-old", cause="driver-too-old", words="driver cuda ptx", weight=0.93, launch_only=True,
        pattern=r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|cudaErrorInsufficientDriver"
        r"|unsatisfied condition: cuda>=|PTX was compiled with an unsupported toolchain|update your (?:GPU|NVIDIA) driver|driver \S+ is older than|NVIDIA Driver was not detected or is too old"
        r"|container was built for NVIDIA Driver Release .{0,120}compatibility mode is UNAVAILABLE",
        example="RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
        source="https://github.com/modelscope/FunASR/issues/2973",
    ),
    Rule(
        id="cuda-803-804", cause="cuda-driver-mismatch", words="error forward driver api mismatch unsupported cudagetdevicecount", weight=0.93, launch_only=True,
        pattern=r"(?i:error):? 80[34]\b|unsupported display driver / cuda driver combination|forward compatibility was attempted on non supported"
        r"|Driver/library version mismatch|API mismatch: the client has the version|cudaError(?:SystemDriverMismatch|CompatNotSupportedOnDevice)",
        example="RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW",
        source="https://github.com/gpustack/gpustack/issues/1254", also=("driver-too-old",),
    ),
    Rule(
        id="cuda-802", cause="fabricmanager-down", words="error progress manager fabric fabricmanager nvswitch system cuda_error_system_not_ready cudaerrorsystemnotready",
        weight=0.93, any_level=True,
        pattern=r"(?i:error):? 802\b|cudaGetDeviceCount\S* returned 802|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|[Ff]abric ?[Mm]anager.{0,80}(?:not running|[Ff]ailed|FAILURE|mismatch|inactive|(?:don't|doesn't|not) match)"
        r"|^\s*State\s+: In Progress|NVSwitch.{0,60}(?:not initiali|failed to initiali)",
        example="RuntimeError: CUDA error: system not yet initialized",
        source="https://github.com/MiniMax-AI/MiniMax-M2.5/issues/9",
    ),
    Rule(
        id="gpu-arch", cause="gpu-arch-unsupported", words="kernel compute capability cuda ampere gpu architecture ptxas supported", weight=0.9, launch_only=True,
        pattern=r"no kernel image is available|compute capability \(CC\).{0,120}built for|is only supported on GPUs with compute capability"
        r"|not supported for the current GPU\. Minimum capability|is not compatible with the current PyTorch installation|Unsupported gpu architecture"
        r"|only supports Ampere GPUs or newer|ptxas fatal +:.*sm_\d+|not supported in this architecture|requires (?:a GPU with )?compute capability"
        r"|[Mm]inimum (?:cuda )?capability.{0,40}[Cc]urrent|compute capability not supported|is only supported on (?:Ampere|Hopper|Blackwell|Ada)",
        example="torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        source="https://github.com/vllm-project/vllm/pull/39878",
    ),
    Rule(
        id="gpu-ecc", cause="gpu-hardware-fault", words="ecc bus xid lost uncorrectable nvlink", weight=0.94, any_level=True,
        pattern=r"uncorrectable (?:ECC|NVLink) error|cudaErrorECCUncorrectable|fallen off the bus|NVLink.{0,30}(?:fatal|uncorrectable) error"
        r"|NVRM: Xid \([^)]*\): (?:48|64|74|79|92|94|95|110|119|120|121|122|123|124|136|140|143|144|145|146|147|148|149|150|151|154|155|156)\b"
        r"|GPU is lost|\bERR!",
        example="Nov 02 12:00:01 gpu02 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4212, name=python, GPU has fallen off the bus.",
        source="https://docs.nvidia.com/deploy/xid-errors/",
    ),
    Rule(
        id="cuda-launch-failure", cause="gpu-hardware-fault", kind="symptom", words="unspecified hardware misaligned", weight=0.55,
        pattern=r"CUDA error: unspecified launch failure|CUDA error: hardware stack error|unspecified launch failure",
        example="RuntimeError: CUDA error: unspecified launch failure",
        source=_VLLM + "27430", question="dmesg: an Xid at that second? `nvidia-smi`: ERR! in any column?",
    ),
    Rule(
        id="duplicate-gpu", cause="duplicate-gpu", words="duplicate", weight=0.95,
        pattern=r"Duplicate GPU detected",
        example="n1:7:9 [0] init.cc:891 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
        source="https://github.com/huggingface/trl/pull/3310",
    ),
    Rule(
        id="invalid-ordinal", cause="duplicate-gpu", kind="symptom", words="ordinal", weight=0.5, launch_only=True, also=("parallel-config-invalid", "gpu-not-visible-to-ray"),
        pattern=r"invalid device ordinal",
        example="RuntimeError: CUDA error: invalid device ordinal",
        source="https://github.com/vllm-project/vllm/issues/3610", question="How many GPUs are in CUDA_VISIBLE_DEVICES, and how many local ranks?",
    ),
    Rule(
        id="cuda-generic", cause="insufficient-evidence", kind="generic", words="cuda cublas_status_not_initialized cublas_status_execution_failed", weight=0.45,
        pattern=r"CUDA error: (?:an illegal memory access|device-side assert|unknown error|misaligned address|an illegal instruction|the launch timed out)"
        r"|CUBLAS_STATUS_(?!ALLOC_FAILED)\w+",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        remedy="Run once with CUDA_LAUNCH_BLOCKING=1 and --enforce-eager and send the first traceback of every rank, and dmesg.",
    ),
    # Memory.
    Rule(
        id="gpu-memory-taken", cause="gpu-memory-taken", words="free memory busy", weight=0.93, launch_only=True,
        pattern=r"Free memory on device.{0,80}on startup is less than|Free memory on device.{0,200}less than desired GPU memory utilization"
        r"|Error in memory profiling\. Initial free memory|less than the engine's budget|CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable",
        example="ValueError: Free memory on device (12.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).",
        source="https://github.com/pytorch/pytorch/issues/175666", question="`nvidia-smi`: which process holds the memory?",
    ),
    Rule(
        id="cuda-oom", cause="oom-runtime", decide="cuda_oom", words="outofmemoryerror memory cudaerrormemoryallocation cuda_error_out_of_memory cublas_status_alloc_failed cudnn_status_alloc_failed", weight=0.9,
        pattern=r"(?:CUDA|HIP|XPU) out of memory|(?:torch(?:\.cuda)?\.)OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|[Cc]uda failure (?:2 )?'out of memory'|\bCU(?:BLAS|DNN)_STATUS_ALLOC_FAILED",
        also=("oom-weights", "gpu-memory-taken"),
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 79.25 GiB of which "
        "2.11 GiB is free.",
        source=_VLLM + "15598", question="Was it while loading, while capturing or while serving, and does another process hold memory?",
    ),
    Rule(
        id="oom-sampler", cause="oom-runtime", words="warming sampler", weight=0.95,
        pattern=r"out of memory occurred when warming up",
        example="RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
        source=_VLLM + "14452", remedy="Lower --max-num-seqs or --gpu-memory-utilization.",
    ),
    Rule(
        id="oom-load", cause="oom-weights", words="load enough", weight=0.95,
        pattern=r"Failed to load model - not enough GPU memory|not enough (?:GPU )?memory to load the model",
        example="ERROR 11-02 10:01:00 [gpu_model_runner.py:5079] Failed to load model - not enough GPU memory.",
        source="vllm 0.33.0 source: vllm/v1/worker/gpu_model_runner.py:5079",
    ),
    Rule(
        id="kv-too-small", cause="oom-kv-cache", words="cache kv", weight=0.95, launch_only=True,
        pattern=r"No available memory for the cache blocks|KV cache is needed|To serve at least one request with the models?'s? max|is larger than the maximum number of tokens that can be stored"
        r"|larger than the available KV cache memory|KV cache.{0,40}(?:not|in)sufficient",
        example="ValueError: To serve at least one request with the model's max seq len (131072), (4.54 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (1.71 GiB).",
        source=_VLLM + "27508",
    ),
)  # fmt: skip
