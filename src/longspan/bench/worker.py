"""A worker process of the load generator: `python -m longspan.bench.worker`, told its job over standard input.

It only sends, stamps and keeps bytes while the load runs, with the garbage collector off; answers are read afterwards.
Messages are pickles with their length in front: both ends are the same program, and the pipes belong to them alone.
"""

import asyncio
import contextlib
import gc
import pickle
import resource
import ssl
import struct
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import uvloop

from longspan.bench import arrivals, quality, record
from longspan.bench.alarm import Alarm
from longspan.bench.connection import Connection, connect
from longspan.bench.job import Job, Progress, WorkerReport
from longspan.bench.pipe import read_exactly, write_message
from longspan.bench.prompts import PromptMaker, Request, body
from longspan.bench.scan import Scanned, scan
from longspan.bench.sending import Sending, record_of

TICK_SECONDS = 0.01
PROGRESS_SECONDS = 0.5


class Worker:
    """Runs one job.

    Args:
        zero: `time.monotonic` at the begin of the run.
    """

    def __init__(self, job: Job, zero: float, maker: PromptMaker) -> None:
        self.job = job
        self.spec = job.spec
        self.zero = zero
        self.maker = maker
        self.sendings: list[Sending] = []
        self.done = self.failed = 0
        self.lags: list[float] = []
        self._head = job.target.head(job.spec.kind)
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if job.target.tls else None
        self._sessions = self._mine()
        self._main: asyncio.Task[None] | None = None
        self._limit = asyncio.Semaphore(job.concurrency) if job.concurrency else None

    def _mine(self) -> Iterator[int]:
        """Numbers of this worker's conversations."""
        number = self.job.worker
        while not self.spec.total or number * self.spec.turns < self.spec.total:
            yield number
            number += self.job.workers

    def _over(self, when: float) -> bool:
        limit = self.spec.duration_seconds
        return bool(limit) and when - self.zero >= limit

    async def run(self, write: Any) -> float:
        """Makes the load; returns the share of a core it took."""
        loop = asyncio.get_running_loop()
        alarm, ticks = Alarm(loop), Alarm(loop)
        await alarm.until(self.zero)
        cpu, begin = time.process_time(), time.monotonic()
        watch = [loop.create_task(self._tick(ticks)), loop.create_task(self._tell(write))]
        self._main = loop.create_task(self._open(alarm) if self.spec.pattern.is_open else self._closed())
        loop.add_reader(0, self.stop)  # a byte, or the end of a parent that died
        with contextlib.suppress(asyncio.CancelledError):
            await self._main
        loop.remove_reader(0)
        share = (time.process_time() - cpu) / max(1e-6, time.monotonic() - begin)
        for task in watch:
            task.cancel()
        await asyncio.gather(*watch, return_exceptions=True)
        for connection in self._idle:
            connection.close()
        alarm.close()
        ticks.close()
        return share

    def stop(self) -> None:
        """Ends the load now; what runs is cut off."""
        asyncio.get_running_loop().remove_reader(0)
        if self._main is not None:
            self._main.cancel()

    async def _tick(self, alarm: Alarm) -> None:
        """Measures how late the loop wakes up."""
        due = time.monotonic()
        while True:
            due += TICK_SECONDS
            await alarm.until(due)
            now = time.monotonic()
            self.lags.append(max(0.0, now - due))
            due = max(due, now - TICK_SECONDS)

    async def _tell(self, write: Any) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            sent = sum(one.sent is not None for one in self.sendings[-10_000:]) + max(
                0, len(self.sendings) - 10_000
            )
            write(Progress(sent, self.done, self.failed))

    async def _closed(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.job.concurrency):
                group.create_task(self._client())

    async def _client(self) -> None:
        for number in self._sessions:
            now = time.monotonic()
            if self._over(now):
                return
            await self._converse(self.maker.make(number), now)

    async def _open(self, alarm: Alarm) -> None:
        times = arrivals.offsets(self.spec.pattern, Random(self.spec.seed))  # noqa: S311
        async with asyncio.TaskGroup() as group:
            at = -1
            for number in self._sessions:
                offset = None
                while at < number:
                    offset = next(times, None)
                    at += 1
                if offset is None or self._over(self.zero + offset):
                    return
                request = self.maker.make(number)
                await alarm.until(self.zero + offset)
                group.create_task(self._limited(request, self.zero + offset))

    async def _limited(self, request: Request, scheduled: float) -> None:
        if self._limit is None:
            await self._converse(request, scheduled)
            return
        first = self._begin(request, 0, scheduled)
        async with self._limit:
            await self._converse(request, scheduled, first)

    def _begin(self, request: Request, turn: int, scheduled: float) -> Sending:
        index = request.index * self.spec.turns + turn
        wanted = 0 if self.spec.kind == "embeddings" else request.output_tokens
        one = Sending(index, request.index, turn, wanted, scheduled)
        self.sendings.append(one)
        return one

    async def _converse(self, request: Request, scheduled: float, first: Sending | None = None) -> None:
        """All turns of one conversation; a failure ends it."""
        answers: list[str] = []
        for turn in range(len(request.texts)):
            one = first if turn == 0 and first is not None else self._begin(request, turn, scheduled)
            content = body(
                self.spec, self.job.model, request.texts[: turn + 1], answers, request.output_tokens
            )
            await self._send(one, self._head + b"%d\r\n\r\n" % len(content) + content)
            if one.outcome:
                return
            if turn + 1 < len(request.texts):
                answers.append(self._scan(one, keep_text=True).text)
                await asyncio.sleep(self.spec.think_seconds)
                scheduled = (one.end or scheduled) + self.spec.think_seconds

    async def _send(self, one: Sending, request: bytes) -> None:
        one.sent = time.monotonic()
        one.outcome = record.ABORTED
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.spec.timeout_seconds):
                connection = self._take()
                if connection is not None:
                    await connection.exchange(request)
                    if connection.closed and not connection.stamps:
                        connection = None  # it had been closed while it lay idle
                if connection is None:
                    connection = await connect(self.job.target, self._tls)
                    await connection.exchange(request)
            one.outcome = record.OK
            if connection.error is not None:
                one.outcome, one.error = (
                    record.RESET,
                    f"{type(connection.error).__name__}: {connection.error}",
                )
        except TimeoutError:
            one.outcome = record.TIMEOUT
            one.error = f"no complete answer within {self.spec.timeout_seconds:g} s"
        except OSError as error:
            one.outcome, one.error = record.REFUSED, str(error)
        finally:
            self._put(one, connection)

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _put(self, one: Sending, connection: Connection | None) -> None:
        """Takes the bytes from the connection and gives it back, or ends it."""
        one.end = time.monotonic()
        if connection is not None:
            one.blocks, one.ends, one.stamps = connection.blocks, connection.ends, connection.stamps
            if one.outcome == record.OK and connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()
        if one.outcome == record.OK and one.stamps:
            one.end = one.stamps[-1]
        self.done += 1
        # Failures inside answers are found afterwards; these are the ones known while it runs.
        self.failed += bool(one.outcome) or not one.blocks or b" 200 " not in one.blocks[0][:16]

    def _scan(self, one: Sending, keep_text: bool = False) -> Scanned:
        spec = self.spec
        wanted = one.wanted if spec.ignore_eos else 0
        return scan(
            b"".join(one.blocks), one.ends, one.stamps, kind=spec.kind, stream=spec.stream,
            wanted_tokens=wanted, max_tokens=one.wanted, keep_text=keep_text,
        )  # fmt: skip

    def report(self, cpu_share: float) -> WorkerReport:
        """Reads all answers."""
        texts: dict[int, str] = {}
        stamps = [stamp for one in self.sendings for stamp in one.stamps]
        records = []
        for one in self.sendings:
            found = self._scan(one, self.job.keep_texts) if one.blocks else Scanned()
            if self.job.keep_texts:
                texts[one.index] = found.text
            records.append(record_of(one, found, self.zero, self.spec))
            one.blocks = []
        batch = quality.lateness(quality.turns(stamps))
        return WorkerReport(tuple(records), quality.lateness(self.lags), batch, cpu_share, texts)


def main() -> None:
    """Reads the job, says that it is ready, reads the zero time, runs, reports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    job: Job = pickle.loads(read_exactly(struct.unpack("<Q", read_exactly(8))[0]))  # noqa: S301 our own parent
    maker = PromptMaker(job.spec, job.rate, Random, job.talks, job.trace)
    write_message("ready")
    zero = struct.unpack("<d", read_exactly(8))[0]
    gc.collect()
    gc.freeze()
    gc.disable()

    async def go() -> WorkerReport:
        worker = Worker(job, zero, maker)
        return worker.report(await worker.run(write_message))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.suppress(BrokenPipeError):
        write_message(runner.run(go()))


if __name__ == "__main__":
    main()
