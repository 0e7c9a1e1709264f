"""What the person at `longspan top` has chosen, and what a key does to it. No terminal here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from longspan.cli import top_words as words
from longspan.monitor.view import ClusterView, NodeView, ReplicaView

Table = Literal["replicas", "nodes"]

_REPLICA_SORTS: tuple[tuple[str, Callable[[ReplicaView], Any]], ...] = (
    ("name", lambda r: _natural(r.name)),
    ("waiting", lambda r: -(r.waiting or 0)),
    ("KV", lambda r: -(r.kv_use_share or 0)),
    ("tokens/s", lambda r: -(r.generation_tokens_per_second or 0)),
    ("TTFT p99", lambda r: -(r.ttft.p99.seconds if r.ttft and r.ttft.p99 else 0)),
)
_NODE_SORTS: tuple[tuple[str, Callable[[NodeView], Any]], ...] = (
    ("name", lambda n: _natural(n.name)),
    ("age", lambda n: -(n.age_seconds if n.age_seconds is not None else 1e12)),
    ("GPU memory", lambda n: -(words.highest([words.fullness(g) for g in n.gpus]) or 0)),
    ("GPU use", lambda n: -(words.middle([g.utilisation_share for g in n.gpus]) or 0)),
    ("network", lambda n: -sum(x or 0 for kind in ("netdev", "rdma") for x in words.traffic(n, kind))),
    ("CPU", lambda n: -(n.cpu_share or 0)),
)


def _natural(name: str) -> tuple[str, int]:
    """n2 before n10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1)


@dataclass(frozen=True, slots=True)
class TopState:
    """Which table has the keys, how each is sorted, what is selected and what is open."""

    table: Table = "replicas"
    replica_sort: int = 0
    node_sort: int = 0
    reverse: bool = False
    selected: int = 0
    opened: tuple[Table, str] | None = None
    scroll: int = 0

    @property
    def sort_name(self) -> str:
        """By what the table with the keys is sorted."""
        if self.table == "replicas":
            return _REPLICA_SORTS[self.replica_sort][0]
        return _NODE_SORTS[self.node_sort][0]


def replicas(view: ClusterView, state: TopState) -> list[ReplicaView]:
    """The replicas in the order chosen."""
    found = sorted(view.replicas, key=_REPLICA_SORTS[state.replica_sort][1])
    return found[::-1] if state.reverse and state.table == "replicas" else found


def nodes(view: ClusterView, state: TopState) -> list[NodeView]:
    """The nodes in the order chosen."""
    found = sorted(view.nodes, key=_NODE_SORTS[state.node_sort][1])
    return found[::-1] if state.reverse and state.table == "nodes" else found


def press(state: TopState, key: str, view: ClusterView) -> TopState | None:
    """What a key does; None to quit.

    Args:
        key: a letter, or "up", "down", "page-up", "page-down", "enter", "escape", "tab".
    """
    if key == "q":
        return None
    if state.opened:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -10, "page-down": 10}
        if key in {"escape", "enter", "backspace"}:
            return replace(state, opened=None, scroll=0)
        return replace(state, scroll=max(0, state.scroll + steps.get(key, 0)))
    rows: Sequence[ReplicaView | NodeView] = (
        replicas(view, state) if state.table == "replicas" else nodes(view, state)
    )
    last = max(0, len(rows) - 1)
    match key:
        case "tab":
            other: Table = "nodes" if state.table == "replicas" else "replicas"
            return replace(state, table=other, selected=0)
        case "s" if state.table == "replicas":
            return replace(state, replica_sort=(state.replica_sort + 1) % len(_REPLICA_SORTS))
        case "s":
            return replace(state, node_sort=(state.node_sort + 1) % len(_NODE_SORTS))
        case "r":
            return replace(state, reverse=not state.reverse)
        case "enter" if rows:
            return replace(state, opened=(state.table, rows[min(state.selected, last)].name), scroll=0)
        case "up" | "k" | "down" | "j" | "page-up" | "page-down":
            by = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -10, "page-down": 10}[key]
            return replace(state, selected=min(last, max(0, state.selected + by)))
    return state
