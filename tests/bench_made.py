"""Results of runs that never happened, with latencies drawn from a seed."""

import json
from pathlib import Path
from random import Random
from typing import Any

from longspan.bench.record import RequestRecord
from longspan.bench.result import ClientQuality, Result

LOCK = {"model/name": "toy", "engine/version": "1", "load/prompts_hash": "ab"}


def made(seed: int, slower: float = 1.0, count: int = 600, failing: float = 0.0, **changes: Any) -> Result:
    """A run of `count` requests, ten a second; every latency is `slower` times as long, a share of `failing` fails."""
    draws = Random(seed)
    records = []
    for index in range(count):
        at = index / 10
        first = at + 0.1 * slower * draws.lognormvariate(0, 0.1)
        last = first + 0.5 * slower * draws.lognormvariate(0, 0.05)
        records.append(
            RequestRecord(
                index, at, at, first, last, last, chunks=50, first_chunk_tokens=1, output_tokens=50, counted=True,
                outcome="http_status" if draws.random() < failing else "",
            )
        )  # fmt: skip
    values: dict[str, Any] = {
        "result_id": f"r{seed}", "started_unix_seconds": float(seed), "url": "http://127.0.0.1:1/v1", "kind": "chat",
        "model": "m", "load": {}, "seeds": {}, "conditions": LOCK, "summary": {}, "client": ClientQuality(),
        "engine": None, "window_seconds": (0.0, count / 10), "requests": tuple(records),
    }  # fmt: skip
    return Result(**{**values, **changes})


def write_file(path: Path, result: Result) -> None:
    """The result's document as a file, as `longspan bench run` leaves it."""
    path.write_text(json.dumps(result.to_json(), allow_nan=False))
