"""Energy of a window as a pure function of the trace and two times, with its uncertainty and everything wrong with it.

A counter jumps at its refreshes only, and its value then is that of a moment `lag` earlier. Reading it at the two
ends of a window is therefore biased; `method.md` section 4 gives the remedy followed here:

* A **generation** window starts and ends between idle and busy. The counter difference is taken between the nearest
  refreshes that surely lie outside; what they hold too much is charged at the power outside, extrapolated to the
  edge from the refreshes there. The error is then (dating error x *idle* power), and a wrong lag costs only the
  difference of the idle powers before and after.
* A **decode** window lies inside the busy stretch, where power is the same on both sides of any edge. It is snapped to
  refreshes, so that only their dating errors remain.

Uncertainties are expanded ones (coverage at least 95 %), of timing only: the sensor's own gain is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from specjoule.meters.base import F64, Calibration, Refreshes, Samples, median
from specjoule.meters.fits import fits_at_zero
from specjoule.meters.power import integrate_power
from specjoule.reasons import Reason

Edges = Literal["generation", "decode"]

_COVERAGE = 2.25
"""Standard uncertainties to the stated one. Two uniform dating errors reach 95 % at 1.9; the rest is for power that
ripples around the mean with which a dating error is charged."""
_OUTSIDE_NS = 500e6
"""How far outside the window power is looked at: long enough to average dating errors, short against thermal decay."""
_HIDDEN_TREND_PER_S = 0.4
"""Relative change of idle power per second that a straight line leaves out: a board cooling down just after a load. A
line fitted to x0 ... x1 beyond the edge misses a parabola there by power * trend / 2 * (x0 x1 + (x1 - x0)^2 / 6)."""
_CURVE_REFRESHES = 5
"""Fewer refreshes are fitted with a straight line: a curve through them would only amplify their dating errors."""
UNKNOWN_LAG_NS = 50_000_000
"""Lag assumed for a board never calibrated: 50 +- 50 ms covers what boards are known to have."""

VOID: frozenset[Reason] = frozenset(
    {
        Reason.NO_METER, Reason.OUTSIDE_TRACE, Reason.COUNTER_RESET, Reason.COUNTER_DECREASE, Reason.COUNTER_FROZEN,
        Reason.ZERO_ENERGY, Reason.BOARD_LOST, Reason.COUNTER_NOT_SUPPORTED, Reason.NO_PERMISSION,
        Reason.DRIVER_RELOADED,
    }
)  # fmt: skip
"""Flags with which no energy is given; with the others it stands, and the validity rules decide."""


@dataclass(frozen=True)
class WindowRules:
    """Thresholds of the flags; a study may set them."""

    power_limit_factor: float = 1.2
    """Mean power above this many times the board's limit is no measurement."""
    cross_check_limit: float = 0.05
    """Largest relative difference between counter and integrated power."""
    cross_check_min_readings: int = 20
    """Fewer different power readings in a window allow no verdict: a step's ripple does not average out."""
    short_limit: float = 0.005
    """Relative uncertainty above which a window is too short to be measured well."""
    gap_refreshes: float = 5.0
    """Refresh periods without a reading, or without a new value, that make a gap or a frozen counter."""
    gap_floor_ns: int = 500_000_000
    """Shorter gaps are a busy machine, whatever the refresh."""


