"""Texts of Ray: head, nodes, versions, tokens, placement."""

from longspan.doctor.rules.rule import Rule

_RAY = "https://github.com/ray-project/ray/issues/"
_VLLM = "https://github.com/vllm-project/vllm/issues/"

RULES: tuple[Rule, ...] = (
    # The head.
    Rule(
        id="gcs-retry", cause="ray-head-unreachable", kind="wait", phase=0, weight=0.85, any_level=True,
        words="gcs", decide="gcs_lost", also=("port-blocked",),  # "Could not read" comes from `ray start` on a worker
        pattern=r"[Ff]ailed to connect to (?:the )?GCS|Unable to connect to GCS|Failed to get cluster ID from GCS"
        r"|waiting for GCS to become available|Could not read '\S+' from GCS|GCS (?:server )?(?:at \S+ )?(?:is )?(?:unreachable|not reachable)",
        example="[2025-07-23 10:05:49,679 W 51 51] gcs_rpc_client.h:151: Failed to connect to GCS at address 10.0.0.1:6379 "
        "within 5 seconds.",
        source=_RAY + "23611", question="Does `nc -vz HEAD 6379` connect, and is the address complete?",
    ),
    Rule(
        id="gcs-killed", cause="ray-head-unreachable", decide="gcs_lost", words="gcs", weight=0.8, any_level=True,
        also=("nccl-peer-died-first",),
        pattern=r"GCS may have been killed|GCS is terminated by `ray stop`|lost connection (?:to|with) (?:the )?GCS",
        example="[2025-07-23 10:06:54,700 E 51 77] gcs_rpc_client.h:302: Failed to connect to GCS within 60 seconds. GCS may have "
        "been killed. It's either GCS is terminated by `ray stop` or is killed unexpectedly.",
        source="https://github.com/ray-project/kuberay/issues/1141",
    ),
    Rule(
        id="no-ray-instance", cause="ray-head-unreachable", words="running ray default", weight=0.85,
        pattern=r"Could not find any running Ray instance|Failed to connect to the default Ray cluster|ray client connection timeout"
        r"|Unable to connect to Ray|[Ff]ailed to connect to Ray|RAY_ADDRESS.{0,40}(?:unreachable|refused)|Ray Client.{0,40}[Ff]ailed to connect",
        example="ConnectionError: Could not find any running Ray instance. Please specify the one to connect to by setting "
        "`--address` flag or `RAY_ADDRESS` environment variable.",
        source=_RAY + "23611",
    ),
    # Nodes.
    Rule(
        id="node-marked-dead", cause="ray-node-lost", words="marked heartbeats mistakenly detector", weight=0.85, any_level=True,
        also=("port-blocked",), decide="node_lost",
        pattern=r"marked (?:as )?dead (?:because|by)|missed too many heartbeats|mistakenly been marked as dead|health check failed due to missing",
        example="(raylet) The node with node id: 0f2197 and address: 10.0.0.51 and node name: 10.0.0.51 has been marked dead because "
        "the detector has missed too many heartbeats from it.",
        source=_RAY + "45179", question="Was the raylet alive (blocked return ports, load) or had the host gone (dmesg, power)?",
    ),
    Rule(
        id="gcs-health-check", cause="ray-node-lost", kind="symptom", words="health dead", weight=0.7, any_level=True,
        pattern=r"gcs_health_check_manager.{0,60}(?:[Hh]ealth check failed|is dead)|is dead because the health check failed|GCS failed to check the health of this node",
        example="[2026-10-01 10:00:00,100 W 8 8] (gcs_server) gcs_health_check_manager.cc:107: Health check failed for node 4fbd, "
        "remaining checks 0, status 14",
        source="ray source: gcs_health_check_manager.cc",
    ),
    Rule(
        id="raylet-died", cause="ray-node-lost", words="raylet localrayletdiederror agent", weight=0.75, any_level=True,
        decide="raylet_ended",
        pattern=r"Raylet is terminated\. Termination is unexpected|[Rr]aylet exited (?:immediately|unexpectedly)|Ray agent failed"
        r"|[Rr]aylet fate[- ]shares? with|LocalRayletDiedError|local raylet died|[Rr]aylet (?:is )?unavailable|raylet died|Unable to register worker with raylet",
        example="The raylet exited immediately because the Ray agent failed. The raylet fate shares with the agent.",
        source=_RAY + "29412", question="What do dashboard_agent.log and raylet.err of that node say?",
    ),
    Rule(
        id="node-died", cause="ray-node-lost", words="nodediederror died node", weight=0.85,
        pattern=r"^(?!.*\bterminated expectedly).*?(?:NodeDiedError|[Tt]he actor died because its node has died|actor's node was terminated|owner's node has crashed"
        r"|node (?:that )?(?:it was|they were) running on (?:has )?(?:died|was terminated))",
        example="ray.exceptions.ActorDiedError: The actor died because its node has died. Node Id: 4fbd",
        source=_RAY + "45179",
    ),
    Rule(
        id="host-gone", cause="ray-node-lost", words="nodenotready notready preemption preempted node_fail failure", weight=0.75, any_level=True,
        pattern=r"NodeNotReady|status is now: NodeNotReady|DUE TO NODE FAILURE|NODE_FAIL\b",
        example="slurmstepd: error: *** JOB 4412 ON gpu07 CANCELLED AT 2026-10-01T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
        source="https://slurm.schedmd.com/job_state_codes.html",
    ),
    # Versions, tokens, installation.
    Rule(
        id="ray-version", cause="version-mismatch-ray", words="mismatch cluster started differ", weight=0.93,
        pattern=r"Version mismatch: The cluster was started with|[Vv]ersion mismatch.{0,80}(?:Ray|Python)|Ray version \S+ is required, but found"
        r"|This process on node \S+ was started with|Python (?:minor )?versions differ between client and server",
        example="RuntimeError: Version mismatch: The cluster was started with:",
        source=_RAY + "50511",
    ),
    Rule(
        id="pickle-version", cause="version-mismatch-ray", words="pickle code", weight=0.7,
        pattern=r"unsupported pickle protocol|TypeError: code\(\) (?:argument \d+|takes)|TypeError: an integer is required \(got type bytes\)",
        example="ray.exceptions.RaySystemError: System error: code() argument 13 must be str, not int: TypeError: code() argument 13 must "
        "be str, not int",
        source=_RAY + "50511",
    ),
    Rule(
        id="ray-token", cause="ray-auth-mismatch", words="token authenticationerror unauthenticated", weight=0.93,
        pattern=r"Token authentication is enabled but|(?:Invalid|Missing|missing|incorrect|or missing) authentication token"
        r"|ray\.exceptions\.AuthenticationError|[Uu]nauthenticated\b.{0,80}(?:token|[Rr]ay|GCS)|(?:ray|gcs|GCS).{0,80}StatusCode\.UNAUTHENTICATED",
        example="RuntimeError: Token authentication is enabled but no authentication token was found.",
        source="ray 2.60.0 source: ray/_private/authentication/authentication_constants.py", any_level=True,
    ),
    Rule(
        id="ray-missing", cause="ray-not-installed", words="ray", weight=0.93, launch_only=True,
        pattern=r"Failed to import Ray|exec: \"ray\"|\bray ?: (?:command )?not found|No module named ['\"]ray['\"]"
        r"|requires installation of ray|Ray is not installed|\bray ?: (?:Befehl|Kommando) nicht gefunden|\bray ?: commande introuvable"
        r"|\bray ?: (?:orden|no se encontró)|\bray ?: ?(?:未找到命令|command not found)|\bray ?: コマンドが見つかりません"
        r"|\bray ?: команда не найдена|execve\(\): ray: No such file|[:/ ]ray: No such file or directory",
        example="ValueError: Failed to import Ray: No module named 'ray'.Please install Ray with `pip install ray`.",
        source="https://github.com/gpustack/gpustack/issues/5430",
    ),
    Rule(
        id="module-missing", cause="worker-env-differs", decide="module_missing", words="modulenotfounderror importerror module", weight=0.85,
        launch_only=True,
        pattern=r"No module named ['\"](?P<module>(?!ray['\"])[^'\"]+)|(?:ImportError|RaySystemError: System error): (?:"
        r"cannot import name|.*cannot open shared object file|.*undefined symbol)",
        example="(RayWorkerProc pid=35, ip=10.0.0.12) ERROR 11-02 11:00:33 [m.py:953] ModuleNotFoundError: No module named 'flashinfer'",
        source=_VLLM + "16779", question="`python -c 'import X'` with the Python of each node's raylet: which one fails?",
    ),
    Rule(
        id="runtime-env", cause="worker-env-differs", words="runtimeenvsetuperror attributeerror attribute import", weight=0.65, launch_only=True,
        pattern=r"RuntimeEnvSetupError|failed to import on the worker|AttributeError: Can't get attribute .* on <module",
        example="ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
        source="https://docs.ray.io/en/latest/ray-core/handling-dependencies.html",
    ),
    Rule(
        id="worker-signature", cause="worker-env-differs", decide="on_one_node", kind="symptom", words="typeerror", weight=0.5, launch_only=True,
        pattern=r"TypeError: .*(?:unexpected keyword argument|missing \d+ required positional)",
        example="TypeError: WorkerWrapperBase.__init__() got an unexpected keyword argument 'rpc_rank'",
        source=_VLLM + "16779", question="Is the vLLM version the same on every node?",
    ),
    # GPUs and placement.
    Rule(
        id="driver-no-gpu", cause="gpu-not-visible-to-ray", words="driver allocate", weight=0.85,
        pattern=r"Ray does not allocate any GPUs on the driver node|driver node id \S+ is not included in a placement group",
        also=("host-ip-mismatch",),
        example="RuntimeError: Ray does not allocate any GPUs on the driver node. Driver IP: 10.0.0.9, worker IPs: ['10.0.0.11'].",
        source=_VLLM + "7815",
    ),
    Rule(
        id="dp-master-missing", cause="host-ip-mismatch", words="dp", weight=0.7, also=("ray-node-lost",),
        pattern=r"The DP master node \(ip: \S+\) is missing or dead",
        example="AssertionError: The DP master node (ip: 10.0.0.9) is missing or dead",
        source="vllm 0.32.0 source: vllm/v1/engine/utils.py", question="Is --data-parallel-address an address that `ray list nodes` knows?",
    ),
    Rule(
        id="node-no-gpu", cause="gpu-not-visible-to-ray", decide="node_no_gpu", words="current_node_resource node", weight=0.85,
        also=("stale-placement-group",),
        pattern=r"Current node has no \w+ available",
        example="ValueError: Current node has no GPU available. current_node_resource={'CPU': 64.0, 'node:10.0.0.11': 1.0}. vLLM engine "
        "cannot start without GPU.",
        source=_VLLM + "29265", question="`ray list placement-groups`: does one hold the GPUs of this node?",
    ),
    Rule(
        id="ray-gpu-count", cause="gpu-not-visible-to-ray", words="cuda_visible_devices gpus raylet", weight=0.8, any_level=True,
        pattern=r"Attempting to start raylet with \S+ GPUs?, but CUDA_VISIBLE_DEVICES contains"
        r"|(?:node|raylet|Ray) .{0,60}(?:registered|started|reports?) (?:with )?(?:no|0|0\.0) GPUs?\b|Ray (?:cluster )?(?:has|sees|reports) (?:no|0) GPUs?",
        example="ValueError: Attempting to start raylet with 8.0 GPU, but CUDA_VISIBLE_DEVICES contains [0, 1].",
        source="https://github.com/ray-project/kuberay/issues/3436",
    ),
    Rule(
        id="pg-wait", cause="placement-group-unsatisfied", kind="wait", phase=1, words="waiting", weight=0.8, any_level=True, decide="placement",
        also=("gpu-not-visible-to-ray", "stale-placement-group"),
        pattern=r"Waiting for creating a placement group of specs for(?: (?P<seconds>\d+) seconds)?",
        example="INFO 11-02 15:59:50 [ray_utils.py:467] Waiting for creating a placement group of specs for 10 seconds. "
        "specs=[{'GPU': 1.0}, {'GPU': 1.0}].",
        source="https://github.com/vllm-project/aibrix/issues/927", question="`ray status`: fewer GPUs than asked for, or GPUs in use?",
    ),
    Rule(
        id="pg-failed", cause="placement-group-unsatisfied", decide="placement", words="placement provide dp gpus node", weight=0.9,
        also=("stale-placement-group", "gpu-not-visible-to-ray"),
        pattern=r"Cannot provide a placement group|placement group (?:\S+ )?(?:is infeasible|cannot be (?:created|scheduled))"
        r"|Not enough resources to allocate \S+ DP ranks|[Aa]vailable GPUs \S+ is less than (?:total )?desired GPUs"
        r"|Requested node configuration is not available|Tensor parallel size \(\d+\) cannot be larger than the number of available GPUs in the (?:Ray )?cluster",
        example="ValueError: Cannot provide a placement group requiring 16 GPUs (placement_group_specs=[]) within 1800 seconds.",
        source=_VLLM + "13909",
    ),
    Rule(
        id="pg-too-small", cause="placement-group-unsatisfied", kind="wait", phase=1, words="exceeds", weight=0.75, decide="placement",
        pattern=r"The number of required \w+ exceeds the total number of available \w+ in the placement group"
        r"|Tensor parallel size \(\d+\) exceeds available GPUs",
        example="WARNING 11-02 15:59:40 [ray_utils.py:613] The number of required GPUs exceeds the total number of available GPUs in the "
        "placement group.",
        source="vllm 0.32.0 source: vllm/v1/executor/ray_utils.py",
    ),
    Rule(
        id="pg-too-small-fatal", cause="placement-group-unsatisfied", words="exceeds", weight=0.85, decide="placement",
        pattern=r"Error: The number of required \w+ exceeds the total number of available",
        example="ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        source="vllm 0.32.0 source: vllm/v1/executor/ray_utils.py",
    ),
    Rule(
        id="autoscaler-gpu", cause="placement-group-unsatisfied", kind="wait", phase=1, words="fulfill insufficient infeasible", weight=0.7,
        any_level=True, decide="placement", also=("host-ip-mismatch", "gpu-not-visible-to-ray"),
        pattern=r"No available node types can fulfill resource requests?(?!.{0,200}'node:)|\d+ Insufficient (?:nvidia|amd)\.com/gpu"
        r"|cannot be scheduled right now.{0,120}GPU",
        example="(autoscaler +35s) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node types.",
        source=_VLLM + "7815",
    ),
    Rule(
        id="dp-pg-partial", cause="stale-placement-group", words="placement", weight=0.85,
        pattern=r"Not enough resources to allocate \S+ (?:DP )?placement groups, only created",
        also=("placement-group-unsatisfied",),
        example="ValueError: Not enough resources to allocate 4 placement groups, only created 2 placement groups.",
        source="https://github.com/ray-project/kuberay/issues/4366",
    ),
    # The removed compiled-graph executor.
    Rule(
        id="cgraph", cause="ray-cgraph-timeout", words="raychanneltimeouterror ray_cgraph_get_timeout out_of_band_tensors ray_cgraph_submit_timeout",
        weight=0.92, versions="vLLM < 0.23",
        pattern=r"RayChannelTimeoutError|RAY_CGRAPH_(?:get|submit)_timeout|out_of_band_tensors",
        example="ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read.",
        source=_VLLM + "19703",
    ),
    # Workers.
    Rule(
        id="ray-worker-died", cause="worker-killed", kind="symptom", words="died", weight=0.7,
        pattern=r"RayWorkerProc rank=.*died unexpectedly|The actor is dead because its (?:worker process|owner) has died"
        r"|Worker unexpectedly exits with a connection error code|connection error code 2\. End of file",
        example="(EngineCore pid=7) ERROR 11-02 12:00:01 [ray_executor_v2.py:523] RayWorkerProc rank=[3] died unexpectedly, shutting down "
        "executor.",
        source="https://github.com/eugr/spark-vllm-docker/issues/257", question="dmesg of that node: oom-kill or segfault at that second?",
    ),
    Rule(
        id="ray-worker-eof", cause="worker-killed", kind="symptom", words="worker", weight=0.65, any_level=True,
        pattern=r"[Ww]orker (?:process )?(?:unexpectedly exits|exited unexpectedly|died or was killed)|connection error code \d+\. End of file",
        example="(raylet, ip=10.0.0.12) A worker died or was killed while executing a task by an unexpected system error.",
        source=_VLLM + "2269",
    ),
)  # fmt: skip
