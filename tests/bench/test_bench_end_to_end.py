"""The whole of `longspan bench` against fake engines whose truth is known; gaps are large against a busy machine's noise."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.fake_engine import DONE, FakeEngine, delta, event, stream, usage
from longspan.bench import record
from longspan.bench.result import Result
from longspan.bench.summary import summarise
from longspan.cli.main import cli
from longspan.errors import BenchError, InputError, LongspanError, ResultError, UnsoundRunError


def bench(url: str, tmp_path: Path, *words: str) -> Result:
    """Runs the verb; raises its error."""
    out = tmp_path / "result.json"
    runner = CliRunner()
    arguments = ["bench", url, "--no-calibrate", "--out", str(out), "--prompt", "40", "--output", "8", *words]
    found = runner.invoke(cli, arguments, standalone_mode=False)
    # On a busy machine the client may rightly say that it was the limit; these tests ask what it measured.
    limited = isinstance(found.exception, UnsoundRunError) and "CLIENT-LIMITED" in found.exception.what
    if found.exception is not None and not limited:
        raise found.exception
    return Result.from_json(json.loads(out.read_text()))


def value(result: Result, name: str) -> float:
    """A figure that must exist."""
    found = summarise(result.requests).figures[name].value  # none withheld because the machine was busy
    assert found is not None
    return found


def test_waiting_before_a_slot_counts_from_the_schedule(tmp_path: Path) -> None:
    """A limit of one in flight hides a queue from the sent time; from the schedule it is seen, and both are printed."""
    engine = FakeEngine(lambda body, number: stream(8, first=0.25))
    with engine.running() as url:
        result = bench(url, tmp_path, "--rate", "20", "--arrivals", "constant", "-c", "1", "-n", "8")
    # Service takes 0.25 s each; the last is due at 0.35 s and can end at 2 s.
    assert value(result, "e2el_scheduled_p99_seconds") > 1.6
    assert value(result, "e2el_sent_p50_seconds") < 0.6
    assert result.requests[0].sent_seconds is not None


def test_role_is_no_token(tmp_path: Path) -> None:
    """The first token is the first content, not the chunk that names the role."""
    engine = FakeEngine(lambda body, number: stream(8, first=0.3))
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "3", "-c", "3")
    assert min(one.ttft_seconds(False) or 0 for one in result.requests) >= 0.29


def test_chunks_of_several_tokens(tmp_path: Path) -> None:
    """With four tokens a chunk, TPOT is a quarter of the gap between chunks."""
    engine = FakeEngine(lambda body, number: stream(8, gap=0.4, per_chunk=4))
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "3", "-c", "3")
    assert value(result, "tokens_per_chunk") == 4
    # What was asked for stands with what came of it, so that another load is not compared with it.
    assert {name: result.conditions[f"load/{name}"] for name in ("requests", "concurrency", "prompts", "kind")} == {
        "requests": 3, "concurrency": 3, "prompts": "random", "kind": "chat",
    }  # fmt: skip
    for one in result.requests:
        assert one.tpot_seconds == pytest.approx((one.chunk_seconds[1] - one.chunk_seconds[0]) / 4)
        assert one.chunk_seconds[1] - one.chunk_seconds[0] >= 0.39


ENDINGS: dict[str, tuple[list[Any], str]] = {
    "error inside": (
        [delta(content="a"), event({"error": {"message": "EngineCore"}}), DONE],
        record.ENGINE_ERROR,
    ),
    "no end marker": ([delta(content="a"), delta("length", content="b")], record.NO_END),
    "cut": ([delta(content="a"), 0.05, None], record.NO_END),
    "early": ([delta("length", content="a"), usage(9, 1), DONE], record.EARLY_STOP),
    "no finish": ([*(delta(content="a") for _ in range(8)), usage(9, 8), DONE], record.NO_END),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_bad_endings_of_a_200_are_failures(name: str, tmp_path: Path) -> None:
    """A stream that began with 200 and ended badly is a failure of its class, and a run without success is unsound."""
    steps, outcome = ENDINGS[name]
    with FakeEngine(lambda body, number: steps).running() as url, pytest.raises(UnsoundRunError):
        bench(url, tmp_path, "-n", "2")
    result = Result.from_json(json.loads((tmp_path / "result.json").read_text()))
    assert [one.outcome for one in result.requests] == [outcome, outcome]


def test_failures_stay_in_adjusted_percentiles(tmp_path: Path) -> None:
    """Three of a hundred refused at once: p99 of successes is finite, the adjusted one is not, p95 still is."""
    engine = FakeEngine(
        lambda body, number: stream(8), refuse=lambda number: 503 if number % 33 == 5 else 200
    )
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "100", "-c", "4", "--warmup", "1")
    assert value(result, "failed_http_status") == 3
    assert value(result, "e2el_scheduled_adjusted_p99_seconds") == float("inf")
    assert value(result, "e2el_scheduled_adjusted_p90_seconds") < float("inf")


def test_prompts_are_distinct_between_runs(tmp_path: Path) -> None:
    """Two runs of one seed share no beginning, so no prefix cache knows the second; with the same salt they do."""
    engine = FakeEngine(lambda body, number: stream(8))
    with engine.running() as url:
        for salt in ((), (), ("--salt", "7"), ("--salt", "7")):
            bench(url, tmp_path, "-n", "4", *salt)
    starts = [body["messages"][0]["content"][:40] for body in engine.bodies]
    assert len(set(starts[:8])) == 8
    assert starts[8:12] == starts[12:16]


def test_window_leaves_the_drain_out(tmp_path: Path) -> None:
    """One long answer at the end lowers the throughput of the whole run, not that of the window."""

    def script(body: dict[str, Any], number: int) -> list[Any]:
        return stream(8, gap=0.3 if number == 19 else 0.0, first=0.05)

    with FakeEngine(script).running() as url:
        result = bench(url, tmp_path, "-n", "20", "--rate", "40", "--arrivals", "constant")
    assert value(result, "requests_window_per_second") > 2 * value(result, "requests_run_per_second")


def test_arrivals_do_not_drift(tmp_path: Path) -> None:
    """Absolute deadlines: at 200 a second the last of 200 is sent at its own time, not at the sum of all delays."""
    engine = FakeEngine(lambda body, number: stream(8))
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "200", "--rate", "200", "--arrivals", "constant", "--warmup", "1")
    assert [one.scheduled_seconds for one in result.requests] == pytest.approx(
        [at / 200 for at in range(201)]
    )
    assert len(engine.arrivals) == 201
    late = [(one.sent_seconds or 0.0) - one.scheduled_seconds for one in result.requests]
    assert min(late) >= -1e-5
    assert min(late[100:]) < 0.02


def test_conversations_carry_their_answers(tmp_path: Path) -> None:
    """A second turn holds the first question and its answer, and is due a pause after the first's end."""
    engine = FakeEngine(lambda body, number: stream(8))
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "4", "--turns", "2", "--think", "0.2")
    assert [len(body["messages"]) for body in engine.bodies] == [1, 3, 1, 3]
    assert engine.bodies[1]["messages"][1] == {"role": "assistant", "content": "word " * 8}
    first, second = result.requests[:2]
    assert first.end_seconds is not None
    assert second.scheduled_seconds == pytest.approx(first.end_seconds + 0.2, abs=1e-5)


