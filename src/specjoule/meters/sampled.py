"""The meter as its user sees it: starts the sampler process, waits for refreshes and cuts traces out of its log."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from specjoule.clock import Clock, MonotonicClock
from specjoule.errors import MeterError
from specjoule.meters.base import BOARD, BoardInfo, Calibration, MeterName, Refreshes, Samples, Trace
from specjoule.meters.calibration_store import calibration_for
from specjoule.meters.energy import UNKNOWN_LAG_NS
from specjoule.meters.log import LogContent, LogReader
from specjoule.meters.sampler import DIRECTORY_PREFIX
from specjoule.meters.sources import SourceSpec
from specjoule.reasons import Reason

OUTSIDE_REFRESHES = 3
"""Refreshes wanted on either side of a window: the power outside needs two intervals."""
_OUTSIDE_NS = 600_000_000
"""Extent of trace wanted on either side where refreshes are closer together than that."""
FAULT_PREFIX = "fault:"
"""Faults travel in a trace as sample channels: `fault:board_lost` has the time it was met and how long it had lasted,
s. So a window recomputed from a stored trace has the same flags."""
_OPEN_S = 60.0
"""Time a driver may take to open a board without persistence mode."""
_REASONS = {reason.value: reason for reason in Reason}
_BEFORE_NS = 10_000_000_000
"""How much log before a window is looked at: many refreshes of the slowest counter."""
_MAX_WAIT_NS = 5_000_000_000
"""Longest wait for the refresh after a window; a counter that has not moved for so long will not."""


class SampledMeter:
    """Meter of any source that the sampler process can poll."""

    def __init__(self, name: MeterName, spec: SourceSpec, calibration: Calibration, note: str | None = None) -> None:
        self.name = name
        self.clock: Clock = MonotonicClock()
        self.calibration = calibration
        self.note = note
        """A sentence for the user: why a better meter could not be had, and how to allow it."""
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._reader: LogReader | None = None
        self._info: BoardInfo | None = None
        self._standing: tuple[Reason, ...] = ()
        """Flags that every window of this meter has."""

    def start(self) -> BoardInfo:
        """Start the sampler and wait until it has opened the device. Raises MeterError with the remedy."""
        if self._info is not None:
            return self._info
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        log_path = self._directory / "meter.log"
        command = [sys.executable, "-m", "specjoule.meters.sampler"]
        command += [str(log_path), json.dumps(asdict(self.spec)), str(os.getpid())]
        with (self._directory / "errors.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        try:
            self._info = self._greeting(self._process)
        except BaseException:
            self.stop()
            raise
        self._reader = LogReader(log_path)
        if self.name == "nvml":
            self.calibration, stale = calibration_for(self._info)
            self._standing = (Reason.CALIBRATION_STALE,) if stale else ()
        return self._info

    def _greeting(self, process: subprocess.Popen[bytes]) -> BoardInfo:
        assert process.stdout is not None
        line = b""
        ready, _, _ = select.select([process.stdout], [], [], _OPEN_S)
        if ready:
            line = process.stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            raise MeterError(
                f"The energy sampler did not start ({self._stderr() or f'no answer within {_OPEN_S:.0f} s'})."
            ) from None
        if "error" in said:
            raise MeterError(said["error"])
        return BoardInfo(**said["board"])

    def _stderr(self) -> str:
        if self._directory is None:
            return ""
        lines = (self._directory / "errors.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def attach(self, pid: int | None) -> None:
        """Name the process tree that does the work; only the estimate cares."""
        self._command("attach" if pid is None else f"attach {pid}")

    def _command(self, text: str) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise MeterError("The energy meter was not started.")
        try:
            process.stdin.write(text.encode() + b"\n")
        except BrokenPipeError:
            raise MeterError(f"The energy sampler ended by itself ({self._stderr() or 'no message'}).") from None

    def trace(self, start_ns: int, end_ns: int) -> Trace:
        """Return what was recorded, waiting for `OUTSIDE_REFRESHES` refreshes after `end_ns` while they may come.

        Raises MeterError where the sampler ended before it had recorded the window and its surroundings.
        """
        # The counter shows the window's end only a lag later.
        reach_ns = self.calibration.lag_ns + self.calibration.lag_uncertainty_ns
        if not self.calibration.calibrated:
            reach_ns = 2 * UNKNOWN_LAG_NS
        trace = cut(self._await(start_ns, end_ns + reach_ns), start_ns, end_ns, reach_ns)
        return replace(trace, flags=(*self._standing, *trace.flags))

    def everything(self) -> Trace:
        """Return all that was recorded so far."""
        content = self._log()
        return cut(content, 0, self.clock.now_ns())

    def _log(self, since_ns: int | None = None) -> LogContent:
        if self._reader is None:
            raise MeterError("The energy meter was not started.")
        return self._reader.read(since_ns)

    def _await(self, start_ns: int, end_ns: int) -> LogContent:
        """Read the log until it reaches far enough beyond `end_ns`."""
        while True:
            now_ns = self.clock.now_ns()
            content = self._log(start_ns - _BEFORE_NS)
            board = content.refreshes.get(BOARD)
            if board is not None and _covers(
                board, end_ns + self.calibration.lag_ns + self.calibration.lag_uncertainty_ns
            ):
                return content
            refresh_ns = self.calibration.refresh_ns or _typical_ns(board) or 0
            patience_ns = min(max(2_000_000_000, 10 * refresh_ns), _MAX_WAIT_NS)
            if self._process is None or self._process.poll() is not None:
                raise MeterError(f"The energy sampler ended within a window ({self._stderr() or 'no message'}).")
            if now_ns > end_ns + patience_ns:
                return content
            time.sleep(max(min(refresh_ns * 1e-9, 0.1), 0.01))

    def stop(self) -> None:
        """End the sampler; safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(b"stop\n")
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = self._reader = self._info = None

    @property
    def directory(self) -> Path | None:
        """Where the running sampler keeps its log."""
        return self._directory

    @property
    def sampler_pid(self) -> int | None:
        """Process id of the running sampler."""
        return None if self._process is None else self._process.pid


