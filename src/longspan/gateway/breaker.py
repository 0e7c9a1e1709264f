"""A circuit breaker: opened by failures in a row or a failing majority, one probe at a time, then closed."""

from collections import deque

MAX_OPEN_SECONDS = 60.0
WINDOW = 20


class Breaker:
    """Times are seconds of one monotonic clock, passed in.

    Client errors (4xx) and 429 are no failures: they say nothing about the engine's health.
    """

    __slots__ = ("_recent", "failures", "open_seconds", "open_until", "probing", "row", "times_opened")

    def __init__(self, failures: int, open_seconds: float) -> None:
        self.failures = failures
        self.open_seconds = open_seconds
        self.open_until: float | None = None
        self.probing = False
        self.row = 0
        self.times_opened = 0
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    def allows(self, now: float) -> bool:
        """Whether a request may be sent: closed, or due for its single probe."""
        if self.open_until is None:
            return True
        return now >= self.open_until and not self.probing

    @property
    def closed(self) -> bool:
        """No failure is being waited out."""
        return self.open_until is None

    def sent(self) -> None:
        """A request goes out. If the breaker is open, this is its probe."""
        if self.open_until is not None:
            self.probing = True

    def succeeded(self) -> None:
        """An answer came: closed again."""
        self.row = 0
        self.probing = False
        if self.open_until is not None:
            self.open_until = None
            self.times_opened = 0
            self._recent.clear()
        self._recent.append(True)

    def failed(self, now: float) -> None:
        """A failure of the engine's; opens at the limit, or again for twice as long after a failed probe."""
        self.row += 1
        self._recent.append(False)
        majority = len(self._recent) == WINDOW and self._recent.count(False) * 2 >= WINDOW
        if self.probing or (self.open_until is None and (self.row >= self.failures or majority)):
            span = min(MAX_OPEN_SECONDS, self.open_seconds * 2**self.times_opened)
            self.open_until = now + span
            self.times_opened += 1
            self.probing = False

    def abandoned(self) -> None:
        """The probe ended without a verdict (the client left): the next request may probe."""
        self.probing = False
