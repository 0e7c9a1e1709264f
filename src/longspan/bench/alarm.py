"""Wakes a loop at absolute times of CLOCK_MONOTONIC, to some microseconds: uvloop's own timers are whole milliseconds."""

import asyncio
import contextlib
import ctypes
import os
import time

_MONOTONIC, _ABSOLUTE = 1, 1


class _Spec(ctypes.Structure):
    """`struct itimerspec`: interval and value, each seconds and nanoseconds."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class Alarm:
    """One timerfd (timerfd_create(2)) that a loop reads; one waiter at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._waiter: asyncio.Future[None] | None = None
        loop.add_reader(self._fd, self._fired)

    def _fired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until(self, when: float) -> None:
        """Returns at `when` (of `time.monotonic`), or at once if that is over."""
        if when <= time.monotonic():
            return
        whole = int(when)
        spec = _Spec(0, 0, whole, int((when - whole) * 1e9) or 1)
        self._waiter = self._loop.create_future()
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
        await self._waiter

    def close(self) -> None:
        """Gives the descriptor back."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
