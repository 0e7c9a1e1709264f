#!/usr/bin/env python3
"""First paint and size of the dashboard in a real Chromium, and the process's memory and CPU with 64 nodes and a full day of history.

PYTHONPATH=src:tests python benchmarks/dashboard_paint.py [--nodes 64] [--no-day]
Needs `apt-get install --no-install-recommends chromium-headless-shell`. The deployment is simulated; everything stays on loopback.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dashboard.browser import Browser, connect, run_browser
from dashboard.serving import KEY
from dashboard.simulated import deployment
from longspan.dashboard import assets
from longspan.dashboard.series import OVERVIEW, series
from longspan.monitor.history import RINGS, History

ROUNDS = 5
WATCHED_SECONDS = 30
SERVE = """
import asyncio, sys, time
from pathlib import Path
from dashboard.serving import serve
from dashboard.simulated import SimulatedSource, deployment
async def main():
    nodes = int(sys.argv[1])
    source = SimulatedSource(deployment(nodes, time.time()))
    async with serve(source, Path(sys.argv[2])) as served:
        print(served.url, flush=True)
        while True:
            await asyncio.sleep(5)
            source.view = deployment(nodes, time.time())
asyncio.run(main())
"""
PAINT = """(async () => { const first = () => performance.getEntriesByName('first-contentful-paint')[0];
  while (!first()) await new Promise((ok) => setTimeout(ok, 10));
  return first().startTime; })()"""
DRAWN = """(async () => { while (!document.querySelectorAll('#picture .node').length) await new Promise((ok) => setTimeout(ok, 5));
  return performance.now() })()"""
LONG = """(() => { window.long = []; new PerformanceObserver((list) => list.getEntries().forEach((one) => window.long.push(one.duration)))
  .observe({type: 'longtask'}); })()"""


def fill_day(path: Path, nodes: int) -> float:
    """Writes every slot of a day by the same batches as live; one point a bucket, since more change nothing in the file."""
    history = History(path)
    view = deployment(nodes, time.time())
    values, now, began = series(view), time.time(), time.monotonic()
    for slot in range(RINGS[-1].slots, -1, -1):
        history.add(now - slot * RINGS[-1].bucket_seconds, values)
        while history.waiting > 4:
            time.sleep(0.005)
    history.close()
    return time.monotonic() - began


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def look(browser: Browser, url: str) -> dict[str, float]:
    """One fresh load, from an empty cache to the picture."""
    page = await browser.page(url)
    paint = await page.value(PAINT)
    await page.until("document.activeElement?.id === 'key'")
    await page.value(LONG)
    await page.type(KEY)
    began = await page.value("performance.now()")
    await page.press("Enter")
    drawn = await page.value(DRAWN)
    await page.until("document.querySelectorAll('.chart path').length > 5")
    return {"paint": paint, "drawn": drawn - began}


async def measure(url: str, pid: int, address: str, nodes: int) -> dict[str, float | int]:
    """All figures of a served page."""
    async with connect(address) as browser:
        rounds = [await look(browser, url) for _ in range(ROUNDS)]
        page = await browser.page(url)
        await page.until("document.activeElement?.id === 'key'")
        await page.type(KEY)
        await page.press("Enter")
        await page.until("document.querySelectorAll('#picture .node').length > 0")
        await page.value(LONG)
        before, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(WATCHED_SECONDS)
        cpu = (cpu_seconds(pid) - before) / (time.monotonic() - at)
        long = await page.value("window.long")
        sizes = await page.value(
            "performance.getEntriesByType('resource').filter((one) => !one.name.includes('/api/')).map((one) => one.encodedBodySize)"
        )
        await page.value("document.querySelector('input[value=\"24\"]').click()")
        return {
            "nodes": nodes,
            "first_paint_ms_median": round(statistics.median(one["paint"] for one in rounds)),
            "login_to_picture_ms_median": round(statistics.median(one["drawn"] for one in rounds)),
            "files": len(sizes) + 1,
            "transfer_bytes": sum(sizes) + len(assets.load()["index.html"].packed),
            "server_cpu_share_of_a_core_one_page_open": round(cpu, 3),
            "server_resident_mib": round(memory_mib(pid), 1),
            "longest_task_in_page_ms": round(max(long, default=0)),
            "long_tasks_in_page": len(long),
        }


def main() -> None:
    """See the module's text."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=64)
    options.add_argument("--no-day", action="store_true", help="Leave the history empty.")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory, history = Path(name), Path(name) / "history.sqlite3"
        filled = 0.0 if chosen.no_day else fill_day(history, chosen.nodes)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(chosen.nodes), str(history)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with run_browser(directory) as address:
                found = asyncio.run(measure(url, server.pid, address, chosen.nodes))
        finally:
            server.terminate()
            server.wait()
        began = time.monotonic()
        History(history).read(OVERVIEW, time.time() - 86_400, time.time())
        found |= {
            "day_of_overview_read_ms": round(1000 * (time.monotonic() - began)),
            "series": len(series(deployment(chosen.nodes, time.time()))),
            "history_mib": round(history.stat().st_size / 2**20, 1),
            "fill_seconds": round(filled, 1),
            "this_process_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