@dataclass(frozen=True)
class WindowEnergy:
    """Energy of one window; None where it is unknown, and then `flags` says why."""

    energy_j: float | None
    uncertainty_j: float | None
    """Expanded uncertainty of timing: at least 95 % of windows err by less."""
    naive_j: float | None
    """Difference of the values on display at the two times: what a reader without dating gets."""
    power_integral_j: float | None
    counter_start_j: float | None
    """Counter at the window's start (corrected), so that energy_j = counter_end_j - counter_start_j."""
    counter_end_j: float | None
    refresh_ms: float | None
    start_ns: int
    """Start of the window that the energy belongs to: snapped for decode, as given for generation."""
    end_ns: int
    flags: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class _Dates:
    """Refreshes on the time axis of the power: lag taken off."""

    low_ns: F64
    high_ns: F64
    t_ns: F64
    sigma_ns: F64
    """Standard uncertainty of each date: a uniform distribution over its bracket."""
    counter_j: F64
    lag_sigma_ns: float
    margin_ns: float
    """Half-width of the lag: how far a date may be off besides its bracket."""

    @cached_property
    def sigma_median_ns(self) -> float:
        """Median of `sigma_ns`."""
        return median(self.sigma_ns)


@dataclass(frozen=True)
class _Edge:
    """The counter at one end of a window."""

    index: int
    """Refresh used."""
    counter_j: float
    variance_j2: float
    power_w: float
    """Power on the outer side (generation) or at the edge (decode); what a lag error is multiplied by."""


def window_energy(
    refreshes: Refreshes,
    start_ns: int,
    end_ns: int,
    *,
    edges: Edges,
    calibration: Calibration,
    power: Samples | None = None,
    power_limit_w: float | None = None,
    faults: Sequence[Reason] = (),
    rules: WindowRules | None = None,
) -> WindowEnergy:
    """Return the energy between two times.

    Parameters
    ----------
    refreshes
        Dated refreshes of one counter, reaching a few refreshes beyond the window on both sides.
    start_ns, end_ns
        The window, CLOCK_MONOTONIC ns.
    edges
        `generation`: idle outside, busy inside. `decode`: busy on both sides; the window is snapped inwards.
    calibration
        Lag and its half-width; an uncalibrated board is taken to lag 50 +- 50 ms, and flagged.
    power
        Instantaneous power, W, for the second look; None where the board has none.
    power_limit_w
        The board's limit, W.
    faults
        What the sampler met within the window (`Trace.flags`).
    rules
        Thresholds of the flags.
    """
    if end_ns <= start_ns:
        raise ValueError(f"a window must end after it starts ({start_ns} to {end_ns} ns)")
    rules = rules or WindowRules()
    flags = list(faults)
    if not calibration.calibrated:
        flags.append(Reason.LAG_NOT_CALIBRATED)
    if len(refreshes) == 0:
        return _unknown(start_ns, end_ns, [*flags, Reason.NO_METER])
    dates = _dates(refreshes, calibration)
    refresh_ns = refreshes.interval_ns
    span = _outer(dates, start_ns, end_ns) if edges == "generation" else _snap(dates, start_ns, end_ns)
    naive_j = naive_energy_j(refreshes, start_ns, end_ns)
    if span is None:
        short = _inside(dates, start_ns, end_ns)
        flags.append(Reason.WINDOW_TOO_SHORT if edges == "decode" and short else Reason.OUTSIDE_TRACE)
        return _unknown(start_ns, end_ns, flags, naive_j=naive_j, refresh_ns=refresh_ns)
    first, last = span
    flags += _counter_faults(refreshes, span, refresh_ns, power_limit_w, rules)
    if edges == "generation":
        inner_w = (dates.counter_j[last] - dates.counter_j[first]) / (dates.t_ns[last] - dates.t_ns[first]) * 1e9
        begin = _extrapolate(dates, first, -1, start_ns, inner_w)
        finish = _extrapolate(dates, last, +1, end_ns, inner_w)
    else:
        start_ns, end_ns = round(dates.t_ns[first]), round(dates.t_ns[last])
        begin, finish = _edge_power(dates, first), _edge_power(dates, last)
    energy_j = finish.counter_j - begin.counter_j
    lag_j = (finish.power_w - begin.power_w) * dates.lag_sigma_ns * 1e-9
    uncertainty_j = _COVERAGE * float(np.sqrt(begin.variance_j2 + finish.variance_j2 + lag_j**2))
    duration_s = (end_ns - start_ns) * 1e-9
    integral_j, n_readings = integrate_power(power, start_ns, end_ns, calibration.lag_ns)
    if energy_j <= 0:
        flags.append(Reason.ZERO_ENERGY)
    elif power_limit_w is not None and energy_j / duration_s > rules.power_limit_factor * power_limit_w:
        flags.append(Reason.POWER_ABOVE_LIMIT)
    if energy_j > 0 and uncertainty_j > rules.short_limit * energy_j:
        flags.append(Reason.WINDOW_TOO_SHORT)
    if (
        integral_j is not None
        and n_readings >= rules.cross_check_min_readings
        and energy_j > 0
        and abs(integral_j - energy_j) > rules.cross_check_limit * energy_j
    ):
        flags.append(Reason.CROSS_CHECK)
    void = not VOID.isdisjoint(flags)
    return WindowEnergy(
        energy_j=None if void else float(energy_j),
        uncertainty_j=None if void else uncertainty_j,
        naive_j=naive_j,
        power_integral_j=integral_j,
        counter_start_j=None if void else float(begin.counter_j),
        counter_end_j=None if void else float(finish.counter_j),
        refresh_ms=None if refresh_ns is None else refresh_ns * 1e-6,
        start_ns=start_ns,
        end_ns=end_ns,
        flags=_unique(flags),
    )


