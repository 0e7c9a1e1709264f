"""How many replicas the queue asks for: pure. One more when requests wait too long for too long, one fewer when the rest would do.

A replica takes minutes to load and a queue seconds to form, so it is quick to start one and slow to give one up; while one is on its
way, or on its way out, nothing else is decided.
"""

from dataclasses import dataclass

# A burst that the others work off within a quarter of a minute needs no load of the model.
UP_SECONDS = 15.0
# Longer than most lulls of people at work: what was given up costs a load of the model to have again.
DOWN_SECONDS = 600.0
# How full the others may be after one has gone, so that the next burst does not at once bring it back.
ROOM = 0.7
DEFAULT_QUEUE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """At least and at most so many replicas, and how many seconds a request may wait before it is too long."""

    least: int
    most: int
    queue_seconds: float = DEFAULT_QUEUE_SECONDS


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway says.

    Attributes:
        queue_seconds: predicted for the next request, 0 where nobody waits.
        inflight: requests that replicas have. capacity: how many the serving ones run at once, None where that is not known.
    """

    queue_seconds: float
    inflight: int
    capacity: int | None


@dataclass(slots=True)
class Autoscale:
    """Decides. `above` and `below`: since when the queue is too long, and one replica too many."""

    bounds: Bounds
    above: float | None = None
    below: float | None = None

    def decide(self, seen: Seen, *, wanted: int, serving: int, now: float) -> tuple[int, str] | None:
        """Another number of replicas and why, or None to leave it.

        Args:
            wanted: how many there are to be. serving: how many take requests.
        """
        bounds = self.bounds
        if not bounds.least <= wanted <= bounds.most:
            return max(bounds.least, min(bounds.most, wanted)), f"outside of {bounds.least} to {bounds.most}"
        if serving != wanted:
            self.above = self.below = None
            return None
        too_long, too_many = seen.queue_seconds > bounds.queue_seconds, _one_too_many(seen, serving)
        self.above = (self.above if self.above is not None else now) if too_long else None
        self.below = (self.below if self.below is not None else now) if too_many else None
        if self.above is not None and now - self.above >= UP_SECONDS and wanted < bounds.most:
            self.above = None
            waited = f"{seen.queue_seconds:.1f} s of queue, more than {bounds.queue_seconds:g} s for {UP_SECONDS:.0f} s"
            return wanted + 1, waited
        if self.below is not None and now - self.below >= DOWN_SECONDS and wanted > bounds.least:
            self.below = None
            rest = f"{seen.inflight} requests would fit into {serving - 1} of {serving} replicas for {DOWN_SECONDS / 60:.0f} minutes"
            return wanted - 1, rest
        return None


def _one_too_many(seen: Seen, serving: int) -> bool:
    """Whether one replica fewer would have room for all that runs. Where capacities are unknown only an idle one is."""
    if seen.queue_seconds > 0 or serving < 2:
        return False
    if seen.capacity is None:
        return seen.inflight == 0
    return seen.inflight <= ROOM * seen.capacity * (serving - 1) / serving
