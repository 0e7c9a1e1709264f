"""From a result to blocks: a whole run as one block, or one run cut into stretches of time.

Latencies count from the scheduled time.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from longspan.bench import summary
from longspan.bench.blocks import LATENCIES, Block
from longspan.bench.record import RequestRecord
from longspan.bench.result import Result
from longspan.workload import Objective

# Of a single run: few enough that each is longer than a request lasts, many enough for an interval.
BLOCKS_OF_A_RUN = 10


def measured(result: Result) -> list[RequestRecord]:
    """The requests that figures are made of, as far as they were sent."""
    return [record for record in summary.measured(result.requests) if record.sent_seconds is not None]


def latencies(records: Iterable[RequestRecord]) -> dict[str, list[float]]:
    """Every quantity's values, ascending. A failed request counts as infinitely slow; ITL has the gaps of those that succeeded."""
    found: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for record in records:
        if record.failed:
            for name in ("ttft", "tpot", "e2el"):
                found[name].append(inf)
            continue
        for name, value in (
            ("ttft", record.ttft_seconds(True)),
            ("tpot", record.tpot_seconds),
            ("e2el", record.e2el_seconds(True)),
        ):
            if value is not None:
                found[name].append(value)
        stamps = record.chunk_seconds
        found["itl"] += [after - before for before, after in pairwise(stamps)]
    for values in found.values():
        values.sort()
    return found


def tokens_within(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    """Output tokens that arrived from `begin` to `end`; those of a request are spread evenly from its first to its last."""
    total = 0.0
    for record in records:
        if record.last_seconds is None or record.output_tokens <= 0:
            continue
        first = record.first_seconds if record.first_seconds is not None else record.last_seconds
        if record.last_seconds <= first:
            total += record.output_tokens if begin <= first < end else 0
            continue
        inside = min(record.last_seconds, end) - max(first, begin)
        total += record.output_tokens * max(inside, 0.0) / (record.last_seconds - first)
    return total


def block_of(
    records: Sequence[RequestRecord],
    everything: Iterable[RequestRecord],
    begin: float,
    end: float,
    objectives: Sequence[Objective],
) -> Block:
    """A block of the requests sent from `begin` to `end`, with the tokens of all requests that arrived then."""
    return Block(
        seconds=max(end - begin, 1e-9),
        sent=len(records),
        failed=sum(record.failed for record in records),
        good=sum(summary.meets(record, objectives) for record in records),
        output_tokens=tokens_within(everything, begin, end),
        latencies=latencies(records),
    )


def whole(result: Result, objectives: Sequence[Objective]) -> Block:
    """A run as one block: its measured window."""
    records = measured(result)
    begin, end = result.window_seconds
    return block_of(records, result.requests, begin, end, objectives)


def cut(result: Result, objectives: Sequence[Objective]) -> list[Block]:
    """One run in `BLOCKS_OF_A_RUN` stretches of the same length, by when requests were sent; stretches without any are left out."""
    count = BLOCKS_OF_A_RUN
    begin, end = result.window_seconds
    step = (end - begin) / count
    if step <= 0:
        return []
    stretches: list[list[RequestRecord]] = [[] for _ in range(count)]
    for record in measured(result):
        assert record.sent_seconds is not None
        at = int((record.sent_seconds - begin) / step)
        if 0 <= at < count or record.sent_seconds == end:
            stretches[min(at, count - 1)].append(record)
    return [
        block_of(own, result.requests, begin + i * step, begin + (i + 1) * step, objectives)
        for i, own in enumerate(stretches)
        if own
    ]
