"""Plan -> argv and environment, as pure functions: what is run can be read, tested and shown before it is run."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.deployment import DeploymentSpec, NodeSpec, RayPorts
from longspan.launch.words import GROUP_PREFIX, GROUP_VARIABLE, KEY_FILE_VARIABLE, NODE_ENV_VARIABLE

# Where a value given on one node is wrong on another. vLLM's Ray executor hands the driver's environment to every
# rank with setdefault; these stay out of it (vLLM reads the list from ray_non_carry_over_env_vars.json).
NODE_LOCAL_VARIABLES = (
    "VLLM_API_KEY",
    KEY_FILE_VARIABLE,
    "VLLM_HOST_IP",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_DISABLE",
    "UCX_NET_DEVICES",
    "NVSHMEM_HCA_LIST",
    "TMPDIR",
    "RAY_TMPDIR",
    "HOSTNAME",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "PWD",
    "OLDPWD",
)

# Ray drops lines of other workers that differ in numbers only, such as each rank's own announcement: with three ranks
# the second would never be read back. Set where a driver prints its workers' logs: launcher and engine core.
_WHOLE_LOGS = {"RAY_DEDUP_LOGS": "0"}
# vLLM's warm-up runs one batch of this size. At its default of 4096 that is over 60 s of a start on a processor without
# bf16 instructions (measured, AVX2), at 512 about 8 s; a longer prompt is prefilled in chunks.
CPU_BATCHED_TOKENS = 512
OBJECT_STORE_BYTES = 200 * (1 << 20)  # ranks exchange nothing through it but actor arguments


@dataclass(frozen=True, slots=True)
class Process:
    """One process for an agent to start.

    Attributes:
        name: unique within the agent.
        env: added to the agent's own environment.
        stdin: text for its standard input; empty for none.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the wire."""
        return {
            "name": self.name, "argv": list(self.argv), "env": dict(self.env),
            "stdin": self.stdin,
        }  # fmt: skip


def gpu_id(value: Any) -> int | str:
    """A GPU as Ray names it: an index, or a UUID where CUDA_VISIBLE_DEVICES holds UUIDs (also of MIG slices).

    Raises:
        TypeError: neither.
    """
    if isinstance(value, str):
        return int(value) if value.isdecimal() else value
    if isinstance(value, int):
        return value
    raise TypeError(f"{value!r} is no GPU")


def ray_environment(token_file: str) -> dict[str, str]:
    """Token authentication in every process that speaks to our Ray; `ray start --address` does not turn it on."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's and vLLM's process titles would overwrite /proc/PID/environ, by which agents know their own.
        "SPT_NOENV": "1",
        # Ray runs its workers at nice 15. Ours are the engine: they must not give way to anything else on the host.
        "RAY_worker_niceness": "0",
    }


def device_environment(spec: DeploymentSpec) -> dict[str, str]:
    """What the engine needs to run on the plan's device."""
    if spec.device != "cpu":
        return {}
    return {
        "LONGSPAN_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB a rank
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


def ray_start(
    node: NodeSpec,
    *,
    head: bool,
    head_address: str,
    port: int,
    own_ports: Sequence[int],
    temp_dir: str,
    token_file: str,
    fixed: RayPorts | None = None,
    epoch: int = 1,
    group: str = "",
) -> Process:
    """`ray start --block`: in the foreground, so that its daemons are our descendants and die by pid.

    Args:
        port: of the head's GCS.
        own_ports: two free ports of this node, for what Ray would otherwise bind to a fixed port (client server,
            dashboard agent) and collide on with another Ray of this machine.
        temp_dir: this node's own: nodes that share one read each other's logs and name the wrong node.
        fixed: the block that all ports are taken from; None where several nodes share a machine.
        epoch: from 2 on of a Ray that is started again.
        group: what its processes carry, so that what is left of this start can be ended.
    """
    client, agent = (fixed.client_server, 0) if fixed else (own_ports[0], own_ports[1])
    # Without the autoscaler's monitor, which tells its metrics to anybody on every address (Ray 2.60, port 44217): these
    # nodes are what there is, nothing is to be scaled.
    alone = ["--include-dashboard=false", "--no-monitor"]
    where = (
        ["--head", f"--port={port}", f"--ray-client-server-port={client}", *alone]
        if head
        else [f"--address={head_address}:{port}"]
    )
    argv = (
        node.python, "-m", "longspan.launch.ray_main", "start", *where,
        f"--node-ip-address={node.address}",
        f"--num-gpus={node.gpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        *(fixed.flags(epoch) if fixed else [f"--dashboard-agent-listen-port={agent}"]),
        f"--temp-dir={temp_dir}",
        "--disable-usage-stats",
        "--block",
    )  # fmt: skip
    env = {**ray_environment(token_file), **node.env, GROUP_VARIABLE: group}
    if node.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.gpu_ids))
    return Process(process_name("ray", epoch), argv, env)


