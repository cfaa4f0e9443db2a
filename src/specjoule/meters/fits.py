"""Weighted polynomial fits to a handful of refreshes, asked for one value only: that at x = 0.

By the normal equations in closed form, which for fewer than thirty points and two or three unknowns is exact enough and
several times faster than a general solver; every window has two to four of them.
"""

from __future__ import annotations

import math

from specjoule.meters.base import F64


def line_at_zero(x_s: F64, y_j: F64, sigma_j: F64) -> tuple[float, float]:
    """Return a weighted straight line's value at x = 0 and the variance of that value (normal equations)."""
    w = 1.0 / sigma_j**2
    wx = w * x_s
    s0, s1, s2 = float(w.sum()), float(wx.sum()), float(wx @ x_s)
    determinant = s0 * s2 - s1 * s1
    if not determinant > 0.0:  # dates that coincide say nothing of a slope
        return float(w @ y_j) / s0, math.inf
    return (s2 * float(w @ y_j) - s1 * float(wx @ y_j)) / determinant, s2 / determinant


def parabola_at_zero(x_s: F64, y_j: F64, sigma_j: F64) -> tuple[float, float]:
    """Return a weighted parabola's value at x = 0 and the variance of that value (normal equations)."""
    w = 1.0 / sigma_j**2
    wx = w * x_s
    wxx = wx * x_s
    s0, s1, s2 = float(w.sum()), float(wx.sum()), float(wxx.sum())
    s3, s4 = float(wxx @ x_s), float(wxx @ (x_s * x_s))
    # First row of the inverse of [[s0 s1 s2] [s1 s2 s3] [s2 s3 s4]], times the determinant.
    c0, c1, c2 = s2 * s4 - s3 * s3, s2 * s3 - s1 * s4, s1 * s3 - s2 * s2
    determinant = s0 * c0 + s1 * c1 + s2 * c2
    if not determinant > 0.0:
        return float(w @ y_j) / s0, math.inf
    value = c0 * float(w @ y_j) + c1 * float(wx @ y_j) + c2 * float(wxx @ y_j)
    return value / determinant, c0 / determinant
