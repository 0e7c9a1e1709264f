"""From what the client saw at the null server and what the server wrote into its chunks to an error bar. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.bench import stats
from longspan.bench.record import RequestRecord

STAMP_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Calibration:
    """What client, kernel and loopback add.

    Attributes:
        ttft_p50_seconds, ttft_p99_seconds: at a server that answers at once.
        itl_p99_seconds: how far a measured gap lies from the gap that the server wrote.
        delay_p99_seconds: from the server's stamp to the client's.
    """

    ttft_p50_seconds: float
    ttft_p99_seconds: float
    itl_p99_seconds: float
    delay_p99_seconds: float


def calibration(records: Sequence[RequestRecord], texts: dict[int, str], zero: float) -> Calibration | None:
    """Compares; None when too few answers came whole.

    Args:
        texts: the answers by index, made of stamps of `STAMP_DIGITS` digits, nanoseconds of the same clock.
        zero: that clock at the records' zero, in seconds.
    """
    first, gaps, delays = [], [], []
    for one in records:
        text = texts.get(one.index, "")
        wrote = [
            int(text[at : at + STAMP_DIGITS]) / 1e9 - zero
            for at in range(0, len(text) - STAMP_DIGITS + 1, STAMP_DIGITS)
        ]
        seen = one.chunk_seconds
        ttft = one.ttft_seconds(False)
        if not one.ok or ttft is None or len(wrote) != len(seen):
            continue
        first.append(ttft)
        delays += [at - when for at, when in zip(seen, wrote, strict=True)]
        gaps += [abs((seen[at] - seen[at - 1]) - (wrote[at] - wrote[at - 1])) for at in range(1, len(seen))]
    if len(first) < 2:
        return None
    return Calibration(*(
        stats.percentile(sorted(values), share)
        for values, share in ((first, 0.5), (first, 0.99), (gaps, 0.99), (delays, 0.99))
    ))  # fmt: skip
