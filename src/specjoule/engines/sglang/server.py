"""One server's life: started under its guard, watched, ended, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Ended:
    """How a server ended: exit code or signal, and whether we asked for it."""

    exit_code: int | None
    signal_number: int | None
    asked: bool
    killed: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """The end in words, for messages."""
        if self.signal_number is not None:
            return f"by signal {self.signal_number} ({signal.Signals(self.signal_number).name})"
        return "in an unknown way" if self.exit_code is None else f"with exit status {self.exit_code}"


class ServerProcess:
    """A server under its guard. `start` once; `ended` says whether and how it is over; `stop` is safe to call twice."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.pid: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._report: IO[bytes] | None = None
        self._ended: Ended | None = None
        self._log: IO[bytes] | None = None
        self._seen: dict[int, float] = {}

    def start(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        """Start `command` with its output appended to `log_path`. Raises OSError if the program cannot be started."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_path.open("ab")
        reader, writer = os.pipe()
        self._report = os.fdopen(reader, "rb")
        guard = [sys.executable, "-I", str(GUARD), str(self.grace_s), str(writer), "--", *command]
        try:
            self._guard = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        first = self._read_report(30.0)
        if first is None or first.get("pid") is None:
            self.stop()
            raise OSError((first or {}).get("error", "the server's guard did not start"))
        self.pid = int(first["pid"])

    def ended(self) -> Ended | None:
        """Return how the server ended; None while it runs."""
        if self._ended is None and self._guard is not None and self._guard.poll() is not None:
            self._finish()
        return self._ended

    def processes(self) -> list[int]:
        """Return the ids of the server's processes that live now (and remember them, to look for orphans later)."""
        if self.pid is None:
            return []
        try:
            root = psutil.Process(self.pid)
            found = {p.pid: p.create_time() for p in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            return []
        self._seen.update(found)
        return list(found)

    def stop(self) -> Ended | None:
        """End the server and everything it started; return how it ended (None if it was never started)."""
        if self._guard is None:
            return None
        self.processes()
        if self._guard.poll() is None and self._guard.stdin is not None:
            self._guard.stdin.close()
            try:
                self._guard.wait(self.grace_s + 15.0)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
        self._finish()
        return self._ended

    def orphans(self) -> list[int]:
        """Return the processes of this server that still live after `stop`; there must be none."""
        return [pid for pid, born in sorted(self._seen.items()) if _is_alive(pid, born)]

    def _finish(self) -> None:
        if self._ended is not None:
            return
        last = self._read_report(0.5) or {}
        if not last:
            self._kill_left_over()
        self._ended = Ended(
            last.get("exit"), last.get("signal"), bool(last.get("asked", False)), tuple(last.get("killed", ()))
        )
        for handle in (self._log, self._report, self._guard.stdin if self._guard is not None else None):
            if handle is not None and not handle.closed:
                handle.close()

    def _kill_left_over(self) -> None:
        """Kill what the guard could not, because the guard itself was killed."""
        for pid in self.orphans():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _read_report(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._report is not None
        readable, _, _ = select.select([self._report], [], [], timeout_s)
        line = self._report.readline() if readable else b""
        return json.loads(line) if line else None


def _is_alive(pid: int, born: float) -> bool:
    """Say whether the process of that id and birth time still runs: an id alone may be another's by now."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == born and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float) -> bool:
    """Wait until `condition` holds; return whether it did within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