def naive_energy_j(refreshes: Refreshes, start_ns: int, end_ns: int) -> float | None:
    """Return the difference of the values on display at the two times; None for outside or no difference.

    This is what reading the counter at both ends gives. It is kept beside the result to show what dating is worth.
    """
    first, last = (int(refreshes.read_end_ns.searchsorted(t_ns, "right")) - 1 for t_ns in (start_ns, end_ns))
    if first < 0 or last >= len(refreshes):
        return None
    difference_j = float(refreshes.counter_j[last] - refreshes.counter_j[first])
    return difference_j if difference_j > 0 else None


def interpolated_energy_j(refreshes: Refreshes, start_ns: int, end_ns: int, lag_ns: int = 0) -> float | None:
    """Return the energy from linear interpolation of the dated counter: better than naive, biased at such edges."""
    t_ns = refreshes.t_ns - lag_ns
    if len(t_ns) < 2 or start_ns < t_ns[0] or end_ns > t_ns[-1]:
        return None
    begin_j, finish_j = np.interp([start_ns, end_ns], t_ns, refreshes.counter_j)
    return float(finish_j - begin_j)


def _dates(refreshes: Refreshes, calibration: Calibration) -> _Dates:
    lag_ns = float(calibration.lag_ns if calibration.calibrated else UNKNOWN_LAG_NS)
    margin_ns = float(calibration.lag_uncertainty_ns if calibration.calibrated else UNKNOWN_LAG_NS)
    low_ns = refreshes.read_start_ns.astype(np.float64) - lag_ns
    high_ns = refreshes.read_end_ns.astype(np.float64) - lag_ns
    return _Dates(
        low_ns=low_ns,
        high_ns=high_ns,
        t_ns=(low_ns + high_ns) / 2.0,
        sigma_ns=(high_ns - low_ns) / np.sqrt(12.0),
        counter_j=refreshes.counter_j,
        lag_sigma_ns=margin_ns / np.sqrt(3.0),
        margin_ns=margin_ns,
    )


