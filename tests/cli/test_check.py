"""`longspan check` and the pre-flight of `up`, with nodes that are this machine and with scenes that are made up."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan import errors
from longspan.cli import check_record, preflighting
from longspan.cli.check_record import kept_links
from longspan.cluster.inventory_file import parse_cluster
from longspan.daemon.launch_store import LaunchStore
from longspan.daemon.places import Places
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.doctor.launches import recorded
from longspan.finding import Finding
from longspan.preflight.catalogue import CHECKS, Judged, judge
from longspan.preflight.check import Outcome
from longspan.preflight.scene import Scene
from preflight.scenes import node, scene

HERE = f'python = "{sys.executable}"\ngpus = 1\n'
TWO = (
    f'[[node]]\nname = "a"\naddress = "127.0.0.2"\n{HERE}[[node]]\nname = "b"\naddress = "127.0.0.3"\n{HERE}'
)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two nodes on this machine."""
    path = tmp_path / "hosts.toml"
    path.write_text(TWO)
    return path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], list[Any]]:
    """Makes every pre-flight see this scene; returns what it was asked for."""

    def make(what: Scene) -> list[Any]:
        asked: list[Any] = []

        def preflight(targets: Any, wanted: Any, options: Any, progress: Any) -> Scene:
            asked.append((targets, wanted, options))
            return what

        monkeypatch.setattr(preflighting, "preflight", preflight)
        return asked

    return make


def test_two_nodes_for_real(longspan: Callable[..., Any], cluster: Path) -> None:
    """Loopback addresses are refused as a cluster, and everything else that two nodes can be asked was asked."""
    said = longspan("check", "--cluster", str(cluster), "--no-collective", "--json")
    assert said.code == errors.CheckError.exit_code
    found = said.document
    states = {check["id"]: check["state"] for check in found["checks"]}
    assert states["address-kind"] == "error"
    assert (states["reachable"], states["ports"], states["data"], states["collective"]) == (
        "ok",
        "ok",
        "ok",
        "skipped",
    )
    assert [one["name"] for one in found["nodes"]] == ["a", "b"]
    assert found["errors"] >= 1
    assert "facts of 2 node(s)" in said.err


def test_this_machine_alone(longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]]) -> None:
    """Without a cluster file one node is asked, and no error is 0."""
    asked = seen(scene())
    said = longspan("check")
    assert said.code == 0
    ((targets, _, options),) = asked
    assert [target.address for target in targets] == ["127.0.0.1"]
    assert options.own_ray is False
    assert "0 errors, 0 warnings" in said.out


@pytest.mark.parametrize(
    ("gpus", "device"),
    [("1", ""), ('"2x H100"', "cuda"), ('"2x MI300X"', "rocm"), ('["H100", "MI300X"]', ""), ("0", "")],
)
def test_what_the_file_promises_is_missed(
    longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]], cluster: Path, gpus: str, device: str
) -> None:
    """GPUs that the file names by type are missed where no driver lists any, on all nodes too; a plain number may mean processors."""
    cluster.write_text(TWO.replace("gpus = 1", f"gpus = {gpus}"))
    asked = seen(scene(device=device))
    said = longspan("check", "--cluster", str(cluster))
    assert asked[0][2].device == device
    assert said.code == (errors.CheckError.exit_code if device == "cuda" else 0)
    assert ("should have 1 GPU(s), its driver lists 0" in said.out) is (device == "cuda")
    assert ("the ranks run on AMD's GPUs" in said.out) is (device == "rocm")


def test_what_people_read(
    longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]], cluster: Path
) -> None:
    """One line a group, a finding with remedy and the nodes that share it, reasons for what was skipped, the environment."""
    low = {"limits": {"nofile_hard": 1024, "nofile": 1024, "memlock": -1}}
    seen(scene(node("a", **low), node("b", **low)))
    said = longspan("check", "--cluster", str(cluster))
    assert said.code == errors.CheckError.exit_code
    assert "a allows 1024 open files" in said.out
    assert "likewise: b" in said.out
    assert "→ Raise it" in said.out
    assert "no node has a GPU that a driver lists" in said.out
    assert "GLOO_SOCKET_IFNAME=eth1" in said.out
    for group in ("hosts", "versions", "network", "pairs", "collective"):
        assert sum(line.split()[1:2] == [group] for line in said.out.splitlines()) == 1


def test_no_secret_is_printed(
    longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]], cluster: Path
) -> None:
    """A variable of the user's that may hold a secret reaches the node and no output."""
    cluster.write_text(TWO + 'env = { HF_TOKEN = "hf_s3cret" }\n')
    asked = seen(scene())
    for arguments in (["--json"], []):
        said = longspan("check", "--cluster", str(cluster), *arguments)
        assert "s3cret" not in said.out + said.err
    assert asked[0][0][1].env == {"HF_TOKEN": "hf_s3cret"}


