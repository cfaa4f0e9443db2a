"""The board under the protocol double: the stand-in driver's, drawn on while a batch runs, with the server listed."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from pathlib import Path

METERS = Path(__file__).resolve().parents[2] / "meters"


class DoubleBoard:
    """Loads and lists this process on the board that `CUDA_VISIBLE_DEVICES` names; nothing without a stand-in."""

    def __init__(self) -> None:
        self._board = None
        state = os.environ.get("FAKE_NVML_STATE")
        if state is None:
            return
        sys.path.insert(0, str(METERS))
        import fake_nvml

        with Path(state).open("r+b") as handle:
            shared = fake_nvml.State.from_buffer(mmap.mmap(handle.fileno(), 0))
        uuid = os.environ["CUDA_VISIBLE_DEVICES"]
        self._board = next(b for b in shared.boards[: shared.n_boards] if bytes(b.uuid).decode() == uuid)
        self._board.pids[self._board.n_processes] = os.getpid()
        self._board.n_processes += 1
        signal.signal(signal.SIGTERM, self._leave)

    def busy(self) -> None:
        """Draw the busy power from now on."""
        if self._board is not None:
            self._board.span_start[self._board.n_spans] = time.monotonic_ns()
            self._board.span_end[self._board.n_spans] = 0
            self._board.n_spans += 1

    def idle(self) -> None:
        """Draw the idle power from now on."""
        if self._board is not None:
            self._board.span_end[self._board.n_spans - 1] = time.monotonic_ns()

    def _leave(self, number: int, frame: object) -> None:
        """Take this process off the board, as a driver does, and end by the signal."""
        assert self._board is not None
        others = [pid for pid in self._board.pids[: self._board.n_processes] if pid != os.getpid()]
        self._board.n_processes = len(others)
        for i, pid in enumerate(others):
            self._board.pids[i] = pid
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
