"""The integral of sampled power over a window: a second look at the same sensor, not an independent proof."""

from __future__ import annotations

import numpy as np

from specjoule.meters.base import Samples


def integrate_power(power: Samples | None, start_ns: int, end_ns: int, lag_ns: int = 0) -> tuple[float | None, int]:
    """Return the energy from sampled power, J, and how many different readings lie inside the window.

    A sensor that refreshes every 100 ms and is read every 50 ms has ten readings a second, not twenty.

    Trapezoids between samples, cut at the window's ends. None where the samples do not reach over the window or have a
    gap of more than a quarter of it.
    """
    if power is None or len(power) < 2:
        return None, 0
    t_ns = power.t_ns.astype(np.float64) - lag_ns
    inside = (t_ns > start_ns) & (t_ns < end_ns)
    n_inside = int(inside.sum())
    n_readings = 1 + int(np.count_nonzero(np.diff(power.value[inside])))
    if n_inside < 2 or t_ns[0] > start_ns or t_ns[-1] < end_ns:
        return None, n_readings
    begin_w, finish_w = np.interp([start_ns, end_ns], t_ns, power.value)
    times = np.concatenate([[start_ns], t_ns[inside], [end_ns]])
    values = np.concatenate([[begin_w], power.value[inside], [finish_w]])
    if float(np.diff(times).max()) > 0.25 * (end_ns - start_ns):
        return None, n_readings
    return float(np.trapezoid(values, times) * 1e-9), n_readings