def test_tokens_are_audited_against_the_engine(tmp_path: Path) -> None:
    """Counters that grow as much as the usage agree; prefix hits and preemptions are those of the run."""
    engine = FakeEngine(lambda body, number: stream(8))
    engine.metrics = lambda: (
        f'vllm:generation_tokens_total{{engine="0"}} {100 + 8 * len(engine.arrivals)}\n'
        f"vllm:num_preemptions_total {3 + len(engine.arrivals)}\n"
        f"vllm:prefix_cache_queries_total {40 * len(engine.arrivals)}\n"
        f"vllm:prefix_cache_hits_total {20 * len(engine.arrivals)}\n"
    )
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "5", "--metrics", f"{url}/metrics")
    assert result.engine is not None
    assert result.engine.audit.verdict == "agree"
    assert result.engine.audit.engine_tokens == 40
    assert result.engine.preemptions == 5
    assert result.engine.prefix_hit_share == 0.5
    assert any("warm" in note for note in result.notes)


def test_bad_input(tmp_path: Path) -> None:
    """Each ends with an error that names the cause: wrong key, wrong model, nobody there, a broken line, no place to write."""
    engine = FakeEngine(lambda body, number: stream(8), key="k1", models=("alpha", "beta"))
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 3}\n{"timestamp": \n')
    key = tmp_path / "key"
    key.write_text("k1\n")
    with engine.running() as url:
        right = ("--key-file", str(key))
        cases: list[tuple[type[LongspanError], str, tuple[str, ...]]] = [
            (BenchError, "refuses", ("--key-env", "NO_SUCH")),
            (BenchError, "it has: alpha, beta", (*right, "--model", "gamma")),
            (BenchError, "several models", right),
            (InputError, "Line 2", (*right, "--trace", str(trace))),
            (ResultError, "could not be written", (*right, "--out", str(tmp_path / "none" / "x.json"))),
        ]
        for kind, words, options in cases:
            with pytest.raises(kind) as caught:
                bench(url, tmp_path, *options)
            assert words in caught.value.what
    with pytest.raises(BenchError) as caught:
        bench(url, tmp_path)
    assert "does not answer" in caught.value.what


def test_a_full_disk_loses_no_figures(tmp_path: Path) -> None:
    """When the result cannot be written its figures have been printed, and the error says so."""
    with FakeEngine(lambda body, number: stream(8)).running() as url:
        arguments = ["bench", url, "-n", "2", "--no-calibrate", "--output", "8", "--out", "/dev/full"]
        found = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(found.exception, ResultError)
    assert "2 of 2 requests succeeded" in found.output


def test_no_usage_is_said(tmp_path: Path) -> None:
    """Without a usage tokens are counted as chunks, and a note says that this may be too few."""
    engine = FakeEngine(
        lambda body, number: [one for one in stream(8) if one != usage(9, 8)], has_usage=False
    )
    with engine.running() as url:
        result = bench(url, tmp_path, "-n", "2")
    assert any("no usage" in note for note in result.notes)


def test_calibration_gives_an_error_bar(tmp_path: Path) -> None:
    """The null server's stamps give what the client adds, and half of it is the error bar."""
    with FakeEngine(lambda body, number: stream(8)).running() as url:
        result = bench(url, tmp_path, "-n", "2", "--calibrate")
    client = result.client
    assert client.null_ttft_p99_seconds is not None
    assert client.error_seconds == client.null_ttft_p99_seconds / 2 > 0


def unsound(url: str, tmp_path: Path, *words: str) -> list[str]:
    """The outcomes of a run in which nothing succeeds."""
    with pytest.raises(UnsoundRunError):
        bench(url, tmp_path, *words)
    result = Result.from_json(json.loads((tmp_path / "result.json").read_text()))
    return [one.outcome for one in result.requests]


def test_an_answer_that_does_not_come_is_a_timeout(tmp_path: Path) -> None:
    """A request has failed after its time, and what it takes is known."""
    with FakeEngine(lambda body, number: stream(8, first=5.0)).running() as url:
        assert unsound(url, tmp_path, "-n", "2", "-c", "2", "--timeout", "0.3") == [record.TIMEOUT] * 2


def test_a_connection_without_an_answer_is_a_reset(tmp_path: Path) -> None:
    """The server takes the request and closes: a failure with a class of its own, not a missing end."""
    engine = FakeEngine(lambda body, number: [], refuse=lambda number: 0)
    with engine.running() as url:
        assert unsound(url, tmp_path, "-n", "2") == [record.RESET] * 2


def test_a_server_that_does_not_stream_is_named(tmp_path: Path) -> None:
    """A JSON answer to a request for a stream is a bad answer, and the error says so."""
    engine = FakeEngine(lambda body, number: [], refuse=lambda number: -1)
    with engine.running() as url:
        assert unsound(url, tmp_path, "-n", "2") == [record.BAD_ANSWER] * 2


def test_ctrl_c_reports_what_ran(tmp_path: Path) -> None:
    """After Ctrl-C the answered requests are saved and those cut off are in no figure."""
    out = tmp_path / "result.json"
    engine = FakeEngine(lambda body, number: stream(8, first=0.1 if number < 4 else 60.0))
    with engine.running() as url:
        words = ["bench", url, "-n", "9", "--no-calibrate", "--output", "8", "--out", str(out)]
        child = subprocess.Popen([sys.executable, "-c", "from longspan.cli.main import run; run()", *words])
        for _ in range(600):
            time.sleep(0.05)
            if len(engine.arrivals) > 4:
                break
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    result = Result.from_json(json.loads(out.read_text()))
    assert result.interrupted == "Ctrl-C"
    assert [one.outcome for one in result.requests] == ["", "", "", "", record.ABORTED]
    assert value(result, "requests_sent") == 4
