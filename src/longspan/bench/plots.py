"""Small plots as SVG text: nothing is loaded from anywhere. Colours are CSS variables of the page that holds them."""

from collections.abc import Sequence
from html import escape
from math import isfinite, log10

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40

Points = Sequence[tuple[float, float]]


def cumulative(values: Sequence[float], most: int = 200) -> list[tuple[float, float]]:
    """(value, share of the values at or below it), at most `most` points; what is infinite only lowers the shares."""
    ordered = sorted(values)
    finite = [value for value in ordered if isfinite(value)]
    step = max(len(finite) // most, 1)
    chosen = sorted({*range(0, len(finite), step), len(finite) - 1}) if finite else []
    return [(finite[i], (i + 1) / len(ordered)) for i in chosen]


def ticks(low: float, high: float) -> list[float]:
    """Round values from `low` to `high`, about five: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    power = 10 ** int(log10(raw) // 1)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)
    first = int(low // step)
    found = [i * step for i in range(first, first + 14)]
    return [tick for tick in found if low - step * 1e-6 <= tick <= high + step * 1e-6]


def plot(title: str, x_label: str, y_label: str, points: Points, is_line: bool) -> str:
    """One plot of one series; a sentence instead where there is nothing to draw."""
    known = [(x, y) for x, y in points if isfinite(x) and isfinite(y)]
    if not known:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>Nothing was measured.</p></figure>"
    x_high, y_high = (max(pair[i] for pair in known) or 1.0 for i in (0, 1))

    def x_at(value: float) -> float:
        return _LEFT + value / x_high * (WIDTH - _LEFT - _RIGHT)

    def y_at(value: float) -> float:
        return HEIGHT - _BOTTOM - value / y_high * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y_at(tick):.1f}" y2="{y_at(tick):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y_at(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks(0, y_high)
    ]
    parts += [
        f'<text x="{x_at(tick):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks(0, x_high)
    ]
    if is_line:
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in known)
        parts.append(f'<polyline class="line" points="{path}"/>')
    else:
        parts += [f'<circle class="dot" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2"/>' for x, y in known]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(y_label)}</small></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg></figure>'
    )