def _covers(board: Refreshes, end_ns: int) -> bool:
    after = int((board.read_start_ns >= end_ns).sum())
    return after >= OUTSIDE_REFRESHES and (
        int(board.read_end_ns[-1]) >= end_ns + _OUTSIDE_NS or after >= 1 + _OUTSIDE_NS / max(_typical_ns(board) or 1, 1)
    )


def _typical_ns(board: Refreshes | None) -> int | None:
    if board is None or len(board) < 4:
        return None
    dates = board.t_ns[-32:]
    return int((dates[-1] - dates[0]) / (len(dates) - 1))


def cut(content: LogContent, start_ns: int, end_ns: int, reach_ns: int = 0) -> Trace:
    """Cut a trace out of a log, with room on both sides for the power outside; faults count only inside the window.

    `reach_ns` is how much later than the window's end its last joule may be on display.
    """
    refreshes = {name: cut_refreshes(one, start_ns, end_ns + reach_ns) for name, one in content.refreshes.items()}
    spans = [one for one in refreshes.values() if len(one)]
    low = min([int(one.read_start_ns[0]) for one in spans], default=start_ns)
    high = max([int(one.read_end_ns[-1]) for one in spans], default=end_ns)
    samples = {name: _cut_samples(one, min(low, start_ns), max(high, end_ns)) for name, one in content.samples.items()}
    flags = []
    for code, (since_ns, until_ns) in content.faults.items():
        near = (since_ns <= max(high, end_ns)) & (until_ns >= min(low, start_ns))
        if near.any():
            samples[FAULT_PREFIX + code] = Samples(
                until_ns[near], (until_ns - since_ns)[near].astype(np.float64) * 1e-9
            )
        if bool(((since_ns <= end_ns) & (until_ns >= start_ns)).any()):
            flags.append(_REASONS[code])
    return Trace(refreshes, samples, tuple(flags))


def cut_refreshes(one: Refreshes, start_ns: int, end_ns: int) -> Refreshes:
    """Keep the window, at least `OUTSIDE_REFRESHES` + 1 refreshes on each side, and 0.4 s where they are denser."""
    low = int((one.read_end_ns < start_ns).sum())
    high = int((one.read_start_ns <= end_ns).sum())
    low = min(max(low - OUTSIDE_REFRESHES - 1, 0), int((one.read_end_ns < start_ns - _OUTSIDE_NS).sum()))
    high = max(high + OUTSIDE_REFRESHES + 1, int((one.read_start_ns <= end_ns + _OUTSIDE_NS).sum()))
    return Refreshes(one.read_start_ns[low:high], one.read_end_ns[low:high], one.counter_j[low:high])


def _cut_samples(one: Samples, start_ns: int, end_ns: int) -> Samples:
    """Keep what was sampled between the times, and one sample before: a slow quantity's last value still holds."""
    low = max(int((one.t_ns < start_ns).sum()) - 1, 0)
    high = int((one.t_ns <= end_ns).sum()) + 1
    return Samples(one.t_ns[low:high], one.value[low:high])
