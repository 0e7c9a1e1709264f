"""A small gateway state and small requests for the tests of pure modules."""

from longspan.gateway.config import GatewayConfig
from longspan.gateway.configfile import parse_config
from longspan.gateway.routing import Dispatcher
from longspan.gateway.ticket import Action, Ask

BASE = """
listen = "127.0.0.1:0"
[[models]]
name = "m"
aliases = ["demo"]
"""


def config(replicas: int = 2, more: str = "", provider: str = "", **fields: object) -> GatewayConfig:
    """A configuration with some replicas of one model; `fields` go into every replica."""
    text = BASE
    for number in range(replicas):
        text += f'[[replicas]]\nname = "r{number}"\nurl = "http://127.0.0.1:{9000 + number}"\nmodel = "m"\n'
        text += "".join(f"{name} = {value}\n" for name, value in fields.items())
    if provider:
        text += f'[[providers]]\nname = "p"\nurl = "http://127.0.0.1:9100"\nmodels = {{ m = "theirs" }}\n{provider}\n'
    return parse_config(text + more)


class Clockwork:
    """A dispatcher with a clock that the test moves and a choice that always takes the first."""

    def __init__(self, settings: GatewayConfig) -> None:
        self.now = 100.0
        self.dispatcher = Dispatcher(settings, self.now, lambda n: 0)
        self.next = 0

    def ask(self, **fields: object) -> tuple[int, list[Action]]:
        """A request arrives."""
        self.next += 1
        values = {"model": "m", "key": "k", "prompt_tokens": 10, "stream": True, **fields}
        return self.next, self.dispatcher.arrive(Ask(self.next, **values), self.now)  # type: ignore[arg-type]

    def check(self) -> None:
        """The invariants that hold between any two events."""
        dispatcher = self.dispatcher
        fleet = dispatcher.fleet
        placed = [t for t in dispatcher.tickets.values() if t.where is not None]
        waiting = [t for t in dispatcher.tickets.values() if t.waiting]
        assert dispatcher.running == len(placed) >= 0
        assert not any(t.waiting and t.where for t in dispatcher.tickets.values())
        assert {t.ask.id for room in fleet.rooms.values() for t in room} == {t.ask.id for t in waiting}
        assert sum(room.size for room in fleet.rooms.values()) == len(waiting)
        for standing in fleet.standings.values():
            mine = {t.ask.id for t in placed if t.where == standing.name}
            assert set(standing.flight) == mine
            assert set(standing.pending) <= mine
            assert standing.pending_tokens == sum(t.ask.prompt_tokens for t in standing.pending.values())
        for spending in fleet.spending.values():
            assert spending.reserved_usd >= 0
        for key, limits in dispatcher.limits.items():
            held = sum(t.limited and t.ask.key == key for t in dispatcher.tickets.values())
            assert limits.parallel == held
