"""What must be known of a board's counter before a window is cut: refresh, idle power, lag, aliasing, smallest window.

All are found with loads whose times are known (`load.py`). The functions that turn traces into numbers are pure; what
they find is kept per board with date and driver, and is stale once the driver changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from specjoule.errors import MeterError
from specjoule.meters.base import BOARD, F64, BoardInfo, Calibration, Refreshes
from specjoule.meters.calibration_store import AliasingPoint, BoardCalibration
from specjoule.meters.energy import window_energy
from specjoule.meters.load import Load, Spans
from specjoule.meters.sampled import SampledMeter

_FIT_NS = 600e6
"""Stretch of trace fitted on either side of a step; the far end is left to the next step's idle."""
_LONGEST_LAG_NS = 200e6
"""No board is known to lag more."""
_DATING_GAP_NS = 1e6
"""A refresh so close to the bend may be on either side of it."""
_RESIDUAL_NS = 0.8e6
"""What a load's own ripple can shift every step by alike."""
_TARGET = 0.005
"""Relative uncertainty that the smallest window must reach."""
_ALIASING_PERIODS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_ALIASING_DUTIES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class StepLag:
    """Lag found from load steps, ns, with the standard error of their mean."""

    on_ns: F64
    off_ns: F64

    @property
    def lag_ns(self) -> float:
        """Mean of the lags at switching on and off."""
        return float((np.mean(self.on_ns) + np.mean(self.off_ns)) / 2)

    @property
    def uncertainty_ns(self) -> float:
        """Half-width: twice the standard error, half of what on and off disagree by, and a residual, together."""
        on_error, off_error = (float(np.std(one, ddof=1)) / np.sqrt(len(one)) for one in (self.on_ns, self.off_ns))
        disagreement = abs(float(np.mean(self.on_ns) - np.mean(self.off_ns))) / 2
        return float(np.sqrt(on_error**2 + off_error**2 + disagreement**2 + _RESIDUAL_NS**2))


def step_lag(refreshes: Refreshes, spans: Spans) -> StepLag:
    """Return by how much the counter's bends come after the load's steps.

    Around each step the counter is two lines; they meet at the step plus the lag.
    """
    on_ns = [_bend(refreshes, on, -np.inf if i == 0 else spans[i - 1][1], off) for i, (on, off) in enumerate(spans)]
    ends = [*(on for on, _ in spans[1:]), np.inf]
    off_ns = [_bend(refreshes, off, on, end) for (on, off), end in zip(spans, ends, strict=True)]
    found_on = np.array([t - on for t, (on, _) in zip(on_ns, spans, strict=True) if t is not None])
    found_off = np.array([t - off for t, (_, off) in zip(off_ns, spans, strict=True) if t is not None])
    if len(found_on) < 2 or len(found_off) < 2:
        raise MeterError("No load step can be seen in the energy counter; is the load running on this board?")
    return StepLag(found_on, found_off)


def _bend(refreshes: Refreshes, step_ns: float, left_ns: float, right_ns: float) -> float | None:
    """Return where the lines before and after a step meet, ns; None where too few refreshes lie on a side."""
    interval_ns = refreshes.interval_ns or 0.0
    x_ns = refreshes.t_ns - step_ns
    # First only what is surely on one side of the bend, with straight lines; then all, around the bend just found.
    gap_ns, degree = (0.0, float(_LONGEST_LAG_NS)), 1
    bend_ns = 0.0
    for _ in range(4):
        low_ns = max(bend_ns - _FIT_NS, left_ns - step_ns + max(bend_ns, 0.0) + interval_ns)
        high_ns = min(bend_ns + gap_ns[1] + _FIT_NS, right_ns - step_ns + bend_ns - interval_ns)
        before = (x_ns > low_ns) & (x_ns < bend_ns - gap_ns[0])
        after = (x_ns > bend_ns + gap_ns[1]) & (x_ns < high_ns)
        if before.sum() < 3 or after.sum() < 3:
            return None
        found_ns = _meet(x_ns, refreshes.counter_j, before, after, degree)
        if found_ns is None:
            return None
        bend_ns, gap_ns, degree = found_ns, (_DATING_GAP_NS, _DATING_GAP_NS), 2
    return step_ns + bend_ns


def _meet(x_ns: F64, counter_j: F64, before: Any, after: Any, most: int) -> float | None:
    """Return where two fits meet: lines, or parabolas where there are points enough for a power that drifts."""
    x_s = x_ns * 1e-9
    base_j = counter_j[before][-1]
    fits = []
    for side in (before, after):
        degree = most if side.sum() >= 5 else 1
        fits.append(np.polynomial.Polynomial.fit(x_s[side], counter_j[side] - base_j, degree).convert())
    roots = (fits[0] - fits[1]).trim(1e-6).roots()
    real = roots[np.isreal(roots)].real
    low, high = x_s[before][-3], x_s[after][2]
    inside = real[(real >= low) & (real <= high)]
    if len(inside) == 0:
        return None
    middle = (x_s[before][-1] + x_s[after][0]) / 2
    return float(inside[np.argmin(np.abs(inside - middle))] * 1e9)


