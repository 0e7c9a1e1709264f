"""Soak: streams with random client disconnects through one gateway; prints RSS, sockets and permits over time.

PYTHONPATH=src:tests python benchmarks/gateway_soak.py --minutes 60 --streams 60
PYTHONPATH=src:tests python benchmarks/gateway_soak.py --idle 5000        # memory of streams that are only held
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from gateway.stub_engine import StubEngine

KEY, ADMIN = "lsp_soak", "lsp_soak-admin"


def digest(key: str) -> str:
    """SHA-256 as the configuration holds it."""
    return hashlib.sha256(key.encode()).hexdigest()


def rss_mb(pid: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> int:
    """Open files and sockets."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def start(engine: StubEngine, admin_port: int) -> tuple[asyncio.subprocess.Process, str]:
    """A gateway process in front of the engine."""
    directory = Path(tempfile.mkdtemp(prefix="longspan-soak-"))
    text = (
        f'listen = "127.0.0.1:0"\nlog = "log.jsonl"\nledger = "ledger.db"\n[[keys]]\nname = "k"\nsha256 = "{digest(KEY)}"\n'
        f'[[models]]\nname = "m"\n[[replicas]]\nname = "r0"\nurl = "{engine.url}"\nmodel = "m"\n'
        f'[admin]\nlisten = "127.0.0.1:{admin_port}"\nsha256 = "{digest(ADMIN)}"\n'
    )
    (directory / "gateway.toml").write_text(text)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "longspan.gateway",
        "--config",
        str(directory / "gateway.toml"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, "http://" + json.loads(await process.stdout.readline())["address"]


async def client(
    session: aiohttp.ClientSession, url: str, end: float, rnd: random.Random, done: list[int], gap: float
) -> None:
    """One stream after the other; every third is left at a random moment."""
    while time.monotonic() < end:
        tokens = rnd.randint(20, 120)
        body = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": f"tokens={tokens} gap={gap}"}],
        }
        leave = rnd.random() * tokens * gap if rnd.random() < 1 / 3 else None
        try:
            async with asyncio.timeout(leave), session.post(url, json=body) as answer:
                text = await answer.text()
                done[0 if "[DONE]" in text else 2] += 1
        except TimeoutError:
            done[1] += 1


async def soak(minutes: float, streams: int, gap: float) -> None:
    """Runs and reports each minute."""
    engine = await StubEngine().start()
    admin_port = 18799
    process, url = await start(engine, admin_port)
    rnd = random.Random(1)
    headers = {"authorization": f"Bearer {KEY}"}
    begin, end, done = time.monotonic(), time.monotonic() + minutes * 60, [0, 0, 0]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        jobs = [
            asyncio.create_task(client(session, url + "/v1/chat/completions", end, rnd, done, gap))
            for _ in range(streams)
        ]

        async def report() -> None:
            async with session.get(
                f"http://127.0.0.1:{admin_port}/admin/status", headers={"authorization": f"Bearer {ADMIN}"}
            ) as answer:
                status = await answer.json()
            sockets = descriptors(process.pid)
            print(json.dumps({
                "minutes": round((time.monotonic() - begin) / 60, 1), "rss_mb": round(rss_mb(process.pid), 1),
                "descriptors": sockets, "running": status["running"], "engine_active": engine.active,
                "finished": done[0], "left": done[1], "broken": done[2],
            }), flush=True)  # fmt: skip

        while time.monotonic() < end:
            await asyncio.sleep(min(60.0, max(1.0, end - time.monotonic())))
            engine.seen.clear()
            await report()
        await asyncio.gather(*jobs)
        await asyncio.sleep(6)
        await report()
    process.terminate()
    await process.wait()
    await engine.stop()


async def idle(count: int) -> None:
    """Holds streams open that send nothing but a first token."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2
    )
    engine = await StubEngine().start()
    process, url = await start(engine, 18798)
    before = rss_mb(process.pid)
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "tokens=2 gap=3000"}]}
    ).encode()
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    held = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(host, int(port), limit=2048)
        writer.write(head.encode() + body)
        held.append((reader, writer))
        if len(held) % 200 == 0:
            await asyncio.gather(*(r.readuntil(b"w0") for r, _ in held[-200:]))
    await asyncio.sleep(2)
    after = rss_mb(process.pid)
    print(json.dumps({"streams": count, "rss_mb_before": round(before, 1), "rss_mb_after": round(after, 1),
                      "kb_per_stream": round((after - before) * 1024 / count, 1)}))  # fmt: skip
    for _, writer in held:
        writer.transport.abort()
    process.kill()
    await process.wait()
    await engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--streams", type=int, default=60)
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between tokens")
    parser.add_argument("--idle", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(idle(options.idle) if options.idle else soak(options.minutes, options.streams, options.gap))
