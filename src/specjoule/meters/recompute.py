"""Windows from stored traces: everything that a row says about energy, from the trace and two times. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specjoule.meters.base import BOARD, Calibration, Refreshes, Trace
from specjoule.meters.energy import Edges, WindowEnergy, WindowRules, window_energy
from specjoule.meters.sampled import FAULT_PREFIX
from specjoule.reasons import Reason

_REASONS = {reason.value: reason for reason in Reason}
_HOST = ("package-", "dram-")


def recompute_window(
    trace: Trace,
    start_ns: int,
    end_ns: int,
    *,
    edges: Edges,
    calibration: Calibration,
    power_limit_w: float | None = None,
    rules: WindowRules | None = None,
) -> WindowEnergy:
    """Return the board's energy of a window: the same function for a fresh trace and for a stored one.

    Faults come from the trace's own `fault:` channels, cut to this window, and from `trace.flags` where there are none.
    """
    return window_energy(
        trace.refreshes.get(BOARD, empty_refreshes()),
        start_ns,
        end_ns,
        edges=edges,
        calibration=calibration,
        power=trace.samples.get("power_w"),
        power_limit_w=power_limit_w,
        faults=window_faults(trace, start_ns, end_ns),
        rules=rules,
    )


@dataclass(frozen=True)
class HostEnergy:
    """Energy of the host's packages and DRAM over a window; None with a reason where any part is unknown."""

    energy_j: float | None
    flags: tuple[Reason, ...] = ()


def host_energy(trace: Trace, start_ns: int, end_ns: int) -> HostEnergy:
    """Return the sum of all host channels over exactly this window (the snapped one of a decode window).

    RAPL counts continuously: interpolation between two readings is exact to the power's change within one poll.
    """
    channels = {name: one for name, one in trace.refreshes.items() if name.startswith(_HOST)}
    if not channels:
        return HostEnergy(None, (Reason.NO_METER,))
    total_j, flags = 0.0, []
    for one in channels.values():
        t_ns = one.t_ns
        if len(one) < 2 or t_ns[0] > start_ns or t_ns[-1] < end_ns:
            flags.append(Reason.OUTSIDE_TRACE)
            continue
        inside = one.counter_j[max(int((t_ns <= start_ns).sum()) - 1, 0) : int((t_ns < end_ns).sum()) + 1]
        if (np.diff(inside) < 0).any():
            flags.append(Reason.COUNTER_RESET)
        begin_j, finish_j = np.interp([start_ns, end_ns], t_ns, one.counter_j)
        if finish_j <= begin_j:
            flags.append(Reason.ZERO_ENERGY)
        total_j += float(finish_j - begin_j)
    unique = tuple(dict.fromkeys(flags))
    return HostEnergy(None if unique else total_j, unique)


def window_faults(trace: Trace, start_ns: int, end_ns: int) -> tuple[Reason, ...]:
    """Return the faults that overlap a window, in the order of the enumeration."""
    codes = set()
    recorded = {name: one for name, one in trace.samples.items() if name.startswith(FAULT_PREFIX)}
    for name, one in recorded.items():
        since_ns = one.t_ns - one.value * 1e9
        if bool(((one.t_ns >= start_ns) & (since_ns <= end_ns)).any()):
            codes.add(name.removeprefix(FAULT_PREFIX))
    standing = {flag.value for flag in trace.flags if FAULT_PREFIX + flag.value not in recorded}
    return tuple(_REASONS[code] for code in _REASONS if code in codes | standing)


def empty_refreshes() -> Refreshes:
    """Return a counter that was never seen."""
    none = np.zeros(0, dtype=np.int64)
    return Refreshes(none, none, np.zeros(0))
