"""A stand-in for an engine: an OpenAI-like server in this process that the test scripts by the words of the prompt.

The last message may hold `tokens=N`, `gap=SECONDS`, `die=N` (cut the connection after N tokens),
`dieagain=N` (the same where an answer is continued), `status=CODE`.
"""

import asyncio
import json
import re
import ssl
from typing import Any, ClassVar

from aiohttp import web

WORD = re.compile(r"(tokens|gap|die|dieagain|status)=([0-9.]+)")


class StubEngine:
    """Listens on a free port of this machine; counts what it sees."""

    def __init__(self, name: str = "e0") -> None:
        self.name = name
        self.seen: list[dict[str, Any]] = []
        self.active = 0
        self.left = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> "StubEngine":
        """Listens."""
        app = web.Application(client_max_size=2**28)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
            app.router.add_post(path, self._generate)
        app.router.add_post("/v1/audio/transcriptions", self._echo)
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_get("/v1/responses/{id}", self._stored)
        app.router.add_delete("/v1/responses/{id}", self._stored)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        """Closes everything."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _stored(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["id"], "engine": self.name})

    async def _echo(self, request: web.Request) -> web.Response:
        return web.json_response({"text": "heard", "bytes": len(await request.read())})

    async def _embed(self, request: web.Request) -> web.Response:
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
        return web.json_response({"object": "list", "model": "m", "data": data, "usage": usage})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append({"path": request.path, "headers": dict(request.headers), "body": body})
        words = {name: float(value) for name, value in WORD.findall(json.dumps(body))}
        if "status" in words:
            error = {"message": "asked for", "type": "x", "param": None, "code": int(words["status"])}
            return web.json_response({"error": error}, status=int(words["status"]))
        self.active += 1
        try:
            return await self._answer(request, body, words)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.active -= 1

    async def _answer(
        self, request: web.Request, body: dict[str, Any], words: dict[str, float]
    ) -> web.StreamResponse:
        count, gap = int(words.get("tokens", 5)), words.get("gap", 0.0)
        shape = SHAPES[request.path]
        if not body.get("stream"):
            await asyncio.sleep(gap * count)
            whole = shape.whole(body.get("model", "m"), count)
            whole["id"] = body.get("request_id", whole["id"])  # as vLLM does for stored responses
            return web.json_response(whole, headers={"x-engine": self.name})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "x-engine": self.name})
        await answer.prepare(request)
        for event in shape.before():
            await answer.write(event)
        last = (body.get("messages") or [{}])[-1]
        done = len(str(last.get("content")).split()) if body.get("continue_final_message") else 0
        for index in range(done, count):
            if index == words.get("die" if not done else "dieagain"):
                assert request.transport is not None
                request.transport.abort()
                return answer
            await answer.write(shape.token(f"w{index} "))
            if gap:
                await asyncio.sleep(gap)
        wants = bool((body.get("stream_options") or {}).get("include_usage"))
        for event in shape.after(count, wants):
            await answer.write(event)
        await answer.write_eof()
        return answer


def _data(value: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


class Chat:
    """OpenAI chat."""

    @staticmethod
    def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data(
            {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        )

    def before(self) -> list[bytes]:
        """The role."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def token(self, text: str) -> bytes:
        """One token."""
        return self._chunk({"content": text})

    def after(self, count: int, usage: bool) -> list[bytes]:
        """Finish, usage, end."""
        events = [self._chunk({}, "stop")]
        if usage:
            numbers = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
            base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            events.append(_data({**base, "choices": [], "usage": numbers}))
        return [*events, b"data: [DONE]\n\n"]

    def whole(self, model: str, count: int) -> dict[str, Any]:
        """An answer that is no stream."""
        message = {"role": "assistant", "content": "".join(f"w{i} " for i in range(count))}
        usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }


class Text(Chat):
    """OpenAI completions."""

    def before(self) -> list[bytes]:
        """Nothing."""
        return []

    def token(self, text: str) -> bytes:
        """One token."""
        choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
        return _data(
            {"id": "c1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        )

    def whole(self, model: str, count: int) -> dict[str, Any]:
        """An answer that is no stream."""
        choice = {
            "index": 0,
            "text": "".join(f"w{i} " for i in range(count)),
            "finish_reason": "stop",
            "logprobs": None,
        }
        usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        return {
            "id": "c1",
            "object": "text_completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }


class Messages:
    """Anthropic Messages."""

    def before(self) -> list[bytes]:
        """Start of message and block."""
        message = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None,
                   "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 0}}  # fmt: skip
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [
            _data({"type": "message_start", "message": message}, "message_start"),
            _data(block, "content_block_start"),
        ]

    def token(self, text: str) -> bytes:
        """One token."""
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return _data(delta, "content_block_delta")

    def after(self, count: int, usage: bool) -> list[bytes]:
        """Stops."""
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return [
            _data({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            _data(
                {"type": "message_delta", "delta": delta, "usage": {"output_tokens": count}}, "message_delta"
            ),
            _data({"type": "message_stop"}, "message_stop"),
        ]

    def whole(self, model: str, count: int) -> dict[str, Any]:
        """An answer that is no stream."""
        text = "".join(f"w{i} " for i in range(count))
        return {"id": "m1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
                "stop_sequence": None, "content": [{"type": "text", "text": text}],
                "usage": {"input_tokens": 7, "output_tokens": count}}  # fmt: skip


class Responses:
    """OpenAI Responses."""

    BASE: ClassVar[dict[str, Any]] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": []}  # fmt: skip

    def before(self) -> list[bytes]:
        """Created."""
        response = {**self.BASE, "status": "in_progress", "output": []}
        return [
            _data(
                {"type": "response.created", "sequence_number": 0, "response": response}, "response.created"
            )
        ]

    def token(self, text: str) -> bytes:
        """One token."""
        event = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "i", "output_index": 0,
                 "content_index": 0, "delta": text, "logprobs": []}  # fmt: skip
        return _data(event, "response.output_text.delta")

    def after(self, count: int, usage: bool) -> list[bytes]:
        """Completed."""
        event = {"type": "response.completed", "sequence_number": 2, "response": self.whole("m", count)}
        return [_data(event, "response.completed")]

    def whole(self, model: str, count: int) -> dict[str, Any]:
        """An answer that is no stream."""
        text = {"type": "output_text", "text": "".join(f"w{i} " for i in range(count)), "annotations": []}
        item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [text]}
        usage = {"input_tokens": 7, "output_tokens": count, "total_tokens": 7 + count,
                 "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        return {**self.BASE, "model": model, "status": "completed", "output": [item], "usage": usage}


SHAPES = {
    "/v1/chat/completions": Chat(), "/v1/completions": Text(), "/v1/messages": Messages(), "/v1/responses": Responses(),
}  # fmt: skip
