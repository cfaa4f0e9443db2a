"""A server's life and end: nothing it starts outlives it, the runner, or the guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specjoule.engines.sglang import board
from specjoule.engines.sglang.server import ServerProcess, wait_until

SCHEDULER = "import time, sys; print('scheduler', flush=True); time.sleep(600)"
SERVER = """
import os, signal, subprocess, sys, time
{before}
child = subprocess.Popen([sys.executable, "-c", {scheduler!r}], start_new_session={session})
print("pids", os.getpid(), child.pid, flush=True)
{after}
time.sleep(600)
"""


def program(before: str = "", after: str = "", session: bool = False, scheduler: str = SCHEDULER) -> list[str]:
    text = SERVER.format(before=before, after=after, session=session, scheduler=scheduler)
    return [sys.executable, "-c", text]


def pids_in(log: Path) -> list[int]:
    """Return the two process ids that the test's server wrote to its log."""

    def written() -> bool:
        return log.exists() and "pids" in log.read_text() and log.read_text().endswith("\n")

    assert wait_until(written, 20, 0.05), log.read_text() if log.exists() else "no log"
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], within_s: float = 15) -> bool:
    return wait_until(lambda: not any(alive(p) for p in pids), within_s, 0.05)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "server.log"


def test_stop_ends_the_whole_tree_and_says_how(log: Path) -> None:
    server = ServerProcess(grace_s=5)
    server.start(program(), os.environ, log)
    pids = pids_in(log)
    assert server.ended() is None
    assert set(pids) <= set(server.processes())
    assert os.getpgid(pids[0]) != os.getpgid(0)
    ended = server.stop()
    assert ended is not None and ended.asked and ended.signal_number == signal.SIGTERM and ended.killed == ()
    assert gone(pids)
    assert server.orphans() == []
    assert server.stop() == ended


def test_ignored_term_ends_in_kill(log: Path) -> None:
    server = ServerProcess(grace_s=0.5)
    server.start(program(before="signal.signal(signal.SIGTERM, signal.SIG_IGN)"), os.environ, log)
    pids = pids_in(log)
    ended = server.stop()
    assert ended is not None and ended.killed and gone(pids)
    assert "SIGKILL" in ended.words


def test_child_in_a_session_of_its_own_does_not_survive_a_server_that_crashes(log: Path) -> None:
    server = ServerProcess(grace_s=1)
    server.start(program(after="time.sleep(0.2); os._exit(7)", session=True), os.environ, log)
    pids = pids_in(log)
    assert wait_until(lambda: server.ended() is not None, 15, 0.05)
    ended = server.ended()
    assert ended is not None and ended.exit_code == 7 and not ended.asked
    assert gone(pids)


def test_program_that_is_not_there(log: Path) -> None:
    with pytest.raises(OSError, match="/no/such/program: No such file"):
        ServerProcess(grace_s=1).start(["/no/such/program"], os.environ, log)


RUNNER = """
import os, sys, time
from pathlib import Path
from specjoule.engines.sglang.server import ServerProcess
server = ServerProcess(grace_s=1)
server.start({command!r}, os.environ, Path({log!r}))
{after}
time.sleep(600)
"""


def run_runner(log: Path, after: str = "", session: bool = False) -> subprocess.Popen[bytes]:
    text = RUNNER.format(command=program(session=session), log=str(log), after=after)
    return subprocess.Popen([sys.executable, "-c", text])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_runner(log: Path, number: signal.Signals) -> None:
    runner = run_runner(log, session=True)
    pids = pids_in(log)
    guard = psutil.Process(pids[0]).ppid()
    runner.send_signal(number)
    runner.wait(10)
    assert gone([*pids, guard])


def test_nothing_survives_a_runner_whose_fork_holds_its_pipes(log: Path) -> None:
    """A forked helper of the runner keeps the leash open; the guard sees that its parent is another now."""
    runner = run_runner(log, after="pid = os.fork()\nif pid == 0: time.sleep(20); os._exit(0)\nprint(pid, flush=True)")
    pids = pids_in(log)
    time.sleep(0.3)
    helpers = [p.pid for p in psutil.Process(runner.pid).children() if p.pid != psutil.Process(pids[0]).ppid()]
    runner.kill()
    runner.wait(10)
    assert gone(pids)
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)


def test_nothing_survives_a_killed_guard(log: Path) -> None:
    server = ServerProcess(grace_s=1)
    server.start(program(), os.environ, log)
    pids = pids_in(log)
    server.processes()
    os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
    assert wait_until(lambda: server.ended() is not None, 15, 0.05)
    server.stop()
    assert gone(pids)


def test_board_is_waited_for_and_the_rest_is_named() -> None:
    answers = iter([(11, 12), (12,), ()])
    assert board.wait_until_free("GPU-1", 5, lambda _: next(answers), poll_s=0) == ()
    assert board.wait_until_free("GPU-1", 0, lambda _: (11,), poll_s=0) == (11,)
