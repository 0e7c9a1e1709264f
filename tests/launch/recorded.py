"""Recorded runs of a real engine, for the tests of what is concluded from them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from longspan.launch.logprobs import Reference, TokenLogprobs

FIXTURES = Path(__file__).parent.parent / "fixtures" / "proof"


@cache
def answers() -> dict[str, Any]:
    """vLLM's answers to a scoring and a generating request, cut to a few tokens."""
    found: dict[str, Any] = json.loads((FIXTURES / "vllm_answers.json").read_text())
    return found


@cache
def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / "smollm2_runs.json").read_text())
    return found


def run(name: str) -> tuple[TokenLogprobs, ...]:
    """The proof's texts as one run saw them."""
    runs = _recorded()
    return tuple(
        TokenLogprobs(tuple(ids), tuple(values))
        for ids, values in zip(runs["token_ids"], runs["runs"][name], strict=True)
    )


def reference(name: str, dtype: str = "auto") -> Reference:
    """The same as a reference."""
    return Reference(dtype, "vLLM 0.32.0 on cpu", run(name))


def paths(name: str) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Generated tokens: as generated, and as scored when sent back."""
    found = _recorded()["paths"][name]
    return (
        [TokenLogprobs(tuple(p["token_ids"]), tuple(p["generated"])) for p in found],
        [TokenLogprobs(tuple(p["token_ids"]), tuple(p["scored"])) for p in found],
    )
