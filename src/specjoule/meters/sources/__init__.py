"""What the sampler reads: cumulative counters and gauges of one device, behind one contract per kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from specjoule.errors import MeterError
from specjoule.meters.base import BoardInfo
from specjoule.reasons import Reason


class ReadFault(Exception):
    """A reading failed; the sampler records the reason and goes on trying."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Counter(Protocol):
    """A cumulative counter; one call reads all its channels at one time."""

    channels: tuple[str, ...]
    poll_ns: int
    """How often to read it."""
    native_refresh_ns: int | None
    """How often the hardware updates it, where that is shorter than `poll_ns`; None: found out by polling."""
    can_rest: bool
    """True where an unchanged value is a reading like any other (idle CPU time), not a counter that froze."""

    def read(self) -> Sequence[float]:
        """Return the value of each channel, joules. Raises ReadFault."""
        ...


class Gauge(Protocol):
    """A reading of something other than energy."""

    channels: tuple[str, ...]
    period_ns: int

    def read(self) -> Mapping[str, float]:
        """Return what could be read, by channel; a channel left out is unknown now. Raises ReadFault."""
        ...


class Source(Protocol):
    """One device, or the host beside it."""

    @property
    def counters(self) -> Sequence[Counter]:
        """Counters, valid once open."""
        ...

    @property
    def gauges(self) -> Sequence[Gauge]:
        """Gauges, valid once open."""
        ...

    def open(self) -> BoardInfo:
        """Open the device. Raises MeterError with the remedy."""
        ...

    def attach(self, pid: int | None) -> None:
        """Name the process tree that does the work."""
        ...

    def recover(self, fault: ReadFault) -> Reason | None:
        """Try to reopen the device after a fault; return a further fact learnt by that (a reloaded driver)."""
        ...

    def close(self) -> None:
        """Let go of the device; safe to call twice."""
        ...


@dataclass(frozen=True)
class SourceSpec:
    """Which source a sampler process opens, as it travels on its command line (JSON)."""

    kind: Literal["nvml", "rapl", "estimate"]
    poll_ns: int
    dense_ns: int = 500_000
    board: str | None = None
    powercap_root: str = "/sys/class/powercap"
    watts_per_core: float = 10.0
    host: bool = False
    """Record the host's RAPL channels beside the board's."""


def open_source(spec: SourceSpec) -> Source:
    """Make the source that `spec` names; nothing is opened yet."""
    if spec.kind == "rapl":
        from specjoule.meters.sources.rapl import RaplSource

        return RaplSource(Path(spec.powercap_root), spec.poll_ns, main=True)
    if spec.kind == "estimate":
        from specjoule.meters.sources.estimate import EstimateSource

        return EstimateSource(spec.watts_per_core, spec.poll_ns)
    if spec.kind == "nvml":
        from specjoule.meters.sources.nvml import NvmlSource

        return NvmlSource(spec.board, spec.poll_ns, spec.powercap_root if spec.host else None)
    raise MeterError(f"No energy source is called {spec.kind!r}; there are nvml, rapl and estimate.")
