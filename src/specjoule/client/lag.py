"""How far the client is behind the stream: late wake-ups of its loop, and bytes that wait in its sockets."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


def waiting_bytes(descriptor: int) -> int:
    """Return the bytes the kernel has received on a socket and nobody has read; 0 for a closed one."""
    if descriptor < 0:
        return 0
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


@dataclass(frozen=True)
class Beat:
    """One look at the client: when, how late it came, and what waited in the sockets at that time."""

    t_ns: int
    late_ns: int
    waiting: int


@dataclass
class Heartbeat:
    """Looks at the loop every `period_s`; each look that comes late bounds how late any stamp around it can be.

    A loop that keeps up wakes on time and finds its sockets nearly empty. One that works without pause wakes on time
    too (each turn is short) while the kernel's queue grows: that delay is the queue over the stream's rate.
    """

    descriptors: Callable[[], Iterable[int]]
    period_s: float = 0.005
    beats: list[Beat] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        period = round(self.period_s * 1e9)
        due = time.monotonic_ns() + period
        while True:
            await asyncio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
            now = time.monotonic_ns()
            self.beats.append(Beat(now, max(0, now - due), sum(waiting_bytes(d) for d in self.descriptors())))
            due = max(due + period, now + period // 2)


def lag_ms(beats: Iterable[Beat], bytes_per_s: float, start_ns: int, end_ns: int) -> float:
    """Return the client's largest delay between two times, ms: lateness plus queued bytes at the stream's mean rate."""
    worst = 0.0
    for beat in beats:
        if beat.t_ns < start_ns or beat.t_ns - beat.late_ns > end_ns:
            continue
        queued_s = beat.waiting / bytes_per_s if bytes_per_s > 0 else 0.0
        worst = max(worst, beat.late_ns / 1e6 + queued_s * 1e3)
    return worst
