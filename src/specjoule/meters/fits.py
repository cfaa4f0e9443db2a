"""Weighted polynomial fits to a handful of refreshes, asked for one value only: that at x = 0.

By polynomials that are orthogonal over the refreshes themselves: as short as the normal equations and several times
faster than a general solver, and exact also where one refresh is dated a thousand times better than the others, whose
weight would swallow theirs in a sum over all.
"""

from __future__ import annotations

import math

from specjoule.meters.base import F64

_COINCIDE = 1e-18
"""Points whose spread is below a billionth of their distance from 0 (this is its square) say nothing of a trend."""


def fits_at_zero(x_s: F64, y_j: F64, sigma_j: F64, degree: int) -> list[tuple[float, float]]:
    """Return (value at x = 0, its variance) of the weighted fits of degree 1 to `degree`.

    Each degree adds one orthogonal polynomial (the recurrence of Forsythe, 1957). Points that coincide leave the value
    as it was and its variance infinite.
    """
    w = 1.0 / sigma_j**2
    weight = float(w.sum())
    value, variance = float(w @ y_j) / weight, 1.0 / weight
    # The newest polynomial and the one before it: at the points, at 0, and the sum of w p^2.
    before, before_0, before_norm = 0.0 * x_s, 0.0, math.inf
    here, here_0, norm = 1.0 + before, 1.0, weight
    fits: list[tuple[float, float]] = []
    for _ in range(degree):
        weighted = w * here
        centre, ratio = float((weighted * here) @ x_s) / norm, norm / before_norm
        before, here = here, (x_s - centre) * here - ratio * before
        before_0, here_0 = here_0, -centre * here_0 - ratio * before_0
        before_norm, norm = norm, float((w * here) @ here)
        if not norm > _COINCIDE * weight * here_0**2:
            return fits + [(value, math.inf)] * (degree - len(fits))
        value += here_0 * float((w * here) @ y_j) / norm
        variance += here_0**2 / norm
        fits.append((value, variance))
    return fits
