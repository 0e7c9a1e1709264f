"""`longspan scale` against the real state machine in a simulated cluster, and where several replicas are placed."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import errors
from longspan.cli import control, placing, prepare
from longspan.cli.render import rank_table, replica_lines
from longspan.cli.request import Request, parse_autoscale
from longspan.daemon import status
from longspan.deployment import NodeSpec
from longspan.launch.events import Scaled, Wished
from longspan.plan import Layout

sys.path.insert(0, str(Path(__file__).parent.parent / "launch"))
try:
    from driving import make_spec, make_steps
    from world import World
finally:
    sys.path.pop(0)

NODES = tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 2, ssh=f"n{i}") for i in range(3))
PLACES = (("n0", "n0"), ("n1", "n1"), ("n2", "n2"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two replicas of at most three that serve; every look at the status lets ten seconds pass."""
    made = World(make_steps(make_spec(nodes=NODES, replicas=2, placement=PLACES)))
    made.begin()
    made.run(60)

    def request(_: Any, path: str, *, body: dict[str, Any] | None = None, **__: Any) -> dict[str, Any]:
        if path == "/v1/scale":
            assert body is not None
            made.tell(Scaled(body["replicas"]))
            return {}
        made.run(10)
        return {**document(made), "version": made.events}

    monkeypatch.setattr(control, "running", lambda name: {"url": "http://x"})
    monkeypatch.setattr(control, "request", request)
    return made


def document(made: World) -> dict[str, Any]:
    """The status as the controller gives it."""
    return status.document(
        made.machine, state_dir="/s", api_key_file="/k", logs="/l", now=made.now
    )  # fmt: skip


def test_up_and_down_with_what_happens_on_the_way(longspan: Callable[..., Any], world: World) -> None:
    """Each step is told, and the verb returns when it is true."""
    found = longspan("scale", "3")
    assert (found.code, found.out.strip()) == (0, "3 replicas: r0, r1, r2.")
    assert "r2: engine" in found.err
    assert world.gateway["r2"] == "ready"
    world.streams["r2"] = world.now + 25
    found = longspan("scale", "1", "--json")
    assert found.code == 0
    assert [one["name"] for one in json.loads(found.out)["replicas"]] == ["r0"]
    assert "r2: draining" in found.err
    assert "r2: gone, its GPUs are free" in found.err
    assert longspan("scale", "1").out.strip() == "1 replica: r0."


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        ("0", errors.InputError.exit_code, "serve nobody"),
        ("4", errors.CapacityError.exit_code, "nodes were taken and checked for 3"),
        ("two", 2, "not a valid integer"),
    ],
)
def test_what_cannot_be(
    longspan: Callable[..., Any], world: World, wanted: str, code: int, words: str
) -> None:
    """Refused in words before anything changes."""
    found = longspan("scale", wanted)
    assert found.code == code
    assert words in found.err
    assert world.machine.replicas.wanted == 2


def test_one_that_is_given_up_ends_the_wait(longspan: Callable[..., Any], world: World) -> None:
    """With what to do; nobody waits an hour for what has failed."""
    world.broken.add("r2")
    found = longspan("scale", "3")
    assert found.code == errors.ControlPlaneError.exit_code
    assert "r2 was given up" in found.err
    assert "longspan restore r2" in found.err


def test_status_shows_each_replica(world: World) -> None:
    """Where it stands and why, and whose each rank is; a deployment that is only one says nothing more than before."""
    world.tell(Wished("r1", "drain"))
    world.run(5)
    found = document(world)
    lines = [line.plain for line in replica_lines(found)]
    assert lines[0].strip() == "2 of at most 3 replicas are wanted"
    assert "r0   serving since" in lines[1]
    assert "on n0" in lines[1]
    assert "r1   drained since" in lines[2]
    assert next(column.header for column in rank_table(found).columns) == "replica"
    alone = World(make_steps(make_spec()))
    alone.begin()
    alone.run(60)
    assert replica_lines(document(alone)) == []
    assert next(column.header for column in rank_table(document(alone)).columns) == "rank"


def test_status_tells_what_the_queue_decided(world: World) -> None:
    """The bounds, and the last change with its reason."""
    scaling = {
        "least": 1,
        "most": 3,
        "queue_seconds": 5.0,
        "last": {"replicas": 2, "reason": "9.0 s of queue"},
    }
    lines = [line.plain for line in replica_lines({**document(world), "autoscale": scaling})]
    assert "1 to 3, as the queue wants (5 s are too many)" in lines[0]
    assert "last changed to 2: 9.0 s of queue" in lines[1]


