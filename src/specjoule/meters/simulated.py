"""The `simulated` meter: reads a simulated board as the real sampler reads a real one, and knows the truth beside it.

Its counter refreshes with jitter, lags, is dated between two reads of the sampler; power is an average over the
sensor's own window. Nothing it yields was measured: `meter` is 'simulated' wherever it goes.
"""

from __future__ import annotations

import numpy as np

from specjoule.clock import VirtualClock
from specjoule.engines.simulated.acceptance import stable_seed
from specjoule.engines.simulated.board import SimulatedBoard, Timeline
from specjoule.meters.base import BOARD, F64, I64, BoardInfo, Calibration, MeterName, Refreshes, Samples, Trace

_BEYOND = 5
"""Refreshes, as often as they are seen, recorded before and after what a trace is asked for."""
_TABLE = 4096


class SimulatedMeter:
    """A sampler of one simulated board."""

    name: MeterName = "simulated"

    def __init__(self, board: SimulatedBoard, clock: VirtualClock, poll_ms: float = 5.0) -> None:
        self.board, self.clock = board, clock
        p = board.p.meter
        rng = np.random.default_rng(stable_seed("meter", board.uuid, int(board.rng.integers(2**31))))
        self._period = p.refresh_ms * 1e6
        self._phase = float(rng.uniform(0, self._period))
        self._jitter = np.clip(p.jitter * rng.standard_normal(_TABLE), -0.3, 0.3) * self._period
        self._dating = rng.random(_TABLE)
        self._poll = poll_ms * 1e6
        self._call = p.call_ms * 1e6
        self._lag = p.lag_ms * 1e6
        self._beyond = (_BEYOND + 0.5) * max(self._period, self._poll)
        self._offset_j = float(rng.uniform(1e5, 1e7))
        error = p.lag_error_ms * float(np.clip(rng.standard_normal(), -1.9, 1.9))
        self.calibration = Calibration(
            lag_ns=max(0, round((p.lag_ms + error) * 1e6)),
            lag_uncertainty_ns=round(2 * p.lag_error_ms * 1e6),
            refresh_ns=round(self._period),
            idle_w=None,
            calibrated=True,
            driver=board.p.board.driver,
            date=None,
        )
        self.reset_ns: int | None = None
        """From this time on the counter counts from zero (a fault)."""
        self.frozen_ns: tuple[int, int] | None = None
        """Between these times the counter shows one value, though it is read (a fault)."""
        self.gap_ns: tuple[int, int] | None = None
        """Between these times the sampler saw nothing (a fault)."""

    def start(self) -> BoardInfo:
        """Describe the board; its name says that it is simulated."""
        board = self.board
        return BoardInfo(
            uuid=board.uuid,
            name=f"{board.gpu.product} (simulated)",
            driver=board.p.board.driver,
            power_limit_w=board.physics.limit_w,
            ecc=board.p.board.ecc,
            persistence=True,
        )

    def attach(self, pid: int | None) -> None:
        """Nothing to attach to: the whole board is read."""

    def stop(self) -> None:
        """Nothing to stop."""

    def true_energy_j(self, t0: int, t1: int) -> float:
        """Return the exact energy of the board between two times, J."""
        return self.board.energy_between(t0, t1)

    def trace(self, start_ns: int, end_ns: int) -> Trace:
        """Return what the sampler saw, five refreshes beyond both ends; the board idles on for the later ones."""
        until = end_ns + self._beyond + self._lag + self._call
        if self.clock.now_ns() < until:
            self.clock.advance_ns(int(until) + 1 - self.clock.now_ns())
        self.board.idle_until(self.clock.now_ns())
        first = max(start_ns - self._beyond, float(self.board.opened_ns))
        line = self.board.timeline(first - self._lag - 1.1e9, until)
        number, times = self._refreshes(first, end_ns + self._beyond)
        seen = times - self._lag
        joules = line.energy(seen)
        offset = np.full(times.size, self._offset_j)
        if self.reset_ns is not None:
            after = times >= self.reset_ns
            offset[after] = -float(line.energy(np.asarray(self.reset_ns - self._lag)))
        resolution = self.board.p.meter.resolution_j
        counter = np.floor((joules + offset) / resolution) * resolution
        # By the refresh's own number: a table read from each trace's start would date every window's edges alike.
        started = times - self._dating[number % _TABLE] * self._poll - self._call / 2
        read_start = started.astype(np.int64)
        read_end = read_start + round(self._poll + self._call)
        # A value that the next one replaced before it was read was never seen.
        keep = np.ones(times.size, dtype=bool)
        keep[:-1] = read_end[:-1] - self._call / 2 <= times[1:]
        for quiet in (self.frozen_ns, self.gap_ns):
            if quiet is not None:
                keep &= ~((times > quiet[0]) & (times < quiet[1]))
        if self.gap_ns is not None:
            # The first read after the gap sees a new value; the last read of the old one was before it.
            first_after = np.flatnonzero(times >= self.gap_ns[1])
            if first_after.size and (times < self.gap_ns[0]).any():
                read_start[first_after[0]] = self.gap_ns[0]
        read_start, read_end = read_start[keep], read_end[keep]
        # The read that saw one value is the first that may have been the last before the next.
        read_start[1:] = np.maximum(read_start[1:], read_end[:-1] - round(self._call))
        refreshes = Refreshes(read_start, read_end, counter[keep])
        return Trace({BOARD: refreshes}, self._samples(line, first, end_ns + self._beyond))

    def _samples(self, line: Timeline, first: float, last: float) -> dict[str, Samples]:
        p = self.board.p.meter
        t, slow = (self._sampled(first, last, period_ms) for period_ms in (p.sample_ms, p.slow_sample_ms))
        tf, sf = t.astype(np.float64), slow.astype(np.float64)
        window = p.sensor_window_ms * 1e6
        power = (line.energy(tf) - line.energy(tf - window)) / (window / 1e9)
        average = (line.energy(sf) - line.energy(sf - 1e9)) / np.minimum(
            1.0, np.maximum(1e-3, (sf - line.edges[0]) / 1e9)
        )
        at = line.segment(sf)
        step = p.slow_sample_ms * 1e6
        capped = (line.capped_s(sf) - line.capped_s(sf - step)) / (step / 1e9)
        bits = line.bits[at] if line.bits.size else np.zeros(sf.size, dtype=np.int64)
        bits = np.where(capped > 0, bits | 0x4, bits)
        clock = line.mhz[line.segment(tf)] if line.mhz.size else np.full(tf.size, self.board.idle_mhz)
        samples = {
            "power_w": Samples(t, power),
            "power_average_w": Samples(slow, average),
            "sm_clock_mhz": Samples(t[::5], clock[::5]),
            "temperature_c": Samples(slow, np.round(line.temperature_c(sf), 1)),
            "throttle_bits": Samples(slow, bits.astype(np.float64)),
            "power_capped_share": Samples(slow, capped),
            "foreign_processes": Samples(slow, line.foreign(sf)),
        }
        if slow.size:
            samples["memory_used_bytes"] = Samples(slow[:1], np.array([self.board.memory_used_bytes]))
        return samples

    def _refreshes(self, first: float, last: float) -> tuple[I64, F64]:
        """Return number and time, ns, of the refreshes between two times."""
        k = np.arange(int((first - self._phase) // self._period), int((last - self._phase) // self._period) + 2)
        times = self._phase + k * self._period + self._jitter[k % _TABLE]
        inside = (times >= first) & (times <= last)
        return k[inside], times[inside]

    def _sampled(self, first: float, last: float, period_ms: float) -> I64:
        """Return when a channel was read between two times, ns."""
        period = period_ms * 1e6
        t = (np.arange(int(first // period) + 1, int(last // period) + 1) * period).astype(np.int64)
        return t if self.gap_ns is None else t[(t <= self.gap_ns[0]) | (t >= self.gap_ns[1])]
