"""Decode windows whose steps are longer than the counter's refresh: whole steps, and the energy per step comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.meters.base import BOARD, Calibration, Refreshes, Trace
from specjoule.windows.decode import decode_energy

POWER_W = 40.0


def counter(refresh_ms: int, seconds: float = 20.0) -> Trace:
    t = np.arange(0, round(seconds * 1e9), refresh_ms * 1_000_000, dtype=np.int64)
    return Trace({BOARD: Refreshes(t, t.copy(), POWER_W * t / 1e9)})


@given(step_ms=st.integers(21, 900), steps=st.integers(2, 12), phase_ms=st.integers(0, 19))
def test_energy_per_step_is_exact_however_few_steps_there_are(step_ms: int, steps: int, phase_ms: int) -> None:
    start = 1_000_000_000 + phase_ms * 1_000_000 + 333
    end = start + steps * step_ms * 1_000_000
    found = decode_energy(counter(20), start, end, step_ms * 1e6, Calibration(calibrated=True), None)
    assert (found.start_ns, found.end_ns) == (start, end)
    assert found.energy_j is not None
    assert found.energy_j / steps == pytest.approx(POWER_W * step_ms / 1e3, rel=1e-9)
    assert found.uncertainty_j is not None
    assert found.uncertainty_j > 0


def test_short_steps_are_met_at_refreshes_as_before() -> None:
    start, end = 1_003_000_000, 3_011_000_000
    found = decode_energy(counter(20), start, end, 5e6, Calibration(calibrated=True), None)
    assert found.start_ns >= start
    assert found.end_ns <= end
    assert found.start_ns % 20_000_000 == found.end_ns % 20_000_000 == 0


def test_a_counter_that_did_not_move_gives_no_energy() -> None:
    t = np.arange(0, 10_000_000_000, 20_000_000, dtype=np.int64)
    frozen = Trace({BOARD: Refreshes(t, t.copy(), np.full(len(t), 7.0))})
    found = decode_energy(frozen, 1_000_000_000, 5_000_000_000, 5e8, Calibration(calibrated=True), None)
    assert found.energy_j is None
    assert found.flags
