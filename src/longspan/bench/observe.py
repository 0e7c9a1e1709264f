"""Reads an engine's /metrics before, during and after a run, in a thread of its own: never in the way of the load."""

import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace

from longspan.bench import engine_counters
from longspan.bench.record import RequestRecord
from longspan.bench.result import EngineObservation, EngineSample

EVERY_SECONDS = 1.0
# Engines update their counters with their statistics, which may come after the last answer.
SETTLE_SECONDS = 3.0


class Observer:
    """Watches one run.

    Args:
        urls: of /metrics, one an engine or one for all.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._before: dict[str, float] = {}
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.trouble = ""

    def _read(self) -> dict[str, float]:
        texts = []
        for url in self._urls:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 the user names it
                    texts.append(answer.read(1 << 26).decode("utf-8", "replace"))
            except (OSError, ValueError) as error:
                self.trouble = f"{url}: {error}"
                return {}
        return engine_counters.read_counters("\n".join(texts))

    def start(self) -> None:
        """Reads once and begins to watch."""
        self._before = self._read()
        if not self._before and not self.trouble:
            self.trouble = "it has none of vLLM's counters"
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(EVERY_SECONDS):
            self._samples.append((time.monotonic(), self._read()))

    def finish(self, records: Sequence[RequestRecord], zero: float) -> EngineObservation:
        """Reads a last time, waiting a little for counters to settle."""
        self._end.set()
        self._thread.join()
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            after = self._read()
            audit = engine_counters.audit(records, self._before, after)
            if audit.verdict == "agree" or not after or time.monotonic() > until:
                break
            time.sleep(0.2)
        samples = tuple(
            EngineSample(
                at - zero,
                *(found.get(name) for name in ("running", "waiting", "kv_share", "generation_tokens")),
            )
            for at, found in self._samples
            if found
        )
        before = self._before
        if self.trouble:
            audit = replace(audit, reason=f"{audit.reason} ({self.trouble})")
        return EngineObservation(
            self._urls, before, after, engine_counters.restarted(before, after) if after else False,
            engine_counters.hit_share(before, after), engine_counters.growth(before, after, "preemptions"),
            samples, audit, self.trouble,
        )  # fmt: skip
