"""Warm-up by what was measured: the transient that MSER-5 finds at the begin of a run is in no figure. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from longspan.bench import stats
from longspan.bench.record import RequestRecord


def mark_transient(records: Sequence[RequestRecord]) -> tuple[tuple[RequestRecord, ...], str]:
    """The records, those of the transient marked as warm-up, and a note; unchanged where warm-up was given by count.

    The transient is looked for in the latencies from the sent time, in the order of sending.
    """
    found = tuple(records)
    if any(one.warmup for one in found):
        return found, ""
    lasting = [
        (one.sent_seconds, value)
        for one in found
        if one.ok and one.sent_seconds is not None and (value := one.e2el_seconds(False)) is not None
    ]
    lasting.sort()
    cut = stats.steady_from([value for _, value in lasting])
    if cut is None:
        return found, "no steady state was found, so nothing was taken off as warm-up"
    if cut == 0:
        return found, ""
    until = lasting[cut][0]
    marked = tuple(
        replace(one, warmup=True) if one.sent_seconds is not None and one.sent_seconds < until else one
        for one in found
    )
    return marked, f"the first {cut} answered requests were found to be a transient and are in no figure"
