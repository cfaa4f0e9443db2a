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
    t_ns = power.t_ns
    begin_ns, finish_ns = start_ns + lag_ns, end_ns + lag_ns
    first, beyond = int(t_ns.searchsorted(begin_ns, "right")), int(t_ns.searchsorted(finish_ns, "left"))
    inside = power.value[first:beyond]
    n_readings = 1 + int(np.count_nonzero(inside[1:] != inside[:-1]))
    if len(inside) < 2 or t_ns[0] > begin_ns or t_ns[-1] < finish_ns:
        return None, n_readings
    around = slice(first - 1, beyond + 1)
    begin_w, finish_w = np.interp([begin_ns, finish_ns], t_ns[around], power.value[around])
    times = np.concatenate([[begin_ns], t_ns[first:beyond], [finish_ns]])
    values = np.concatenate([[begin_w], inside, [finish_w]])
    lengths = times[1:] - times[:-1]
    if float(lengths.max()) > 0.25 * (end_ns - start_ns):
        return None, n_readings
    return float(lengths @ (values[1:] + values[:-1])) / 2.0 * 1e-9, n_readings
