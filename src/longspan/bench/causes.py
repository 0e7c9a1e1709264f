"""What a run and the plan's model tell of throughput that was lost against a base. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from longspan.bench import summary
from longspan.bench.engine_counters import growth
from longspan.bench.ledger import Cause, kept
from longspan.bench.series import Measured
from longspan.workload import Objective


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the plan's model says of a run: shares of a step that go to links and to waiting for other pipeline stages."""

    communication_share: float
    bubble_share: float


def observed(run: Measured, base: Measured, objectives: Sequence[Objective]) -> list[Cause]:
    """What the runs themselves tell of the loss, in the order in which it is taken."""
    return [
        _client(run, base),
        _failed(run, base),
        *([_late(run, base, objectives)] if objectives else []),
        _gateway(run, base),
        _batch(run, base),
    ]


_OPEN = "in an open loop the rate is given: what makes answers later takes no throughput"


def _value(run: Measured, name: str) -> float | None:
    figure = run.result.summary.get(name)
    return figure.value if figure else None


def _client(run: Measured, base: Measured) -> Cause:
    name = "the client"
    if run.is_open:
        shares = []
        for one in (run, base):
            asked, made = _value(one, "requested_rate_per_second"), _value(one, "achieved_rate_per_second")
            if not asked or made is None:
                return Cause(name, "observed", None, "the rate asked for or the one reached is not known")
            # Poisson arrivals differ from their rate by chance, to both sides: only what is missing is a loss.
            shares.append(max(0.0, 1 - made / asked))
        return Cause(name, "observed", kept(*shares), "requests of the rate asked for that it did not send")
    shares = []
    for one in (run, base):
        share = _share_of_request(one, one.result.client.null_ttft_p50_seconds)
        if share is None:
            return Cause(name, "observed", None, "a client was not calibrated (--calibrate)")
        shares.append(share)
    return Cause(name, "observed", kept(*shares), "its own part of a request, from the null server")


def _failed(run: Measured, base: Measured) -> Cause:
    shares = []
    for one in (run, base):
        records = summary.measured(one.result.requests)
        if not records:
            return Cause("failed requests", "observed", None, "the result holds no requests")
        shares.append(sum(record.failed for record in records) / len(records))
    return Cause(
        "failed requests", "observed", kept(*shares), f"{shares[0]:.2%} failed, {shares[1]:.2%} at the base"
    )


def _late(run: Measured, base: Measured, objectives: Sequence[Objective]) -> Cause:
    """Answers that came, but too late: exact, since goodput counts those in time only."""
    shares = []
    for one in (run, base):
        answered = [record for record in summary.measured(one.result.requests) if record.ok]
        if not answered:
            return Cause("objectives missed", "observed", None, "the result holds no answers")
        shares.append(sum(not summary.meets(record, objectives) for record in answered) / len(answered))
    why = f"{shares[0]:.2%} of the answers came too late, {shares[1]:.2%} at the base"
    return Cause("objectives missed", "observed", kept(*shares), why)


def _share_of_request(run: Measured, seconds: float | None) -> float | None:
    """A time as a share of the mean request, which is what it costs a client that waits."""
    lasting = _value(run, "e2el_sent_mean_seconds")
    if seconds is None or not lasting:
        return None
    return min(max(seconds / lasting, 0.0), 0.99)


def outside_seconds(run: Measured) -> float | None:
    """Mean time of a request outside the engine: the client's end-to-end time less the engine's, less the client's own part.

    None where the engine's counters were not read, or count other requests than the client's.
    """
    engine = run.result.engine
    sent = [one for one in run.result.requests if one.sent_seconds is not None]
    lasting = [value for one in sent if (value := one.e2el_seconds(False)) is not None and one.ok]
    if engine is None or engine.restarted or not lasting or len(lasting) != len(sent):
        return None
    seconds = growth(engine.before, engine.after, "e2e_seconds")
    count = growth(engine.before, engine.after, "e2e_requests")
    if seconds is None or count != len(lasting):
        return None
    return max(0.0, fmean(lasting) - seconds / count - (run.result.client.null_ttft_p50_seconds or 0.0))


def _gateway(run: Measured, base: Measured) -> Cause:
    name = "gateway and network"
    if run.is_open:
        return Cause(name, "observed", None, _OPEN)
    shares = []
    for one in (run, base):
        share = _share_of_request(one, outside_seconds(one))
        if share is None:
            why = "the engine's request times were not read (--metrics), or some requests failed or were not the client's"
            return Cause(name, "observed", None, why)
        shares.append(share)
    why = f"{shares[0]:.2%} of a request passed outside the engine, {shares[1]:.2%} at the base"
    return Cause(name, "observed", kept(*shares), why)


# Gauges come once a second; the mean of a handful is chance (six of a real run of 10 s missed a quarter of the requests).
_FEWEST_SAMPLES = 10


def running_each(run: Measured) -> float | None:
    """Mean running requests an engine in the window, by its own count; None where it was not read (for ten samples at least)
    or the engines are not known."""
    engine = run.result.engine
    if engine is None or not run.split.tp:
        return None
    begin, end = run.result.window_seconds
    seen = [
        one.running for one in engine.samples if one.running is not None and begin <= one.at_seconds <= end
    ]
    return fmean(seen) / run.split.replicas if len(seen) >= _FEWEST_SAMPLES else None


def _batch(run: Measured, base: Measured) -> Cause:
    """An engine with fewer running requests makes fewer tokens a step; what its shorter steps give back is no loss.

    A step is expected to be as many times shorter as the engine has more GPUs. A larger batch is no gain here: it is what weak scaling asks for.
    """
    name = "smaller batch"
    if run.is_open:
        return Cause(name, "observed", None, _OPEN)
    here, there = running_each(run), running_each(base)
    tpots = [_value(one, "tpot_mean_seconds") for one in (run, base)]
    if not here or not there or not tpots[0] or not tpots[1]:
        why = (
            "the engine's running requests (--metrics, ten samples at least), its split or TPOT are not known"
        )
        return Cause(name, "observed", None, why)
    each = [one.split.gpus / one.split.replicas for one in (run, base)]
    faster = tpots[1] / tpots[0] / (each[0] / each[1])
    why = f"{here:.1f} requests run in an engine, {there:.1f} at the base; what shorter steps give back is left out"
    return Cause(name, "observed", min(1.0, here / there * max(1.0, faster)), why)


def expected(run: Measured, guess: Predicted | None, base: Predicted | None, why_not: str) -> list[Cause]:
    names = ("communication", "pipeline bubble")
    if run.is_open or guess is None or base is None:
        why = _OPEN if run.is_open else why_not or "the plan's model has no estimate for this run"
        return [Cause(name, "predicted", None, why) for name in names]
    rest = [max(1 - one.communication_share, 1e-9) for one in (guess, base)]
    bubbles = [one.bubble_share / left for one, left in zip((guess, base), rest, strict=True)]
    return [
        Cause(
            names[0], "predicted", kept(guess.communication_share, base.communication_share),
            f"{guess.communication_share:.2%} of a step, {base.communication_share:.2%} at the base",
        ),
        Cause(
            names[1], "predicted", kept(*bubbles), f"{guess.bubble_share:.2%} of a step, {base.bubble_share:.2%} at the base"
        ),
    ]  # fmt: skip
