"""Reading vLLM's answers and comparing them."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import answers, reference

from longspan.errors import ProofError
from longspan.launch.logprobs import (
    Reference,
    TokenLogprobs,
    agreement,
    generate_body,
    last,
    perplexity,
    read_generated,
    read_scores,
    score_body,
)
from longspan.launch.proof_texts import PROMPTS, TEXTS

values = st.floats(-30, 0, allow_nan=False)
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=40)


def scores(*logprobs: float) -> TokenLogprobs:
    """Tokens 0, 1, 2, … with these values."""
    return TokenLogprobs(tuple(range(len(logprobs))), logprobs)


def test_texts_stay_small() -> None:
    """No text can have 256 tokens even if a tokenizer took only three characters at a time; none repeats another."""
    assert all(len(text) < 3 * 256 for text in TEXTS + PROMPTS)
    assert len(set(TEXTS)) == len(TEXTS)


def test_a_recorded_score_is_read() -> None:
    """The first token has no log-probability; each other has that of the token itself."""
    found = read_scores(answers()["scored"])
    assert found.token_ids == (7395, 314, 253, 8135, 1135)
    assert found.logprobs[1] == pytest.approx(-2.29542, abs=1e-5)


def test_a_recorded_generation_is_read() -> None:
    """Prompt and generated tokens come back as ids, so that they can be sent back exactly."""
    prompt, tokens = read_generated(answers()["generated"])
    assert len(prompt) == 13
    assert tokens.token_ids == (260, 33059, 436, 2837, 411)
    assert tokens.logprobs[0] == pytest.approx(-0.89486, abs=1e-5)


@pytest.mark.parametrize("value", [None, math.nan, -math.inf, "x", True])
def test_a_value_that_is_no_number_is_an_error(value: Any) -> None:
    """A broken layer makes NaN, and vLLM then null or NaN; no comparison may swallow that."""
    answer = copy.deepcopy(answers()["scored"])
    answer["choices"][0]["prompt_logprobs"][2]["314"]["logprob"] = value
    with pytest.raises(ProofError, match="finite"):
        read_scores(answer)
    answer = copy.deepcopy(answers()["generated"])
    answer["choices"][0]["logprobs"]["token_logprobs"][2] = value
    with pytest.raises(ProofError, match="finite"):
        read_generated(answer)


@pytest.mark.parametrize(
    "answer",
    [{}, {"choices": []}, {"choices": [None]}, {"choices": [{}]}, {"choices": [{"prompt_logprobs": [None], "prompt_token_ids": [1]}]}],
)  # fmt: skip
def test_another_form_is_an_error(answer: dict[str, Any]) -> None:
    """Whatever else answers behind the address is said not to be vLLM, never read as something."""
    with pytest.raises(ProofError):
        read_scores(answer)
    with pytest.raises(ProofError):
        read_generated(answer)


def test_a_token_that_is_missing_is_an_error() -> None:
    """A map without the prompt's own token is not read as another token's value."""
    answer = copy.deepcopy(answers()["scored"])
    answer["choices"][0]["prompt_logprobs"][2] = {"999": {"logprob": -1.0}}
    with pytest.raises(ProofError, match="miss"):
        read_scores(answer)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["choices", "logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs"]), x, max_size=3), max_leaves=12))  # fmt: skip
def test_no_answer_crashes_the_reader(answer: Any) -> None:
    """Any JSON is read or is a ProofError."""
    for read in (read_scores, read_generated):
        try:
            read({"choices": [answer]})
        except ProofError:
            continue


def test_bodies_ask_for_what_is_read() -> None:
    """Scoring asks for every prompt token's log-probability; generating neither samples nor stops early."""
    assert score_body("m", (1, 2))["prompt"] == [1, 2]
    assert score_body("m", "x")["prompt_logprobs"] == 0
    body = generate_body("m", "x", 7)
    assert (body["min_tokens"], body["max_tokens"], body["temperature"], body["ignore_eos"]) == (
        7,
        7,
        0,
        True,
    )


@given(pairs)
def test_agreement_is_symmetric(both: list[tuple[float, float]]) -> None:
    """Who is compared with whom changes only the sign of the signed mean."""
    one, other = scores(*(a for a, _ in both)), scores(*(b for _, b in both))
    here, there = agreement([one], [other]), agreement([other], [one])
    assert here.mean_abs == pytest.approx(there.mean_abs)
    assert here.max_abs == there.max_abs
    assert here.mean == pytest.approx(-there.mean)
    assert abs(here.mean) <= here.mean_abs + 1e-12 <= here.max_abs + 1e-9


@given(st.lists(values, min_size=1, max_size=40), st.floats(0, 5))
def test_a_constant_shift_is_measured_exactly(logprobs: list[float], shift: float) -> None:
    """Every token off by the same amount gives that amount as mean and maximum, and zero gives zero."""
    found = agreement([scores(*(v - shift for v in logprobs))], [scores(*logprobs)])
    assert found.mean_abs == pytest.approx(shift, abs=1e-9)
    assert found.max_abs == pytest.approx(shift, abs=1e-9)
    assert found.mean == pytest.approx(-shift, abs=1e-9)
    assert found.perplexity == pytest.approx(found.reference_perplexity * math.exp(shift), rel=1e-6)


def test_other_tokens_are_not_compared() -> None:
    """Another tokenizer's values, fewer texts or no tokens at all are refused."""
    one = scores(-1.0, -2.0)
    for other in ([TokenLogprobs((0, 7), (-1.0, -2.0))], [one, one], []):
        with pytest.raises(ProofError):
            agreement([one], other)
    with pytest.raises(ProofError):
        agreement([], [])


def test_last_takes_the_generated_tokens() -> None:
    """Of prompt and generated tokens scored together only the last ones are compared."""
    assert last(scores(-1.0, -2.0, -3.0), 2) == TokenLogprobs((1, 2), (-2.0, -3.0))


def test_perplexity_of_equal_chances() -> None:
    """A model that gives every token one in four has perplexity 4, over texts of any lengths."""
    quarter = math.log(0.25)
    assert perplexity([scores(quarter, quarter), scores(quarter)]) == pytest.approx(4)


def test_references_survive_wire_and_cache() -> None:
    """JSON there and back changes nothing."""
    made = reference("tp1-bfloat16")
    assert Reference.from_json(json.loads(json.dumps(made.to_json()))) == made
