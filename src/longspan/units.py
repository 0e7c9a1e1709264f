"""Bytes, seconds and rates: how they are printed and read."""

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_BINARY = (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_SCALES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": KIB, "kib": KIB, "mi": MIB, "mib": MIB, "gi": GIB, "gib": GIB, "ti": 1 << 40, "tib": 1 << 40,
}  # fmt: skip


def format_bytes(count: float) -> str:
    """Prints a byte count in binary units: `format_bytes(1536) == "1.5 KiB"`."""
    for name, size in _BINARY:
        if abs(count) >= size:
            value = count / size
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
    return f"{count:.0f} B"


def parse_bytes(text: str) -> int:
    """Reads "80 GiB", "80GB", "1024"; decimal and binary units as written.

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    scale = _SCALES.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise ValueError(f"not a size in bytes: {text!r}")
    return round(float(match[1]) * scale)


def format_seconds(seconds: float) -> str:
    """Prints a duration: "4 ms", "4.2 s", "2 min 05 s", "1 h 02 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
