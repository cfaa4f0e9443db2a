"""The closed-form fits are those of a general solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.meters.fits import line_at_zero, parabola_at_zero


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
    for fit, degree in ((line_at_zero, 1), (parabola_at_zero, 2)):
        coefficients, covariance = np.polyfit(x, y, degree, w=1 / sigma, cov="unscaled")
        value, variance = fit(x, y, sigma)
        assert value == pytest.approx(coefficients[-1], rel=1e-6, abs=1e-6)
        assert variance == pytest.approx(covariance[-1, -1], rel=1e-6)


def test_dates_that_coincide_allow_no_extrapolation() -> None:
    x, y, sigma = np.full(5, 0.1), np.arange(5.0), np.ones(5)
    for fit in (line_at_zero, parabola_at_zero):
        value, variance = fit(x, y, sigma)
        assert math.isfinite(value)
        assert variance > 1e6
