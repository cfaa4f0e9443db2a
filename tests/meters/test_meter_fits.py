"""The fits of refreshes are those of a general solver, also where that one runs out of digits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.meters.fits import fits_at_zero


@given(
    st.lists(st.floats(0.01, 0.12), min_size=4, max_size=25),
    st.floats(0.001, 0.1),
    st.floats(-400, 400),
    st.floats(-200, 200),
    st.integers(0, 2**32 - 1),
)
def test_value_and_variance_are_those_of_polyfit(
    steps: list[float], offset: float, power: float, trend: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = offset + np.cumsum(steps)
    sigma = rng.uniform(0.1, 2.0, x.size)
    y = 3.0 + power * x + trend * x**2 + sigma * rng.standard_normal(x.size)
    for degree, (value, variance) in enumerate(fits_at_zero(x, y, sigma, 2), start=1):
        coefficients, covariance = np.polyfit(x, y, degree, w=1 / sigma, cov="unscaled")
        assert value == pytest.approx(coefficients[-1], rel=1e-6, abs=1e-6)
        assert variance == pytest.approx(covariance[-1, -1], rel=1e-6)


@given(
    st.lists(st.sampled_from([0.0005, 0.01, 0.2, 0.9]), min_size=5, max_size=8),
    st.lists(st.integers(50, 1500), min_size=8, max_size=8),
    st.floats(0.05, 3.0),
)
def test_one_date_a_thousand_times_better_than_the_others_does_not_swallow_them(
    sigmas: list[float], steps_ms: list[int], offset: float
) -> None:
    sigma = np.array(sigmas)
    x = offset + np.cumsum(steps_ms[: sigma.size]) * 1e-3
    y = 600.0 * x + 5.0 * np.sin(40 * x)
    for degree, (value, variance) in enumerate(fits_at_zero(x, y, sigma, 2), start=1):
        exact_value, exact_variance = exact(x.tolist(), y.tolist(), sigmas, degree)
        assert value == pytest.approx(exact_value, rel=0, abs=1e-4 * math.sqrt(exact_variance) + 1e-6)
        assert variance == pytest.approx(exact_variance, rel=1e-4)


def exact(x: list[float], y: list[float], sigma: list[float], degree: int) -> tuple[float, float]:
    """Solve the normal equations in fractions; return value and variance at 0."""
    n = degree + 1
    points = [(Fraction(a), Fraction(b), 1 / Fraction(s) ** 2) for a, b, s in zip(x, y, sigma, strict=True)]
    rows = [
        [sum(w * a ** (i + j) for a, _, w in points) for j in range(n)]
        + [sum(w * b * a**i for a, b, w in points), Fraction(int(i == 0))]
        for i in range(n)
    ]
    for i in range(n):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for other in range(n):
            if other != i:
                rows[other] = [v - rows[other][i] * u for v, u in zip(rows[other], rows[i], strict=True)]
    return float(rows[0][n]), float(rows[0][n + 1])


def test_dates_that_coincide_allow_no_extrapolation() -> None:
    fits = fits_at_zero(np.full(5, 0.1), np.arange(5.0), np.ones(5), 2)
    assert fits == [(pytest.approx(2.0), math.inf)] * 2
    # Two dates make a line and no curve.
    line, curve = fits_at_zero(np.array([0.1, 0.1, 0.2, 0.2, 0.2]), np.arange(5.0), np.ones(5), 2)
    assert math.isfinite(line[1]) and curve == (line[0], math.inf)
