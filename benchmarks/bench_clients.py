"""What a load generator costs and how far it is off: Longspan's beside `vllm bench serve`, guidellm and AIPerf, in one run.

All of them ask the same server of this machine for the same number of equally long streams at the same concurrency. The server
answers each request after TTFT seconds and then writes a chunk every GAP seconds; it keeps its own times, which are the truth. Printed for
each client: the CPU seconds of its whole process tree, streams a core (concurrency / cores used), and how far its mean TTFT and mean
gap are from the server's. Every stream must have come whole. A program that is not there is "not measured".

    python benchmarks/bench_clients.py [--concurrency 64] [--requests 512] [--vllm PYTHON] [--guidellm PATH] [--aiperf PATH]

PYTHON is an interpreter that has vLLM; by default this one.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from longspan.model.demo import ensure_demo_model

TTFT_SECONDS = 0.05
GAP_SECONDS = 0.02
TOKENS = 64
PROMPT_TOKENS = 32
NAME = "truth"
VLLM = "from longspan.launch.engine_main import main; import sys; main(sys.argv[1:])"


@dataclass
class Truth:
    """What the server did: seconds from the whole request to the first chunk, and between chunks."""

    streams: int = 0
    ttft: float = 0.0
    gaps: float = 0.0
    gap_count: int = 0


@dataclass
class Server(asyncio.Protocol):
    """One connection; keeps it for the next request."""

    truth: Truth
    data: bytes = b""
    transport: Any = None
    begun: float = 0.0
    last: float = 0.0
    sent: int = 0
    is_chat: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers when the request is whole."""
        self.data += data
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        low = head.lower()
        length = (
            int(low.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if b"content-length:" in low
            else 0
        )
        if b"transfer-encoding: chunked" in low:
            if not rest.endswith(b"0\r\n\r\n"):
                return
        elif len(rest) < length:
            return
        self.data = b"" if b"transfer-encoding: chunked" in low else rest[length:]
        path = head.split(b" ", 2)[1]
        if not head.startswith(b"POST"):
            model = {"id": NAME, "object": "model", "owned_by": "vllm", "root": NAME, "max_model_len": 8192}
            self.plain({"object": "list", "data": [model]} if b"models" in path else {})
            return
        self.is_chat = b"chat" in path
        self.begun, self.sent = time.monotonic(), 0
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + TTFT_SECONDS, self.next)

    def plain(self, document: object) -> None:
        """An answer that is no stream."""
        body = json.dumps(document).encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    def event(self, document: object) -> None:
        """One event in one chunk."""
        text = (
            b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
        )
        self.transport.write(b"%x\r\n%b\r\n" % (len(text), text))

    def next(self) -> None:
        """The next token, at its time."""
        if self.transport.is_closing():
            return
        now = time.monotonic()
        if self.sent:
            self.truth.gaps += now - self.last
            self.truth.gap_count += 1
        else:
            self.truth.ttft += now - self.begun
        self.last = now
        self.sent += 1
        end = "length" if self.sent == TOKENS else None
        content = {"delta": {"role": "assistant", "content": " a"}} if self.is_chat else {"text": " a"}
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        frame = {"id": "x", "object": kind, "created": 1, "model": NAME}
        self.event({**frame, "choices": [{"index": 0, "finish_reason": end, **content}]})
        if end:
            usage = {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": TOKENS,
                "total_tokens": PROMPT_TOKENS + TOKENS,
            }
            self.event({**frame, "choices": [], "usage": usage})
            self.event(b"[DONE]")
            self.transport.write(b"0\r\n\r\n")
            self.truth.streams += 1
            return
        loop = asyncio.get_running_loop()
        loop.call_at(
            loop.time() + max(0.0, self.begun + TTFT_SECONDS + self.sent * GAP_SECONDS - now), self.next
        )


@dataclass
class Running:
    """The server in a thread of its own."""

    truth: Truth = field(default_factory=Truth)
    port: int = 0
    ready: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        """Until the program ends."""

        async def run() -> None:
            server = await asyncio.get_running_loop().create_server(
                lambda: Server(self.truth), "127.0.0.1", 0
            )
            self.port = server.sockets[0].getsockname()[1]
            self.ready.set()
            await server.serve_forever()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())


Read = Callable[[Path, str], tuple[float, float]]


def ours(folder: Path, url: str, concurrency: int, requests: int) -> tuple[list[str], Read]:
    """`longspan bench run`; without its calibration, which is another server's load."""
    out = folder / "ours.json"
    argv = [sys.executable, "-c", "from longspan.cli.main import run; run()", "bench", "run", url, "--model", NAME, "--no-calibrate",
            "--concurrency", str(concurrency), "-n", str(requests), "--output", str(TOKENS), "--json", "--kind", "completions",
            "--processes", "1", "--prompt", str(PROMPT_TOKENS), "--warmup", "0", "--store", str(folder / "store.sqlite3"), "--out", str(folder / "out.json")]  # fmt: skip

    def read(_: Path, text: str) -> tuple[float, float]:
        out.write_text(text)
        summary = json.loads(text)["summary"]
        return summary["ttft_sent_mean_seconds"]["value"], summary["itl_mean_seconds"]["value"]

    return argv, read


def vllm(python: str, tokenizer: Path) -> Callable[[Path, str, int, int], tuple[list[str], Read]]:
    """`vllm bench serve`."""

    def make(folder: Path, url: str, concurrency: int, requests: int) -> tuple[list[str], Read]:
        argv = [python, "-c", VLLM, "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
                "--model", NAME, "--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
                "--random-output-len", str(TOKENS), "--num-prompts", str(requests), "--max-concurrency", str(concurrency),
                "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"]  # fmt: skip

        def read(folder: Path, _: str) -> tuple[float, float]:
            found = json.loads((folder / "vllm.json").read_text())
            return found["mean_ttft_ms"] / 1000, found["mean_itl_ms"] / 1000

        return argv, read

    return make


