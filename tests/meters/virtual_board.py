"""A board with known truth on a virtual clock, polled by the real sampler loop: the error study takes seconds."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from specjoule.clock import VirtualClock
from specjoule.meters.base import BoardInfo, Refreshes
from specjoule.meters.log import LogReader, LogWriter
from specjoule.meters.sampler import Sampling, channels_of


@dataclass(frozen=True)
class Load:
    """Power of a board: idle, busy stretches with a ripple per step, slow decay after each."""

    spans_ns: tuple[tuple[int, int], ...]
    idle_w: float = 120.0
    busy_w: float = 600.0
    ripple_w: float = 80.0
    """Half of the square ripple: busy +- ripple, half a step each."""
    step_ns: float = 31.7e6
    decay_w: float = 60.0
    """What is drawn above idle just after a stretch."""
    decay_ns: float = 2e9

    def energy_j(self, t_ns: np.ndarray) -> np.ndarray:
        t = np.asarray(t_ns, dtype=np.float64)
        total = self.idle_w * t
        for start, end in self.spans_ns:
            x = np.clip(t - start, 0, end - start)
            phase = np.mod(x, self.step_ns) / self.step_ns
            ripple = self.ripple_w * self.step_ns * np.minimum(phase, 1 - phase)
            total = total + (self.busy_w - self.idle_w) * x + ripple
            after = np.maximum(t - end, 0)
            total = total + self.decay_w * self.decay_ns * (1 - np.exp(-after / self.decay_ns))
        return total * 1e-9


@dataclass
class VirtualBoard:
    """One cumulative counter with refresh, jitter, call latency and lag; is a Counter and a Source at once."""

    load: Load
    clock: VirtualClock
    refresh_ns: float
    latency_ns: float
    lag_ns: float
    rng: np.random.Generator
    end_ns: int
    jitter: float = 0.1
    poll_ns: int = 5_000_000
    channels: tuple[str, ...] = ("board",)
    native_refresh_ns: int | None = None
    can_rest: bool = False
    gauges: tuple[()] = ()
    late_share: float = 0.0
    """Share of reads before which the sampler was kept from the processor for up to `late_ns`."""
    late_ns: float = 30e6
    reads: int = 0
    _dates: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = int((self.end_ns + 2e9) / self.refresh_ns / (1 - self.jitter)) + 10
        steps = self.refresh_ns * (1 + self.jitter * self.rng.uniform(-1, 1, n))
        dates = np.cumsum(steps)
        self._dates = dates.tolist()
        self._values = (np.floor(self.load.energy_j(dates - self.lag_ns) * 1e3) / 1e3).tolist()

    @property
    def counters(self) -> list[VirtualBoard]:
        return [self]

    def read(self) -> list[float]:
        self.reads += 1
        if self.late_share and self.rng.random() < self.late_share:
            self.clock.advance_ns(int(self.rng.uniform(0, self.late_ns)))
        latency, share = self.rng.uniform(0.02, 1) * self.latency_ns + 20_000, self.rng.random()
        self.clock.advance_ns(int(latency * share))
        value = self._values[bisect_right(self._dates, self.clock.now_ns()) - 1]
        self.clock.advance_ns(int(latency * (1 - share)))
        return [value]

    def open(self) -> BoardInfo:
        return BoardInfo(uuid="GPU-virtual", name="virtual")

    def attach(self, pid: int | None) -> None: ...

    def recover(self, fault: object) -> None: ...

    def close(self) -> None: ...


def record(board: VirtualBoard, dense_ns: int = 500_000) -> Refreshes:
    """Run the sampler's own loop over the board until its end and return what it logged."""
    clock = board.clock
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        log = LogWriter(path, channels_of(board), {})

        def wait(until_ns: int) -> bool:
            # A sleep ends a little late, as it does on a real machine.
            late_ns = int(board.rng.exponential(60_000))
            clock.advance_ns(max(until_ns + late_ns - clock.now_ns(), 0))
            return clock.now_ns() < board.end_ns

        Sampling(board, log, clock, dense_ns).run(wait)
        log.close()
        return LogReader(path).read().refreshes["board"]
