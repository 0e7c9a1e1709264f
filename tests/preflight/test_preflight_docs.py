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
    """Every port of the block is used once, lies in it, and outside the kernel's usual ephemeral range."""
    block = RayPorts(30000)
    values = [int(flag.partition("=")[2]) for flag in block.flags()]
    low, high = block.workers
    single = [
        block.gcs,
        block.client_server,
        *(value for value in values if value not in (low, high)),
    ]
    assert len(set(single)) == len(single)
    assert max(single) < low
    assert (block.first, high, block.last - block.first) == (30000, block.last, 499)
    assert set(block.tried) <= {*single, low}
    assert RayPorts().last < 32768
