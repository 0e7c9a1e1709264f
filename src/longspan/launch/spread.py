"""Who gives which file to whom, until every node has all: this machine sends each byte once, the nodes pass it on. Pure.

Whole files travel, each from one giver to one node; a checkpoint of 700 GB is some 150 of them. A node takes one file and gives
one at a time. With n nodes this machine's line carries the checkpoint once instead of n times, and all of it takes hardly longer
than that, since the nodes exchange what each got first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HERE = ""  # this machine as a giver


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file on its way; `giver` is a node or HERE."""

    giver: str
    node: str
    path: str


@dataclass(slots=True)
class Spread:
    """What each node has, lacks and gets.

    Attributes:
        lacks: node -> the files it still needs, in order. holds: node -> the files it has in full.
        givers: nodes that other nodes may take from.
        streams: how many files this machine sends at a time.
        broken: (giver, node) between which a transfer failed. failed: nodes that even this machine could not serve.
    """

    lacks: dict[str, list[str]]
    holds: dict[str, set[str]]
    givers: frozenset[str]
    streams: int
    running: set[Transfer] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        lacks: Mapping[str, Iterable[str]],
        files: Iterable[str],
        *,
        givers: Iterable[str],
        streams: int,
    ) -> "Spread":
        """The beginning: each node holds what it does not lack."""
        wanted = {node: list(paths) for node, paths in lacks.items()}
        every = set(files)
        return cls(
            wanted, {node: every - set(paths) for node, paths in wanted.items()}, frozenset(givers), streams
        )

    def start(self) -> list[Transfer]:
        """What can begin now; it counts as running from here on."""
        begun = []
        for node in self.lacks:
            if node not in self.failed and not any(one.node == node for one in self.running):
                found = self._for(node)
                if found is not None:
                    self.running.add(found)
                    begun.append(found)
        return begun

    def ended(self, transfer: Transfer, *, came: bool) -> None:
        """A transfer is over. One that failed is not tried again between the same two."""
        self.running.discard(transfer)
        if came:
            self.lacks[transfer.node].remove(transfer.path)
            self.holds[transfer.node].add(transfer.path)
        elif transfer.giver == HERE:
            self.failed.add(transfer.node)
        else:
            self.broken.add((transfer.giver, transfer.node))

    def _for(self, node: str) -> Transfer | None:
        """The next file for a node that takes none: the rarest that another node can give now, else the rarest that only this
        machine can ever give. What another node has, or is getting, is waited for."""
        copies = Counter(path for held in self.holds.values() for path in held)
        copies.update(one.path for one in self.running)
        wanted = sorted(self.lacks[node], key=copies.__getitem__)
        peers = [
            one
            for one in self.lacks
            if one != node
            and one in self.givers
            and one not in self.failed
            and (one, node) not in self.broken
        ]
        busy = {one.giver for one in self.running}
        idle = [one for one in peers if one not in busy]
        for path in wanted:
            for giver in idle:
                if path in self.holds[giver]:
                    return Transfer(giver, node, path)
        if sum(one.giver == HERE for one in self.running) < self.streams:
            coming = {(one.path, one.node) for one in self.running}
            for path in wanted:
                if not any(path in self.holds[peer] or (path, peer) in coming for peer in peers):
                    return Transfer(HERE, node, path)
        return None
