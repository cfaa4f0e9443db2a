"""What the board was doing during a window, from a trace's sample channels: scalars for the row, and reasons. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specjoule.meters.base import F64, Trace
from specjoule.meters.clocks import clock_flags
from specjoule.reasons import Reason

_NEAR_NS = 1_200_000_000
"""Processes are counted every second: a shorter window takes the counts just before and after it."""

# Bits of NVIDIA's clock event reasons (nvml.h, nvmlClocksEventReasons).
_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
_THERMAL = _BITS["sw_thermal_slowdown"] | _BITS["hw_thermal_slowdown"]
_HARDWARE = _BITS["hw_slowdown"] | _BITS["hw_power_brake"]


@dataclass(frozen=True)
class BoardState:
    """Scalars of one window; None where the board does not report them."""

    sm_clock_mean_mhz: float | None
    sm_clock_min_mhz: float | None
    temperature_start_c: float | None
    temperature_max_c: float | None
    power_capped_share: float | None
    throttle_reasons: tuple[str, ...] | None
    """Names of all clock event reasons met, `gpu_idle` apart."""
    foreign_processes: int | None
    flags: tuple[Reason, ...]


def board_state(trace: Trace, start_ns: int, end_ns: int, locked_mhz: int | None = None) -> BoardState:
    """Summarise a window.

    Thermal and hardware slowdowns are reasons against the row; the software power cap is normal at a large batch and is
    only recorded. A foreign process just before or after counts: it hardly came for the second in between.
    """
    clock = _inside(trace, "sm_clock_mhz", start_ns, end_ns)
    temperature = _inside(trace, "temperature_c", start_ns, end_ns)
    capped = _inside(trace, "power_capped_share", start_ns, end_ns)
    bits = _inside(trace, "throttle_bits", start_ns, end_ns)
    foreign = _inside(trace, "foreign_processes", start_ns - _NEAR_NS, end_ns + _NEAR_NS)
    met = int(np.bitwise_or.reduce(bits.astype(np.int64))) if len(bits) else 0
    flags = []
    if met & _THERMAL:
        flags.append(Reason.THERMAL_SLOWDOWN)
    if met & _HARDWARE:
        flags.append(Reason.HARDWARE_SLOWDOWN)
    if len(foreign) and foreign.max() > 0:
        flags.append(Reason.FOREIGN_PROCESSES)
    flags += clock_flags(trace.samples.get("sm_clock_mhz"), start_ns, end_ns, locked_mhz)
    return BoardState(
        sm_clock_mean_mhz=float(clock.mean()) if len(clock) else None,
        sm_clock_min_mhz=float(clock.min()) if len(clock) else None,
        temperature_start_c=float(temperature[0]) if len(temperature) else None,
        temperature_max_c=float(temperature.max()) if len(temperature) else None,
        power_capped_share=float(capped.mean()) if len(capped) else None,
        throttle_reasons=throttle_names(met) if len(bits) else None,
        foreign_processes=int(foreign.max()) if len(foreign) else None,
        flags=tuple(flags),
    )


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the clock event reasons in a bit field, `gpu_idle` apart."""
    return tuple(name for name, bit in _BITS.items() if bits & bit and name != "gpu_idle")


def _inside(trace: Trace, channel: str, start_ns: int, end_ns: int) -> F64:
    samples = trace.samples.get(channel)
    if samples is None:
        return np.zeros(0)
    first, beyond = samples.t_ns.searchsorted((start_ns, end_ns + 1))
    return samples.value[first:beyond]
