"""The bounded wait room: strict priority classes, fair between keys within a class, first come first served in a key."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from longspan.gateway.ticket import Ticket

CLASSES = ("high", "normal", "low")


class WaitRoom:
    """Holds tickets of one model. Every operation but `remove` costs a few dictionary steps, whatever the length."""

    __slots__ = ("_classes", "size")

    def __init__(self) -> None:
        self._classes: dict[str, OrderedDict[str, deque[Ticket]]] = {name: OrderedDict() for name in CLASSES}
        self.size = 0

    def push(self, ticket: Ticket, front: bool = False) -> None:
        """Adds a ticket; `front` for one that waited before and comes back."""
        keys = self._classes[ticket.ask.priority]
        line = keys.setdefault(ticket.ask.key, deque())
        (line.appendleft if front else line.append)(ticket)
        ticket.waiting = True
        self.size += 1

    def pop(self) -> Ticket | None:
        """The next ticket: highest class, then the key whose turn it is, then the oldest."""
        for keys in self._classes.values():
            if keys:
                key, line = next(iter(keys.items()))
                ticket = line.popleft()
                if line:
                    keys.move_to_end(key)
                else:
                    del keys[key]
                ticket.waiting = False
                self.size -= 1
                return ticket
        return None

    def remove(self, ticket: Ticket) -> None:
        """Takes a ticket out wherever it stands."""
        if not ticket.waiting:
            return
        keys = self._classes[ticket.ask.priority]
        line = keys[ticket.ask.key]
        line.remove(ticket)
        if not line:
            del keys[ticket.ask.key]
        ticket.waiting = False
        self.size -= 1

    def __iter__(self) -> Iterator[Ticket]:
        """All waiting tickets in the order in which they would be served if none came after them."""
        for keys in self._classes.values():
            lines = [iter(list(line)) for line in keys.values()]
            while lines:
                left = []
                for line in lines:
                    ticket = next(line, None)
                    if ticket is not None:
                        yield ticket
                        left.append(line)
                lines = left
