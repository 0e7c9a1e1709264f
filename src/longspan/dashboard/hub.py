"""Asks for the picture once a second, keeps its figures, and has one frame ready for every page that watches.

A frame is compressed once for all: each is a deflate block of its own that refers to nothing before it, so a page that joins
later, or misses some because its line is slow, can take any of them.
"""

import asyncio
import contextlib
import json
import time
import zlib

from longspan.dashboard.series import series
from longspan.dashboard.source import VERBS, Away, Picture, Source
from longspan.errors import StateError
from longspan.monitor.history import History
from longspan.monitor.view import ClusterView

PERIOD_SECONDS = 1.0
VERBS_SECONDS = 30.0
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
COMPRESSION = 4


class Frame:
    """One event for the pages.

    Attributes:
        plain: as it stands in the stream.
        packed: the same as a deflate block, to follow `GZIP_HEADER` or another block.
    """

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.plain = f"id: {number}\nevent: frame\ndata: {text}\n\n".encode()
        packer = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
        self.packed = packer.compress(self.plain) + packer.flush(zlib.Z_FULL_FLUSH)


class Hub:
    """The newest picture, how the controller is, and the frames made of both.

    Attributes:
        view: the newest picture that there was; it stays when the controller is away.
        lost_since: Unix seconds since when there is no new one; None while there is.
    """

    def __init__(self, source: Source, history: History | None, no_history: str = "") -> None:
        self.source = source
        self.history = history
        self._no_history = no_history
        self.view: ClusterView | None = None
        self.lost_since: float | None = None
        self.reason = "The controller has not been asked yet."
        self.actions = dict.fromkeys(VERBS, False)
        self._verbs_at = float("-inf")
        self._seen_at = 0.0
        self._number = 0
        self._picture_frame: Frame | None = None
        self._frame: Frame | None = None
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.05, PERIOD_SECONDS - (time.monotonic() - began)))

    async def look(self) -> None:
        """Asks once."""
        picture: Picture | None = None
        now = time.time()
        try:
            picture = await self.source.picture()
            if self.lost_since is not None or time.monotonic() - self._verbs_at > VERBS_SECONDS:
                self.actions = await self.source.verbs()
                self._verbs_at = time.monotonic()
        except Away as error:
            self.reason = str(error)
            self.lost_since = self.lost_since or now
        if picture is not None:
            self.view, self._seen_at, self.lost_since, self.reason = picture.view, now, None, ""
            if self.history is not None:
                self.history.add(now, series(picture.view))
        await self._publish(picture)

    async def _publish(self, picture: Picture | None) -> None:
        self._number += 1
        head = json.dumps({
            "number": self._number, "now_unix_seconds": time.time(),
            "seen_unix_seconds": self._seen_at or None,
            "lost_since_unix_seconds": self.lost_since, "reason": self.reason,
            "actions": self.actions, "history_trouble": self.history_trouble(),
        })  # fmt: skip
        # The picture goes through as it came; it was read, so it is one JSON document, and JSON has no bare line break
        # except between tokens.
        text = f'{head[:-1]}, "view": {_one_line(picture.text)}}}' if picture else head
        self._frame = await asyncio.to_thread(Frame, self._number, text)
        if picture is not None:
            self._picture_frame = self._frame
        async with self._changed:
            self._changed.notify_all()

    def history_trouble(self) -> str:
        """Why no history is kept; empty while it is."""
        return self.history.trouble if self.history is not None else self._no_history

    async def after(self, number: int) -> list[Frame]:
        """The frames to send to a page that has seen `number` (-1: nothing): the newest, and before it the last picture
        where the page has not got it. Waits until there is one."""
        async with self._changed:
            while self._frame is None or self._frame.number <= number:
                await self._changed.wait()
        picture = self._picture_frame
        if picture is not None and picture is not self._frame and picture.number > number:
            return [picture, self._frame]
        return [self._frame]

    async def close(self) -> None:
        """Writes what is left of the history and lets the source go."""
        with contextlib.suppress(StateError):
            if self.history is not None:
                await asyncio.to_thread(self.history.close)
        await self.source.close()


def _one_line(text: str) -> str:
    """JSON without line breaks: those between tokens mean nothing, and inside strings there are none."""
    return text.replace("\r", " ").replace("\n", " ")
