"""Time and power of a board: roofline with losses, voltage and frequency, the power limit.

The calibrated peak of a board was reached at its power limit, hence at a lowered clock: that clock follows from the
peak and the tensor units' width, the energy of an operation from the power that is then left for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specjoule.engines.simulated.parameters import BoardParameters, KernelParameters
from specjoule.engines.simulated.workload import Cost
from specjoule.errors import ConfigurationError
from specjoule.meters.base import F64, I64
from specjoule.study.catalogue import Gpu

_CLOCK_STEPS = 32
_SLACK = 1.01
"""Over the power limit, that an interpolated clock may leave a step."""


@dataclass(frozen=True)
class Spread:
    """What this board and this launch differ by from the nominal; factors around 1."""

    power: float = 1.0
    bandwidth: float = 1.0
    time: float = 1.0


@dataclass(frozen=True)
class StepCosts:
    """Time and energy of steps at one clock; arrays over steps."""

    verify_s: F64
    draft_s: F64
    verify_j: F64
    """Beyond what the board draws while idle."""
    draft_j: F64


class Physics:
    """One kind of board, from its catalogue entry and the simulation's parameters."""

    def __init__(self, gpu: Gpu, board: BoardParameters, kernels: KernelParameters) -> None:
        missing = [
            k for k in ("power_limit_w", "memory_bytes", "peak_flop_s", "bandwidth_byte_s") if getattr(gpu, k) is None
        ]
        if missing:
            raise ConfigurationError(
                f"gpu '{gpu.name}' cannot be simulated: its entry lacks {', '.join(missing)}; choose H100 or H200"
            )
        assert gpu.power_limit_w and gpu.peak_flop_s and gpu.bandwidth_byte_s
        self.gpu, self.board, self.kernels = gpu, board, kernels
        self.limit_w = gpu.power_limit_w
        self.bandwidth = gpu.bandwidth_byte_s
        self.peak = gpu.peak_flop_s
        per_clock = board.multiprocessors * board.flop_per_clock_and_multiprocessor * board.matrix_efficiency
        self.calibration_mhz = min(self.peak / per_clock / 1e6, board.max_clock_mhz)
        v2 = float(self.voltage2(np.asarray(self.calibration_mhz)))
        left = self.limit_w - board.loaded_idle_w - self._active_w(np.asarray(self.calibration_mhz), np.asarray(v2))
        traffic = board.matrix_byte_per_flop * board.byte_pj
        self.flop_pj = float((left / self.peak * 1e12 - traffic) / v2)
        """Energy of one operation at full voltage, pJ."""
        if self.flop_pj <= 0:
            raise ConfigurationError(
                f"gpu '{gpu.name}': its power limit leaves nothing for computing; check simulation.yaml"
            )

    def voltage2(self, mhz: F64 | float) -> F64:
        """Return the square of the core voltage over the highest one."""
        b = self.board
        share = np.maximum((mhz - b.voltage_knee_mhz) / (b.max_clock_mhz - b.voltage_knee_mhz), 0.0)
        return np.asarray((b.voltage_floor + (1.0 - b.voltage_floor) * share) ** 2)

    def _active_w(self, mhz: F64 | float, voltage2: F64) -> F64:
        return np.asarray(self.board.active_w * (mhz / self.board.max_clock_mhz) * voltage2)

    def idle_w(self, mhz: F64 | float) -> F64:
        """Return the power of the loaded, idle board at clocks, at the leakage's reference temperature."""
        b = self.board
        # Half of it is memory, regulators and leakage that no clock changes.
        return np.asarray(b.loaded_idle_w * (0.5 + 0.5 * self.voltage2(mhz) * mhz / b.max_clock_mhz))

    def compute_rate(self, mhz: F64 | float) -> F64 | float:
        """Return the operations per second that large matrix products reach at a clock."""
        return self.peak * mhz / self.calibration_mhz

    def memory_rate(self, mhz: F64 | float) -> F64:
        """Return the bytes per second at a clock."""
        return self.bandwidth * np.minimum(1.0, mhz / self.board.full_bandwidth_mhz)

    def pass_seconds(self, cost: Cost, mhz: F64 | float, spread: Spread, *, compute_efficiency: float = 1.0) -> F64:
        """Return the time of passes inside their kernels, launches left out."""
        k = self.kernels
        rate = self.memory_rate(mhz) * spread.bandwidth
        weights = cost.weight_bytes / k.weight_bandwidth_efficiency + cost.expert_bytes / k.expert_bandwidth_efficiency
        memory = (
            weights + cost.kv_bytes / k.kv_bandwidth_efficiency + cost.other_bytes / k.weight_bandwidth_efficiency
        ) / rate
        compute = cost.flop / (self.compute_rate(mhz) * compute_efficiency)
        p = k.combine_exponent
        if np.isinf(p):
            return np.maximum(memory, compute)
        top = np.maximum(memory, compute)
        low = np.minimum(memory, compute) / top
        return np.asarray(top * (1.0 + low**p) ** (1.0 / p))

    def evaluate(
        self,
        verify: Cost,
        draft: Cost | None,
        gap_s: F64,
        draft_gap_s: F64,
        *,
        capture: bool,
        mhz: F64 | float,
        spread: Spread,
    ) -> StepCosts:
        """Return time and energy of steps at clocks `mhz` (an array over steps or one number)."""
        verify_s, verify_j = self._part(verify, gap_s, capture, mhz, spread)
        if draft is None:
            zero = np.zeros_like(verify_s)
            return StepCosts(verify_s, zero, verify_j, zero)
        draft_s, draft_j = self._part(draft, draft_gap_s, capture, mhz, spread)
        return StepCosts(verify_s, draft_s, verify_j, draft_j)

    def _part(self, cost: Cost, gap_s: F64, capture: bool, mhz: F64 | float, spread: Spread) -> tuple[F64, F64]:
        k, b = self.kernels, self.board
        inside = self.pass_seconds(cost, mhz, spread)
        # Ramp and tail of a kernel are half latency of the memory system, half of the cores.
        tails = cost.kernels * k.captured_us * 1e-6 * (0.5 + 0.5 * b.max_clock_mhz / mhz)
        busy = inside + tails
        seconds = busy if capture else np.maximum(busy, cost.kernels * k.eager_us * 1e-6)
        seconds = (seconds + gap_s) * spread.time
        v2 = self.voltage2(mhz)
        energy = busy * self._active_w(mhz, v2) + cost.bytes * (b.byte_pj * 1e-12)
        energy = energy + cost.flop * (self.flop_pj * 1e-12 * v2)
        return seconds, energy * spread.power

    def run(
        self,
        verify: Cost,
        draft: Cost | None,
        gap_s: F64,
        draft_gap_s: F64,
        *,
        capture: bool,
        wanted_mhz: float,
        idle_w: float,
        spread: Spread,
    ) -> tuple[StepCosts, F64]:
        """Return what steps cost and the clock of each: `wanted_mhz`, or what keeps its mean power at the limit."""

        def at(mhz: F64 | float, steps: I64 | slice = slice(None)) -> StepCosts:
            part = verify[steps], None if draft is None else draft[steps], gap_s[steps], draft_gap_s[steps]
            return self.evaluate(*part, capture=capture, mhz=mhz, spread=spread)

        def limited(steps: I64) -> F64:
            clocks = np.linspace(wanted_mhz, self.board.min_clock_mhz, _CLOCK_STEPS)
            grid = _power(at(clocks[:, None], steps), idle_w)
            # Power falls with the clock: the first one below the limit, and the share of the way to the one before it.
            below = grid <= self.limit_w
            i = np.where(below.any(axis=0), below.argmax(axis=0), _CLOCK_STEPS - 1)
            before, columns = np.maximum(i - 1, 0), np.arange(steps.size)
            high, low = grid[before, columns], grid[i, columns]
            share = np.clip((high - self.limit_w) / np.maximum(high - low, 1e-9), 0.0, 1.0)
            return np.asarray(np.where(i == 0, clocks[0], clocks[before] + share * (clocks[i] - clocks[before])))

        step = at(wanted_mhz)
        every = np.arange(verify.flop.shape[0])
        mhz: F64 = np.full(every.size, wanted_mhz)
        if float(_power(step, idle_w).max()) <= self.limit_w:
            return step, mhz
        # Costs change slowly over most of a wave: solve a few steps and interpolate, then those that this left above.
        few = every if every.size <= 9 else np.linspace(0, every.size - 1, 9).round().astype(np.int64)
        mhz = np.interp(every, few, limited(few))
        step = at(mhz)
        over = (_power(step, idle_w) > _SLACK * self.limit_w).nonzero()[0]
        if over.size and every.size > few.size:
            mhz[over] = limited(over)
            step = at(mhz)
        return step, mhz


def _power(step: StepCosts, idle_w: float) -> F64:
    seconds = step.verify_s + step.draft_s
    return np.asarray((step.verify_j + step.draft_j) / seconds + idle_w)
