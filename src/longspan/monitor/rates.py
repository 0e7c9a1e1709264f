"""Differences of counters to rates, and sums and shares of figures of which some are not known. Pure."""


def increase(before: float | None, after: float | None) -> float | None:
    """By how much a counter grew; one that is smaller than before began again at 0 (Prometheus' rule). None if unknown."""
    if before is None or after is None:
        return None
    return after - before if after >= before else after


def per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    """The rate between two readings of a counter, None where one of them is missing or no time has passed."""
    grown = increase(before, after)
    return None if grown is None or seconds <= 0 else grown / seconds


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where either is unknown or the whole is nothing."""
    return None if part is None or not whole else part / whole


def total(*values: float | None) -> float | None:
    """The sum of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
