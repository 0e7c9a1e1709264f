"""What is run, as text: argv and environment of every process, owned flags, and no secret anywhere in them."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from driving import NODES, SECRETS, Drive, make_spec, make_steps
from hypothesis import given
from hypothesis import strategies as st

from longspan.deployment import RayPorts
from longspan.errors import InputError
from longspan.launch import commands
from longspan.launch.actions import Start
from longspan.launch.owned_flags import OWNED_FLAGS, OWNED_PREFIXES, refuse_owned_flags
from longspan.launch.run_dir import Paths

OWNED = [
    "--tensor-parallel-size", "--tensor_parallel_size", "--tensor-parallel-size=2", "--tensor_parallel_size=2",
    "--tensor-par", "--tensor_par=2", "-tp", "-tp=2", "-tp2", "-t", "-pp", "-pp2", "-pp=2", "--pipeline-parallel-size",
    "--distributed-executor-backend=mp", "--nnodes", "-n", "-n2", "-n=2", "--node-rank", "-r", "-r1", "--master-addr",
    "--master_port=1", "--headless", "--host", "--port=1", "--uds", "--api-key", "--api_key=x", "--model=x",
    "--served-model-name", "--revision", "-dp", "-dp2", "--data-parallel-size", "--data_parallel_size_local=1", "-dpl",
    "--data-parallel-backend", "-pcp", "--prefill-context-parallel-size", "--device-ids",
    "--ray-workers-use-nsight", "--config", "--config=engine.yaml", "--conf=x", "--ssl-certfile=c.pem", "--ssl_keyfile", "--ssl-ca-certs",
    "--enable-ssl-refresh", "--uvicorn-log-level", "--uvicorn_log_level=warning", "--log-level=ERROR", "--log-level",
    "--logging-config.log_level=ERROR", "--log-config-file", "--grpc", "--grpc-port=1", "--hf-token", "--enable-elastic-ep",
]  # fmt: skip
FREE = [
    "--max-model-len", "--max_model_len=8192", "--enforce-eager", "-O2", "-O", "-O.mode=2", "-cc", "-ep", "-q", "awq",
    "--enable-expert-parallel", "--gpu-memory-utilization=0.8", "--hostile", "--porter", "--trust-remote-code",
    "--tokenizer-revision", "--code-revision", "--tool-call-parser", "--chat-template", "--", "-", "", "2", "-1", "-0.5",
    '{"a": "-tp"}', "-dcp", "--decode-context-parallel-size", "--config-format", "--log-error-stack", "--hf-overrides", "--num-gpu-blocks-override", "--max-num-seqs", "--disable-log-stats", "--dtype=bfloat16",
]  # fmt: skip


@pytest.mark.parametrize("flag", OWNED)
def test_owned_flags_are_refused(flag: str) -> None:
    """Each spelling that vLLM's parser takes for an owned flag is refused, with what to use instead."""
    with pytest.raises(InputError) as caught:
        refuse_owned_flags(("--enforce-eager", flag, "2"))
    assert flag.split("=")[0] in caught.value.what
    assert caught.value.remedy.endswith(".")


def test_remedies_name_options_that_exist() -> None:
    """Every option that a refusal recommends is one of `longspan up`."""
    from longspan.cli.up import command

    options = {name for parameter in command.params for name in parameter.opts}
    for text in (*OWNED_FLAGS.values(), *OWNED_PREFIXES.values()):
        assert set(re.findall(r"--[a-z][a-z-]*", text)) <= options, text


def test_owned_flags_are_vllms() -> None:
    """No entry outlives its flag: each one, and each family, is in the engine's own parser."""
    found = find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed here: make up installs it")
    root = Path(found.submodule_search_locations[0])
    # Its sources, not its parser: importing vLLM takes half a minute.
    sources = [root / "engine/arg_utils.py", *(root / "entrypoints").rglob("*cli*.py")]
    text = "".join(path.read_text() for path in sources)
    for flag in OWNED_FLAGS:
        field = flag.lstrip("-").replace("-", "_")
        assert f'"{flag}"' in text or re.search(rf"\b{field}\b.*[:=]", text), flag
    for prefix in OWNED_PREFIXES:
        assert f'"{prefix}' in text or prefix.lstrip("-").replace("-", "_") in text, prefix


@pytest.mark.parametrize("flag", FREE)
def test_other_flags_pass(flag: str) -> None:
    """Any other flag and any value is vLLM's business."""
    refuse_owned_flags((flag,))


@given(st.lists(st.sampled_from(FREE), max_size=5))
def test_other_flags_pass_unchanged(arguments: list[str]) -> None:
    """What stood after `--` ends vLLM's command line, word for word."""
    spec = make_spec(vllm_arguments=tuple(arguments))
    found = commands.engine_arguments(spec, host="10.0.0.1", port=9)
    assert found[len(found) - len(arguments) :] == arguments


