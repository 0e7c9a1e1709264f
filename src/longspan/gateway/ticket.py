"""What the dispatcher knows of one request, and what it may answer.

Messages are named tuples: they are made for every request, and a frozen dataclass costs several times as much.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Ask(NamedTuple):
    """A request as far as routing needs it. Token counts are estimates until the engine's usage is known.

    state: the id of a stored response that it continues, which lives in one replica.
    claims: the id that it wants its own response to be stored under, where the client chose one.
    """

    id: int
    model: str
    key: str
    prompt_tokens: int = 0
    max_tokens: int = 0
    stream: bool = False
    local_only: bool = False
    priority: str = "normal"
    session: int | None = None
    prefix: tuple[int, ...] = ()
    state: str = ""
    claims: str = ""


@dataclass(slots=True)
class Attempt:
    """One sending of a request to one upstream, kept for `gateway why`.

    began: when the engine began with it as far as we can tell; None while it waits in the engine's own queue.
    """

    target: str
    outside: bool
    sent: float
    predicted_seconds: float
    reason: str = ""
    first: float | None = None
    began: float | None = None
    cause: str = ""
    candidates: dict[str, float] = field(default_factory=dict)
    continues: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """The dispatcher's record of a live request.

    waiting: it stands in the wait room. tried: upstreams that failed it. continued: the client has content of an
    attempt before, and a sibling goes on with it: no provider can, and no wait is worth it. Exactly one of waiting and `where` is
    set while the request lives, which the tests check as an invariant.
    """

    ask: Ask
    arrived: float
    waiting: bool = False
    where: str | None = None
    tried: set[str] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    retried_same: bool = False
    continued: bool = False
    limited: bool = False
    reserved_usd: float = 0.0


class Send(NamedTuple):
    """Send the request to `target` now. A live attempt is ended first: there are never two."""

    id: int
    target: str
    outside: bool
    reason: str = ""


class Reject(NamedTuple):
    """Answer with this error; nothing is left to try."""

    id: int
    status: int
    code: str
    message: str
    retry_after_seconds: float | None = None


class GiveUp(NamedTuple):
    """No other upstream is left: show the client the failure of the last attempt."""

    id: int


Action = Send | Reject | GiveUp
