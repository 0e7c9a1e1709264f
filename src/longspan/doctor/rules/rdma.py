"""Texts of InfiniBand, RoCE, NVSHMEM and of addresses that belong to another node."""

from longspan.doctor.rules.rule import Rule

_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_TESTS = "https://github.com/NVIDIA/nccl-tests/issues/"

RULES: tuple[Rule, ...] = (
    Rule(
        id="ib-completion-status", cause="ib-transport-error", decide="ib_completion", words="completion", weight=0.85,
        also=("ib-gid-mismatch",),
        pattern=r"Got completion from peer (?P<peer>\S+)? ?with status=(?:\w+\()?(?P<status>\d+)",
        example="n1:7:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.12<40631> with "
        "status=12 opcode=129 len=0 vendor err 129 (Recv) localGid ::ffff:10.0.0.11 remoteGids ::ffff:10.0.0.12",
        source=_NCCL + "1405", question="Does `ib_write_bw` between this pair with the same device and GID index pass?",
    ),
    Rule(
        id="ib-completion-error", cause="ib-gid-mismatch", decide="ib_completion", words="completion", weight=0.75,
        also=("ib-transport-error",),
        pattern=r"Got completion with error (?P<status>\d+)",
        example="n1:7:9 [0] transport/net_ib.cc:832 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
        source=_NCCL + "426", versions="older NCCL",
    ),
    Rule(
        id="ib-modify-qp", cause="ib-transport-error", decide="ib_modify_qp", words="ibv_modify_qp qp", weight=0.85,
        also=("ib-gid-mismatch", "ib-cross-rail"),
        pattern=r"ibv_modify_qp failed with (?:error )?(?P<why>[^,\n]+)|[Ff]ailed to modify QP to RT[RS]:? (?P<why2>[^,\n]+)",
        example="n1:7:9 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, "
        "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.2",
        source=_NCCL + "2013",
        question="Are both GIDs of the same kind and on the same rail's subnet (`show_gids` on both nodes)?",
    ),
    Rule(
        id="ib-port-error", cause="ib-transport-error", words="catastrophic async port mlx5_core retry_exc transport ibv_wc_retry_exc_err",
        weight=0.85,
        pattern=r"NET/IB ?:.*(?:[Gg]ot async(?:hronous)? event ?:? ?(?:\w+ ){0,2}port (?:error|down)|port error|[Ff]atal async event)"
        r"|IBV_WC_RETRY_EXC_ERR|[Tt]ransport retry count(?:er)? exceeded|mlx5_core .*(?:[Ll]ink [Dd]own|[Pp]ort: ?\d.*down)"
        r"|IBV_EVENT_PORT_ERR|local catastrophic error",
        example="n1:7:9 [0] transport/net_ib.cc:230 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        source="https://docs.nvidia.com/networking/display/rdmaawareprogrammingv17",
    ),
    Rule(
        id="ib-gid-named", cause="ib-gid-mismatch", words="gid", weight=0.8,
        pattern=r"NCCL WARN .*\bGID\b.{0,60}(?:invalid|not found|[Nn]o valid|mismatch|does not exist)|[Nn]o valid GID",
        example="n1:7:9 [0] NCCL WARN NET/IB : no valid GID found on mlx5_0:1",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index",
    ),
    Rule(
        id="ib-mtu", cause="ib-transport-error", words="mtu active_mtu", weight=0.8,
        pattern=r"(?i)(?:\b|_)mtu\b.{0,40}(?:mismatch|differ|not equal|inconsistent)|(?:mismatch|differ)\w*.{0,40}(?:\b|_)mtu\b",
        example="n1: active_mtu mismatch: mlx5_0 4096 here, 1024 on node-2",
        source="https://github.com/NVIDIA/nccl/issues/1405",
        remedy="Set the same MTU on both ports and on the switch (`ibv_devinfo`, `ip link`), then run ib_write_bw.",
    ),
    # Registered memory.
    Rule(
        id="ib-reg-mr", cause="memlock-limit", words="ibv_reg_mr ibv_reg_mr_iova2 ibv_reg_dmabuf_mr ibv_create_cq ibv_create_qp "
        "ibv_reg_mr_iova registration",
        weight=0.92,
        pattern=r"ibv_reg_\w*mr\w*\b.{0,60}failed(?:.{0,40}(?:Cannot allocate memory|errno ?=? ?12|\b12\b)|\s*$)"
        r"|ibv_create_(?:cq|qp)\b.{0,20}failed(?!.{0,40}(?:Invalid|not supported))|[Mm]emory registration failed.{0,60}(?:memlock|Cannot allocate)",
        example="n1:7:9 [0] misc/ibvwrap.cc:184 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        source=_TESTS + "206", question="What does `ulimit -l` print inside the job or container?",
    ),
    Rule(
        id="memlock-named", cause="memlock-limit", words="memlock locked rlimit_memlock",
        pattern=r"RLIMIT_MEMLOCK|max(?:imum)? locked memory.{0,80}(?:unlimited|too (?:low|small)|limit)|memlock.{0,40}too (?:low|small)"
        r"|locked memory limit",
        example="ib_mlx5_log.c:177 UCX  ERROR ibv_reg_mr(address=0x7f, length=8) failed: Cannot allocate memory : Please set max "
        "locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
        source="https://github.com/openucx/ucx/wiki",
    ),
    # NVSHMEM and DeepEP.
    Rule(
        id="ibgda-init", cause="ibgda-unavailable", words="ibgda mlx5dv_devx_uar cpp nvshmem nvshmemi_transport_init buffer",
        weight=0.92,
        pattern=r"init failed for transport: IBGDA|ibgda\.cpp\b.{0,8}(?:NULL value|non-zero status|[Uu]nable)|cannot allocate mlx5dv_devx_uar|device mlx5_\d+ cannot allocate buffer on the specified memory type"
        r"|IBGDA.{0,60}(?:fail|not (?:supported|available)|unable)",
        example="/src/nvshmem/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA",
        source="https://github.com/deepseek-ai/DeepEP/issues/139",
    ),
    Rule(
        id="nvshmem-init", cause="ibgda-unavailable", kind="symptom", weight=0.7, words="nvshmem gdrcopy gdrdrv nvshmemx_init_attr",
        pattern=r"nvshmem setup connections? failed|NVSHMEM API called before NVSHMEM initialization|nvshmem\w* init(?:ialization)? failed"
        r"|(?:GDRCopy|gdrcopy).{0,40}(?:open|init)\w* (?:call )?failed|aborting due to error in nvshmemi_init_thread",
        example="/src/nvshmem/src/host/init/init.cu:1047: non-zero status: 7 nvshmem setup connections failed",
        source="https://github.com/NVIDIA/nvshmem/issues/33",
    ),
    Rule(
        id="deepep-timeout", cause="collective-hang", kind="symptom", weight=0.6, words="deepep",
        pattern=r"DeepEP.{0,40}[Tt]imeout|DeepEP error: CPU recv timeout|DeepEP (?:dispatch|combine).{0,40}timeout",
        example="DeepEP timeout for dispatch RDMA receive, channel: 3, RDMA: 1, nvl: 4",
        source="https://github.com/deepseek-ai/DeepEP/blob/main/csrc/kernels/internode.cu",
    ),
    # Custom all-reduce.
    Rule(
        id="custom-all-reduce", cause="custom-allreduce-failed", words="custom_all_reduce register_graph_buffers get_graph_buffer_ipc_meta cuda_ipc open_mem_handle init_custom_ar cuh cudart",
        weight=0.93,
        pattern=r"custom_all_reduce\.cuh?:\d+\D{0,3}'|[Cc]uda [Ee]rror \S*custom_all_reduce|, in (?:init_custom_ar|open_mem_handle|register_graph_buffers|get_graph_buffer_ipc_meta)\b|ops\.init_custom_ar\(|CUDART error: (?!out of memory)|custom_all_reduce.{0,80}(?:failed|Error)",
        example="Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
        source="https://github.com/vllm-project/vllm/issues/42609",
        question="Does the tensor-parallel group span hosts, or is expandable_segments set in PYTORCH_CUDA_ALLOC_CONF?",
    ),
    # Addresses of another node.
    Rule(
        id="cannot-assign", cause="node-env-forwarded", decide="cannot_assign", also=("host-ip-mismatch",), weight=0.8,
        words="assign errno",
        pattern=r"Cannot assign requested address(?: ?\(addr='(?P<addr>[^']*)')?|[Ee]rrno:? ?99\b",
        example="zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.11:5600')",
        source="https://github.com/ai-dynamo/dynamo/issues/2706",
        question="Whose address is it: the driver's (forwarded) or an old one of this node (VLLM_HOST_IP)?",
    ),
    Rule(
        id="unique-ip", cause="host-ip-mismatch", words="unique", weight=0.95, versions="vLLM < 0.23",
        pattern=r"Every node should have a unique IP address",
        example="RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['1f', '9c'] and 3 unique IP "
        "addresses {'192.168.1.50', '10.0.0.1', '10.0.0.2'}.",
        source="https://github.com/vllm-project/vllm/pull/43095",
    ),
    Rule(
        id="host-ip-named", cause="host-ip-mismatch", words="vllm_host_ip", weight=0.8, launch_only=True,
        pattern=r"(?i)(?:vllm_host_ip|host ip).{0,120}(?:does not match|differs|mismatch|is not (?:one of|in|an address|reachable)|not unique"
        r"|not assigned)",
        example="ValueError: VLLM_HOST_IP (172.17.0.2) does not match the Ray node address 10.0.0.12",
        source="https://github.com/vllm-project/vllm/issues/7815",
    ),
    Rule(
        id="name-unresolved", cause="host-ip-mismatch", kind="wait", phase=3, weight=0.55, words="gai gaierror resolve", any_level=True,
        pattern=r"network addresses of \(\S+, \d+\) cannot be retrieved \(gai error|socket\.gaierror: \[Errno -[235]\]", also=("port-blocked",),
        example="[W socket.cpp:601] [c10d] The IPv4 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2 - Name or service "
        "not known).",
        source="https://github.com/vllm-project/vllm/issues/570", question="`getent hosts NAME` on this node: does the head's name resolve?",
    ),
    Rule(
        id="no-ip", cause="host-ip-mismatch", kind="wait", phase=4, weight=0.6, words="vllm_host_ip",
        pattern=r"Failed to get the IP address, using 0\.0\.0\.0",
        example="WARNING 11-02 10:00:00 [network_utils.py:40] Failed to get the IP address, using 0.0.0.0 by default.The value can "
        "be set by the environment variable VLLM_HOST_IP or HOST_IP.",
        source="vllm 0.32.0 source: vllm/utils/network_utils.py",
    ),
    Rule(
        id="node-resource-missing", cause="host-ip-mismatch", words="fulfill infeasible", weight=0.85,
        pattern=r"(?:No available node types can fulfill|cannot be scheduled|infeasible).{0,200}['\"]node:",
        example="(autoscaler +1m2s) Error: No available node types can fulfill resource request {'node:192.168.1.5': 0.001, 'GPU': 1.0}.",
        source="https://github.com/vllm-project/vllm/issues/8908", any_level=True,
    ),
    Rule(
        id="ipv6-address", cause="host-ip-mismatch", words="zmq zmqerror ipv6 gaierror family", weight=0.75,
        pattern=r"(?i)(?:zmqerror|invalid argument|no such device|address family).{0,80}tcp://(?:\[?[0-9a-f]{0,4}:){3,}|"
        r"zmqerror: no such device|Address family for hostname not supported|ipv6.{0,60}(?:not supported|invalid|parse)",
        example="zmq.error.ZMQError: Invalid argument (addr='tcp://fd00:10:0:1::5:29550')",
        source="https://github.com/vllm-project/vllm/issues/18986",
    ),
    Rule(
        id="frontend-silent", cause="port-blocked", words="front", weight=0.85, decide="frontend_silent",
        pattern=r"Did not receive response from front-?end",
        example="RuntimeError: Did not receive response from front-end process within 5 minutes",
        source="vllm 0.33.0 source: vllm/v1/engine/core.py:1422",
        question="Does `nc -vz HEAD 29550` connect from the headless node?",
        remedy="Open --data-parallel-rpc-port (29550) on the head for this node and check --data-parallel-address.",
    ),
)  # fmt: skip
