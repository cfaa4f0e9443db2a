"""One simulated board: a power timeline on the virtual clock, its temperature, clocks and throttle bits.

Power is piecewise constant. The exact energy between any two times is the truth that a meter's reading is held to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specjoule.clock import VirtualClock
from specjoule.engines.simulated.acceptance import stable_seed
from specjoule.engines.simulated.parameters import Parameters
from specjoule.engines.simulated.physics import Physics, Spread
from specjoule.meters.base import F64, I64
from specjoule.study.catalogue import Gpu

POWER_CAP, HARDWARE_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
"""NVML's clock-event reasons."""
_KEEP = 96
"""Stretches of the timeline kept; a cell's trace never looks further back than its own wave and the idling before."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive segments of constant power; `edges_ns` has one entry more than there are segments."""

    edges_ns: I64
    energy_j: F64
    """Exact energy since the board was opened, at the edges."""
    capped_s: F64
    """Seconds spent power-capped since then, at the edges."""
    temperature_c: F64
    """At the edges."""
    mhz: F64
    bits: I64
    foreign: int


class SimulatedBoard:
    """The board that a simulated engine loads and a simulated meter reads."""

    def __init__(self, gpu: Gpu, parameters: Parameters, clock: VirtualClock, block_seed: str, replicate: int) -> None:
        self.gpu, self.p, self.clock = gpu, parameters, clock
        self.physics = Physics(gpu, parameters.board, parameters.kernels)
        b = parameters.board
        self.rng = np.random.default_rng(stable_seed("board", gpu.name, block_seed, replicate))
        self.number = int(self.rng.integers(b.boards_per_kind))
        self.uuid = ""
        self._own = Spread()
        self.identify(self.number)
        self.launch_spread = Spread()
        self.drift_per_hour = 0.0
        self.loaded = False
        self.idle_mhz = b.max_clock_mhz
        self.memory_used_bytes = 0.0
        self.opened_ns = clock.now_ns()
        self._load_ended_ns: int | None = None
        idle = gpu.idle_w or b.loaded_idle_w
        self._temperature = b.ambient_c + b.kelvin_per_watt * idle
        self._stretches: deque[Stretch] = deque(maxlen=_KEEP)
        self._joined: Timeline | None = None
        start = np.array([self.opened_ns], dtype=np.int64)
        zero, empty = np.zeros(1), np.zeros(0)
        self._last = Stretch(start, zero, zero, np.array([self._temperature]), empty, empty.astype(np.int64), 0)

    def identify(self, number: int) -> None:
        """Be the board of this number of its kind: another UUID, another efficiency."""
        rng = np.random.default_rng(stable_seed("unit", self.gpu.name, number))
        b = self.p.board
        self.number = number
        self.uuid = f"GPU-simulated-{self.gpu.name}-{number}"
        power = float(np.exp(b.board_power_spread * rng.standard_normal()))
        self._own = Spread(power=power, bandwidth=float(np.exp(b.board_bandwidth_spread * rng.standard_normal())))

    @property
    def end_ns(self) -> int:
        """End of the timeline so far."""
        return int(self._last.edges_ns[-1])

    @property
    def spread(self) -> Spread:
        """What board and launch together differ by from the nominal."""
        drift = 1.0 + self.drift_per_hour * (self.end_ns - self.opened_ns) / 3.6e12
        return Spread(
            power=self._own.power * self.launch_spread.power * drift,
            bandwidth=self._own.bandwidth,
            time=self.launch_spread.time,
        )

    def relaunch(self) -> None:
        """Draw what a fresh launch differs by."""
        b = self.p.board
        power, time = np.exp(np.array([b.launch_power_spread, b.launch_time_spread]) * self.rng.standard_normal(2))
        self.launch_spread = Spread(power=float(power), time=float(time))

    def idle_w(self, mhz: float, temperature_c: float | None = None) -> float:
        """Return the idle power at a clock and temperature (now, if none is given), W."""
        b = self.p.board
        if not self.loaded:
            base = self.gpu.idle_w or b.loaded_idle_w
        else:
            base = float(self.physics.idle_w(mhz))
        return base * self._leakage(self._temperature if temperature_c is None else temperature_c) * self.spread.power

    def _leakage(self, temperature_c: float) -> float:
        b = self.p.board
        return 1.0 + b.leakage_per_kelvin * (temperature_c - b.leakage_reference_c)

    def idle_until(self, t_ns: int) -> None:
        """Let the board idle up to a time; nothing if the timeline is there already."""
        start = self.end_ns
        if t_ns <= start:
            return
        b = self.p.board
        span = (t_ns - start) / 1e9
        since = (start - self._load_ended_ns) / 1e9 if self._load_ended_ns is not None else np.inf
        fine = min(span, max(0.0, 5 * b.after_load_s - since))
        # Steps of 0.1 s while the load's last heat leaves, then of 2 s; a remainder below 1 us joins its neighbour.
        marks = np.arange(1, int(fine / 0.1) + 1) * 0.1
        later = np.arange(1, int((span - fine) / 2.0) + 1) * 2.0 + fine
        inner = np.concatenate([marks, later])
        edges = np.concatenate([inner[inner < span - 1e-6], [span]])
        seconds = edges.copy()
        seconds[1:] -= edges[:-1]
        middle = since + edges - seconds / 2
        excess = (
            b.after_load_w * np.exp(-middle / b.after_load_s)
            if self.loaded and np.isfinite(since)
            else np.zeros_like(edges)
        )
        self._append(
            seconds,
            excess * seconds,
            self.idle_mhz,
            None,
            np.zeros(edges.size, dtype=np.int64),
            0,
            end_ns=t_ns,
        )

    def run(
        self, seconds: F64, extra_j: F64, mhz: F64, capped: npt.NDArray[np.bool_] | None, bits: I64, foreign: int = 0
    ) -> I64:
        """Append busy segments from now on: lengths, energy beyond idling, clocks, bits. Returns their edges, ns."""
        self.idle_until(self.clock.now_ns())
        edges = self._append(seconds, extra_j, mhz, capped, bits, foreign)
        self._load_ended_ns = int(edges[-1])
        self.clock.advance_ns(int(edges[-1]) - self.clock.now_ns())
        return edges

    def _append(
        self,
        seconds: F64,
        extra_j: F64,
        mhz: F64 | float,
        capped: npt.NDArray[np.bool_] | None,
        bits: I64,
        foreign: int,
        end_ns: int | None = None,
    ) -> I64:
        b = self.p.board
        start = self.end_ns
        passed = seconds.cumsum()
        edges = np.empty(seconds.size + 1, dtype=np.int64)
        edges[0] = start
        edges[1:] = start + np.rint(passed * 1e9).astype(np.int64)
        if end_ns is not None:
            edges[-1] = end_ns
        idle = self.physics.idle_w(mhz) if self.loaded else self.gpu.idle_w or b.loaded_idle_w
        factor = self.spread.power
        mean = float((extra_j.sum() + (idle * seconds).sum() * factor) / max(float(passed[-1]), 1e-12))
        target = b.ambient_c + b.kelvin_per_watt * mean
        temperature = np.empty(edges.size)
        temperature[0] = self._temperature
        temperature[1:] = target + (self._temperature - target) * np.exp(passed / -b.thermal_time_s)
        leak = 1.0 + b.leakage_per_kelvin * (temperature[1:] - b.leakage_reference_c)
        joules = extra_j + idle * leak * factor * seconds
        energy, capped_s = np.empty(edges.size), np.empty(edges.size)
        energy[0], capped_s[:] = self._last.energy_j[-1], self._last.capped_s[-1]
        energy[1:] = joules.cumsum() + energy[0]
        if capped is not None:
            capped_s[1:] += (seconds * capped).cumsum()
        self._temperature = float(temperature[-1])
        clocks = np.full(seconds.size, mhz) if isinstance(mhz, float) else mhz
        self._last = Stretch(edges, energy, capped_s, temperature, clocks, bits, foreign)
        self._stretches.append(self._last)
        return edges

    # -- what a meter sees

    def timeline(self, start_ns: float, end_ns: float) -> Timeline:
        """Return a part of the timeline that holds [start_ns, end_ns] (clipped to what is kept)."""
        joined = self._joined
        if joined is not None and joined.stretches[-1] is self._last and joined.edges[0] <= start_ns:
            return joined  # a wave's trace and the truth about its windows are asked for in a row
        part: list[Stretch] = []
        # Backwards: what is asked for is nearly always recent.
        for stretch in reversed(self._stretches):
            if not part and len(self._stretches) > 1 and stretch.edges_ns[0] >= end_ns:
                continue
            part.append(stretch)
            if stretch.edges_ns[0] <= start_ns:
                break
        self._joined = Timeline(part[::-1] or [self._last])
        return self._joined

    def energy_between(self, start_ns: float, end_ns: float) -> float:
        """Return the exact energy between two times, J; the board idles up to `end_ns` if it must.

        Raises ValueError for times that are no longer kept: a part of the truth is none.
        """
        self.idle_until(int(end_ns))
        part = self.timeline(start_ns, end_ns)
        if start_ns < part.edges[0]:
            raise ValueError(f"the timeline is kept from {part.edges[0]:.0f} ns on, not from {start_ns:.0f} ns")
        return float(
            part.energy(np.asarray(end_ns, dtype=np.float64)) - part.energy(np.asarray(start_ns, dtype=np.float64))
        )


