"""Traces of real traffic: Mooncake's JSONL, BurstGPT's CSV, and ShareGPT's conversations. Pure: text in, requests out.

Formats: Mooncake `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`, one a line, each id naming
512 tokens of prompt (github.com/kvcache-ai/Mooncake, FAST25-release). BurstGPT: a CSV with the columns Timestamp (seconds),
Model, Request tokens, Response tokens, Total tokens, Log Type (github.com/HPMLL/BurstGPT); a response of 0 tokens is a
request that failed there and is left out. ShareGPT: a JSON array of {"conversations": [{"from": "human", "value": text}, ...]}.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.errors import InputError

MOONCAKE_BLOCK_TOKENS = 512
_MAX_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        seconds: from the trace's first request.
        prompt_tokens, output_tokens: lengths.
        blocks: names of the prompt's blocks of `MOONCAKE_BLOCK_TOKENS` tokens; equal leading names are an equal prefix. Empty: no such knowledge.
    """

    seconds: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def parse_trace(text: str, name: str = "the trace") -> tuple[TraceRequest, ...]:
    """Reads either format, told apart by its first line; sorted by time, shifted to begin at 0.

    Raises:
        InputError: it is neither, it is empty, or a line is broken; the message names the line.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not first:
        raise InputError(f"{name} is empty.")
    found = _mooncake(lines, name) if first.lstrip().startswith("{") else _burstgpt(lines, name)
    if not found:
        raise InputError(f"{name} holds no request.")
    found.sort(key=lambda request: request.seconds)
    zero = found[0].seconds
    return tuple(
        TraceRequest(one.seconds - zero, one.prompt_tokens, one.output_tokens, one.blocks) for one in found
    )


def _broken(name: str, number: int, line: str, why: str) -> InputError:
    return InputError(
        f"Line {number} of {name} is no request ({why}): {line[:80]!r}.", "Repair the line or remove it."
    )


def _mooncake(lines: Sequence[str], name: str) -> list[TraceRequest]:
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            blocks = tuple(int(block) for block in value.get("hash_ids") or ())
            seconds, prompt, output = (
                float(value["timestamp"]) / 1000,
                int(value["input_length"]),
                int(value["output_length"]),
            )
        except KeyError as error:
            raise _broken(name, number, line, f"no {error.args[0]}") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _broken(name, number, line, str(error)[:60]) from None
        _check(name, number, line, (seconds, prompt, output))
        found.append(TraceRequest(seconds, prompt, output, blocks))
    return found


def _burstgpt(lines: Sequence[str], name: str) -> list[TraceRequest]:
    rows = enumerate(csv.reader(lines), 1)
    titles = next(([cell.strip().lower() for cell in row] for _, row in rows if row), [])
    wanted = ("timestamp", "request tokens", "response tokens")
    missing = [title for title in wanted if title not in titles]
    if missing:
        raise InputError(
            f"{name} is no trace that is known here: it is neither Mooncake's JSON lines nor a CSV with the columns "
            f"{', '.join(wanted)} (missing: {', '.join(missing)}).",
        )
    places = [titles.index(title) for title in wanted]
    found = []
    for number, row in rows:
        if not row:
            continue
        line = ",".join(row)
        try:
            seconds, prompt, output = (float(row[place]) for place in places)
        except (ValueError, IndexError) as error:
            raise _broken(name, number, line, str(error)[:60]) from None
        if output == 0 and prompt >= 1:
            continue  # it failed there
        _check(name, number, line, (seconds, prompt, output))
        found.append(TraceRequest(seconds, int(prompt), int(output)))
    return found


def _check(name: str, number: int, line: str, values: tuple[float, float, float]) -> None:
    seconds, prompt, output = values
    if not (0 <= seconds < 1e12 and 1 <= prompt < _MAX_TOKENS and 1 <= output < _MAX_TOKENS):
        raise _broken(name, number, line, "a time below 0, no tokens, or numbers that cannot be")


def parse_sharegpt(text: str, name: str = "the file") -> tuple[tuple[str, ...], ...]:
    """The human's turns of each conversation that begins with one; the engine's own answers take the others' place.

    Raises:
        InputError: it is no such file, or holds no conversation.
    """
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        raise InputError(f"{name} is no JSON (line {line}): {error}.") from None
    found = tuple(filter(None, (_turns(item) for item in (items if isinstance(items, list) else []))))
    if not found:
        raise InputError(
            f"{name} holds no conversation.",
            'ShareGPT files are arrays of {"conversations": [{"from": "human", "value": ...}, ...]}.',
        )
    return found


def _turns(item: Any) -> tuple[str, ...]:
    talk = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(talk, list) or not talk or not all(isinstance(turn, dict) for turn in talk):
        return ()
    if talk[0].get("from") not in ("human", "user"):
        return ()
    return tuple(str(turn.get("value", "")) for turn in talk if turn.get("from") in ("human", "user"))
