"""The causes that the doctor can name: what each means, what to do, and how to take that back.

The ids follow the taxonomy that the labelled logs use; two more are ours: a provider's refusal, and arguments of the engine
that are not about parallelism.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause.

    Attributes:
        surface: it is often brought about by a deeper cause elsewhere, which is preferred where both are seen.
        ask: what to collect when this cause is only suspected.
    """

    id: str
    layer: str
    summary: str
    remedy: str
    undo: str = ""
    surface: bool = False
    ask: str = ""


def _cause(
    name: str, layer: str, summary: str, remedy: str, undo: str = "", *, surface: bool = False, ask: str = ""
) -> Cause:
    return Cause(name, layer, summary, remedy, undo, surface, ask)


_TABLE: tuple[Cause, ...] = (
    _cause("nccl-wrong-interface", "network", "NCCL uses a network interface that the other nodes cannot reach.",
           "Set NCCL_SOCKET_IFNAME to the NIC that carries the node's address, on every node, before its workers start.",
           "Unset NCCL_SOCKET_IFNAME.", surface=True, ask="NCCL_DEBUG=INFO lines and `ip -br addr` of both nodes"),
    _cause("gloo-wrong-interface", "network", "Gloo's CPU group uses an interface that is missing, loopback or unroutable.",
           "Set GLOO_SOCKET_IFNAME to the cluster NIC of each node, and map the host name to its routable address in /etc/hosts.",
           "Unset GLOO_SOCKET_IFNAME; restore /etc/hosts.", surface=True, ask="`getent hosts $(hostname)` and `ip -br addr` of every node"),
    _cause("host-ip-mismatch", "network", "A node advertises an address that the others cannot route to, or vLLM and Ray disagree about it.",
           "Give `ray start --node-ip-address` and VLLM_HOST_IP the same routable address, a different one on each node; use host networking in containers.",
           "Unset VLLM_HOST_IP.", surface=True, ask="`ray list nodes` and VLLM_HOST_IP of every node"),
    _cause("port-blocked", "network", "A peer's TCP port cannot be reached although its address is right.",
           "Open the ports between the nodes in both directions, start rank 0 first, and try `nc -vz PEER PORT`.",
           "Close the ports again.", surface=True, ask="`nc -vz PEER PORT` in both directions"),
    _cause("nccl-peer-died-first", "network", "Another rank or node ended first; what this log shows are the consequences.",
           "Read the log of the process that ended first; then restart the whole group. Raising timeouts only delays the news.",
           surface=True, ask="the log of the rank or node that went away first"),
    _cause("collective-desync", "network", "The ranks wait in different collectives, so that none can finish.",
           "Look for what makes ranks take different paths (all2all backend, data-parallel padding, EPLB) and change it or upgrade.",
           ask="the watchdog lines of every rank"),
    _cause("collective-hang", "network", "All ranks reached the same step and none finished it: a stuck kernel, the fabric or a lost message.",
           "Take py-spy stacks and the NCCL flight recorder of every rank before restarting; then narrow down with NCCL_IB_DISABLE=1, "
           "--disable-custom-all-reduce or --enforce-eager, one at a time.", "Remove the flag that made no difference.",
           ask="py-spy stacks and watchdog lines of every rank, GPU power"),
    _cause("nccl-init-hang", "network", "The launch stopped while the ranks were building their communicators; nothing reports an error.",
           "Run again with NCCL_DEBUG=INFO, and with NCCL_IB_DISABLE=1 to tell fabric from the rest; run all_reduce_perf over the same nodes; "
           "where TP spans hosts add --disable-custom-all-reduce.", "Remove the variables.", ask="NCCL_DEBUG=INFO output and py-spy stacks of every rank"),
    _cause("nccl-env-mismatch", "network", "NCCL's version or settings differ between the nodes.",
           "Use one image and the same NCCL_* variables on every node; NCCL_PROTO=SIMPLE confirms it.", "Unset NCCL_PROTO."),
    _cause("ib-gid-mismatch", "network", "The RDMA endpoints use GIDs of different kinds, or one without a route.",
           "Set NCCL_IB_GID_INDEX to the RoCE v2 IPv4 entry that `show_gids` lists on every node.", "Unset NCCL_IB_GID_INDEX."),
    _cause("ib-transport-error", "network", "An RDMA transfer was given up: packets lost, a port or cable down, or a dead peer.",
           "Run ib_write_bw between the two nodes, then check port state, cable, PFC/ECN and MTU. NCCL_IB_TIMEOUT only buys time."),
    _cause("ib-cross-rail", "network", "Two NICs of different rails tried to connect on a fabric that keeps rails apart.",
           "Set NCCL_CROSS_NIC=0 and the same order in NCCL_IB_HCA on every node.", "Unset NCCL_CROSS_NIC."),
    _cause("memlock-limit", "container", "Memory could not be registered for RDMA because the locked-memory limit is too low.",
           "Give the container --ulimit memlock=-1 and IPC_LOCK (systemd: LimitMEMLOCK=infinity); check `ulimit -l` inside the job."),
    _cause("shm-too-small", "container", "/dev/shm is too small, or full of segments of earlier runs.",
           "Give the container --shm-size=16g, --ipc=host or a memory-backed emptyDir, and remove stale /dev/shm/nccl-* and psm_* while nothing runs."),
    _cause("custom-allreduce-failed", "network", "vLLM's custom all-reduce could not share GPU memory between its ranks.",
           "Add --disable-custom-all-reduce (always, where TP spans hosts) and unset expandable_segments.", "Remove the flag."),
    _cause("ibgda-unavailable", "network", "NVSHMEM could not start its IBGDA transport.",
           "Set the driver options for IBGDA, load GDRCopy and run privileged, or choose another --all2all-backend.", "Reset the backend."),
    _cause("node-env-forwarded", "network", "A value that belongs to the driver's node (address, NIC name) was applied on another node.",
           "Set it on each node by itself and name it in ray_non_carry_over_env_vars.json, so that it is not forwarded.", "Remove the entry.", surface=True),
    _cause("ray-head-unreachable", "ray", "A node or client cannot reach the Ray head.",
           "Start the head first, pass its full address (--address=HEAD:6379) and open that port.", surface=True, ask="`nc -vz HEAD 6379` from the node"),
    _cause("ray-node-lost", "ray", "Ray declared a node dead.",
           "Look at that node (dmesg, power, network) and at its ports in both directions; then restart the whole group.", surface=True,
           ask="raylet.err and dmesg of that node"),
    _cause("version-mismatch-ray", "ray", "Head and node run different versions of Ray or Python.",
           "Use one image on all nodes, down to Python's patch version."),
    _cause("ray-auth-mismatch", "ray", "Ray asks for a token that this node does not have, or it has another one.",
           "Copy the head's ~/.ray/auth_token (or set RAY_AUTH_TOKEN and RAY_AUTH_MODE) on every node."),
    _cause("ray-not-installed", "ray", "Ray is missing in the environment that should start it.",
           "Install ray into that image, or use the mp executor with --nnodes and --node-rank."),
    _cause("worker-env-differs", "ray", "A node's Python environment lacks something that the others have.",
           "Use one environment on all nodes and run `ray start` from it."),
    _cause("gpu-not-visible-to-ray", "ray", "Ray knows of no GPU, or too few, on a node that should have them.",
           "Start Ray where nvidia-smi works, with --num-gpus and without a stray CUDA_VISIBLE_DEVICES; run the driver on a GPU node.", ask="`ray list nodes` and nvidia-smi -L of every node"),
    _cause("placement-group-unsatisfied", "ray", "The cluster has fewer free GPUs than the plan asks for.",
           "See `ray status`, wait for all nodes, or lower TP, PP or DP.", surface=True, ask="`ray status` while it waits"),
    _cause("stale-placement-group", "ray", "The GPUs exist but another placement group holds them.",
           "Find it with `ray list placement-groups` and remove it, or launch inside it.", surface=True, ask="`ray list placement-groups`"),
    _cause("ray-cgraph-timeout", "ray", "A channel of Ray's compiled graph timed out.",
           "Use a vLLM with the Ray executor V2 (0.23 or newer), or raise RAY_CGRAPH_get_timeout before the start.", "Unset it."),
    _cause("worker-killed", "process", "A worker process was killed or crashed and the log does not say why.",
           "Look in that node's dmesg for oom-kill, segfault or Xid at that second and in the worker's own log; then restart the group.",
           surface=True, ask="dmesg -T and the worker's own log of that node"),
    _cause("no-gpu-detected", "gpu", "vLLM sees no GPU or no driver.",
           "Make nvidia-smi work in the same container first: container toolkit, --gpus all, device plugin."),
    _cause("driver-too-old", "gpu", "The NVIDIA driver is older than the CUDA of the installed wheel needs.",
           "Upgrade the driver on that node, or install a wheel for an older CUDA.", "Reinstall the former driver."),
    _cause("cuda-driver-mismatch", "gpu", "CUDA's user-space libraries and the kernel driver do not fit together.",
           "Take cuda-compat off the library path, use a matching image, and reboot after a driver update."),
    _cause("fabricmanager-down", "gpu", "The NVSwitch fabric is not initialised.",
           "Start nvidia-fabricmanager of exactly the driver's version."),
    _cause("gpu-arch-unsupported", "gpu", "The wheel or a kernel has no code for this GPU.",
           "Use a wheel built for this compute capability, build from source, or take another GPU or quantisation."),
    _cause("gpu-hardware-fault", "gpu", "A GPU or its link reports a hardware fault.",
           "Drain the node, reset the GPU or reboot, and have it replaced if it happens again.", "Restore the node."),
    _cause("duplicate-gpu", "gpu", "Two ranks were given the same GPU.",
           "Correct CUDA_VISIBLE_DEVICES, the local ranks or --data-parallel-size-local."),
    _cause("gpu-memory-taken", "memory", "Another process already holds memory of the GPU.",
           "End the left-over process that nvidia-smi shows, or lower --gpu-memory-utilization.", "Raise it again."),
    _cause("oom-weights", "memory", "GPU memory ran out while the model was built or its weights loaded.",
           "Use more GPUs or a larger TP x PP, balance the stages (VLLM_PP_LAYER_PARTITION), or take quantised weights."),
    _cause("oom-kv-cache", "memory", "The weights fit but the KV cache does not hold one request of max_model_len.",
           "Lower --max-model-len to the length that the message names, raise --gpu-memory-utilization, use an FP8 KV cache or more GPUs.", "Reset the value."),
    _cause("oom-runtime", "memory", "GPU memory ran out after loading: at warm-up, graph capture or while serving.",
           "Lower --gpu-memory-utilization, --max-num-seqs, --max-num-batched-tokens or the capture sizes.", "Reset the value."),
    _cause("oom-host-ram", "memory", "The host or container ran out of main memory and something was killed.",
           "Raise the memory limit, load with fewer processes at once, or set RAY_memory_usage_threshold.", "Reset the threshold."),
    _cause("heads-not-divisible", "config", "The attention heads cannot be divided by the tensor-parallel size.",
           "Choose TP among the divisors of the heads and use PP for the rest."),
    _cause("experts-not-divisible", "config", "The physical experts cannot be divided by the expert-parallel size.",
           "Choose another EP size, or set num_redundant_experts."),
    _cause("fp8-block-not-divisible", "config", "At this TP a quantised weight's shard is no multiple of its block.",
           "Lower TP, use EP or PP for the rest, or take an unquantised checkpoint."),
    _cause("pp-not-supported", "config", "This model's class cannot be split into pipeline stages.",
           "Use TP or EP across nodes, or a newer vLLM."),
    _cause("parallel-config-invalid", "config", "The parallel flags contradict each other or the machine.",
           "Correct the flags as the message says; name --distributed-executor-backend ray, or mp with --nnodes."),
    _cause("arguments-invalid", "config", "vLLM refused one of its arguments.",
           "Correct the argument that the message names; `vllm serve --help=KEYWORD` lists what it takes."),
    _cause("model-arch-unsupported", "config", "The installed vLLM or Transformers does not know this architecture.",
           "Upgrade vLLM and Transformers, or use vLLM's Transformers backend."),
    _cause("trust-remote-code", "config", "The repository needs its own code, and trust was not given.",
           "Read that code; then add --trust-remote-code on all nodes.", "Remove the flag."),
    _cause("model-path-missing", "model", "The model's path does not exist on that node, so that vLLM takes it for a repository.",
           "Put the model at the same absolute path on every node, or name the repository."),
    _cause("hf-auth", "model", "Hugging Face refused access: gated or private repository, or a missing or wrong token.",
           "Accept the licence on the model's page and set HF_TOKEN on every node."),
    _cause("hf-download-failed", "model", "The hub cannot be reached, or offline mode is on without a cached copy.",
           "Check network, proxy and HF_ENDPOINT, or download first (`longspan stage`) and set HF_HUB_OFFLINE=1.", "Unset HF_HUB_OFFLINE."),
    _cause("weights-corrupt", "model", "A weight file is truncated, a git-lfs pointer, or otherwise unreadable.",
           "Compare size and sha256 with the hub and copy or download that shard again."),
    _cause("disk-full", "host", "A file system is full.", "Free space, or move HF_HOME or the temporary directory.", "Move it back."),
    _cause("port-in-use", "host", "A local port that should be listened on is taken.",
           "Stop the old process (`ss -ltnp`), or choose another --port or --master-port.", surface=True),
    _cause("insufficient-evidence", "verdict", "These logs show that something failed and not what.",
           "Send the lines above the first error, every other rank's and node's log, and a run with NCCL_DEBUG=INFO."),
    _cause("provider-auth", "provider", "An outside provider refused the key (401), or the base URL is not its API's.",
           "Check the key's variable and the base URL (most end in /v1) with one `curl BASE/models`."),
)  # fmt: skip

CAUSES: dict[str, Cause] = {cause.id: cause for cause in _TABLE}
