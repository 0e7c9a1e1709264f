"""Records and results survive their documents."""

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bench.record import OUTCOMES, RequestRecord
from longspan.bench.result import (
    ClientQuality,
    EngineObservation,
    EngineSample,
    Figure,
    Result,
    TokenAudit,
)
from longspan.errors import ResultError

MOMENTS = st.integers(0, 10**10).map(lambda micro: micro / 1e6)
RECORDS = st.builds(
    RequestRecord,
    index=st.integers(0, 10**6),
    scheduled_seconds=MOMENTS,
    sent_seconds=st.none() | MOMENTS,
    first_seconds=st.none() | MOMENTS,
    last_seconds=st.none() | MOMENTS,
    end_seconds=st.none() | MOMENTS,
    chunk_seconds=st.lists(MOMENTS, max_size=20).map(lambda items: array("d", sorted(items))),
    output_tokens=st.integers(-1, 10**5),
    outcome=st.sampled_from(OUTCOMES),
    error=st.text(max_size=10),
    warmup=st.booleans(),
)


def result(requests: tuple[RequestRecord, ...] = (), **changes: object) -> Result:
    """A whole result."""
    values = {
        "result_id": "r1", "started_unix_seconds": 1.5, "url": "http://h/v1", "kind": "chat", "model": "m",
        "load": {"kind": "poisson", "rate": 2.0}, "seeds": {"arrivals": 1}, "conditions": {"engine": None},
        "summary": {"e2el_adjusted_p99_seconds": Figure(math.inf, "s", 1.0, None, 7, "failures")},
        "client": ClientQuality(processes=2, reasons=("busy",)),
        "engine": EngineObservation(
            ("http://h/metrics",), {"a": 1.0}, {"a": 2.0}, samples=(EngineSample(1.0, 2.0),), audit=TokenAudit(3, 3)
        ),
        "window_seconds": (0.0, 2.0), "requests": requests, "notes": ("n",),
    }  # fmt: skip
    return Result(**{**values, **changes})  # type: ignore[arg-type]


@given(st.lists(RECORDS, max_size=5))
def test_a_result_survives_its_document(records: list[RequestRecord]) -> None:
    """What is read back from strict JSON equals what was written, to the microsecond."""
    before = result(tuple(records))
    text = json.dumps(before.to_json(), allow_nan=False)
    assert Result.from_json(json.loads(text)) == before


@pytest.mark.parametrize("document", [None, [], {}, {"schema": "longspan.bench/0"}])
def test_a_document_of_another_schema_is_refused(document: object) -> None:
    """Another schema is named, not guessed at."""
    with pytest.raises(ResultError, match="schema"):
        Result.from_json(document)


@pytest.mark.parametrize("missing", ["summary", "requests", "window_seconds", "client", "load"])
def test_a_broken_document_is_one_error(missing: str) -> None:
    """A document that lacks a part is refused in one sentence."""
    document = result().to_json()
    del document[missing]
    with pytest.raises(ResultError, match="broken"):
        Result.from_json(document)


def test_tpot_divides_by_the_tokens_after_the_first_chunk() -> None:
    """(last - first) / (N - tokens of the first chunk); none where nothing follows the first chunk."""
    base = {
        "index": 0,
        "scheduled_seconds": 0.0,
        "sent_seconds": 0.5,
        "first_seconds": 1.0,
        "last_seconds": 1.36,
    }
    assert RequestRecord(**base, output_tokens=40, first_chunk_tokens=4).tpot_seconds == pytest.approx(0.01)  # type: ignore[arg-type]
    assert RequestRecord(**base, output_tokens=4, first_chunk_tokens=4).tpot_seconds is None  # type: ignore[arg-type]
    assert RequestRecord(**base, output_tokens=4).tpot_seconds is None  # type: ignore[arg-type]
    both = [RequestRecord(**base).ttft_seconds(flag) for flag in (True, False)]  # type: ignore[arg-type]
    assert both == pytest.approx([1.0, 0.5])
