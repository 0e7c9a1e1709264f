"""Who is logged in, and how often a key may be tried. Pure: the clock and the random tokens come from outside.

Sessions live in memory only, by the hash of their token: whoever reads the process's memory later finds no token, and a
restart logs everybody out.
"""

import hashlib
import hmac
from collections import deque
from dataclasses import dataclass, field

SESSION_SECONDS = 12 * 3600.0
IDLE_SECONDS = 2 * 3600.0
MAX_SESSIONS = 64
# Wrong keys. From one address, and from all together, since a machine may have many addresses.
WINDOW_SECONDS = 60.0
MAX_FAILURES_PER_ADDRESS = 5
MAX_FAILURES = 60


def digest(secret: str) -> str:
    """What is kept of a key or a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class Session:
    """One browser. Times are monotonic seconds.

    Attributes:
        csrf: what a page of ours sends along with every action, and no other page can know.
        streams: live connections that it holds.
    """

    csrf: str
    began: float
    used: float
    streams: int = 0


@dataclass(slots=True)
class Sessions:
    """All sessions of one dashboard.

    Attributes:
        key_sha256: of the key that opens it.
    """

    key_sha256: str
    sessions: dict[str, Session] = field(default_factory=dict)
    failures: deque[tuple[float, str]] = field(default_factory=deque)

    def wait_seconds(self, address: str, now: float) -> float:
        """How long this address must wait before it may try a key; 0 if it may now."""
        while self.failures and self.failures[0][0] <= now - WINDOW_SECONDS:
            self.failures.popleft()
        own = [at for at, who in self.failures if who == address]
        if len(own) >= MAX_FAILURES_PER_ADDRESS:
            return own[-MAX_FAILURES_PER_ADDRESS] + WINDOW_SECONDS - now
        if len(self.failures) >= MAX_FAILURES:
            return self.failures[0][0] + WINDOW_SECONDS - now
        return 0.0

    def login(self, key: str, address: str, now: float, token: str, csrf: str) -> Session | None:
        """Opens a session under `token` if the key is right; None, and a failure noted, if it is not.

        The caller asks `wait_seconds` first. With too many sessions, the one that was not used for longest ends.
        """
        if not hmac.compare_digest(digest(key), self.key_sha256):
            self.failures.append((now, address))
            return None
        self._forget(now)
        while len(self.sessions) >= MAX_SESSIONS:
            del self.sessions[min(self.sessions, key=lambda one: self.sessions[one].used)]
        session = Session(csrf, now, now)
        self.sessions[digest(token)] = session
        return session

    def find(self, token: str, now: float) -> Session | None:
        """The session of a token, if it is not over; its idle time starts again."""
        self._forget(now)
        session = self.sessions.get(digest(token))
        if session is not None:
            session.used = now
        return session

    def alive(self, session: Session, now: float) -> bool:
        """Whether a session that was found earlier still stands; a live stream keeps it from being idle."""
        session.used = now
        self._forget(now)
        return any(one is session for one in self.sessions.values())

    def logout(self, token: str) -> None:
        """Ends a session."""
        self.sessions.pop(digest(token), None)

    def _forget(self, now: float) -> None:
        over = [
            name
            for name, one in self.sessions.items()
            if now - one.began > SESSION_SECONDS or now - one.used > IDLE_SECONDS
        ]
        for name in over:
            del self.sessions[name]


def same_site(origin: str | None, fetch_site: str | None, host: str) -> bool:
    """Whether a request that changes something comes from a page of ours.

    Args:
        origin: the header Origin; fetch_site: Sec-Fetch-Site, which all current browsers send; host: the header Host.
    """
    if fetch_site is not None and fetch_site != "same-origin":
        return False
    return origin is None or origin.split("://", 1)[-1] == host