def _outer(dates: _Dates, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Return the last refresh surely before the window and the first surely after it, with a neighbour outside each."""
    first = int(dates.high_ns.searchsorted(start_ns - dates.margin_ns, "right")) - 1
    last = int(dates.low_ns.searchsorted(end_ns + dates.margin_ns, "left"))
    return (first, last) if first >= 1 and last <= len(dates.low_ns) - 2 else None


def _inside(dates: _Dates, start_ns: int, end_ns: int) -> bool:
    """Return whether the trace reaches beyond the window on both sides."""
    return bool(dates.low_ns[0] <= start_ns and dates.high_ns[-1] >= end_ns)


def _snap(dates: _Dates, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Return the first and last refresh surely inside the window.

    A refresh next to the edge that a late poll dated badly is passed over, at most three: a busy machine costs a little
    of the window's length instead of its accuracy.
    """
    inside = np.flatnonzero((dates.low_ns - dates.margin_ns >= start_ns) & (dates.high_ns + dates.margin_ns <= end_ns))
    if len(inside) < 2:
        return None
    limit_ns = 2.0 * dates.sigma_median_ns
    reach = min(4, len(inside) // 4 + 1)
    first = next((i for i in inside[:reach] if dates.sigma_ns[i] <= limit_ns), inside[0])
    last = next((i for i in inside[::-1][:reach] if dates.sigma_ns[i] <= limit_ns), inside[-1])
    return int(first), int(last)


def _edge_power(dates: _Dates, index: int) -> _Edge:
    """Take the counter at a refresh; its dating error is charged at the power around it."""
    low, high = max(index - 1, 0), min(index + 1, len(dates.t_ns) - 1)
    power_w = _power_w(dates, low, high)
    return _Edge(index, float(dates.counter_j[index]), (power_w * dates.sigma_ns[index] * 1e-9) ** 2, power_w)


def _power_w(dates: _Dates, low: int, high: int) -> float:
    return float((dates.counter_j[high] - dates.counter_j[low]) / max(dates.t_ns[high] - dates.t_ns[low], 1.0) * 1e9)


def _extrapolate(dates: _Dates, index: int, step: Literal[-1, 1], edge_ns: int, inner_w: float) -> _Edge:
    """Return the counter at `edge_ns`, extrapolated from the refreshes outside it.

    The fit is counter = c + p x + q x^2 (power linear in time) over the outside refreshes from `index` outwards; with
    fewer than five it is a straight line. Each refresh weighs by its dating error times the power outside.
    """
    used = _outside_indices(dates, index, step, inner_w)
    x_s = (dates.t_ns[used] - edge_ns) * 1e-9
    counter_j = dates.counter_j[used] - dates.counter_j[index]
    power_w = abs(_power_w(dates, *sorted((used[0], used[-1]))))
    # Half a millijoule is the resolution of NVIDIA's counter; it also keeps the weights finite for a perfect date.
    sigma_j = np.hypot(power_w * dates.sigma_ns[used] * 1e-9, 0.5e-3)
    fits = fits_at_zero(x_s, counter_j, sigma_j, 2 if len(used) >= _CURVE_REFRESHES else 1)
    value_j, variance = fits[0]
    bow_s2 = abs(x_s[0] * x_s[-1]) + (x_s[-1] - x_s[0]) ** 2 / 6
    variance += (power_w * _HIDDEN_TREND_PER_S / 2 * bow_s2) ** 2
    for curve_j, curve_variance in fits[1:]:
        # The better of line and curve by their dates, before their values are seen: choosing by whether a trend is
        # significant would leave the trend in as a bias; never choosing lets two bad dates make a curve run wild.
        no_parabola = ((curve_j - value_j) / 10) ** 2
        if curve_variance + no_parabola < variance:
            value_j, variance = curve_j, curve_variance + no_parabola
    return _Edge(index, float(dates.counter_j[index] + value_j), float(variance), power_w)


def _outside_indices(dates: _Dates, index: int, step: Literal[-1, 1], inner_w: float) -> list[int]:
    """Return refreshes from `index` outwards while the power is that of the idle state next to the window.

    The stretch ends where power differs by more than dating errors and cooling explain, or by a quarter of the step to
    the power inside: that is the next or the previous load, and no longer the idle state to extrapolate from. Refreshes
    that a late poll dated badly are passed over: at a 20 ms refresh, a date 15 ms off turns idle power into nonsense.
    """
    outwards = np.arange(index, -1 if step < 0 else len(dates.t_ns), step)
    well_dated = outwards[dates.sigma_ns[outwards] <= 3.0 * dates.sigma_median_ns]
    candidates = well_dated if len(well_dated) >= 3 else outwards
    # Python's numbers from here on: a walk over single elements is several times slower in NumPy's.
    t_ns, sigma_ns, counter_j = (a[candidates].tolist() for a in (dates.t_ns, dates.sigma_ns, dates.counter_j))

    def power_w(i: int, j: int) -> float:  # backwards in time both differences change sign
        earlier, later = (i, j) if step > 0 else (j, i)
        return float((counter_j[later] - counter_j[earlier]) / max(t_ns[later] - t_ns[earlier], 1.0) * 1e9)

    near_w = power_w(0, 1)
    most_w = max(0.25 * abs(inner_w - near_w), 0.02 * abs(inner_w))
    reach_ns = max(_OUTSIDE_NS, 4.4 * abs(t_ns[1] - t_ns[0]))
    last = 1
    for i in range(2, len(t_ns)):
        distance_ns = abs(t_ns[i] - t_ns[0])
        width_ns = max(abs(t_ns[i] - t_ns[i - 1]), 1.0)
        noise = 3.0 * math.hypot(sigma_ns[i], sigma_ns[i - 1]) / width_ns
        limit_w = min(most_w, abs(near_w) * (0.02 + noise + _HIDDEN_TREND_PER_S * distance_ns * 1e-9))
        if distance_ns > reach_ns or abs(power_w(i - 1, i) - near_w) > limit_w:
            break
        last = i
    return [int(i) for i in candidates[: last + 1]]


def _counter_faults(
    refreshes: Refreshes, span: tuple[int, int], refresh_ns: float | None, limit_w: float | None, rules: WindowRules
) -> list[Reason]:
    """Return what is wrong with the counter between two refreshes."""
    flags = []
    first, last = span
    counter_j = refreshes.counter_j[first : last + 1]
    steps_j = counter_j[1:] - counter_j[:-1]
    for i in (steps_j < 0).nonzero()[0]:
        # After a reset the counter starts near zero; a smaller fall is a counter that cannot be trusted.
        flags.append(Reason.COUNTER_RESET if counter_j[i + 1] < 0.05 * counter_j[i] else Reason.COUNTER_DECREASE)
    if not steps_j.any():
        flags.append(Reason.ZERO_ENERGY)
    limit_ns = max(rules.gap_refreshes * (refresh_ns or 0), float(rules.gap_floor_ns))
    brackets_ns = (refreshes.read_end_ns - refreshes.read_start_ns)[first : last + 1]
    if (brackets_ns > limit_ns).any():
        flags.append(Reason.METER_GAP)
    # Time without a new value although the counter was being read.
    still_ns = refreshes.read_start_ns[first + 1 : last + 1] - refreshes.read_end_ns[first:last]
    if (still_ns > limit_ns).any():
        flags.append(Reason.COUNTER_FROZEN)
    if limit_w is not None and len(steps_j) and refresh_ns:
        sides_ns = refreshes.read_end_ns[first + 1 : last + 1] - refreshes.read_start_ns[first:last]
        if (steps_j / np.maximum(sides_ns, refresh_ns / 2) * 1e9 > 5 * limit_w).any():
            flags.append(Reason.POWER_ABOVE_LIMIT)
    return flags


def _unknown(
    start_ns: int,
    end_ns: int,
    flags: Sequence[Reason],
    naive_j: float | None = None,
    refresh_ns: float | None = None,
) -> WindowEnergy:
    refresh_ms = None if refresh_ns is None else refresh_ns * 1e-6
    return WindowEnergy(None, None, naive_j, None, None, None, refresh_ms, start_ns, end_ns, _unique(flags))


def _unique(flags: Sequence[Reason]) -> tuple[Reason, ...]:
    return tuple(dict.fromkeys(flags))
