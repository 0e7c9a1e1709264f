"""The rounds of a collective over sessions that are made up: who is tried with whom, and who is named in the end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longspan.preflight.checks_collective import guilty
from longspan.preflight.facts import NodeFacts
from longspan.preflight.groups import Collective
from longspan.preflight.scene import GroupResult, Scene, Wanted

FINE = {"wrong": "", "latency_seconds": 1e-4, "bus_bytes_per_second": 1e9}
TIMED_OUT = {"error": "DistBackendError: timed out after 15 s"}


@dataclass(slots=True)
class Made:
    """Answers like a node whose collectives of so many members fail or not."""

    name: str
    fails: Callable[[frozenset[int]], bool]
    worlds: dict[int, frozenset[int]] = field(default_factory=dict)

    def ask(self, do: str, _: float, **arguments: Any) -> Any:
        """Groups are told apart by the port of their store, which only the leader's node gives out."""
        if do == "collective_start":
            first = 1000 * int(self.name[1:])
            return {"members": [{}], "ports": list(range(first, first + arguments["ports"]))}
        if do == "collective_run":
            (member,) = arguments["members"]
            return [TIMED_OUT if self.fails(frozenset(self.worlds[member["store"][1]])) else FINE]
        return None


def tried(count: int, fails: Callable[[frozenset[int]], bool]) -> tuple[GroupResult, ...]:
    """All groups of a collective over so many nodes, of which those fail that `fails` says."""
    names = [f"n{number}" for number in range(count)]
    nodes = tuple(NodeFacts(name, f"10.0.0.{i}", python="3.11.2") for i, name in enumerate(names))
    wanted = tuple(Wanted(node.name, node.address, 1) for node in nodes)
    sessions = {name: Made(name, fails) for name in names}
    with ThreadPoolExecutor(count) as pool:
        run = Collective(sessions, Scene(wanted, nodes), pool, lambda _: None)  # type: ignore[arg-type]
        real = run._round

        def told(groups: Any) -> list[GroupResult]:
            for group in groups:
                members = frozenset(int(name[1:]) for name in group)
                port = run.ports[group[0]][-1]
                for name in group:
                    sessions[name].worlds[port] = members
            return real(groups)

        run._round = told  # type: ignore[method-assign]
        found, reason = run.run()
    assert reason == ""
    return found


@given(st.integers(4, 17), st.data())
def test_a_node_that_fails_in_company_only_is_named(count: int, data: st.DataObject) -> None:
    """All pairs pass, every larger group with one node fails: that node alone is named, after few more tries."""
    bad = data.draw(st.integers(0, count - 1))
    found = tried(count, lambda group: bad in group and len(group) > 2)
    assert guilty(found) == (f"n{bad}",)
    larger = [group for group in found if len(group.nodes) > 2]
    assert len(larger) <= 2 * count.bit_length() + 5


def test_three_nodes_that_fail_together_only() -> None:
    """There is nobody to change one of them for, so all three are named; and a group that is fine is tried once."""
    assert guilty(tried(3, lambda group: len(group) == 3)) == ("n0", "n1", "n2")
    fine = tried(5, lambda _: False)
    assert [len(group.nodes) for group in fine].count(5) == 1
    assert len(fine) == 11


def test_a_size_that_nobody_survives_blames_nobody_alone() -> None:
    """Where only the whole is too much, no node is singled out."""
    found = tried(8, lambda group: len(group) == 8)
    assert len(guilty(found)) == 8