def test_the_reason_of_each_state(world: World) -> None:
    """Suspected, isolated, draining, restarting: each with its why."""
    machine = world.machine

    def of(name: str) -> tuple[str, str]:
        row = next(one for one in document(world)["replicas"] if one["name"] == name)
        return row["phase"], row["reason"]

    machine.replicas.by_name["r1"].traffic.suspicions["n1"] = "n1 has not answered for 4 s"
    assert of("r1") == ("suspected", "n1 has not answered for 4 s")
    machine.replicas.by_name["r1"].traffic.suspicions.clear()
    world.tell(Wished("r1", "isolate"))
    assert of("r1") == ("isolated", "by the operator")
    world.tell(Wished("r1", "restore"))
    world.streams["r1"] = world.now + 100
    world.tell(Wished("r1", "drain"))
    assert of("r1") == ("draining", "by the operator")
    world.kill_rank("r0")
    world.run(2)
    assert of("r0")[0] == "fencing"
    assert "being restarted: A rank's process on n0 ended" in of("r0")[1]


# ---- placement
gpus = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@given(gpus, st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_no_gpu_is_given_twice(have: list[int], tp: int, pp: int, replicas: int) -> None:
    """Every replica that is placed is whole, no node holds more ranks than it has GPUs, and there are as many as fit."""
    nodes = [NodeSpec(f"n{i}", f"10.0.0.{i + 1}", gpus) for i, gpus in enumerate(have)]
    placed = placing.placement(nodes, tp, pp, replicas)
    used = Counter(name for slots in placed for name in slots)
    assert all(len(slots) == tp * pp for slots in placed)
    assert all(used[node.name] <= node.gpus for node in nodes)
    assert len(placed) == min(replicas, sum(have) // (tp * pp))


@given(gpus, st.integers(1, 4), st.integers(1, 3), st.integers(2, 6))
def test_nodes_that_offer_what_they_hold_give_the_same_places(
    have: list[int], tp: int, pp: int, replicas: int
) -> None:
    """Ray is told of no more GPUs than there are ranks: the second look must find what the first one found."""
    nodes = [NodeSpec(f"n{i}", f"10.0.0.{i + 1}", gpus) for i, gpus in enumerate(have)]
    placed = placing.placement(nodes, tp, pp, replicas)
    used = Counter(name for slots in placed for name in slots)
    less = [NodeSpec(n.name, n.address, used[n.name]) for n in nodes if used[n.name]]
    assert placing.placement(less, tp, pp, len(placed)) == placed


def test_a_replica_stays_on_one_node_where_it_can() -> None:
    """Else whole stages do."""
    eight = [NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 8) for i in range(2)]
    assert [set(slots) for slots in placing.placement(eight, 4, 1, 4)] == [{"n0"}, {"n0"}, {"n1"}, {"n1"}]
    three = [NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 3) for i in range(4)]
    assert placing.placement(three, 2, 2, 2) == (("n0", "n0", "n1", "n1"), ("n2", "n2", "n3", "n3"))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 5), st.none() | st.integers(1, 6))
def test_processors_have_room_for_all_that_was_asked_for(
    tp: int, pp: int, replicas: int, nodes: int | None
) -> None:
    """As many GPUs are declared as there are ranks, over as many nodes as were asked for; without a wish a node for each replica."""
    wanted = Request(
        "m", tp, pp, nodes, None, "ray", "default", None, "127.0.0.1:8000", None, False, (), replicas=replicas
    )
    if nodes is not None and tp * pp * replicas < nodes:
        with pytest.raises(errors.CapacityError):
            placing.place_on_cpus(wanted)
        return
    _, _, placed = placing.place_on_cpus(wanted)
    assert len(placed) == (nodes or replicas)
    assert sum(node.gpus for node in placed) == tp * pp * replicas
    assert len(placing.placement(placed, tp, pp, replicas)) == replicas


def test_too_many_are_refused_with_the_count() -> None:
    """In GPUs, by node."""
    nodes = (NodeSpec("n0", "10.0.0.1", 3),)
    placed = placing.placement(nodes, 2, 1, 2)
    with pytest.raises(errors.CapacityError) as caught:
        prepare.refuse_too_many(nodes, Layout(tp=2), placed, 2)
    assert "2 replicas of TP 2 x PP 1 need 4 GPUs, the cluster has 3 (n0: 3), enough for 1." in str(
        caught.value
    )


def test_what_autoscale_says() -> None:
    """Least, most, and seconds, which have a default."""
    assert parse_autoscale("1:4", None, None) == (1, 4, 5.0)
    assert parse_autoscale("2:8:2.5s", None, None) == (2, 8, 2.5)
    assert parse_autoscale(None, 3, None) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--replicas", "0"), "--replicas 0 makes no sense"), (("--max-replicas", "-1"), "makes no sense"),
     (("--replicas", "3", "--max-replicas", "2"), "--max-replicas 2 is less than --replicas 3"),
     (("--autoscale", "4:1"), "is no range of replicas"), (("--autoscale", "0:4"), "is no range of replicas"),
     (("--autoscale", "many"), "is no range of replicas"), (("--autoscale", "1:4:0"), "is no range of replicas"),
     (("--autoscale", "1:4", "--replicas", "2"), "--autoscale says how many replicas there are")],
)  # fmt: skip
def test_impossible_numbers(longspan: Callable[..., Any], options: tuple[str, ...], words: str) -> None:
    """Before anything is looked at."""
    found = longspan("up", "/nowhere", *options)
    assert found.code == errors.InputError.exit_code
    assert words in found.err
