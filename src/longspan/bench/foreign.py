"""Results of other load generators, read as ours: `vllm bench serve`, guidellm and AIPerf.

Formats as the sources of vLLM 0.32 (`benchmarks/serve.py`), guidellm 0.8.1 (`schemas/base/request_stats.py`, `info.py`) and
AIPerf 0.13.0 (`common/models/record_models.py`) write them. What a format does not tell stays unknown and is in the notes:
none of them tells how well the client kept up, so a result that was imported has no error bar.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.bench.record import BAD_ANSWER, NOT_SENT, OK, RequestRecord
from longspan.bench.result import ClientQuality, Result
from longspan.bench.summary import summarise
from longspan.errors import ResultError

Row = Mapping[str, Any]
_NO_CLIENT = "imported: the tool does not say how late its own client was, so no latency has an error bar"
_NO_SCHEDULE = (
    "imported: no scheduled times; latencies count from sending, which hides a client that sends late"
)
_NO_CHUNKS = "imported: no times of single chunks, so there is no ITL"


def read(document: Any, name: str) -> list[Result]:
    """The results in a document: one, or of guidellm one for each benchmark of its sweep; one of ours keeps its own name.

    Args:
        document: parsed JSON, or the list of a JSON-lines file's lines. name: of the results; unique in a store.

    Raises:
        ResultError: it is of none of the three tools, has no single requests, or is broken.
    """
    if isinstance(document, dict) and "schema" in document:
        return [Result.from_json(document)]
    try:
        if isinstance(document, dict) and isinstance(document.get("benchmarks"), list):
            return _guidellm(document, name)
        if isinstance(document, dict) and {"duration", "completed"} <= document.keys():
            return [_vllm(document, name)]
        lines = [document] if isinstance(document, dict) else document
        if isinstance(lines, list) and lines and all({"metadata", "metrics"} <= one.keys() for one in lines):
            return [_aiperf(lines, name)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ResultError(
            f"The file is broken: {type(error).__name__}: {error}.",
            "Write it again with the tool's current release.",
        ) from error
    raise ResultError(
        "This is no result of `vllm bench serve`, guidellm or AIPerf that has single requests in it.",
        "Give the JSON of `vllm bench serve --save-result --save-detailed`, guidellm's benchmarks.json,"
        " or AIPerf's profile_export.jsonl.",
    )


def _result(
    name: str,
    tool: str,
    model: str,
    started: float,
    records: list[RequestRecord],
    notes: Sequence[str],
    load: Row,
) -> Result:
    """Numbers the records by when they were sent, and makes the figures of ours from them."""
    records.sort(key=lambda one: one.scheduled_seconds)
    numbered = tuple(replace(one, index=index) for index, one in enumerate(records))
    summary = summarise(numbered)
    return Result(
        result_id=name, started_unix_seconds=started, url="", kind="chat", model=model,
        load={"imported_from": tool, **load}, seeds={}, summary=summary.figures,
        conditions={
            "client/tool": tool, "model/served_name": model or None, "model/checkpoint": None, "engine/version": None,
            "layout/rank_map": None, "load/prompts_hash": None, "cache/prefix_hit_share": None,
            **{f"load/{key}": value for key, value in load.items()},
        },
        client=ClientQuality(reasons=(_NO_CLIENT,)), engine=None, window_seconds=summary.window_seconds,
        requests=numbered, notes=(_NO_CLIENT, *notes, *summary.notes),
    )  # fmt: skip


def _vllm(document: Row, name: str) -> Result:
    """One record for each request; needs --save-detailed."""
    if not document.get("start_times"):
        raise ResultError(
            "The file has only the summary of `vllm bench serve`: no single requests, so nothing can be compared.",
            "Run it again with --save-detailed.",
        )
    columns = [
        document[key] for key in ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
    ]
    rows = list(zip(*columns, strict=True))
    zero = min(row[0] for row in rows)
    records = []
    for start, ttft, gaps, prompt, output, error in rows:
        sent = start - zero
        if error or not output:
            records.append(RequestRecord(0, sent, sent, outcome=BAD_ANSWER, error=str(error).strip()[-200:]))
            continue
        stamps = array("d", [sent + ttft])
        for gap in gaps:
            stamps.append(stamps[-1] + gap)
        is_single = len(stamps) == output  # one token a chunk; else nobody knows how many the first one had
        records.append(
            RequestRecord(
                0, sent, sent, stamps[0], stamps[-1], stamps[-1], stamps, len(stamps), int(is_single), prompt, output,
            )
        )  # fmt: skip
    notes = [_NO_SCHEDULE, "imported: output tokens may have been counted by the tool's tokenizer"]
    if any(one.ok and not one.first_chunk_tokens for one in records):
        notes.append("imported: chunks of several tokens; TPOT is unknown where the first chunk's tokens are")
    load = {key: document.get(key) for key in ("request_rate", "burstiness", "max_concurrency")}
    return _result(name, "vllm bench serve", str(document.get("model_id", "")), 0.0, records, notes, load)


def _guidellm(document: Row, name: str) -> list[Result]:
    found = []
    several = len(document["benchmarks"]) > 1
    for number, one in enumerate(document["benchmarks"]):
        groups = one["requests"]
        rows = [
            (outcome, row)
            for group, outcome in (("successful", OK), ("errored", BAD_ANSWER))
            for row in groups.get(group) or []
        ]
        starts = [row["info"]["timings"].get("request_start") for _, row in rows]
        zero = min((start for start in starts if start is not None), default=0.0)
        records = [_guidellm_record(row, outcome, zero) for outcome, row in rows]
        notes = [_NO_CHUNKS]
        if cut := len(groups.get("incomplete") or []):
            notes.append(f"imported: {cut} requests were cut off by the end of the run and are left out")
        found.append(
            _result(f"{name}-{number}" if several else name, "guidellm", "", zero, records, notes, {})
        )
    return found


def _guidellm_record(row: Row, outcome: str, zero: float) -> RequestRecord:
    timings = row["info"]["timings"]

    def since(key: str) -> float | None:
        return None if timings.get(key) is None else timings[key] - zero

    sent = since("request_start")
    wanted = since("targeted_start")
    scheduled = next((at for at in (wanted, sent) if at is not None), 0.0)
    if outcome or sent is None:
        error = str(row["info"].get("error") or "")[:200]
        return RequestRecord(
            0, scheduled, sent, outcome=outcome if sent is not None else NOT_SENT, error=error
        )
    last = since("last_token_iteration") or since("request_end")
    output = (row.get("output_metrics") or {}).get("text_tokens")
    prompt = (row.get("input_metrics") or {}).get("text_tokens")
    chunks = int(timings.get("token_iterations") or 0)
    return RequestRecord(
        0, scheduled, sent, since("first_token_iteration"), last, last, chunks=chunks,
        first_chunk_tokens=int(chunks > 0 and chunks == output),
        prompt_tokens=-1 if prompt is None else prompt, output_tokens=-1 if output is None else output,
    )  # fmt: skip


def _aiperf(lines: Sequence[Row], name: str) -> Result:
    kept = [one for one in lines if not one["metadata"].get("was_cancelled")]
    zero = min(one["metadata"]["request_start_ns"] for one in kept or lines)
    records = [_aiperf_record(one, zero) for one in kept]
    notes = [_NO_SCHEDULE, "imported: output tokens were counted by the tool's tokenizer"]
    notes += [] if any(one.chunk_seconds for one in records) else [_NO_CHUNKS]
    if len(kept) < len(lines):
        notes.append(f"imported: {len(lines) - len(kept)} cancelled requests are left out")
    return _result(name, "aiperf", "", zero / 1e9, records, notes, {})


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}


def _aiperf_record(line: Row, zero: int) -> RequestRecord:
    metrics, about = line["metrics"], line["metadata"]
    sent = (about["request_start_ns"] - zero) / 1e9
    end = (about["request_end_ns"] - zero) / 1e9
    is_warmup = about.get("benchmark_phase") == "warmup"
    if error := line.get("error"):
        said = str(error.get("message", ""))[:200]
        return RequestRecord(
            0, sent, sent, end_seconds=end, outcome=BAD_ANSWER, error=said, warmup=is_warmup,
            status=error["code"] if isinstance(error.get("code"), int) else 0,
        )  # fmt: skip
    ttft, gaps = metrics.get("time_to_first_token"), metrics.get("inter_chunk_latency")
    first = None if ttft is None else sent + ttft["value"] * _SECONDS[ttft["unit"]]
    took = metrics["request_latency"]
    last = sent + took["value"] * _SECONDS[took["unit"]]
    stamps = array("d", [] if first is None or gaps is None else [first])
    for gap in gaps["value"] if stamps and gaps else []:
        stamps.append(stamps[-1] + gap * _SECONDS[gaps["unit"]])
    output, prompt = (_count(metrics, key) for key in ("output_sequence_length", "input_sequence_length"))
    return RequestRecord(
        0, sent, sent, first, last, max(last, end), stamps, len(stamps), int(len(stamps) == output and output > 0),
        prompt, output, warmup=is_warmup,
    )  # fmt: skip


def _count(metrics: Row, key: str) -> int:
    value = (metrics.get(key) or {}).get("value")
    return -1 if value is None or not math.isfinite(value) else int(value)
