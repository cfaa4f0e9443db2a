"""What a meter owes the block runner, and the trace it leaves.

A sampler in its own process dates every refresh of a cumulative counter; `specjoule.meters.energy` turns a trace and
two times into an energy with its uncertainty. A meter never knows about windows, and a window never reads a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from specjoule.clock import Clock
from specjoule.reasons import Reason

MeterName = Literal["nvml", "rapl", "estimate", "simulated"]

MEASURED: frozenset[str] = frozenset({"nvml", "rapl"})
"""Meters whose joules were measured; whatever comes from another says so in every table and figure."""

PROVENANCE: dict[str, str] = {
    "nvml": "measured on the GPU board",
    "rapl": "measured on the CPU package",
    "estimate": "estimated from CPU time, not measured",
    "simulated": "simulated, not measured",
}
"""The words every table and figure carries, by meter."""

BOARD = "board"
"""Name of the main energy channel: the device whose energy is `energy_j`."""

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def median(values: F64) -> float:
    """Return the median; an array of a window's dates is so short that `np.median` spends its time elsewhere."""
    ordered = np.sort(values)
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2.0


@dataclass(frozen=True)
class Refreshes:
    """Dated refreshes of one cumulative counter, in time order.

    The counter took the value `counter_j[i]` somewhere in [`read_start_ns[i]`, `read_end_ns[i]`]: the start of the last
    read that still saw the old value, and the end of the first read that saw this one.
    """

    read_start_ns: I64
    read_end_ns: I64
    counter_j: F64

    def __len__(self) -> int:
        return len(self.counter_j)

    @cached_property
    def t_ns(self) -> F64:
        """Midpoint estimate of each refresh's time, ns (float: half nanoseconds are harmless)."""
        return (self.read_start_ns + self.read_end_ns) / 2.0

    @cached_property
    def interval_ns(self) -> float | None:
        """Median interval between refreshes, ns; None for fewer than two."""
        return median(self.t_ns[1:] - self.t_ns[:-1]) if len(self) > 1 else None


@dataclass(frozen=True)
class Samples:
    """Time-stamped readings of one quantity, in time order (power, clock, temperature ...)."""

    t_ns: I64
    value: F64

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Trace:
    """All that the sampler saw between two times: energy channels and sample channels by name.

    Energy channels: `board`; host channels `package-0`, `dram-0`, ... Sample channels (units in names): `power_w`
    (instantaneous), `power_average_w` (1-s average), `sm_clock_mhz`, `memory_clock_mhz`, `temperature_c`,
    `throttle_bits`, `power_capped_share`, `memory_used_bytes`, `foreign_processes`, `wall_offset_ns`.
    """

    refreshes: dict[str, Refreshes]
    samples: dict[str, Samples] = field(default_factory=dict)
    flags: tuple[Reason, ...] = ()
    """Faults the sampler met while recording (lost board, reset, no permission ...)."""


@dataclass(frozen=True)
class BoardInfo:
    """The device a meter reads and what it says of itself; null where unknown."""

    uuid: str | None
    name: str
    driver: str | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    scope: str = "board"
    """What the counter covers: board, module, package, process."""
    assumed_w_per_core: float | None = None
    """Estimate only: power of one busy core that its joules are in proportion to."""


@dataclass(frozen=True)
class Calibration:
    """What is known of a board's counter before a window is cut."""

    lag_ns: int = 0
    lag_uncertainty_ns: int = 0
    refresh_ns: int | None = None
    idle_w: float | None = None
    calibrated: bool = False
    driver: str | None = None
    date: str | None = None


class Meter(Protocol):
    """A sampler of one device. `start` before the first window, `trace` after each, `stop` at the end."""

    @property
    def name(self) -> MeterName:
        """Which meter this is; the column `meter`."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the trace's times."""
        ...

    @property
    def calibration(self) -> Calibration:
        """What is known of the counter's lag and refresh."""
        ...

    def start(self) -> BoardInfo:
        """Open the device and begin sampling. Raises MeterError with the remedy."""
        ...

    def attach(self, pid: int | None) -> None:
        """Name the process tree that does the work; meters of whole devices ignore it."""
        ...

    def trace(self, start_ns: int, end_ns: int) -> Trace:
        """Return what was recorded from `start_ns` to `end_ns`, waiting for the refresh after `end_ns` if need be.

        At least three refreshes before `start_ns` and after `end_ns` are included where they exist.
        """
        ...

    def stop(self) -> None:
        """End the sampler; safe to call twice."""
        ...