def guidellm(program: str, tokenizer: Path) -> Callable[[Path, str, int, int], tuple[list[str], Read]]:
    """guidellm benchmark."""

    def make(folder: Path, url: str, concurrency: int, requests: int) -> tuple[list[str], Read]:
        argv = [program, "benchmark", "run", "--target", url, "--model", NAME, "--processor", str(tokenizer), "--profile", "concurrent",
                "--rate", str(concurrency), "--max-requests", str(requests), "--data",
                f"prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}", "--output-path", str(folder / "guidellm.json"),
                "--disable-console"]  # fmt: skip

        def read(folder: Path, _: str) -> tuple[float, float]:
            metrics = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
            ttft = metrics["time_to_first_token_ms"]["successful"]["mean"] / 1000
            return ttft, metrics["inter_token_latency_ms"]["successful"]["mean"] / 1000

        return argv, read

    return make


def aiperf(program: str, tokenizer: Path) -> Callable[[Path, str, int, int], tuple[list[str], Read]]:
    """aiperf profile."""

    def make(folder: Path, url: str, concurrency: int, requests: int) -> tuple[list[str], Read]:
        argv = [program, "profile", "--model", NAME, "--url", url, "--endpoint-type", "completions", "--streaming", "--concurrency",
                str(concurrency), "--request-count", str(requests), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
                "--output-tokens-mean", str(TOKENS), "--tokenizer", str(tokenizer), "--artifact-dir", str(folder / "aiperf"), "--ui", "none"]  # fmt: skip

        def read(folder: Path, _: str) -> tuple[float, float]:
            found = json.loads(next((folder / "aiperf").rglob("profile_export_aiperf.json")).read_text())
            return found["time_to_first_token"]["avg"] / 1000, found["inter_token_latency"]["avg"] / 1000

        return argv, read

    return make


def measure(name: str, make: Any, server: Running, concurrency: int, requests: int) -> dict[str, Any]:
    """One client against the server."""
    with tempfile.TemporaryDirectory(prefix="ls-clients-") as text:
        folder = Path(text)
        argv, read = make(folder, f"http://127.0.0.1:{server.port}", concurrency, requests)
        server.truth.__init__()  # type: ignore[misc]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "COLUMNS": "200"}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env)
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return {"client": name, "failed": (done.stderr or done.stdout).strip()[-600:]}
        truth = server.truth
        if truth.streams < requests:
            return {"client": name, "failed": f"only {truth.streams} of {requests} streams came whole"}
        ttft, gap = read(folder, done.stdout)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        loaded = truth.streams * (TTFT_SECONDS + (TOKENS - 1) * GAP_SECONDS) / concurrency
        return {
            "client": name, "streams": truth.streams, "wall_seconds": wall, "cpu_seconds": cpu, "load_seconds": loaded,
            "cpu_us_per_token": cpu / max(1, truth.streams * TOKENS) * 1e6,
            "ttft_error_ms": (ttft - truth.ttft / max(1, truth.streams)) * 1000,
            "itl_error_ms": (gap - truth.gaps / max(1, truth.gap_count)) * 1000,
        }  # fmt: skip


def main() -> None:
    """Measures each, twice in turn: with few requests and with many, so that what a start costs can be taken off."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--vllm", default=sys.executable)
    parser.add_argument("--guidellm")
    parser.add_argument("--aiperf")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizer = ensure_demo_model(lambda _: None)
    server = Running()
    threading.Thread(target=server.serve, daemon=True).start()
    server.ready.wait()
    clients: list[tuple[str, Any]] = [
        ("longspan bench", ours),
        ("vllm bench serve", vllm(options.vllm, tokenizer)),
    ]
    clients += [("guidellm", guidellm(options.guidellm, tokenizer))] if options.guidellm else []
    clients += [("aiperf", aiperf(options.aiperf, tokenizer))] if options.aiperf else []
    rows = []
    for name, make in clients:
        few = measure(name, make, server, options.concurrency, options.concurrency)
        many = measure(name, make, server, options.concurrency, options.requests)
        if "failed" in many or "failed" in few:
            print(f"{name}: failed: {many.get('failed') or few.get('failed')}", flush=True)
            continue
        tokens = (many["streams"] - few["streams"]) * TOKENS
        own = (many["cpu_seconds"] - few["cpu_seconds"]) / tokens * 1e6
        many |= {
            "cpu_us_per_token_without_start": own,
            "start_cpu_seconds": few["cpu_seconds"] - own * few["streams"] * TOKENS / 1e6,
        }
        # A stream has 1 / GAP tokens a second, each of which costs `own` microseconds.
        many["streams_per_core"] = 1e6 / own * GAP_SECONDS if own > 0 else float("inf")
        rows.append(many)
        print(
            f"{name:18} {many['streams']:5} streams  {own:7.1f} µs CPU a token, {many['streams_per_core']:7.0f} streams a core, start"
            f" {many['start_cpu_seconds']:5.1f} CPU s;  off by {many['ttft_error_ms']:+7.2f} ms TTFT, {many['itl_error_ms']:+7.3f} ms ITL",
            flush=True,
        )
    if rows:
        for row in rows[1:]:
            ratio = row["cpu_us_per_token_without_start"] / rows[0]["cpu_us_per_token_without_start"]
            print(f"{row['client']} / {rows[0]['client']} = {ratio:.1f} in CPU a token")
    for name, given in (("guidellm", options.guidellm), ("aiperf", options.aiperf)):
        if not given:
            print(f"{name}: not measured (not given)")
    if options.json:
        options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
