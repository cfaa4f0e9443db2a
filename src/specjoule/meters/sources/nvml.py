"""An NVIDIA board: its cumulative energy counter, and gauges beside it, each one call so that none blocks for long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from specjoule.errors import MeterError
from specjoule.meters import nvml
from specjoule.meters.base import BOARD, BoardInfo
from specjoule.meters.boards import resolve
from specjoule.meters.clocks import restore_stale
from specjoule.meters.sources import Counter, Gauge, ReadFault
from specjoule.meters.sources.estimate import tree
from specjoule.meters.sources.rapl import RaplSource
from specjoule.reasons import Reason

_FAST_NS = 50_000_000
_SLOW_NS = 200_000_000
_RARE_NS = 1_000_000_000
_HOST_POLL_NS = 50_000_000
"""RAPL beside a board: its register counts continuously, so that ten points in half a second locate any edge."""


@dataclass
class EnergyCounter:
    """`nvmlDeviceGetTotalEnergyConsumption`: millijoules since the driver was loaded."""

    board: Callable[[], nvml.Handle]
    poll_ns: int
    channels: tuple[str, ...] = (BOARD,)
    native_refresh_ns: int | None = None
    can_rest: bool = False

    def read(self) -> Sequence[float]:
        """Return the counter, J."""
        return [nvml.call(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.board()) * 1e-3]


@dataclass
class CallGauge:
    """One NVML call read every `period_ns`."""

    channels: tuple[str, ...]
    period_ns: int
    function: Callable[[], Mapping[str, float]]

    def read(self) -> Mapping[str, float]:
        """Return what the call gave."""
        return self.function()


@dataclass
class BoardGauges:
    """The gauges of one board, with what they must remember between readings."""

    board: Callable[[], nvml.Handle]
    roots: set[int] = field(default_factory=lambda: {os.getppid()})
    """Processes under these are ours; all others on the board are foreign."""
    _capped: tuple[int, int] | None = None

    def gauges(self) -> list[Gauge]:
        """Return one gauge per NVML call."""
        return [
            CallGauge(("power_w", "power_average_w"), _FAST_NS, self._power),
            CallGauge(("sm_clock_mhz",), _SLOW_NS, lambda: self._clock("sm_clock_mhz", pynvml.NVML_CLOCK_SM)),
            CallGauge(("memory_clock_mhz",), _SLOW_NS, lambda: self._clock("memory_clock_mhz", pynvml.NVML_CLOCK_MEM)),
            CallGauge(("temperature_c",), _SLOW_NS, self._temperature),
            CallGauge(("throttle_bits",), _SLOW_NS, self._throttle),
            CallGauge(("power_capped_share",), _SLOW_NS, self._power_capped),
            CallGauge(("memory_used_bytes",), _RARE_NS, self._memory),
            CallGauge(("foreign_processes",), _RARE_NS, self._foreign),
        ]

    def _power(self) -> Mapping[str, float]:
        """Instant power and the trailing 1-s average: two columns, never one (the average lags a window's edges)."""
        wanted = {"power_w": pynvml.NVML_FI_DEV_POWER_INSTANT, "power_average_w": pynvml.NVML_FI_DEV_POWER_AVERAGE}
        answers = nvml.call(pynvml.nvmlDeviceGetFieldValues, self.board(), list(wanted.values()))
        return {
            name: answer.value.uiVal / 1000.0
            for name, answer in zip(wanted, answers, strict=True)
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
        }

    def _clock(self, channel: str, kind: int) -> Mapping[str, float]:
        return {channel: float(nvml.call(pynvml.nvmlDeviceGetClockInfo, self.board(), kind))}

    def _temperature(self) -> Mapping[str, float]:
        value = nvml.call(pynvml.nvmlDeviceGetTemperature, self.board(), pynvml.NVML_TEMPERATURE_GPU)
        return {"temperature_c": float(value)}

    def _throttle(self) -> Mapping[str, float]:
        return {"throttle_bits": float(nvml.call(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self.board()))}

    def _power_capped(self) -> Mapping[str, float]:
        """Share of the time since the last reading in which the power limit held the clocks down."""
        status = nvml.call(pynvml.nvmlDeviceGetViolationStatus, self.board(), pynvml.NVML_PERF_POLICY_POWER)
        now = time.monotonic_ns(), int(status.violationTime)
        before, self._capped = self._capped, now
        if before is None or now[1] < before[1]:
            return {}
        return {"power_capped_share": min((now[1] - before[1]) / (now[0] - before[0]), 1.0)}

    def _memory(self) -> Mapping[str, float]:
        return {"memory_used_bytes": float(nvml.call(pynvml.nvmlDeviceGetMemoryInfo, self.board()).used)}

    def _foreign(self) -> Mapping[str, float]:
        pids = nvml.compute_pids(self.board())
        ours = {pid for root in self.roots for pid in tree(root, excluded=os.getpid())} if pids else set()
        return {"foreign_processes": float(sum(pid not in ours for pid in pids))}


class NvmlSource:
    """One board by UUID, and the host's RAPL beside it where asked for and readable."""

    def __init__(self, uuid: str | None, poll_ns: int, powercap_root: str | None = None) -> None:
        self._asked = uuid
        self._poll_ns = poll_ns
        self._host = None if powercap_root is None else RaplSource(Path(powercap_root), _HOST_POLL_NS, main=False)
        self._uuid = ""
        self._handle: nvml.Handle = None
        self._gauges = BoardGauges(self._board)
        self._counters: list[Counter] = []

    @property
    def counters(self) -> Sequence[Counter]:
        """The board's counter, then the host's."""
        return self._counters

    @property
    def gauges(self) -> Sequence[Gauge]:
        """The board's gauges."""
        return self._gauges.gauges()

    def _board(self) -> nvml.Handle:
        if self._handle is None:
            raise ReadFault(Reason.BOARD_LOST, f"{self._uuid} was lost")
        return self._handle

    def open(self) -> BoardInfo:
        """Find the board and read its counter once. Raises MeterError with the remedy."""
        nvml.initialise()
        restore_stale()
        self._uuid = resolve(self._asked, os.environ, nvml.uuids())
        try:
            self._handle = nvml.by_uuid(self._uuid)
            info = nvml.board_info(self._handle)
            if nvml.is_mig(self._handle):
                raise MeterError(
                    f"{info.name} {self._uuid} is split by MIG ({Reason.MIG_BOARD}): its counter covers all parts, so"
                    " that no part's energy can be told; switch MIG off or take a whole board."
                )
            counter = EnergyCounter(self._board, self._poll_ns)
            counter.read()
        except ReadFault as fault:
            raise MeterError(_remedy(fault, self._uuid)) from None
        self._counters = [counter]
        if self._host is not None:
            self._host.open()
            self._counters += self._host.counters
        return info

    def attach(self, pid: int | None) -> None:
        """Count processes under `pid` as ours besides our parent's."""
        if pid is not None:
            self._gauges.roots.add(pid)

    def recover(self, fault: ReadFault) -> Reason | None:
        """Open the driver again after it or the board went away."""
        if fault.reason not in {Reason.DRIVER_RELOADED, Reason.BOARD_LOST}:
            return None
        self._handle = None
        nvml.shut_down()
        try:
            nvml.initialise()
            self._handle = nvml.by_uuid(self._uuid)
        except (MeterError, ReadFault):
            return None  # tried again after the next failed reading
        return None

    def close(self) -> None:
        """Give back clocks that a killed parent locked, which the sampler outlives by a moment; let go of all."""
        if self._handle is not None:
            restore_stale()
        if self._host is not None:
            self._host.close()
        self._handle = None
        nvml.shut_down()


def _remedy(fault: ReadFault, uuid: str) -> str:
    if fault.reason is Reason.COUNTER_NOT_SUPPORTED:
        return (
            f"{uuid} has no energy counter ({fault.reason}): it came with the Volta generation; use a newer board. A"
            " power integral is not offered in its place."
        )
    if fault.reason is Reason.NO_PERMISSION:
        return f"The driver does not let this user read {uuid} ({fault.reason}); ask the administrator to allow it."
    return f"{uuid} cannot be read ({fault.reason}: {fault}); check it with `nvidia-smi -i {uuid}`."
