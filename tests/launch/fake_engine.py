"""A stand-in for vLLM's OpenAI server: the same command line, answers of a fixed form, and bad manners on request.

FAKE_ENGINE in the environment: "die" ends with an error, "deaf" ignores SIGTERM, "child" leaves a child in a process group of
its own, "mute" never becomes ready, "wrong" answers nonsense. FAKE_LOG names a file that gets one line per start.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from aiohttp import web


async def health(_: web.Request) -> web.Response:
    """Ready at once, unless mute."""
    return web.Response(status=503 if "mute" in MANNERS else 200)


async def completions(request: web.Request) -> web.Response:
    """Each character is a token whose log-probability follows from its code."""
    body = await request.json()
    if "wrong" in MANNERS:
        return web.json_response({"choices": []})
    ids = [ord(c) for c in body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
    entries = [None, *({str(i): {"logprob": -(i % 7) / 7}} for i in ids[1:])]
    return web.json_response(
        {"choices": [{"text": "x", "prompt_token_ids": ids, "prompt_logprobs": entries}]}
    )


async def main(socket: str) -> None:
    """Serves until it is ended."""
    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    await asyncio.Event().wait()


MANNERS = os.environ.get("FAKE_ENGINE", "")
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds")
    known, _ = parser.parse_known_args()
    if "FAKE_LOG" in os.environ:
        with Path(os.environ["FAKE_LOG"]).open("a") as log:
            log.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\n")
    if "die" in MANNERS:
        sys.exit("ValueError: the engine does not like this model")
    if "deaf" in MANNERS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in MANNERS:
        subprocess.Popen(["sleep", "600"], process_group=0)
    asyncio.run(main(known.uds))