def aliasing_error(refreshes: Refreshes, spans: Spans, busy_w: float, lag_ns: float) -> float | None:
    """Return the counter's relative error on a square load, against busy and idle power at its true duty.

    Idle power is that of the rest just before and after: a board that has worked draws more at rest than a cold one.
    None where the trace shows no rest.
    """
    known = Calibration(lag_ns=round(lag_ns), lag_uncertainty_ns=1_000_000, calibrated=True)
    start_ns, end_ns = spans[0][0], spans[-1][1]
    try:
        before_w = power_between_w(refreshes, refreshes.read_start_ns[0], start_ns + lag_ns)
        after_w = power_between_w(refreshes, end_ns + lag_ns, refreshes.read_end_ns[-1])
    except MeterError:
        return None
    counted = window_energy(refreshes, start_ns, end_ns, edges="generation", calibration=known)
    busy_s = sum(off - on for on, off in spans) * 1e-9
    idle_s = (end_ns - start_ns) * 1e-9 - busy_s
    expected_j = (before_w + after_w) / 2 * idle_s + busy_w * busy_s
    return None if counted.energy_j is None else counted.energy_j / expected_j - 1


def smallest_windows_s(dating_ns: float, refresh_ns: float, idle_w: float, busy_w: float) -> tuple[float, float]:
    """Return the smallest generation and decode windows whose uncertainty reaches 0.5 %, s.

    Two uniform dating errors of bracket width b have 95 % within 0.78 b; charged at idle power at a generation window's
    edges, at busy power at a decode window's. No window is shorter than three refreshes.
    """
    floor_s = 3 * refresh_ns * 1e-9
    decode_s = 0.78 * dating_ns * 1e-9 / _TARGET
    return max(decode_s * idle_w / busy_w, floor_s), max(decode_s, floor_s)


def power_between_w(refreshes: Refreshes, start_ns: float, end_ns: float) -> float:
    """Return the mean power from the refreshes inside a stretch, W. Raises MeterError where there are too few."""
    inside = np.flatnonzero((refreshes.read_start_ns >= start_ns) & (refreshes.read_end_ns <= end_ns))
    if len(inside) < 3:
        raise MeterError("The energy counter refreshes too seldom to be calibrated with steps of this length.")
    first, last = inside[0], inside[-1]
    seconds = (refreshes.t_ns[last] - refreshes.t_ns[first]) * 1e-9
    return float((refreshes.counter_j[last] - refreshes.counter_j[first]) / seconds)


def calibrate(
    meter: SampledMeter,
    board: BoardInfo,
    load: Load,
    *,
    n_steps: int = 10,
    step_s: float = 1.5,
    aliasing_s: float = 1.5,
    periods_s: Sequence[float] = _ALIASING_PERIODS_S,
) -> BoardCalibration:
    """Calibrate a started meter's board; takes about `2 * n_steps * step_s` plus `21 * aliasing_s` seconds."""
    time.sleep(1.5)
    spans = load.square(2 * step_s, 0.5, 2 * n_steps * step_s)
    time.sleep(step_s)
    refreshes = meter.trace(spans[0][0] - 1_000_000_000, time.monotonic_ns() - 500_000_000).refreshes[BOARD]
    refresh_ns = refreshes.interval_ns
    if refresh_ns is None:
        raise MeterError("The energy counter did not move; the board cannot be calibrated.")
    lag = step_lag(refreshes, spans)
    settle_ns = lag.lag_ns + refresh_ns
    rest_s = max(5 * refresh_ns * 1e-9, 0.3)
    idle_w = power_between_w(refreshes, refreshes.read_start_ns[0], spans[0][0] + lag.lag_ns)
    busy_w = float(np.median([power_between_w(refreshes, on + settle_ns, off + lag.lag_ns) for on, off in spans]))
    time.sleep(2 * step_s)  # the board is warmest just after the steps
    points: list[AliasingPoint] = []
    for period_s in sorted(periods_s, reverse=True):
        for duty in _ALIASING_DUTIES:
            time.sleep(rest_s)
            before_ns = time.monotonic_ns()
            square = load.square(period_s, duty, aliasing_s)
            time.sleep(rest_s + lag.lag_ns * 1e-9)
            seen = meter.trace(before_ns, time.monotonic_ns()).refreshes[BOARD]
            error = aliasing_error(seen, square, busy_w, lag.lag_ns)
            if error is not None:
                slowest = next((one.relative_error for one in points if one.duty == duty), error)
                points.append(AliasingPoint(period_s * 1e3, duty, error, (1 + error) / (1 + slowest) - 1))
    intervals = np.diff(refreshes.t_ns)
    low, high = np.percentile(intervals, [2.5, 97.5])
    dating_ns = float(np.median(refreshes.read_end_ns - refreshes.read_start_ns))
    generation_s, decode_s = smallest_windows_s(dating_ns, refresh_ns, idle_w, busy_w)
    return BoardCalibration(
        uuid=board.uuid or "",
        name=board.name,
        driver=board.driver,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        refresh_ns=round(refresh_ns),
        refresh_jitter=float((high - low) / 2 / refresh_ns),
        dating_ns=round(dating_ns),
        idle_w=idle_w,
        busy_w=busy_w,
        lag_ns=round(lag.lag_ns),
        lag_uncertainty_ns=round(lag.uncertainty_ns),
        lag_on_ns=round(float(np.mean(lag.on_ns))),
        lag_off_ns=round(float(np.mean(lag.off_ns))),
        n_steps=len(spans),
        aliasing=tuple(points),
        smallest_generation_s=generation_s,
        smallest_decode_s=decode_s,
    )