def test_engine_arguments() -> None:
    """The command line of the engine, as it would be typed."""
    spec = make_spec(device="cuda", revision="main", vllm_arguments=("--max-model-len", "8192"))
    assert " ".join(commands.engine_arguments(spec, host="10.0.0.1", port=9)) == (
        "serve /models/m --served-model-name m --host 10.0.0.1 --port 9 --tensor-parallel-size 1 --pipeline-parallel-size 2"
        " --distributed-executor-backend ray --revision main --max-model-len 8192"
    )


@pytest.mark.parametrize("given_flags", [(), ("--max-model-len=9",)])
def test_pipeline_on_cpu_is_warmed_up(given_flags: tuple[str, ...]) -> None:
    """The CPU gets the compilation mode without which PP's first request kills vLLM, and which needs no compiler."""
    found = commands.engine_arguments(make_spec(vllm_arguments=given_flags), host="h", port=1)
    assert json.loads(found[found.index("--compilation-config") + 1]) == {"mode": 2, "backend": "eager"}


@pytest.mark.parametrize(
    "flag", ["--compilation-config={}", "--compilation_config.mode=2", "-cc", "-cc.mode=2", "-O2", "-O=1", "-O.mode=2", "-O",
             "--enforce-eager", "--optimization-level=1"]
)  # fmt: skip
def test_the_users_compilation_counts(flag: str) -> None:
    """Whoever chose a compilation mode in any spelling keeps it."""
    found = commands.engine_arguments(make_spec(vllm_arguments=(flag,)), host="h", port=1)
    assert "--compilation-config" not in found[:-1]


def test_compilation_on_a_gpu_is_vllms_own() -> None:
    """The CPU's mode is for the CPU only."""
    assert "--compilation-config" not in commands.engine_arguments(make_spec(device="cuda"), host="h", port=1)


def test_ray_start_as_text() -> None:
    """Ray runs in the foreground with an address, temp dir and token of its own; its token is a file's name."""
    head = commands.ray_start(
        replace(NODES[0], gpu_ids=(2, 3)), head=True, head_address="10.0.0.1", port=7000, own_ports=(7002, 7003),
        temp_dir="/tmp/x/ray/a", token_file="/tmp/x/token",
    )  # fmt: skip
    text = " ".join(head.argv)
    assert text.startswith("/opt/a/python -m longspan.launch.ray_main start --head --port=7000")
    assert "--node-ip-address=10.0.0.1 --num-gpus=1" in text
    assert text.endswith("--temp-dir=/tmp/x/ray/a --disable-usage-stats --block")
    assert {"--include-dashboard=false", "--no-monitor"} <= set(head.argv)
    assert head.env["RAY_AUTH_MODE"] == "token"
    assert head.env["RAY_AUTH_TOKEN_PATH"] == "/tmp/x/token"
    assert head.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    follower = commands.ray_start(
        NODES[1],
        head=False,
        head_address="10.0.0.1",
        port=7000,
        own_ports=(1, 2),
        temp_dir="/t",
        token_file="/k",
    )
    assert "--address=10.0.0.1:7000" in follower.argv
    assert "--head" not in follower.argv
    assert follower.env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert "CUDA_VISIBLE_DEVICES" not in follower.env


def test_ray_on_fixed_ports() -> None:
    """On hosts of their own every port of Ray's comes from the documented block; the head's own two only on the head."""
    common: dict[str, Any] = {
        "head_address": "10.0.0.1", "port": 20100, "own_ports": (1, 2), "temp_dir": "/t", "token_file": "/k",
    }  # fmt: skip
    head = commands.ray_start(NODES[0], head=True, fixed=RayPorts(), **common)
    follower = commands.ray_start(NODES[1], head=False, fixed=RayPorts(), **common)
    for process in (head, follower):
        flags = [word.partition("=") for word in process.argv]
        ports = [int(value) for name, _, value in flags if name.endswith("port")]
        assert ports
        assert all(20100 <= port <= 20599 for port in ports)
        assert len(ports) == len(set(ports))
        assert "--min-worker-port=20110" in process.argv
    assert "--ray-client-server-port=20101" in head.argv


def test_launcher_as_text() -> None:
    """The launcher gets the plan on standard input: ranks by address, and the head's own values only."""
    spec = make_spec(tp=2, nodes=tuple(replace(node, gpus=2) for node in NODES))
    front = commands.front_environment(
        spec, ray_address="10.0.0.1:7000", key_file="/run/key", config_dir="/run/vllm"
    )
    process = commands.launcher(
        spec, ray_address="10.0.0.1:7000", arguments=("serve",), front_env=front, mark={"LONGSPAN_MARK": "x"},
        token_file="/run/token",
    )  # fmt: skip
    wanted = json.loads(process.stdin)
    assert process.argv == ("/opt/a/python", "-m", "longspan.launch.ray_driver")
    assert wanted["rank_addresses"] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]
    assert wanted["front_env"]["VLLM_RAY_BUNDLE_INDICES"] == "0,1,2,3"
    assert wanted["front_env"]["VLLM_HOST_IP"] == "10.0.0.1"
    assert wanted["front_env"]["RAY_ADDRESS"] == "10.0.0.1:7000"
    assert wanted["env"]["LONGSPAN_MARK"] == "x"
    assert "LONGSPAN_NODE_ENV" not in wanted["env"]
    assert process.env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "ib0" not in process.stdin


