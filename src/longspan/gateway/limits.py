"""Limits of one key, checked and taken in one step, so that no two requests can pass on the same permit."""

from longspan.gateway.config import KeyRule

WINDOW_SECONDS = 60


class Window:
    """A sum over the last 60 s in sixty one-second cells: bounded memory, exact to a second."""

    __slots__ = ("_cells", "_second", "total")

    def __init__(self) -> None:
        self._cells = [0] * WINDOW_SECONDS
        self._second = 0
        self.total = 0

    def add(self, amount: int, now: float) -> None:
        """Counts `amount` at `now`."""
        self.roll(now)
        self._cells[self._second % WINDOW_SECONDS] += amount
        self.total += amount

    def correct(self, amount: int, taken: float, now: float) -> None:
        """Puts right what was counted at `taken`: more is counted now, less only where it still stands.

        Else a long request that used less than its estimate would leave its key a credit.
        """
        if amount >= 0:
            self.add(amount, now)
            return
        self.roll(now)
        cell = int(taken) % WINDOW_SECONDS
        if self._second - int(taken) < WINDOW_SECONDS:
            amount = max(amount, -self._cells[cell])
            self._cells[cell] += amount
            self.total += amount

    def roll(self, now: float) -> None:
        """Forgets cells older than the window."""
        second = int(now)
        gone = second - self._second
        if gone <= 0:
            return
        for step in range(1, min(gone, WINDOW_SECONDS) + 1):
            cell = (self._second + step) % WINDOW_SECONDS
            self.total -= self._cells[cell]
            self._cells[cell] = 0
        self._second = second

    def seconds_until(self, room: int, limit: int, now: float) -> float:
        """Seconds until `room` fits under `limit`; the whole window if it never will."""
        self.roll(now)
        left = self.total
        for step in range(1, WINDOW_SECONDS + 1):
            left -= self._cells[(self._second + step) % WINDOW_SECONDS]
            if left + room <= limit:
                return step - (now - self._second) if now > self._second else float(step)
        return float(WINDOW_SECONDS)


class KeyLimits:
    """What one key has in use."""

    __slots__ = ("parallel", "requests", "rule", "tokens")

    def __init__(self, rule: KeyRule) -> None:
        self.rule = rule
        self.parallel = 0
        self.requests = Window()
        self.tokens = Window()

    def take(self, tokens: int, now: float) -> tuple[str, float] | None:
        """Takes a permit for a request of about `tokens`.

        Returns: None when taken, else the limit that was met and the seconds until it may pass.
        """
        rule = self.rule
        if rule.max_parallel is not None and self.parallel >= rule.max_parallel:
            return f"{rule.max_parallel} parallel requests", 1.0
        if rule.requests_per_minute is not None:
            self.requests.roll(now)
            if self.requests.total + 1 > rule.requests_per_minute:
                wait = self.requests.seconds_until(1, rule.requests_per_minute, now)
                return f"{rule.requests_per_minute} requests per minute", wait
        if rule.tokens_per_minute is not None:
            self.tokens.roll(now)
            if self.tokens.total + tokens > rule.tokens_per_minute:
                wait = self.tokens.seconds_until(tokens, rule.tokens_per_minute, now)
                return f"{rule.tokens_per_minute} tokens per minute", wait
        self.parallel += 1
        if rule.requests_per_minute is not None:
            self.requests.add(1, now)
        if rule.tokens_per_minute is not None:
            self.tokens.add(tokens, now)
        return None

    def give_back(self, estimated: int, used: int, taken: float, now: float) -> None:
        """Ends a request that was let in at `taken`: frees the permit and corrects its tokens to what was used."""
        self.parallel -= 1
        if self.rule.tokens_per_minute is not None:
            self.tokens.correct(used - estimated, taken, now)