def test_write_links(longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]], cluster: Path) -> None:
    """The measured links stand in the file, the planner reads them, and they are kept for the record of a launch."""
    cluster.write_text(TWO.replace("gpus = 1", 'gpus = "1x H100"'))
    seen(scene())
    said = longspan("check", "--cluster", str(cluster), "--write-links")
    assert "a 8.0 Gbit/s, b 8.0 Gbit/s" in said.err
    for one in parse_cluster(cluster.read_text()).nodes:
        assert one.network.measured_bytes_per_second == 1e9
        assert one.network.measured_latency_seconds == pytest.approx(1e-4)
    assert kept_links(["10.0.0.2", "10.0.0.1"])["a"]["gbit_per_second"] == 8.0
    assert kept_links(["10.0.0.1"]) == {}
    assert longspan("check", "--write-links").code == errors.InputError.exit_code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[node]]\nname = 'a'\naddress = '10.0.0.1'\npyhton = '/x'\n", "line 4, column 1: a [[node]] has no field 'pyhton'. Did you mean 'python'?"),
        ("[[node]]\nname = 'a'\nadress = '10.0.0.1'\n", "line 3, column 1"),
        ("[[node]]\nname = 'a'\naddress = '10.0.0.1\n", "line 3, column 20, the end of the file"),
        ("[[node]]\nname='a'\naddress='10.0.0.1'\n[[node]]\nname='b'\naddress='10.0.0.2'\n  ssg = 'b'\n", "line 7, column 3"),
    ],
)  # fmt: skip
def test_a_typo_is_shown_where_it_stands(
    longspan: Callable[..., Any], cluster: Path, text: str, words: str
) -> None:
    """Line and column of bad TOML and of a field that nobody reads."""
    cluster.write_text(text)
    said = longspan("check", "--cluster", str(cluster))
    assert said.code == errors.InputError.exit_code
    assert words in " ".join(said.err.split())


# ---- the pre-flight of up
SPEC = DeploymentSpec(
    name="default", identity="i", model="/m", served_name="m", tp=1, pp=2, executor="ray", device="cpu",
    nodes=(NodeSpec("a", "10.0.0.1", 1, ssh="a", env={"GLOO_SOCKET_IFNAME": "mine"}), NodeSpec("b", "10.0.0.2", 1, ssh="b")),
    listen="127.0.0.1:8000", ray_first_port=20100,
)  # fmt: skip


def test_the_compiled_environment_joins_the_users(seen: Callable[[Scene], list[Any]]) -> None:
    """Each node's own values go with it to the launch, and those that the user set win."""
    asked = seen(scene())
    checked = preflighting.before_launch(SPEC, None, lambda _: None)
    spec = preflighting.with_environment(SPEC, checked.scene)
    first, second = spec.nodes
    assert first.env["GLOO_SOCKET_IFNAME"] == "mine"
    assert second.env == {
        "NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "VLLM_HOST_IP": "10.0.0.2",
    }  # fmt: skip
    assert spec.identity == SPEC.identity
    ((_, _, options),) = asked
    assert (options.collective, options.ray_ports, options.tp) == (False, (20100, 20599), 1)
    assert options.fixed_ports == (20100, 20102, 20103, 20110, 20552)


def ill(severity: Any = "error") -> Judged:
    """A check that found something."""
    return Judged(
        CHECKS[0], Outcome((Finding("b", severity, "clock-skew", "b is late.", remedy="Mend it."),))
    )


def test_an_error_stops_with_its_remedy() -> None:
    """The first error's words, and how many more there are; warnings stop nothing."""
    preflighting.refuse_errors(preflighting.Checked(scene(), (ill("warning"),), 1.0))
    with pytest.raises(errors.CheckError) as refused:
        preflighting.refuse_errors(preflighting.Checked(scene(), (ill(), ill()), 1.0))
    assert "b is late. (1 more error" in refused.value.what
    assert refused.value.remedy == "Mend it."


@pytest.mark.usefixtures("machine", "nothing_starts")
def test_up_refuses_and_says_what_changed(
    longspan: Callable[..., Any], seen: Callable[[Scene], list[Any]], tmp_path: Path, model: Path
) -> None:
    """An error ends `up` with 70 before anything starts; the attempt is recorded, with what differs from the last good one."""
    cluster = tmp_path / "hosts.toml"
    cluster.write_text(
        "".join(
            f'[[node]]\nname = "{n}"\naddress = "10.0.0.{i}"\ngpus = 1\nssh = "{n}"\n'
            for i, n in ((1, "a"), (2, "b"))
        )
    )
    store = LaunchStore(Places.of("default").launches)
    healthy = scene()
    record = check_record.record_of(preflighting.Checked(healthy, judge(healthy), 1.0))
    good = recorded(SPEC, {}, record["nodes"])
    store.update(store.begin(good), good, outcome="good", phase="serving")
    seen(scene(node("a"), node("b", python="3.12.1")))
    said = longspan("up", str(model), "--cluster", str(cluster), "--pp", "2")
    assert said.code == errors.CheckError.exit_code, said.err
    flat = " ".join(said.err.split())
    assert "b has Python 3.12.1, a has 3.11.2" in flat
    assert "Changed since the last good launch" in flat
    assert "b/python: 3.11.2 -> 3.12.1" in flat
    newest = store.all()[0]
    assert newest.outcome == "refused"
    assert "Python 3.12.1" in newest.what
    told = longspan("status", "--launches")
    assert told.code == 0
    assert "refused" in told.out
    assert "b/python: 3.11.2 -> 3.12.1" in told.out
    assert [one["outcome"] for one in longspan("status", "--launches", "--json").document] == [
        "refused",
        "good",
    ]