def ray_task(
    python: str, ray_address: str, node_address: str, argv: Sequence[str], env: Mapping[str, str], stdin: str
) -> tuple[list[str], str]:
    """A command run by a task on one node of a Ray that we joined.

    Args:
        python: this machine's, which must belong to that Ray.

    Returns:
        the command line to run here, and its standard input.
    """
    wanted = {"address": node_address, "argv": list(argv), "env": dict(env), "stdin": stdin}
    return [python, "-m", "longspan.launch.ray_join", "run", ray_address], json.dumps(wanted)


def engine_arguments(spec: DeploymentSpec, *, host: str, port: int) -> list[str]:
    """vLLM's command line after `vllm`, the same for both executors."""
    arguments = [
        "serve", spec.model,
        "--served-model-name", spec.served_name,
        "--host", host,
        "--port", str(port),
        "--tensor-parallel-size", str(spec.tp),
        "--pipeline-parallel-size", str(spec.pp),
        "--distributed-executor-backend", spec.executor,
    ]  # fmt: skip
    if spec.revision:
        arguments += ["--revision", spec.revision]
    # `--compilation-config.mode 2` and `-O2` are spellings of the same wish.
    given = {re.split(r"[=.]", argument, maxsplit=1)[0].replace("_", "-") for argument in spec.vllm_arguments}
    compiled = given & {"--compilation-config", "-cc", "--enforce-eager", "--optimization-level"}
    compiled |= {argument for argument in given if re.fullmatch(r"-O\d?", argument)}
    if spec.device == "cpu" and not compiled:
        # Without a warm-up, PP > 1 on the CPU dies at the first request (vLLM 0.32: intermediate_tensors is None); this mode warms up
        # and needs no compiler, which takes 80 s of two cores for the demo model before each start (105 s to ready, 25 s without).
        arguments += ["--compilation-config", json.dumps({"mode": 2, "backend": "eager"})]
    if spec.device == "cpu" and "--max-num-batched-tokens" not in given:
        arguments += ["--max-num-batched-tokens", str(CPU_BATCHED_TOKENS)]
    return [*arguments, *spec.vllm_arguments]


def front_environment(
    spec: DeploymentSpec, *, ray_address: str, key_file: str, config_dir: str
) -> dict[str, str]:
    """The environment of the process that runs vLLM's front end under the Ray executor."""
    return {
        **device_environment(spec),
        # The engine core is a child process that calls ray.init() without an address: it would join whatever Ray it
        # finds on the machine, or start one.
        "RAY_ADDRESS": ray_address,
        # Always set: vLLM would sort the bundles by random node id otherwise.
        "VLLM_RAY_BUNDLE_INDICES": ",".join(map(str, range(spec.world_size))),
        "VLLM_HOST_IP": spec.rank_nodes()[0].address,
        # Where vLLM looks for ray_non_carry_over_env_vars.json, which keeps per-node values per node.
        "VLLM_CONFIG_ROOT": config_dir,
        KEY_FILE_VARIABLE: key_file,
    }


