"""The decode window: batch constant, no prefill; where its two ends may be put.

A counter that refreshes more slowly than the steps is met at its refreshes: the step that an end cuts in two is one of
many. Where a step takes longer than a refresh (a processor, a large model), cutting one in two would count its energy
and not its tokens; there the ends are put at arrivals, between whole steps, and the counter is interpolated: power is
the same on both sides of such an end.
"""

from __future__ import annotations

import math

from specjoule.meters.base import BOARD, Calibration, Trace
from specjoule.meters.energy import WindowEnergy, interpolated_energy_j
from specjoule.meters.recompute import recompute_window, window_faults
from specjoule.reasons import Reason


def decode_energy(
    trace: Trace, start_ns: int, end_ns: int, step_ns: float, calibration: Calibration, power_limit_w: float | None
) -> WindowEnergy:
    """Return the energy between two arrivals (last first token, first end), snapped to refreshes or not.

    `step_ns` is the mean time between arrivals. Not snapped where it exceeds the refresh interval; then the stated
    uncertainty is that of two interpolated ends whose power may differ by half between the halves of a refresh.
    """
    snapped = recompute_window(
        trace, start_ns, end_ns, edges="decode", calibration=calibration, power_limit_w=power_limit_w
    )
    refreshes = trace.refreshes.get(BOARD)
    refresh_ns = refreshes.interval_ns if refreshes is not None else None
    if refreshes is None or refresh_ns is None or step_ns <= refresh_ns:
        return snapped
    faults = tuple(f for f in window_faults(trace, start_ns, end_ns) if f is not Reason.WINDOW_TOO_SHORT)
    voiding = tuple(f for f in snapped.flags if f is not Reason.WINDOW_TOO_SHORT)
    energy_j = interpolated_energy_j(refreshes, start_ns, end_ns, calibration.lag_ns)
    if energy_j is None or energy_j <= 0 or (snapped.energy_j is None and voiding):
        flags = tuple(dict.fromkeys((*faults, *voiding))) or (Reason.WINDOW_TOO_SHORT,)
        return WindowEnergy(
            None, None, snapped.naive_j, snapped.power_integral_j, None, None, refresh_ns / 1e6, start_ns, end_ns, flags
        )
    power_w = energy_j / ((end_ns - start_ns) / 1e9)
    uncertainty_j = math.sqrt(2) * 0.5 * power_w * refresh_ns / 1e9 / 4
    return WindowEnergy(
        energy_j=energy_j,
        uncertainty_j=uncertainty_j,
        naive_j=snapped.naive_j,
        power_integral_j=snapped.power_integral_j,
        counter_start_j=None,
        counter_end_j=None,
        refresh_ms=refresh_ns / 1e6,
        start_ns=start_ns,
        end_ns=end_ns,
        flags=tuple(dict.fromkeys((*faults, *voiding))),
    )
