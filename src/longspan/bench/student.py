"""Student's t distribution and the normal one, without a numerical library."""

from functools import lru_cache
from math import exp, inf, lgamma, log, sqrt
from statistics import NormalDist

_MOST_STEPS = 300
_TINY = 1e-300


def _continued(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, _MOST_STEPS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + step * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + step / c
            c = c if abs(c) > _TINY else _TINY
            found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return found


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * _continued(a, b, x) / a
    return 1 - front * _continued(b, a, 1 - x) / b


def t_share(t: float, freedom: float) -> float:
    """The probability of a value of at most `t` with `freedom` degrees of freedom (DLMF 8.17; Abramowitz and Stegun 26.7)."""
    tail = _beta_share(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """The value that a t variable stays under with probability `share`; infinite without a degree of freedom.

    Args:
        share: above 0 and below 1.
    """
    if freedom <= 0:
        return inf if share > 0.5 else -inf if share < 0.5 else 0.0
    if freedom > 1e6:
        return NormalDist().inv_cdf(share)
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while t_share(high, freedom) < share and high < 1e12:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_share(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def wilson(hits: float, count: float, confidence: float) -> tuple[float, float]:
    """The interval of a share after Wilson (1927); 0 to 1 where nothing was counted."""
    if count <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
