"""One runner per block, and a lock that outlives nobody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specjoule.blocks.lock import STALE_S, BlockBusy, block_lock
from specjoule.errors import StoreError
from specjoule.processes import boot_id, process_start

HOLD = """
import sys, time
from pathlib import Path
from specjoule.blocks.lock import block_lock
with block_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_runner_is_refused_and_the_first_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with block_lock(path):
        with pytest.raises(BlockBusy, match=str(os.getpid())), block_lock(path):
            pass
        assert path.exists()
    assert not path.exists()


def test_a_lock_whose_holder_was_killed_is_broken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BlockBusy), block_lock(path):
        pass
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # ended, but nobody has taken note of it yet
    with block_lock(path):
        pass
    holder.wait()
    with block_lock(path):
        pass


def test_a_lock_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file in the folder's place")
    for path in (tmp_path / "store" / "lock", tmp_path / "store" / "study" / "lock"):
        with pytest.raises(StoreError, match=r"the block cannot be locked \(.*\); check"), block_lock(path):
            pass


def test_a_reused_process_number_does_not_keep_a_dead_lock_alive(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "start": "1", "boot": boot_id()}
    path.write_text(json.dumps(mine))
    with block_lock(path):
        pass


def test_a_lock_of_an_earlier_boot_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    start = process_start(os.getpid())
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "start": start, "boot": "other"}))
    with block_lock(path):
        pass


def test_another_hosts_lock_lives_as_long_as_its_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "boot": "b"}))
    with pytest.raises(BlockBusy, match="elsewhere"), block_lock(path):
        pass
    old = time.time() - STALE_S - 1
    os.utime(path, (old, old))
    with block_lock(path):
        pass


def test_a_torn_lock_file_is_waited_for_and_then_broken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"host": "el')
    with pytest.raises(BlockBusy), block_lock(path):
        pass
    os.utime(path, (time.time() - 10,) * 2)
    with block_lock(path):
        pass


RACE = """
import sys, time
from pathlib import Path
from specjoule.blocks.lock import BlockBusy, block_lock
log = Path(sys.argv[2])
for _ in range(40):
    try:
        with block_lock(Path(sys.argv[1])):
            with log.open("a") as handle:
                handle.write("in\\n"); handle.flush()
                time.sleep(0.002)
                handle.write("out\\n")
    except BlockBusy:
        time.sleep(0.001)
"""


def test_racing_runners_are_never_inside_together(tmp_path: Path) -> None:
    log = tmp_path / "log"
    racers = [subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path / "lock"), str(log)]) for _ in range(3)]
    for racer in racers:
        assert racer.wait(60) == 0
    lines = log.read_text().split()
    assert lines == ["in", "out"] * (len(lines) // 2)
    assert len(lines) >= 2
