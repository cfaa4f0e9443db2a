"""The server's parent: a small process that ends everything the server started, whatever ends the runner.

    python guard.py GRACE_S REPORT_FD -- COMMAND...

Run as a script, standard library only. It leads a session of its own, adopts every orphan below it, starts the server
in a process group of its own and then waits for the first of: the server ends; standard input closes (the runner asks
for the end, or died, even by SIGKILL); its parent changes; SIGTERM or SIGINT. It then ends the server and all
other descendants, TERM first, KILL after the grace time, and leaves with the server's own exit status. If the guard
itself is killed, the kernel kills the server (PR_SET_PDEATHSIG), and the server's children follow their parent.

On REPORT_FD it writes one line of JSON when the server is started ({"pid": ...}) and one when all is over
({"exit": code or null, "signal": n or null, "killed": [pids that needed SIGKILL]}).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.5


def descendants(root: int) -> list[int]:
    """Return the ids of all living processes below `root`, from /proc; zombies are left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_all(root: int, grace_s: float) -> list[int]:
    """End every descendant of `root`; return the ids that needed SIGKILL."""
    _signal_all(root, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while descendants(root) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    killed: set[int] = set()
    while left := descendants(root):
        killed.update(left)
        _signal_all(root, signal.SIGKILL)
        _reap()
        time.sleep(0.02)
    return sorted(killed)


def _signal_all(root: int, number: int) -> None:
    for pid in descendants(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


_statuses: dict[int, int] = {}
"""Wait status of every ended child, the server's among them."""


def _reap() -> None:
    """Collect every ended child and adopted orphan."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _statuses[ended[0]] = ended[1]


def _status(pid: int) -> int | None:
    """Return the wait status of `pid` if it has ended."""
    _reap()
    return _statuses.get(pid)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _report(descriptor: int, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, (json.dumps(content) + "\n").encode())


def main(arguments: list[str]) -> int:
    """Guard one server to its end."""
    grace_s, report = float(arguments[0]), int(arguments[1])
    command = arguments[arguments.index("--") + 1 :]
    runner = os.getppid()
    stop = False

    def asked(*_: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, asked)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def prepare() -> None:
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=prepare)  # noqa: PLW1509 - one thread
    except OSError as error:
        _report(report, {"pid": None, "error": f"{command[0]}: {error.strerror}"})
        return 127
    _report(report, {"pid": server.pid})
    status: int | None = None
    while not stop and status is None:
        readable, _, _ = select.select([0], [], [], POLL_S)
        stop = stop or os.getppid() != runner or bool(readable and not os.read(0, 4096))
        status = _status(server.pid)
    killed = end_all(os.getpid(), grace_s)
    if status is None:
        status = _status(server.pid)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    died_of = -code if code is not None and code < 0 else None
    _report(report, {"exit": code if died_of is None else None, "signal": died_of, "asked": stop, "killed": killed})
    return 0 if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
