"""Asking an endpoint: what is sent, and that whatever comes back becomes a layer."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from recorded import answers

from longspan.errors import ProofError
from longspan.launch.judge import paths_layer
from longspan.launch.proof import Layer, Tolerance, failed
from longspan.launch.proof_texts import PROMPTS, TEXTS
from longspan.launch.prover import (
    GENERATED_TOKENS,
    Endpoint,
    generate_and_score,
    prove_completion,
    score_texts,
)

LIMIT = Tolerance(0.05, "a test")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


T = TypeVar("T")


def against(handler: Handler, ask: Callable[[Endpoint], Awaitable[T]], **changes: Any) -> T:
    """Runs one question against a server with this handler."""

    async def both() -> T:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        async with TestServer(app) as server:
            return await ask(Endpoint(str(server.make_url("")).rstrip("/"), "m", "lsp_secret", **changes))

    return asyncio.run(both())


class Vllm:
    """Generates tokens 1, 2, 3, …, and scores what it is sent; the decode path is off by `error`."""

    def __init__(self, error: float = 0.0) -> None:
        self.error = error
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [ord(c) for c in body["prompt"]]
        made = list(range(1, body["max_tokens"] + 1))
        choice: dict[str, Any] = {"text": "word " * len(made), "prompt_token_ids": prompt, "token_ids": made}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-t / 100 + self.error for t in made]}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [None, *({str(t): {"logprob": -t / 100}} for t in prompt[1:])]
        usage = {"completion_tokens": len(made)}
        return web.json_response({"choices": [choice], "usage": usage})


def test_texts_are_scored_one_by_one_with_the_key() -> None:
    """Each text is one request with the key; the answer holds every token but the first."""
    vllm = Vllm()
    scores = against(vllm.answer, score_texts)
    assert [body["prompt"] for body in vllm.bodies] == list(TEXTS)
    assert vllm.keys == {"Bearer lsp_secret"}
    assert [len(text.token_ids) for text in scores] == [len(text) - 1 for text in TEXTS]


async def paths(endpoint: Endpoint) -> Layer:
    """The layer of what came back, as the controller makes it."""
    try:
        generated, scored = await generate_and_score(endpoint)
    except ProofError as error:
        return failed("paths", error.what)
    return paths_layer(generated, scored, LIMIT)


@pytest.mark.parametrize(("error", "state"), [(0.0, "passed"), (0.04, "passed"), (0.06, "failed")])
def test_paths(error: float, state: str) -> None:
    """Generated tokens are sent back behind their own prompt, as ids, and judged by the limit."""
    vllm = Vllm(error)
    layer = against(vllm.answer, paths)
    assert layer.state == state
    assert layer.figures["tokens"] == GENERATED_TOKENS * len(PROMPTS)
    back = vllm.bodies[1]["prompt"]
    assert back == [ord(c) for c in PROMPTS[0]] + list(range(1, GENERATED_TOKENS + 1))


def test_a_completion_passes() -> None:
    """A text with its token count passes and is shown."""
    layer = against(Vllm().answer, prove_completion)
    assert layer.state == "passed"
    assert "word word" in layer.seen


async def refuses(request: web.Request) -> web.Response:
    """401."""
    return web.json_response({"error": "no such key"}, status=401)


async def says_something_else(request: web.Request) -> web.Response:
    """Not JSON."""
    return web.Response(text="<html>proxy</html>")


async def says_a_list(request: web.Request) -> web.Response:
    """JSON of another shape."""
    return web.json_response([1, 2])


async def has_no_usage(request: web.Request) -> web.Response:
    """An object without what is needed."""
    return web.json_response({"choices": [{"text": "x"}]})


async def breaks_off(request: web.Request) -> web.StreamResponse:
    """The connection ends in the middle of the answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices"')
    assert request.transport is not None
    request.transport.abort()
    return response


async def hangs(request: web.Request) -> web.Response:
    """Never answers."""
    await asyncio.sleep(3600)
    return web.Response()


async def makes_nan(request: web.Request) -> web.Response:
    """vLLM's form with a NaN in it."""
    answer = copy.deepcopy(answers()["scored"])
    answer["choices"][0]["prompt_logprobs"][1] = {"7395": {"logprob": float("nan")}}
    return web.json_response(answer)


@pytest.mark.parametrize(
    "handler", [refuses, says_something_else, says_a_list, has_no_usage, breaks_off, hangs]
)
def test_whatever_goes_wrong_is_a_failed_layer(handler: Handler) -> None:
    """Errors, other formats, broken connections and silence fail the layers with a reason and without the key."""
    timeout = 0.5 if handler is hangs else 30
    for ask in (prove_completion, paths):
        layer = against(handler, ask, timeout_seconds=timeout)
        assert layer.state == "failed"
        assert layer.findings[0].severity == "error"
        assert "lsp_secret" not in str(layer.to_json())
    with pytest.raises(ProofError):
        against(handler, score_texts, timeout_seconds=timeout)


def test_nan_is_no_log_probability() -> None:
    """NaN in the deployment's answer is an error, not a number that compares as anything."""
    with pytest.raises(ProofError, match="finite"):
        against(makes_nan, score_texts)


def test_nobody_there() -> None:
    """A closed port is a failed layer."""
    endpoint = Endpoint(f"http://127.0.0.1:{unused_port()}", "m", "lsp_secret")
    assert asyncio.run(prove_completion(endpoint)).state == "failed"


def test_the_key_is_not_printed() -> None:
    """An endpoint in a log or traceback does not show its key."""
    assert "lsp_secret" not in repr(Endpoint("http://x", "m", "lsp_secret"))
