"""Log-probabilities of given tokens: how to ask vLLM for them, how to read its answer, how far apart two answers are.

A teacher-forced log-probability is what the model says of a token that was given to it, so it does not depend on any choice and
moves only a little under another order of summation, where greedy text flips at every near-tie. All values are natural logarithms.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.errors import ProofError
from longspan.launch.proof_texts import TEXTS_VERSION


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Tokens and what the model says of each after those before it; both have the same length."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The form that agents send and the cache keeps."""
        return {"token_ids": list(self.token_ids), "logprobs": list(self.logprobs)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TokenLogprobs":
        """Reads what `to_json` wrote.

        Raises:
            KeyError: a field is missing.
        """
        return cls(tuple(data["token_ids"]), tuple(float(value) for value in data["logprobs"]))


@dataclass(frozen=True, slots=True)
class Reference:
    """What one engine says of the proof's texts.

    Attributes:
        dtype: what the engine was asked for: "auto" is the checkpoint's own, "float32" the exact run.
        made_by: engine version and device, in words.
        texts: one entry for each text of `proof_texts.TEXTS`.
    """

    dtype: str
    made_by: str
    texts: tuple[TokenLogprobs, ...]
    texts_version: int = TEXTS_VERSION

    def to_json(self) -> dict[str, Any]:
        """The form that agents send and the cache keeps."""
        return {
            "dtype": self.dtype,
            "made_by": self.made_by,
            "texts_version": self.texts_version,
            "texts": [text.to_json() for text in self.texts],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Reference":
        """Reads what `to_json` wrote.

        Raises:
            KeyError: a field is missing.
        """
        texts = tuple(TokenLogprobs.from_json(text) for text in data["texts"])
        return cls(data["dtype"], data["made_by"], texts, data["texts_version"])


@dataclass(frozen=True, slots=True)
class NotMade:
    """No reference, and why; the proof's layer is then skipped with this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two answers about the same tokens are apart, in nats.

    Attributes:
        count: tokens compared.
        mean_abs: mean of the absolute differences; what verdicts are made of.
        max_abs: the largest one; reported only, since one rare token moves it by half a nat in honest runs.
        mean, mean_error: mean of the signed differences and its standard error; whether one side finds the tokens less likely.
        perplexity, reference_perplexity: of both sides; reported only, since a dead layer hardly moves them.
    """

    count: int
    mean_abs: float
    max_abs: float
    mean: float
    mean_error: float
    perplexity: float
    reference_perplexity: float

    def to_json(self) -> dict[str, float]:
        """The figures as `--json` prints them."""
        return {
            "tokens": self.count,
            "mean_abs_nats": round(self.mean_abs, 5),
            "max_abs_nats": round(self.max_abs, 5),
            "mean_nats": round(self.mean, 5),
            "mean_standard_error_nats": round(self.mean_error, 5),
            "perplexity": round(self.perplexity, 4),
            "reference_perplexity": round(self.reference_perplexity, 4),
        }


def score_body(model: str, prompt: str | Sequence[int]) -> dict[str, Any]:
    """The body for `POST /v1/completions` that returns the log-probability of every token of the prompt but the first."""
    return {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def generate_body(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """The body for `POST /v1/completions` that generates greedily and returns each token's log-probability.

    The end token is ignored, so that a short answer does not shrink what is compared.
    """
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "logprobs": 0,
        "return_token_ids": True,
    }


def read_scores(answer: Mapping[str, Any]) -> TokenLogprobs:
    """Reads the answer to `score_body`: the prompt's tokens from the second on.

    vLLM's form: `choices[0].prompt_logprobs` is a list with one entry a token, the first null, each other a map from token id
    (as text) to `{logprob, rank, decoded_token}`; `choices[0].prompt_token_ids` names the tokens.

    Raises:
        ProofError: another form, or a value that is not a finite number.
    """
    choice = _choice(answer)
    ids, entries = choice.get("prompt_token_ids"), choice.get("prompt_logprobs")
    if not isinstance(entries, list) or not isinstance(ids, list) or len(ids) != len(entries) or len(ids) < 2:
        raise ProofError("the answer has no prompt_logprobs with their prompt_token_ids")
    try:
        values = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], entries[1:], strict=True)]
    except (KeyError, TypeError) as error:
        raise ProofError("prompt_logprobs miss a token of the prompt") from error
    return TokenLogprobs(tuple(ids[1:]), _finite(values))


def read_generated(answer: Mapping[str, Any]) -> tuple[tuple[int, ...], TokenLogprobs]:
    """Reads the answer to `generate_body`: the prompt's token ids, and the generated tokens with their log-probabilities.

    Raises:
        ProofError: another form, or a value that is not a finite number.
    """
    choice = _choice(answer)
    prompt, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(prompt, list) or not isinstance(ids, list) or not isinstance(values, list):
        raise ProofError("the answer has no token_ids with their logprobs")
    if not prompt or not ids or len(values) != len(ids):
        raise ProofError("the answer has not one logprob for each generated token")
    return tuple(prompt), TokenLogprobs(tuple(ids), _finite(values))


def last(scores: TokenLogprobs, count: int) -> TokenLogprobs:
    """The last `count` tokens: the generated ones, after prompt and generated tokens were scored together."""
    return TokenLogprobs(scores.token_ids[-count:], scores.logprobs[-count:])


def perplexity(texts: Sequence[TokenLogprobs]) -> float:
    """exp of the mean negative log-probability over all tokens of all texts."""
    values = [value for text in texts for value in text.logprobs]
    return math.exp(min(-math.fsum(values) / len(values), 700.0))


def agreement(values: Sequence[TokenLogprobs], reference: Sequence[TokenLogprobs]) -> Agreement:
    """Compares two answers token by token.

    Raises:
        ProofError: the answers are about different tokens, or about none.
    """
    ours, theirs = [text.token_ids for text in values], [text.token_ids for text in reference]
    if ours != theirs or not any(ours):
        raise ProofError("the two answers are about different tokens")
    deltas = [
        a - b
        for one, other in zip(values, reference, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    ]
    mean = math.fsum(deltas) / len(deltas)
    variance = math.fsum((delta - mean) ** 2 for delta in deltas) / len(deltas)
    return Agreement(
        count=len(deltas),
        mean_abs=math.fsum(map(abs, deltas)) / len(deltas),
        max_abs=max(map(abs, deltas)),
        mean=mean,
        mean_error=math.sqrt(variance / len(deltas)),
        perplexity=perplexity(values),
        reference_perplexity=perplexity(reference),
    )


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ProofError("the answer has no choices")
    return choices[0]


def _finite(values: Sequence[Any]) -> tuple[float, ...]:
    """Numbers as floats; null, NaN and infinities are what a broken layer makes, and no comparison must swallow them."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ProofError(f"a log-probability is {value!r}, not a finite number")
    return tuple(float(value) for value in values)
