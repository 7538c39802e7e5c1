"""Student's t: how far a mean of a few values may lie off."""

from __future__ import annotations

from math import cos, expm1, pi, sin, sqrt


def student(chance: float, freedom: int) -> float:
    """What Student's t exceeds with this probability (Hill, «Algorithm 396: Student's t-quantiles», Communications of
    the ACM 13, 1970)."""
    both = 2 * chance
    if freedom == 1:
        return cos(both * pi / 2) / sin(both * pi / 2)
    if freedom == 2:
        return sqrt(2 / (both * (2 - both)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20_700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * sqrt(a * pi / 2) * freedom
    y = (d * both) ** (2 / freedom)
    if y > 0.05 + a:
        x = _normal_quantile(chance)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = expm1(a * y * y)
    else:
        first = 1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
        y = ((first + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y
    return sqrt(freedom * y)


def _normal_quantile(chance: float) -> float:
    """`NormalDist().inv_cdf`, where it is compiled without the rest of `statistics`, which takes 10 ms to import."""
    try:
        from _statistics import _normal_dist_inv_cdf as quantile  # type: ignore[import-not-found]
    except ImportError:
        from statistics import NormalDist

        return NormalDist().inv_cdf(chance)
    return float(quantile(chance, 0.0, 1.0))