def launcher(
    spec: DeploymentSpec,
    *,
    ray_address: str,
    arguments: Sequence[str],
    front_env: Mapping[str, str],
    mark: Mapping[str, str],
    token_file: str | None,
    epoch: int = 1,
    replica: str = "r0",
) -> Process:
    """The process that holds the reservation, and with the Ray executor the engine's front end (see ray_driver)."""
    ranks = spec.rank_nodes()
    first = ranks[0]
    wanted = {
        "name": f"{GROUP_PREFIX}{spec.name}-{replica}" + (f"-{epoch}" if epoch > 1 else ""),
        "ray_address": ray_address,
        "node_ip_address": first.address,
        "ray_timeout_seconds": 120,
        "reserve_timeout_seconds": 120,
        "rank_addresses": [node.address for node in ranks],
        "executor": spec.executor,
        "tp": spec.tp,
        "env": {
            **mark,
            **_WHOLE_LOGS,
            "SPT_NOENV": "1",
            **device_environment(spec),
            **_hook_environment(spec),
        },
        "front_env": dict(front_env),
        "arguments": list(arguments),
        "joined": spec.joins_ray,
    }
    env = {
        **(ray_environment(token_file) if token_file else {"SPT_NOENV": "1"}),
        **_WHOLE_LOGS,
        **mark,
        **first.env,
    }
    argv = (first.python, "-m", "longspan.launch.ray_driver")
    return Process(process_name("launcher", epoch), argv, env, json.dumps(wanted))


def group_id(mark: str, epoch: int) -> str:
    """What stands in the environment of all processes of one engine group, by which they are told."""
    return f"{mark}/{epoch}"


def process_name(what: str, epoch: int) -> str:
    """Each start of the same thing has its own name, so that nothing late of an old one is taken for the new one's."""
    return what if epoch == 1 else f"{what}.{epoch}"


def named(process: str) -> tuple[str, int]:
    """The inverse of `process_name`; the epoch is 0 where it is none of those."""
    what, dot, epoch = process.partition(".")
    if not dot:
        return what, 1
    return what, int(epoch) if epoch.isdecimal() else 0


def _hook_environment(spec: DeploymentSpec) -> dict[str, str]:
    """What the worker set-up hook reads in a Ray that we joined: each node's own values, by its address."""
    if not spec.ray_address:
        return {}
    by_address = {node.address: dict(node.env) for node in spec.used_nodes()}
    return {NODE_ENV_VARIABLE: json.dumps(by_address)}


def mp_rank(
    spec: DeploymentSpec,
    node: NodeSpec,
    *,
    node_rank: int,
    master_port: int,
    arguments: Sequence[str],
    gpu_ids: Sequence[int | str],
    env: Mapping[str, str],
    epoch: int = 1,
) -> Process:
    """One node's part of the mp executor: the first serves, the others are headless followers."""
    nodes = spec.used_nodes()
    rendezvous = []
    if len(nodes) > 1:
        rendezvous = [
            "--nnodes", str(len(nodes)),
            "--node-rank", str(node_rank),
            "--master-addr", nodes[0].address,
            "--master-port", str(master_port),
        ]  # fmt: skip
    follower = ["--headless"] if node_rank else []
    full_env = {
        **device_environment(spec), "VLLM_HOST_IP": node.address, "SPT_NOENV": "1", **env, **node.env,
    }  # fmt: skip
    if spec.device != "cpu":
        full_env["CUDA_VISIBLE_DEVICES"] = ",".join(
            map(str, sorted(gpu_ids, key=lambda gpu: (str(type(gpu)), gpu)))
        )
    argv = (node.python, "-m", "longspan.launch.engine_main", *arguments, *rendezvous, *follower)
    return Process(process_name("engine", epoch), argv, full_env)
