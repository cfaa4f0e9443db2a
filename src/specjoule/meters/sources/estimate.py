"""Energy estimated from CPU time: seconds of CPU used by a process tree times watts per busy core. Not measured.

Nothing else is added (no idle power, no memory model): a constant that nobody measured has ruled whole data sets
before. CPU time comes from each process's own CPU clock, whose id Linux and glibc form from the pid as
`(~pid) << 3 | 2` (`clock_getcpuclockid(3)`, scheduler clock): nanoseconds, where /proc gives hundredths of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specjoule.meters.base import BOARD, BoardInfo
from specjoule.meters.sources import Counter, Gauge, ReadFault
from specjoule.meters.sources.rapl import cpu_model
from specjoule.reasons import Reason

_NATIVE_REFRESH_NS = 1_000
_SCAN_NS = 50_000_000
"""How often the tree is walked for new children; their clocks start at zero, so nothing is lost meanwhile."""


def cpu_clock_id(pid: int) -> int:
    """Return the id of the CPU-time clock of process `pid`."""
    return (~pid) << 3 | 2


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, of all its threads."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass  # the process or thread ended while we looked
    return found


def tree(root: int, excluded: int) -> list[int]:
    """Return `root` and its descendants, without the branch of `excluded`."""
    found, front = [], [root]
    while front:
        pid = front.pop()
        if pid != excluded:
            found.append(pid)
            front += children(pid)
    return found


@dataclass
class TreeClock:
    """CPU time of a process tree that never decreases: what an ended process used stays counted."""

    excluded: int
    """The sampler itself is a child of the measured process where the engine runs in it; its polling is not work."""
    root: int | None = None
    _live: dict[int, int] = field(default_factory=dict)
    _ended_ns: int = 0
    _scanned_ns: int = 0

    def follow(self, root: int | None) -> None:
        """Count the tree of `root` from now on; the time its processes have used before does not count."""
        self._ended_ns += sum(self._live.values())
        self._live = {}
        self.root = root
        if root is not None:
            for pid in tree(root, self.excluded):
                used = _used_ns(pid)
                if used is not None:
                    self._live[pid] = used
                    self._ended_ns -= used
        self._scanned_ns = time.monotonic_ns()

    def total_ns(self) -> int:
        """Return the CPU time used so far, ns."""
        now = time.monotonic_ns()
        if self.root is not None and now - self._scanned_ns >= _SCAN_NS:
            self._scanned_ns = now
            for pid in tree(self.root, self.excluded):
                self._live.setdefault(pid, 0)
        for pid, before in list(self._live.items()):
            used = _used_ns(pid)
            if used is None or used < before:  # ended, or its number was taken by a new process
                self._ended_ns += self._live.pop(pid)
            else:
                self._live[pid] = used
        return self._ended_ns + sum(self._live.values())


def _used_ns(pid: int) -> int | None:
    try:
        return time.clock_gettime_ns(cpu_clock_id(pid))
    except OSError:
        return None


@dataclass
class EstimateCounter:
    """The estimate as a counter: it moves continuously, so every reading is one point of it."""

    watts_per_core: float
    poll_ns: int
    channels: tuple[str, ...] = (BOARD,)
    native_refresh_ns: int | None = _NATIVE_REFRESH_NS
    can_rest: bool = True
    clock: TreeClock = field(default_factory=lambda: TreeClock(excluded=os.getpid()))

    def read(self) -> Sequence[float]:
        """Return the estimated energy so far, J."""
        return [self.clock.total_ns() * 1e-9 * self.watts_per_core]


class EstimateSource:
    """CPU time of the attached process tree times `watts_per_core`."""

    def __init__(self, watts_per_core: float, poll_ns: int) -> None:
        self._counter = EstimateCounter(watts_per_core, poll_ns)
        self.counters: Sequence[Counter] = [self._counter]
        self.gauges: Sequence[Gauge] = ()

    def open(self) -> BoardInfo:
        """Return what the estimate is about; nothing needs opening."""
        return BoardInfo(uuid=None, name=cpu_model(), scope="process", assumed_w_per_core=self._counter.watts_per_core)

    def attach(self, pid: int | None) -> None:
        """Count the process tree of `pid` from now on."""
        self._counter.clock.follow(pid)

    def recover(self, fault: ReadFault) -> Reason | None:
        """Do nothing: there is no device."""
        return None

    def close(self) -> None:
        """Do nothing: there is no device."""
