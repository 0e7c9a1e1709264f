"""Printing and reading of sizes and durations."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (80 << 30, "80.0 GiB"), (300 << 20, "300 MiB")]
)
def test_format_bytes(count: int, text: str) -> None:
    """Sizes print in binary units with one decimal below a hundred."""
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"), [("80 GiB", 80 << 30), ("80GB", 80 * 10**9), ("1024", 1024), ("1.5k", 1500)]
)
def test_parse_bytes(text: str, count: int) -> None:
    """Units are taken as written: GB is decimal, GiB binary."""
    assert parse_bytes(text) == count


@given(st.text(max_size=12))
def test_parse_bytes_never_crashes(text: str) -> None:
    """Any text is a size or a ValueError."""
    with contextlib.suppress(ValueError):
        assert parse_bytes(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.004, "4 ms"), (4.2, "4.2 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")]
)
def test_format_seconds(seconds: float, text: str) -> None:
    """Durations print in the unit a person would use."""
    assert format_seconds(seconds) == text
