"""Results of other tools, read as ours."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench_made import made
from longspan.bench import store
from longspan.bench.foreign import read
from longspan.cli.bench_import import command
from longspan.errors import ResultError

VLLM: dict[str, Any] = {
    "backend": "openai-chat", "model_id": "toy", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2,
    "duration": 1.0, "completed": 3, "start_times": [10.0, 10.5, 10.25, 11.0], "ttfts": [0.1, 0.2, 0.1, 0.0],
    "itls": [[0.05, 0.05], [0.1], [], []], "input_lens": [7, 8, 9, 9], "output_lens": [3, 4, 1, 0],
    "errors": ["", "", "", "Connection refused"],
}  # fmt: skip
TIMINGS = {
    "targeted_start": 99.5, "request_start": 100.0, "first_token_iteration": 100.2, "last_token_iteration": 100.6,
    "request_end": 100.7, "token_iterations": 5,
}  # fmt: skip
GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"info": {"timings": TIMINGS}, "input_metrics": {"text_tokens": 9}, "output_metrics": {"text_tokens": 5}}
                ],
                "errored": [{"info": {"timings": {"request_start": 101.0}, "error": "503"}}],
                "incomplete": [{"info": {"timings": {}}}],
            }
        }
    ]
}  # fmt: skip
AIPERF: dict[str, Any] = {
    "metadata": {"request_start_ns": 5_000_000_000, "request_end_ns": 5_700_000_000, "benchmark_phase": "profiling"},
    "metrics": {
        "time_to_first_token": {"value": 200.0, "unit": "ms"}, "request_latency": {"value": 600.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [200.0, 200.0], "unit": "ms"},
        "output_sequence_length": {"value": 3, "unit": "tokens"}, "input_sequence_length": {"value": 9, "unit": "tokens"},
    },
    "error": None,
}  # fmt: skip


def test_vllm_requests_become_records_in_the_order_they_were_sent() -> None:
    """Stamps are rebuilt from TTFT and gaps; TPOT only where each chunk had one token; an error is a failure."""
    (found,) = read(VLLM, "r")
    assert [one.sent_seconds for one in found.requests] == [0.0, 0.25, 0.5, 1.0]
    first, _, chunked, failed = found.requests
    assert list(first.chunk_seconds) == pytest.approx([0.1, 0.15, 0.2])
    assert first.tpot_seconds == pytest.approx(0.05)
    assert chunked.tpot_seconds is None
    assert failed.failed
    assert failed.error == "Connection refused"
    assert found.conditions["load/max_concurrency"] == 2
    assert any("no error bar" in note or "no latency has an error bar" in note for note in found.notes)


def test_guidellm_keeps_its_schedule_and_leaves_out_what_was_cut_off() -> None:
    """The targeted start is the scheduled time, so that a late client is seen; cut-off requests are told, not counted."""
    (found,) = read(GUIDELLM, "r")
    ok, failed = found.requests
    assert ok.ttft_seconds(scheduled=True) == pytest.approx(0.7)
    assert ok.ttft_seconds(scheduled=False) == pytest.approx(0.2)
    assert ok.tpot_seconds == pytest.approx(0.1)
    assert failed.failed
    assert any("1 requests were cut off" in note for note in found.notes)
    assert [one.result_id for one in read({"benchmarks": GUIDELLM["benchmarks"] * 2}, "r")] == ["r-0", "r-1"]


def test_aiperf_units_are_read_and_warm_up_and_errors_kept_apart() -> None:
    """Milliseconds become seconds; a request of the warm-up phase is in no figure; an error is a failure."""
    warm = {**AIPERF, "metadata": {**AIPERF["metadata"], "benchmark_phase": "warmup"}}
    bad = {**AIPERF, "metrics": {}, "error": {"code": 500, "message": "no"}}
    (found,) = read([AIPERF, warm, bad], "r")
    ok = next(one for one in found.requests if one.ok and not one.warmup)
    assert ok.ttft_seconds(scheduled=False) == pytest.approx(0.2)
    assert list(ok.chunk_seconds) == pytest.approx([0.2, 0.4, 0.6])
    assert ok.tpot_seconds == pytest.approx(0.2)
    assert sorted((one.warmup, one.failed, one.status) for one in found.requests) == [
        (False, False, 0), (False, True, 500), (True, False, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "document", [None, [], 3, {}, {"a": 1}, [1], {"benchmarks": [{}]}, {**VLLM, "ttfts": [1]}]
)
def test_anything_else_is_one_error(document: object) -> None:
    """A document of no known tool, or a broken one, is refused in one sentence."""
    with pytest.raises(ResultError):
        read(document, "r")


def test_a_summary_alone_is_refused_with_the_flag_to_give() -> None:
    """Without --save-detailed there are no requests to compare."""
    with pytest.raises(ResultError, match="save-detailed"):
        read({key: value for key, value in VLLM.items() if key != "start_times"}, "r")


def test_the_verb_stores_and_says_what_is_missing(tmp_path: Path) -> None:
    """JSON lines are read; importing twice stores one result; the notes are in the document."""
    path = tmp_path / "profile_export.jsonl"
    path.write_text(json.dumps(AIPERF) + "\n" + json.dumps(AIPERF) + "\n")
    for _ in range(2):
        found = CliRunner().invoke(
            command, [str(path), "--store", str(tmp_path / "s"), "--json"], standalone_mode=False
        )
        assert found.exception is None, found.output
    (one,) = json.loads(found.output)["results"]
    assert one["requests"] == 2
    assert [row.result_id for row in store.listed(tmp_path / "s")] == [one["result_id"]]
    assert store.find(one["result_id"], tmp_path / "s").load["imported_from"] == "aiperf"


def test_a_result_of_ours_is_stored_by_its_own_name() -> None:
    """`bench import` takes what `longspan bench` wrote, unchanged."""
    own = made(1, count=5)
    (found,) = read(json.loads(json.dumps(own.to_json())), "other")
    assert found.result_id == "r1"
    assert found.to_json() == own.to_json()