def test_ray_keeps_every_ranks_line() -> None:
    """Ray's own filter of repeated lines is off where workers' logs are printed, or ranks would be missing from the map."""
    process = commands.launcher(
        make_spec(), ray_address="a", arguments=(), front_env={}, mark={}, token_file=None
    )
    assert process.env["RAY_DEDUP_LOGS"] == "0"
    assert json.loads(process.stdin)["env"]["RAY_DEDUP_LOGS"] == "0"


def test_a_joined_ray_gets_each_nodes_values_by_address() -> None:
    """In a Ray of somebody else's, values that differ by node travel by address, and no token of ours is used."""
    spec = make_spec(ray_address="10.0.0.9:6379")
    process = commands.launcher(
        spec, ray_address="10.0.0.9:6379", arguments=(), front_env={}, mark={}, token_file=None
    )
    by_address = json.loads(json.loads(process.stdin)["env"]["LONGSPAN_NODE_ENV"])
    assert by_address == {
        "10.0.0.1": {"NCCL_SOCKET_IFNAME": "eth0"},
        "10.0.0.2": {"NCCL_SOCKET_IFNAME": "ib0"},
    }
    assert "RAY_AUTH_MODE" not in process.env


def test_values_of_one_node_stay_there() -> None:
    """Interfaces, addresses and keys are on the list that vLLM's Ray executor does not carry to other nodes."""
    assert {
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "VLLM_HOST_IP",
        "VLLM_API_KEY",
        "LONGSPAN_ENGINE_KEY_FILE",
    } <= set(commands.NODE_LOCAL_VARIABLES)


def test_mp_ranks_as_text() -> None:
    """Two nodes rendezvous at the first one's address; a single node needs no rendezvous."""
    spec = make_spec(executor="mp")
    follower = commands.mp_rank(
        spec, NODES[1], node_rank=1, master_port=7001, arguments=("serve", "/models/m"), gpu_ids=(), env={}
    )
    assert " ".join(follower.argv) == (
        "/opt/b/python -m longspan.launch.engine_main serve /models/m --nnodes 2 --node-rank 1 --master-addr 10.0.0.1"
        " --master-port 7001 --headless"
    )
    assert follower.env["VLLM_HOST_IP"] == "10.0.0.2"
    assert follower.env["LONGSPAN_DEVICE"] == "cpu"
    alone = commands.mp_rank(
        make_spec(executor="mp", pp=1, nodes=NODES[:1]), NODES[0], node_rank=0, master_port=1, arguments=("serve",),
        gpu_ids=(), env={},
    )  # fmt: skip
    assert alone.argv == ("/opt/a/python", "-m", "longspan.launch.engine_main", "serve")


@given(
    executor=st.sampled_from(["ray", "mp"]),
    device=st.sampled_from(["cpu", "cuda"]),
    ray_address=st.sampled_from([None, "10.0.0.9:6379"]),
    tp=st.integers(1, 3),
    pp=st.integers(1, 3),
)
def test_no_secret_in_any_process(
    executor: str, device: str, ray_address: str | None, tp: int, pp: int
) -> None:
    """Whatever is started in a whole launch, no secret stands in argv, environment or standard input."""
    nodes = tuple(replace(node, gpus=5) for node in NODES)
    spec = make_spec(executor=executor, device=device, ray_address=ray_address, tp=tp, pp=pp, nodes=nodes)
    drive = Drive(make_steps(spec))
    for stage in drive.stages():
        stage()
    starts = [action for action in drive.actions if isinstance(action, Start)]
    assert len(starts) >= 2
    for action in starts:
        text = json.dumps(action.process.to_json())
        assert [secret for secret in SECRETS.values() if secret in text] == []


def test_a_small_warm_up_without_a_gpu() -> None:
    """On CPU the warm-up batch is small unless the user says otherwise; with GPUs vLLM's own default stands."""
    flag = "--max-num-batched-tokens"
    spec = make_spec()
    on_cpu = commands.engine_arguments(spec, host="h", port=1)
    assert on_cpu[on_cpu.index(flag) + 1] == "512"
    chosen = commands.engine_arguments(replace(spec, vllm_arguments=(flag, "2048")), host="h", port=1)
    assert chosen.count(flag) == 1
    assert flag not in commands.engine_arguments(replace(spec, device="cuda"), host="h", port=1)


def test_names_of_any_length_leave_room_for_rays_sockets() -> None:
    """A Unix socket's path has 107 bytes; Ray's own part of it is as long as this, seen with 2.60."""
    own = "/session_2026-12-01_02-04-00_123456_4194304/sockets/plasma_store_1"
    run_dir = f"/tmp/longspan-{'0' * 12}"
    assert len(Paths(run_dir, "").ray_dir("gpu-server-a100-17.rack-4.example.org") + own) <= 107