class Timeline:
    """Stretches in a row, joined for vectorised questions."""

    def __init__(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches
        if len(stretches) == 1:
            s = stretches[0]
            self.edges, self.joules, self.capped = s.edges_ns.astype(np.float64), s.energy_j, s.capped_s
            self.kelvin, self.mhz, self.bits = s.temperature_c, s.mhz, s.bits
        else:
            self.edges = np.concatenate([stretches[0].edges_ns[:1], *(s.edges_ns[1:] for s in stretches)]).astype(
                np.float64
            )
            self.joules = np.concatenate([stretches[0].energy_j[:1], *(s.energy_j[1:] for s in stretches)])
            self.capped = np.concatenate([stretches[0].capped_s[:1], *(s.capped_s[1:] for s in stretches)])
            self.kelvin = np.concatenate([stretches[0].temperature_c[:1], *(s.temperature_c[1:] for s in stretches)])
            self.mhz = np.concatenate([s.mhz for s in stretches])
            self.bits = np.concatenate([s.bits for s in stretches])

    def energy(self, t_ns: F64) -> F64:
        """Return the energy since the board was opened at times, J."""
        return np.asarray(np.interp(t_ns, self.edges, self.joules))

    def capped_s(self, t_ns: F64) -> F64:
        """Return the seconds spent power-capped up to times."""
        return np.asarray(np.interp(t_ns, self.edges, self.capped))

    def temperature_c(self, t_ns: F64) -> F64:
        """Return the temperature at times."""
        return np.asarray(np.interp(t_ns, self.edges, self.kelvin))

    def segment(self, t_ns: F64) -> I64:
        """Return the index of the segment that holds each time."""
        return np.clip(np.searchsorted(self.edges, t_ns, side="right") - 1, 0, max(0, self.mhz.size - 1))

    def foreign(self, t_ns: F64) -> F64:
        """Return the other processes computing at times."""
        out = np.zeros(t_ns.shape)
        for s in self.stretches:
            if s.foreign:
                out[(t_ns >= s.edges_ns[0]) & (t_ns <= s.edges_ns[-1])] = s.foreign
        return out
