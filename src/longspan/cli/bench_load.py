"""The options of `longspan bench run` that make a load."""

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.bench.arrivals import Pattern
from longspan.bench.load import LoadSpec, parse_lengths
from longspan.bench.traces import TraceRequest, parse_sharegpt, parse_trace
from longspan.errors import InputError


@dataclass(frozen=True, slots=True)
class LoadFiles:
    """What a load read from files."""

    trace: tuple[TraceRequest, ...] = ()
    talks: tuple[tuple[str, ...], ...] = ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def build_load(options: dict[str, Any]) -> tuple[LoadSpec, LoadFiles]:
    """From the command line's words.

    Raises:
        InputError: they contradict each other, or a file is broken.
    """
    trace_path, talks_path = options["trace"], options["sharegpt"]
    files = LoadFiles(
        parse_trace(_text(trace_path), str(trace_path)) if trace_path else (),
        parse_sharegpt(_text(talks_path), str(talks_path)) if talks_path else (),
    )
    _complete(options, files)
    spec = LoadSpec(
        kind=options["kind"], pattern=_pattern(options, files), requests=options["requests"] or 0,
        warmup=options["warmup"], duration_seconds=options["duration"] or 0.0,
        concurrency=options["concurrency"] or 0, prompt=parse_lengths(options["prompt"]),
        output=parse_lengths(options["output"]), prompts="random",
        shared_prefix_tokens=options["shared_prefix"], turns=options["turns"], think_seconds=options["think"],
        ignore_eos=options["ignore_eos"], stream=options["stream"], timeout_seconds=options["timeout"],
        seed=options["seed"], salt=secrets.randbits(48) if options["salt"] is None else options["salt"],
        extra=_extra(options["extra"]),
    )  # fmt: skip
    if files.trace:
        count = min(spec.requests or len(files.trace), len(files.trace) - spec.warmup)
        spec = replace(spec, prompts="trace", requests=max(1, count))
    elif files.talks:
        spec = replace(spec, prompts="sharegpt", ignore_eos=False)
    return spec, files


def _complete(options: dict[str, Any], files: LoadFiles) -> None:
    """Gives a load without an end 100 requests, or those of its trace."""
    if not options["requests"] and not options["duration"]:
        options["requests"] = len(files.trace) or 100
    if not options["concurrency"] and options["rate"] is None and not files.trace:
        options["concurrency"] = 1


def _pattern(options: dict[str, Any], files: LoadFiles) -> Pattern:
    rate, kind = options["rate"], options["arrivals"]
    if files.trace:
        if rate is not None:
            raise InputError("A trace brings its own times.", "Leave --rate away.")
        return Pattern("trace", offsets=tuple(one.seconds for one in files.trace))
    if rate is None:
        if kind is not None:
            raise InputError(
                f"Arrivals {kind!r} need a --rate.",
                "Without one, --concurrency clients wait for their answers.",
            )
        return Pattern()
    return Pattern(
        kind or "poisson",
        rate,
        options["rate_end"] or 0.0,
        options["ramp"] or 0.0,
        options["burstiness"],
        options["burst"],
    )


def _extra(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"--extra is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError("--extra must be a JSON object of further fields.")
    return value
