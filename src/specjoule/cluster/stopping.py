"""When a block should stop: before the job's time limit, and when the queue or the user says so."""

from __future__ import annotations

import signal
import time
from types import FrameType

LIMIT = "time limit near"
ASKED = "asked by signal"


class Stopper:
    """Asked between cells. Says yes once the deadline is near or SIGUSR1 came; SIGTERM interrupts at once.

    SIGUSR1 is what Slurm sends before the time limit (`--signal`); SIGTERM comes with preemption and scancel, whose
    grace may be shorter than a cell.
    """

    def __init__(self, deadline: float | None, margin_s: float) -> None:
        """`deadline`: wall-clock time at which the job is ended, or None."""
        self.stop_at = None if deadline is None else deadline - margin_s
        self.reason: str | None = None
        self.interrupted = False

    def __call__(self) -> bool:
        """Say whether to stop now."""
        if self.reason is None and self.stop_at is not None and time.time() >= self.stop_at:
            self.reason = LIMIT
        return self.reason is not None

    def listen(self) -> None:
        """Install the signal handlers; only in the main thread of a process of its own."""
        signal.signal(signal.SIGUSR1, self._ask)
        signal.signal(signal.SIGTERM, self._interrupt)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.reason = self.reason or ASKED

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        # A second SIGTERM must not interrupt the stopping of engine and meter.
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
