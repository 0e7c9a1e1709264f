"""Texts of NCCL, Gloo, the TCP store and torch's watchdog."""

from longspan.doctor.rules.rule import Rule

_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_VLLM = "https://github.com/vllm-project/vllm/issues/"

RULES: tuple[Rule, ...] = (
    # Which interface.
    Rule(
        id="nccl-connect-failed", cause="nccl-wrong-interface", decide="nccl_connect", also=("port-blocked",),
        words="socketstartconnect socketprogressconnect ncclsocketconnect socketpollconnect socketconnect connect",
        pattern=r"NCCL WARN (?:Net ?: )?Connect to (?P<peer2>\S+?)<\d+> failed|(?:socketStartConnect|socketProgressConnect|socketPollConnect|ncclSocketConnect|socketConnect)\w*:? .*?"
        r"(?:[Cc]onnect(?:ion)? to (?P<peer>\S+?)(?:<\d+>)? (?:failed|returned)(?!.*retrying)|exceeded (?:error )?retry)",
        example="gpu:77:77 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.21.0.1<57093> failed : "
        "Software caused connection abort",
        source="https://github.com/gpustack/gpustack/issues/2275",
        question="Does `ip route get PEER` on this node use the NIC that carries this node's address?",
    ),
    Rule(
        id="nccl-connect-retry", cause="nccl-wrong-interface", kind="wait", decide="nccl_connect", phase=3, weight=0.75,
        also=("port-blocked",), any_level=True,
        words="socketpollconnect socketstartconnect socketprogressconnect retrying",
        pattern=r"Call to connect returned .*retrying|(?:socket\w*[Cc]onnect\w*:? .*?(?:[Cc]onnect(?:ion)? to (?P<peer>[\d.]+|[0-9a-f:]+:[0-9a-f]+)\S* )?"
        r"|connect )returned .*(?:No route to host|Connection refused|Connection timed out|unreachable).*retr",
        example="n1:88:120 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying",
        source="https://github.com/hiyouga/LlamaFactory/issues/8045",
        question="Is the peer's address on the cluster network, and does its firewall REJECT?",
    ),
    Rule(
        id="nccl-link-local", cause="nccl-wrong-interface", words="connect socketstartconnect",
        pattern=r"(?:Connect|connect\w*) to \[?fe80::",
        example="n1:9:9 [0] misc/socket.cc:453 NCCL WARN socketStartConnect: Connect to fe80::63f:7203:c0:2%ibs20<41215> "
        "failed : Invalid argument",
        source=_NCCL + "975",
        remedy="Set NCCL_SOCKET_FAMILY=AF_INET and NCCL_SOCKET_IFNAME to the routable NIC on every node.",
    ),
    Rule(
        id="nccl-loopback", cause="nccl-wrong-interface", kind="wait", phase=3, weight=0.8, any_level=True,
        words="nccl_socket_ifname", pattern=r"NCCL_SOCKET_IFNAME set (?:by environment )?to =?lo\b",
        example="p0:41:41 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo",
        source="https://github.com/Project-HAMi/HAMi-core/issues/261",
    ),
    Rule(
        id="nccl-virtual-nic", cause="nccl-wrong-interface", kind="wait", phase=3, weight=0.7, any_level=True,
        words="bootstrap using oob",
        pattern=r"(?:Bootstrap ?: ?Using|NET/Socket ?: Using \[0\]|OOB) ?"
        r"(?:docker\w*|virbr\w*|lo|veth\w*|br-\w+|cni\w*|flannel\S*|cali\w*|vmnet\w*|tailscale\w*|wg\d+):",
        example="n2:51:51 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    Rule(
        id="nccl-no-interface", cause="nccl-wrong-interface", decide="missing_nic", also=("node-env-forwarded",),
        words="interface bootstrap",
        pattern=r"Bootstrap ?: no socket interface found|NET/Socket ?: no (?:socket )?interface found"
        r"|[Nn]o (?:usable|socket) interface found|Failed to find interface with name",
        example="w2:73:73 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        source="https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc",
        question="Does the NIC named in NCCL_SOCKET_IFNAME exist on the node that prints this?",
    ),
    # Gloo.
    Rule(
        id="gloo-mesh", cause="gloo-wrong-interface", words="connectfullmesh",
        pattern=r"connectFullMesh failed",
        example="RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "no error",
        source="https://github.com/gpustack/gpustack/issues/2125",
    ),
    Rule(
        id="gloo-no-interface", cause="gloo-wrong-interface", decide="missing_nic", also=("node-env-forwarded",),
        words="unable makedeviceforinterface gloo",
        pattern=r"Unable to find (?:address|interface) for: ?(?P<nic>[\w.:-]+)|makeDeviceFor\w+\(\): (?:interface or device"
        r"|unsupported)|gloo.{0,80}(?:interface|device)\b.{0,20}not found",
        example="RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: eth9",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
        question="Does the NIC named in GLOO_SOCKET_IFNAME exist on that node?",
    ),
    Rule(
        id="gloo-loopback", cause="gloo-wrong-interface", words="connect remote pair",
        pattern=r"gloo.{0,120}(?:connect \[?|remote=\[?)127\.\d+\.\d+\.\d+\]?.{0,60}|(?:timed out connecting|connect)\b.{0,80}"
        r"SO_ERROR: .{0,40}remote=\[?127\.",
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:33961: "
        "Connection refused",
        source="https://github.com/gpustack/gpustack/issues/2125",
        remedy="Map the host name to its routable address in /etc/hosts (not 127.0.1.1) or set GLOO_SOCKET_IFNAME.",
    ),
    Rule(
        id="gloo-loopback-fallback", cause="gloo-wrong-interface", kind="wait", phase=4, weight=0.6, any_level=True,
        words="loopback", pattern=r"Unable to resolve hostname to a \(local\) address\. Using the loopback",
        example="[W ProcessGroupGloo.cpp:724] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
        "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    ),
    Rule(
        id="gloo-connect", cause="port-blocked", words="gloo connecting pair so_error", weight=0.65,
        pattern=r"gloo.{0,120}(?:connect \[?(?!127\.)[\d.]+\]?:\d+: |timed out connecting|SO_ERROR: (?:Connection refused|No route"
        r"|Connection timed out))|timed out connecting: SO_ERROR",
        also=("gloo-wrong-interface", "nccl-peer-died-first"),
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.12]:33961: "
        "No route to host",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        question="`nc -vz PEER PORT` from the node that prints this: refused (nothing listens), timed out (firewall)?",
    ),
    Rule(
        id="gloo-closed", cause="nccl-peer-died-first", kind="symptom", words="closed reset peer pair broken", weight=0.7,
        pattern=r"gloo/transport/\w+/\w+\.cc:\d+\].{0,40}(?:Connection (?:closed|reset) by peer|Broken pipe)"
        r"|Connection closed by peer \[",
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.0.0.11]:56986. This is typically caused by a remote worker crashing.",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
    ),
    Rule(
        id="gloo-recv-timeout", cause="collective-hang", kind="symptom", words="unbound_buffer waiting", weight=0.5,
        also=("nccl-peer-died-first", "port-blocked"),
        pattern=r"unbound_buffer\.cc:\d+\] ?Timed out waiting \d+ms for (?:recv|send)",
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
        "1800000ms for recv operation to complete",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/unbound_buffer.cc",
    ),
    # The TCP store.
    Rule(
        id="store-timeout", cause="port-blocked", decide="store_address", also=("host-ip-mismatch",),
        words="socket clients client", weight=0.85,
        pattern=r"client socket has timed out after \d+ ?m?s(?: while trying to connect to \(?\[?(?P<peer>[^\s,)\]]+)\]?,? ?(?P<port>\d+)?)?"
        r"|client socket has failed to connect to any network address of \(?(?P<peer2>[^\s,)]+)",
        example="torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect "
        "to (10.0.0.11, 29501).",
        source=_VLLM + "14340", question="Is the address the node's routable one, and does `nc -vz ADDRESS PORT` connect?",
    ),
    Rule(
        id="store-retry", cause="port-blocked", kind="wait", decide="store_address", phase=3, weight=0.55, any_level=True,
        words="socket", also=("host-ip-mismatch",),
        pattern=r"client socket (?:has failed|cannot be initialized) to connect to \[?(?P<peer>[^\s\]]+?)\]?(?:[:,]\d*)? "
        r"\(?(?!\(?errno: 97)\(?errno: (?:110|111|113|101)",
        example="[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-0]:29501 (errno: 111 - "
        "Connection refused).",
        source=_VLLM + "14340",
    ),
    Rule(
        id="store-clients-missing", cause="port-blocked", weight=0.6, words="clients",
        also=("host-ip-mismatch", "nccl-peer-died-first"),
        pattern=r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined",
        example="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp",
        question="Did the missing node start at all, and can it reach the master port?",
    ),
    Rule(
        id="store-lost", cause="nccl-peer-died-first", kind="symptom", weight=0.7,
        words="recvvalue sendbytes recvvaluewithtimeout tcpstore recvvector sendvalue",
        pattern=r"(?:recvValue\w*|recvVector|sendBytes|sendValue) failed on SocketImpl|TCPStore server has shut down too early"
        r"|Did the remote server shutdown or crash",
        example='[W ProcessGroupNCCL.cpp:1711] [PG ID 0 PG GUID 0 Rank 4] Failed to check the "should dump" flag on '
        "TCPStore, (maybe TCPStore server has shut down too early), with error: recvValue failed on SocketImpl(fd=74)",
        source=_VLLM + "32136",
    ),
    Rule(
        id="nccl-id-lost", cause="nccl-peer-died-first", kind="symptom", weight=0.65, words="nccluniqueid diststoreerror",
        also=("port-blocked",),
        pattern=r"retrieving ncclUniqueId from \[0\].{0,160}(?:[Tt]imeout|reset by peer|[Bb]roken pipe|closed)|DistStoreError: wait timeout after",
        example="torch.distributed.DistBackendError: [12] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Socket Timeout",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    # A peer went away.
    Rule(
        id="nccl-peer-closed", cause="nccl-peer-died-first", kind="symptom", weight=0.75,
        words="socketprogress socketprogressopt recv remote ncclremoteerror peer bootstrap",
        pattern=r"socketProgress\w*: (?:Connection closed by remote peer|Call to (?:recv|send) (?:from|to) .*(?:reset by peer|[Bb]roken pipe))"
        r"|Call to (?:recv|send) (?:from|to) .*failed ?:? .*(?:[Cc]onnection reset|[Bb]roken pipe)"
        r"|NCCL error: remote process exited or there was a network error|ncclRemoteError"
        r"|possibly due to a network error or a remote process exiting",
        example="dgx4:460:469 [0] misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.1.128.128<52035> failed : "
        "Connection reset by peer",
        source="https://github.com/NVIDIA/nccl-tests/issues/166",
    ),
    # The watchdog.
    Rule(
        id="nccl-watchdog", cause="collective-hang", kind="symptom", decide="watchdog", weight=0.7,
        words="watchdog worknccl", also=("nccl-peer-died-first", "collective-desync"),
        pattern=r"Watchdog caught collective operation timeout(?:: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
        r"(?:, NumelIn=(?P<numel>\d+))?)?",
        example="[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5730, OpType=ALLREDUCE, NumelIn=3612672, NumelOut=3612672, Timeout(ms)=600000) ran for 600009 ms",
        source=_VLLM + "23448",
        question="Compare SeqNum between ranks: different is a desync, one missing died, equal is the fabric or a kernel.",
    ),
    Rule(
        id="nccl-watchdog-seq", cause="collective-hang", kind="symptom", decide="watchdog", weight=0.6,
        words="watchdog sequence enqueued",
        pattern=r"(?:failure detected by watchdog at work sequence id: (?P<seq>\d+)"
        r"|(?:Timeout at|detected by watchdog at) (?:NCCL )?work: (?P<seq2>\d+))",
        example="[rank3]:[E822 16:31:16.137270546 ProcessGroupNCCL.cpp:2271] [PG ID 4 PG GUID 67 Rank 3]  failure detected by "
        "watchdog at work sequence id: 5729 PG status: last enqueued work: 6464, last completed work: 5728",
        source=_VLLM + "23448",
    ),
    Rule(
        id="heartbeat-monitor", cause="collective-hang", kind="symptom", weight=0.55, words="heartbeat heartbeatmonitor",
        pattern=r"Heartbeat monitor timed out|heartbeatMonitor.*(?:timed out|stuck)|watchdog thread.*got stuck",
        example="[rank5]:[F1 ProcessGroupNCCL.cpp:1450] [PG ID 0 PG GUID 0(default_pg) Rank 5] [PG ID 0 PG GUID 0(default_pg) "
        "Rank 5] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang. "
        "Heartbeat monitor timed out",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Rule(
        id="collective-mismatch", cause="collective-desync", weight=0.92,
        words="mismatch mismatched collectives desync desynchronized",
        pattern=r"Detected mismatch between collectives on ranks|[Cc]ollective(?:s| operation)? (?:sequence )?(?:number )?mismatch"
        r"|[Mm]ismatched collective|ranks? (?:are|is) (?:desynced|out of sync)|(?:shape|dtype|op(?:eration)?) mismatch.*collective",
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=12, OpType=ALLGATHER), but Rank 0 is running ALLREDUCE",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
    ),
    # Settings differ between nodes.
    Rule(
        id="nccl-truncated", cause="nccl-env-mismatch", words="truncated", weight=0.9,
        pattern=r"[Mm]essage truncated ?: (?:received|receiving) \d+ bytes instead of|NET/Socket ?: peer \S+ message truncated",
        example="n2:61:88 [0] bootstrap.cc:108 NCCL WARN Message truncated : received 1024 bytes instead of 256",
        source=_NCCL + "626", question="Are the NCCL version and every NCCL_* variable equal on all nodes?",
    ),
    Rule(
        id="nccl-rank-count", cause="nccl-env-mismatch", words="mismatch magic type", weight=0.6,
        pattern=r"(?:bootstrap\w*|ncclSocket\w*|socketFinalize\w*).{0,40}(?:mismatch in rank count|wrong (?:magic|type))"
        r"|NCCL (?:WARN )?.{0,60}version mismatch|[Mm]ismatch(?:ed)? NCCL version",
        example="n1:61:88 [0] bootstrap.cc:180 NCCL WARN bootstrapRoot: mismatch in rank count from procs 4 : 8",
        source="https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc",
    ),
    # Says nothing by itself.
    Rule(
        id="nccl-unhandled", cause="insufficient-evidence", kind="generic", weight=0.6, decide="nccl_generic", words="nccl ncclsystemerror unhandled "
        "ncclinternalerror ncclunhandledcudaerror ncclinvalidusage",
        pattern=r"NCCL [Ee]rror(?: \d)?: (?:unhandled system error|internal error|invalid usage|unhandled cuda error|invalid argument)"
        r"|ncclSystemError: System call|ncclInternalError: Internal check|ncclUnhandledCudaError|ncclInvalidUsage",
        example="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        source=_VLLM + "16707", remedy="Run again with NCCL_DEBUG=INFO on every node and send the NCCL WARN lines.",
    ),
    Rule(
        id="nccl-cuda-invalid", cause="cuda-driver-mismatch", weight=0.6, words="failure", versions="NCCL 2.18",
        pattern=r"(?:NCCL WARN|Last error:)?.*\bCuda failure (?:\d+ )?'(?:invalid argument|operation not supported|API call is not supported)",
        example="n1:7:7 [0] transport/p2p.cc:271 NCCL WARN Cuda failure 'invalid argument'",
        source=_VLLM + "3688", also=("custom-allreduce-failed",),
    ),
)  # fmt: skip
