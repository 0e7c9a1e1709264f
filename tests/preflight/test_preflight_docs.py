"""docs/check.md says what the code does."""

import runpy
from pathlib import Path

from longspan.deployment import RayPorts

REPO = Path(__file__).parent.parent.parent


def test_the_tables_are_current() -> None:
    """The page's tables are what scripts/check_table.py writes; run it after changing a check or a port."""
    script = runpy.run_path(str(REPO / "scripts" / "check_table.py"))
    page = (REPO / "docs" / "check.md").read_text()
    assert page == script["render"](page)
    assert "| `reachable` |" in page


def test_ray_ports_are_apart() -> None:
    """Every port of the block is used once, lies in it, and outside the kernel's usual ephemeral range. A node that joins again
    after it was lost has ports that none of its last eight starts had, and that are no worker's."""
    block = RayPorts(30000)
    low, high = block.workers
    single = [block.gcs, block.client_server]
    for start in range(1, 10):
        values = [int(flag.partition("=")[2]) for flag in block.flags(start)]
        single += [value for value in values if value not in (low, high)]
    assert len(set(single)) == len(single)
    assert not [port for port in single if low <= port <= high]
    assert (block.first, max(single), block.last - block.first) == (30000, block.last, 499)
    assert block.flags(10) == block.flags(2)
    assert set(block.tried) <= {*single, low}
    assert RayPorts().last < 32768
