"""RDMA writes on every rail: what ib_write_bw says, who is blamed for what, and the trials over real sessions with a stand-in for the tool."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.host import LocalHost
from longspan.preflight.rails import Rails, describe, read_write_bw
from longspan.preflight.rails_node import words
from longspan.preflight.scene import RailTrial, Scene
from longspan.preflight.session import Session
from preflight.scenes import outcome, rdma, rdma_port, scene

# As perftest prints them (its issues 234, 262, 273 and pull requests 228, 342), shortened.
GOOD = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0108 PSN 0x63ad7d RKey 0x17eedf VAddr 0x007f760c947000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 65536      664644           0.00               {value}  \t\t     0.059070
---------------------------------------------------------------------------------------
"""
NO_ANSWER = (
    GOOD.partition(" #bytes")[0]
    + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
)


@pytest.mark.parametrize(
    ("status", "text", "bits_per_second", "said"),
    [
        (0, GOOD.format(unit="Gb/sec", value="378.41"), 378.41e9, ""),
        (0, GOOD.format(unit="MB/sec", value="11728.47"), 11728.47 * 8 * 2**20, ""),
        (1, NO_ANSWER, 0, "Failed status 12: wr_id 0 syndrom 0x81"),
        (1, "Couldn't connect to 10.0.0.2:18515\nUnable to open file descriptor for socket connection Unable to init the socket connection\n",
         0, "Unable to open file descriptor for socket connection Unable to init the socket connection"),
        (1, " Did not detect devices \n If device exists, check if driver is up\n Unable to find the Infiniband/RoCE device\n",
         0, "Unable to find the Infiniband/RoCE device"),
        (-1, "\nit did not end within 22 s", 0, "it did not end within 22 s"),
        (1, "", 0, "status 1, without a word"),
        (0, "a version that prints something else\n", 0, "a version that prints something else"),
        (1, GOOD.format(unit="Gb/sec", value="12.0"), 0, "65536      664644           0.00               12.0  \t\t     0.059070"),
    ],
)  # fmt: skip
def test_what_the_tool_says(status: int, text: str, bits_per_second: float, said: str) -> None:
    """The average, in its unit, or the words of trouble."""
    speed, error = read_write_bw(status, text)
    assert speed == pytest.approx(bits_per_second)
    assert error == said


def test_the_command() -> None:
    """Device, port, exchange port and length are said; the GID index only where there is one."""
    request = {"device": "mlx5_1", "number": 2, "gid": 3, "port": 40001, "seconds": 2}
    assert " ".join(words(request)) == "ib_write_bw -d mlx5_1 -i 2 -p 40001 -x 3 -D 2 -F --report_gbits"
    assert "-x" not in words({**request, "gid": None})


def ring(nodes: str, rails: int = 2, **changes: dict[str, object]) -> list[RailTrial]:
    """Trials of every rail around the ring, at 390 of 400 Gbit/s; `changes` by "a0b": from a to b on rail 0."""
    found = []
    for rail in range(rails):
        for source, target in zip(nodes, nodes[1:] + nodes[0], strict=True):
            port = f"mlx5_{rail}:1"
            trial = RailTrial(source, port, target, port, 400e9, bits_per_second=390e9)
            found.append(replace(trial, **changes.get(f"{source}{rail}{target}", {})))  # type: ignore[arg-type]
    return found


def judged(*trials: RailTrial, **changes: object) -> Scene:
    """A scene with these trials."""
    ports = rdma_port("mlx5_0"), rdma_port("mlx5_1")
    whole = scene(*(rdma(name, *ports) for name in "abc"))
    return replace(whole, rails=trials, no_rails="", **changes)  # type: ignore[arg-type]


DEAD: dict[str, object] = {"bits_per_second": 0.0, "error": "Failed status 12"}
SLOW: dict[str, object] = {"bits_per_second": 90e9}


def test_all_is_well() -> None:
    """No finding, and the range of what was reached."""
    found = outcome("rails", judged(*ring("abcd")))
    assert found.findings == ()
    assert found.seen == "8 writes, 390 Gbit/s to 390 Gbit/s"
    assert outcome("rails", scene()).skipped


@pytest.mark.parametrize(("change", "cause"), [(DEAD, "rail-broken"), (SLOW, "rail-slow")])
def test_one_port_is_named(change: dict[str, object], cause: str) -> None:
    """What fails to and from one port, while its neighbours do well with others, is that port's."""
    found = outcome("rails", judged(*ring("abcd", b1c=change, a1b=change))).findings
    assert [(one.subject, one.cause) for one in found] == [("b", cause)]
    assert "b, port mlx5_1:1," in found[0].summary


@pytest.mark.parametrize(("change", "cause"), [(DEAD, "rail-broken"), (SLOW, "rail-slow")])
def test_a_pair_is_named_where_it_cannot_be_told(change: dict[str, object], cause: str) -> None:
    """One direction of one pair, or two nodes only: both ends are named."""
    for trials in (ring("abcd", b1c=change), ring("bc", b1c=change, c1b=change)):
        found = outcome("rails", judged(*trials)).findings
        assert [(one.subject, one.cause) for one in found] == [("b and c", cause)]


