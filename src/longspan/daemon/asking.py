"""What the controller asks of the endpoint itself: the first token, and the layers of the proof."""

import time
from typing import Any

import aiohttp

from longspan.launch.steps import Ask, Steps


async def ask(question: Ask, machine: Steps, api_key: str) -> dict[str, Any]:
    """Answers one `Ask`.

    Raises:
        aiohttp.ClientError, TimeoutError: the endpoint does not answer.
    """
    base = f"http://{machine.gateway_address}/v1"
    if question.what == "first_token":
        return await first_token(base, api_key, machine.spec.served_name)
    raise NotImplementedError(question.what)


async def first_token(base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """One completion through the gateway, streamed, so that the first token's time is its own."""
    began = time.monotonic()
    body = {
        "model": model,
        "prompt": "The capital of France is",
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=300)) as session,
        session.post(f"{base_url}/completions", json=body) as response,
    ):
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:300]}")
        text, ttft_seconds = "", None
        async for raw in response.content:
            line = raw.decode().strip()
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            import json

            event = json.loads(line[5:])
            if "error" in event:
                raise RuntimeError(str(event["error"])[:300])
            if event.get("choices"):
                ttft_seconds = ttft_seconds or time.monotonic() - began
                text += event["choices"][0]["text"]
    if ttft_seconds is None:
        raise RuntimeError("the stream ended without a token")
    return {
        "ttft_seconds": round(ttft_seconds, 3),
        "text": text,
        "detail": f"{text.strip()!r} after {ttft_seconds:.2f} s",
    }
