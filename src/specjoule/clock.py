"""The clock on which meters and engines agree."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in nanoseconds; the one time base of stamps, traces and windows."""

    def now_ns(self) -> int:
        """Return the present time, ns."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Let `seconds` pass on this clock."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, shared by every process of a host."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC, ns."""
        return time.monotonic_ns()

    def sleep_s(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when told to; simulated engines and meters share one."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the virtual time, ns."""
        return self._now_ns

    def sleep_s(self, seconds: float) -> None:
        """Advance the virtual time by `seconds`; returns at once."""
        self.advance_ns(round(seconds * 1e9))

    def advance_ns(self, delta_ns: int) -> None:
        """Advance the virtual time by `delta_ns` >= 0."""
        if delta_ns < 0:
            raise ValueError(f"a clock cannot run backwards ({delta_ns} ns)")
        self._now_ns += delta_ns