def test_everything_is_slow_alike() -> None:
    """Then no node is blamed."""
    slow = {"bits_per_second": 180e9}
    trials = [replace(trial, **slow) for trial in ring("abc")]
    found = outcome("rails", judged(*trials)).findings
    assert [(one.subject, one.cause) for one in found] == [("cluster", "rails-below-rate")]


def test_rails_that_are_networks_of_their_own() -> None:
    """Only where a write across them fails and NCCL may try it; the remedy is the variable."""
    crossing = RailTrial("a", "mlx5_0:1", "b", "mlx5_1:1", 400e9, is_crossing=True, error="Failed status 12")
    found = outcome("rails", judged(*ring("abcd"), crossing)).findings
    assert [one.cause for one in found] == ["rails-separate"]
    assert "NCCL_CROSS_NIC" in found[0].remedy
    well = replace(crossing, error="", bits_per_second=390e9)
    assert outcome("rails", judged(*ring("abcd"), well)).findings == ()


@given(bad=st.sets(st.tuples(st.sampled_from("abcde"), st.integers(0, 1))), data=st.data())
def test_every_bad_trial_is_told_once(bad: set[tuple[str, int]], data: st.DataObject) -> None:
    """Whatever fails where, each failed write is in the evidence of exactly one finding."""
    nodes = "abcde"
    trials = []
    for trial in ring(nodes):
        rail = int(trial.source_port[5])
        hit = {(trial.source, rail), (trial.target, rail)} & bad or data.draw(st.booleans())
        trials.append(trial.with_error(f"E{trial.source}{rail}") if hit else trial)
    failed = [trial for trial in trials if trial.error]
    found = outcome("rails", judged(*trials)).findings
    said = [part for one in found if one.cause == "rail-broken" for part in one.evidence[0].text.split("; ")]
    assert len(said) >= len(failed)
    assert all(any(trial.error in part for part in said) for trial in failed)


# Plays ib_write_bw: the server listens on -p for one client; a device named in $BROKEN gets no answer, one in $SILENT hangs.
TOOL = f"""#!{sys.executable}
import os, socket, sys, time
at = lambda flag: sys.argv[sys.argv.index(flag) + 1]
good = {GOOD!r}.replace("{{unit}}", "Gb/sec").replace("{{value}}", "387.50")
if sys.argv[-2] == "-F":
    with socket.create_server((os.environ["OWN"], int(at("-p")))) as server:
        server.accept()[0].recv(9)
    sys.exit(0)
with socket.create_connection((sys.argv[-1], int(at("-p"))), timeout=5) as connection:
    connection.send(b"x")
if at("-d") == os.environ.get("BROKEN"):
    print({NO_ANSWER!r})
    sys.exit(1)
print(good)
"""


def test_trials_over_sessions(tmp_path: Path) -> None:
    """Two nodes with two rails each, the tool played: each rail both ways, then one write across; a broken device is blamed at its
    node, a missing tool skips, and no server is left."""
    tool = tmp_path / "ib_write_bw"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    ports = rdma_port("mlx5_0", "Ethernet"), rdma_port("mlx5_1", "Ethernet")
    nodes = [replace(rdma(name, *ports), address=at) for name, at in (("a", "127.0.0.2"), ("b", "127.0.0.3"))]
    whole = scene(*nodes)
    whole = replace(
        whole,
        wanted=tuple(
            replace(one, address=node.address, gpus=1) for one, node in zip(whole.wanted, nodes, strict=True)
        ),
    )

    def tried(path: str, **broken: str) -> Scene:
        sessions = {
            node.name: Session(
                LocalHost(node.name), sys.executable,
                {"PATH": path, "OWN": node.address, **({"BROKEN": broken[node.name]} if node.name in broken else {})},
            )
            for node in nodes
        }  # fmt: skip
        try:
            with ThreadPoolExecutor(2) as pool:
                rails, why = Rails(sessions, whole, pool, lambda _: None).run()
        finally:
            for session in sessions.values():
                session.close()
        return replace(whole, rails=rails, no_rails=why)

    path = f"{tmp_path}:{os.environ['PATH']}"
    well = tried(path)
    assert [(t.source, t.source_port, t.target, t.target_port, t.is_crossing) for t in well.rails] == [
        ("a", "mlx5_0:1", "b", "mlx5_0:1", False), ("b", "mlx5_0:1", "a", "mlx5_0:1", False),
        ("a", "mlx5_1:1", "b", "mlx5_1:1", False), ("b", "mlx5_1:1", "a", "mlx5_1:1", False),
        ("a", "mlx5_0:1", "b", "mlx5_1:1", True),
    ]  # fmt: skip
    assert {trial.bits_per_second for trial in well.rails} == {387.5e9}
    assert outcome("rails", well).findings == ()
    assert describe(well.rails[0])["bits_per_second"] == 387.5e9
    broken = tried(path, b="mlx5_1")
    assert [(trial.source, trial.error) for trial in broken.rails if trial.error] == [
        ("b", "Failed status 12: wr_id 0 syndrom 0x81")
    ]
    assert [one.cause for one in outcome("rails", broken).findings] == ["rail-broken"]
    assert tried("/nowhere").no_rails == "ib_write_bw is not installed on a, b (package perftest)"
