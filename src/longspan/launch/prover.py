"""Asks an OpenAI-compatible vLLM endpoint what the proof needs, through aiohttp; `judge.py` decides what the answers mean.

`score_texts` gives the deployment's values for `reference_layer`, `generate_and_score` those for `paths_layer`;
`prove_completion` gives a whole layer, a failed one where the endpoint answers wrongly. Where the gateway restricts
`prompt_logprobs`, or spreads requests over several replicas, give the engine's own address for the first two: a proof is
about one replica.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from longspan.errors import ProofError
from longspan.launch.judge import completion_layer
from longspan.launch.logprobs import (
    TokenLogprobs,
    generate_body,
    last,
    read_generated,
    read_scores,
    score_body,
)
from longspan.launch.proof import Layer, failed
from longspan.launch.proof_texts import PROMPTS, TEXTS

# Compared on the decode path: three prompts of 48 tokens take 2 to 20 s on one CPU core, well below 1 s on a GPU.
GENERATED_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask.

    Attributes:
        base_url: without `/v1`, e.g. "http://127.0.0.1:8000"; any host name with `unix_socket`.
        model: the served name.
        key: the Bearer key, empty for none; never printed.
        unix_socket: path of a socket to use instead of TCP, empty for none.
        timeout_seconds: for one request.
    """

    base_url: str
    model: str
    key: str = field(default="", repr=False)
    unix_socket: str = ""
    timeout_seconds: float = 300.0

    def session(self) -> aiohttp.ClientSession:
        """A client session with this endpoint's key, to be used as a context manager."""
        connector = aiohttp.UnixConnector(self.unix_socket) if self.unix_socket else aiohttp.TCPConnector()
        return aiohttp.ClientSession(
            connector=connector,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=aiohttp.ClientTimeout(total=self.timeout_seconds),
        )


async def post_completion(
    session: aiohttp.ClientSession, endpoint: Endpoint, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Sends one body to `/v1/completions`.

    Raises:
        ProofError: no answer in time, an error status, or an answer that is not a JSON object.
    """
    try:
        async with session.post(f"{endpoint.base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                text = (await response.text(errors="replace"))[:300]
                raise ProofError(f"{endpoint.base_url} answered {response.status}: {text}")
            answer = await response.json(content_type=None)
    except TimeoutError as error:
        raise ProofError(
            f"{endpoint.base_url} did not answer a completion within {endpoint.timeout_seconds:.0f} s."
        ) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise ProofError(f"{endpoint.base_url} broke off a completion: {error}.") from error
    if not isinstance(answer, dict):
        raise ProofError(f"{endpoint.base_url} answered a completion with {type(answer).__name__}.")
    return answer


async def score_texts(endpoint: Endpoint) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of every token of the proof's texts, asked one text at a time, so that batches do not matter.

    Raises:
        ProofError: no answer, or one that is not vLLM's.
    """
    async with endpoint.session() as session:
        return tuple(
            [
                read_scores(await post_completion(session, endpoint, score_body(endpoint.model, text)))
                for text in TEXTS
            ]
        )


async def generate_and_score(endpoint: Endpoint) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Generates from each of the proof's prompts, and scores the same tokens sent back as a prompt.

    Raises:
        ProofError: no answer, or one that is not vLLM's.
    """
    generated, scored = [], []
    async with endpoint.session() as session:
        for text in PROMPTS:
            body = generate_body(endpoint.model, text, GENERATED_TOKENS)
            prompt, tokens = read_generated(await post_completion(session, endpoint, body))
            back = score_body(endpoint.model, prompt + tokens.token_ids)
            scores = read_scores(await post_completion(session, endpoint, back))
            generated.append(tokens)
            scored.append(last(scores, len(tokens.token_ids)))
    return generated, scored


async def prove_completion(endpoint: Endpoint) -> Layer:
    """One short completion through whatever stands at the endpoint: the gateway, for the proof."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    body = {"model": endpoint.model, "prompt": PROMPTS[0], "max_tokens": 16, "temperature": 0}
    try:
        async with endpoint.session() as session:
            answer = await post_completion(session, endpoint, body)
        text = str(answer["choices"][0]["text"])
        tokens = int(answer["usage"]["completion_tokens"])
    except ProofError as error:
        return failed("completion", error.what.rstrip("."))
    except (KeyError, IndexError, TypeError, ValueError):
        return failed("completion", "the completion is not in the OpenAI form")
    return completion_layer(text, tokens, loop.time() - start)
