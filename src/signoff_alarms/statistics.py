"""How likely a correlation is by chance: the two-sided t-test of Pearson's coefficient, in plain Python.

Under the hypothesis that there is none, t = r * sqrt((n - 2) / (1 - r²)) has Student's distribution with
n - 2 degrees of freedom, whose two tails together are the regularized incomplete beta function I_x(ν/2, 1/2)
at x = ν / (ν + t²), which is 1 - r². It is computed by its continued fraction (Lentz's method).
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p
from typing import Any

_TINY, _PRECISION, _MOST = 1e-300, 1e-15, 10_000


def with_p_value(row: dict[str, Any]) -> dict[str, Any]:
    """A row with `n` and `correlation`, and with `pValue`."""
    return {**row, "pValue": p_value(row["correlation"], row["n"])}


def p_value(correlation: float | None, n: int) -> float | None:
    """How often a correlation as strong as this, or stronger, comes of `n` pairs by chance. None where there
    is no correlation, or too few pairs for a test."""
    if correlation is None or n < 3:
        return None
    square = correlation * correlation
    if square >= 1.0:
        return 0.0
    return _incomplete_beta((n - 2) / 2, square)


def _incomplete_beta(a: float, square: float) -> float:
    """I_x(a, 1/2) at x = 1 - square, which is given as it is: near 1, x would lose its digits."""
    b, x = 0.5, 1.0 - square
    if square == 0.0:
        return 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log1p(-square) + b * log(square))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, square) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, _away_from_zero(1.0 - (a + b) * x / (a + 1))
    d = 1.0 / d
    value = d
    for m in range(1, _MOST):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
