"""Starts the worker processes, gives them one zero of time, and gathers what they measured."""

import asyncio
import contextlib
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from longspan.bench import quality
from longspan.bench.job import Job, Progress, WorkerReport
from longspan.bench.record import RequestRecord
from longspan.errors import BenchError

# Between the order to start and zero, so that every worker waits for it.
LEAD_SECONDS = 0.05
START_SECONDS = 60.0
# After Ctrl-C workers still read their answers.
STOP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All workers together; `zero_unix_seconds` is the wall clock at zero, `zero` the monotonic one."""

    records: tuple[RequestRecord, ...]
    lag: quality.Lateness
    batch: quality.Lateness
    cpu_share: float
    processes: int
    zero: float
    zero_unix_seconds: float
    clock_jump_seconds: float
    texts: dict[int, str]
    stopped: bool = False


def worker_count(job: Job, processes: int) -> int:
    """How many worker processes make this load: no more than clients of a closed loop."""
    wanted = processes or max(1, min(8, (os.cpu_count() or 2) // 2))
    return max(1, min(wanted, job.spec.concurrency) if job.spec.concurrency else wanted)


async def drive(
    job: Job, processes: int, stop: asyncio.Event, progress: Callable[[Progress], None] | None = None
) -> Measured:
    """Makes the load.

    Args:
        job: for all; its worker numbers are set here.
        stop: when it is set, the run ends and what was measured is returned.

    Raises:
        BenchError: a worker did not start or died.
    """
    count = worker_count(job, processes)
    workers: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            workers.append(await _spawn())  # noqa: PERF401
        async with asyncio.timeout(START_SECONDS):
            for number, worker in enumerate(workers):
                _send(worker, replace(job, worker=number, workers=count))
            for worker in workers:
                await _message(worker)
        zero, unix = time.monotonic() + LEAD_SECONDS, time.time() + LEAD_SECONDS
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(struct.pack("<d", zero))
        stopper = asyncio.create_task(_stop(workers, stop))
        told = [Progress()] * count
        gathering = (_gather(number, worker, told, progress) for number, worker in enumerate(workers))
        reports = await asyncio.gather(*gathering)
        stopper.cancel()
        jump = (time.time() - unix) - (time.monotonic() - zero)
        return _join(list(reports), zero, unix, jump, stop.is_set())
    except TimeoutError:
        raise BenchError("The load generator's processes did not start within a minute.") from None
    finally:
        for worker in workers:
            if worker.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    worker.kill()
            await worker.wait()


async def _spawn() -> asyncio.subprocess.Process:
    # A session of its own: Ctrl-C reaches the parent only, which then asks for what was measured.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "longspan.bench.worker", start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


def _send(worker: asyncio.subprocess.Process, value: Any) -> None:
    assert worker.stdin is not None
    data = pickle.dumps(value, protocol=5)
    worker.stdin.write(struct.pack("<Q", len(data)) + data)


async def _message(worker: asyncio.subprocess.Process) -> Any:
    assert worker.stdout is not None
    try:
        size = struct.unpack("<Q", await worker.stdout.readexactly(8))[0]
        return pickle.loads(await worker.stdout.readexactly(size))  # noqa: S301 our own process
    except asyncio.IncompleteReadError:
        code = await worker.wait()
        raise BenchError(
            f"A process of the load generator ended with {code} before it reported.",
            "Its own words are above; memory may have run out.",
        ) from None


async def _gather(
    number: int,
    worker: asyncio.subprocess.Process,
    told: list[Progress],
    progress: Callable[[Progress], None] | None,
) -> WorkerReport:
    while True:
        message = await _message(worker)
        if isinstance(message, WorkerReport):
            return message
        told[number] = message
        if progress is not None:
            progress(Progress(*(sum(getattr(one, name) for one in told) for name in Progress.__slots__)))


async def _stop(workers: list[asyncio.subprocess.Process], stop: asyncio.Event) -> None:
    await stop.wait()
    for worker in workers:
        if worker.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                worker.stdin.write(b"x")
    await asyncio.sleep(STOP_SECONDS)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()


def _join(reports: list[WorkerReport], zero: float, unix: float, jump: float, stopped: bool) -> Measured:
    records = sorted((one for report in reports for one in report.records), key=lambda one: one.index)
    lag = quality.worst(report.lag for report in reports)
    batch = quality.worst(report.batch for report in reports)
    texts = {index: text for report in reports for index, text in report.texts.items()}
    share = max(report.cpu_share for report in reports)
    return Measured(tuple(records), lag, batch, share, len(reports), zero, unix, jump, texts, stopped)
