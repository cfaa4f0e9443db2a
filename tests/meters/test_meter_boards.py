"""Which board is meant, and clocks that are always given back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_nvml import FakeDriver
from tests.conftest import REPO

from specjoule.errors import MeterError
from specjoule.meters.base import Samples
from specjoule.meters.boards import resolve
from specjoule.meters.clocks import clock_flags
from specjoule.meters.factory import MeterSettings, is_shared, open_meter
from specjoule.reasons import Reason

Make = Callable[..., FakeDriver]
A, B = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000"


@pytest.mark.parametrize(
    ("asked", "environment", "boards", "expected"),
    [
        (A, {}, [A, B], A),
        ("GPU-bbbb", {}, [A, B], B),
        ("1", {}, [A, B], B),
        (None, {}, [A], A),
        (None, {"CUDA_VISIBLE_DEVICES": B}, [A, B], B),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, [A, B], B),
        (None, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [A, B], B),
        (None, {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "3"}, [B], B),
        (None, {"SLURM_JOB_GPUS": "3"}, [B], B),
        (None, {"SLURM_STEP_GPUS": "1"}, [A, B], B),
        (None, {"SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": "0"}, [A, B], A),
        (B, {"CUDA_VISIBLE_DEVICES": A}, [A, B], B),
    ],
)
def test_boards_are_found(asked: str | None, environment: Mapping[str, str], boards: list[str], expected: str) -> None:
    assert resolve(asked, environment, boards) == expected


@pytest.mark.parametrize(
    ("asked", "environment", "boards", "words"),
    [
        (None, {}, [A, B], "names one"),
        (None, {}, [], "shows no board"),
        (None, {"CUDA_VISIBLE_DEVICES": "0,1"}, [A, B], "names 2 boards"),
        (None, {"CUDA_VISIBLE_DEVICES": f"{A},{B}"}, [A, B], "names 2 boards"),
        (None, {"CUDA_VISIBLE_DEVICES": "1"}, [A, B], "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, [A], "hides every board"),
        (None, {"CUDA_VISIBLE_DEVICES": "-1"}, [A], "hides every board"),
        (None, {"CUDA_VISIBLE_DEVICES": "MIG-4f1a"}, [A], "MIG part"),
        (None, {"CUDA_VISIBLE_DEVICES": f"MIG-{A}/1/0"}, [A], "MIG part"),
        ("GPU-", {}, [A, B], "2 boards begin so"),
        ("GPU-cccc", {}, [A, B], "shows only"),
        ("2", {}, [A, B], "names board 2"),
    ],
)
def test_boards_that_are_ambiguous_or_absent(
    asked: str | None, environment: Mapping[str, str], boards: list[str], words: str
) -> None:
    with pytest.raises(MeterError, match=words):
        resolve(asked, environment, boards)


@pytest.mark.parametrize(
    ("environment", "shared"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "1"}, True),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8"}, True),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "16"}, False),
    ],
)
def test_a_node_is_ours_only_when_all_of_it_is(environment: Mapping[str, str], shared: bool) -> None:
    assert is_shared(environment, 16) is shared


def test_a_clock_that_was_not_obeyed_shows_in_the_window() -> None:
    t_ns = np.arange(0, 10, dtype=np.int64)
    clock = Samples(t_ns, np.array([345.0, 345.0, 1410, 1410, 1410, 1395, 1410, 1410, 345, 345]))
    assert clock_flags(clock, 2, 7, 1410) == ()
    assert clock_flags(clock, 2, 7, 1500) == (Reason.CLOCK_NOT_OBEYED,)
    assert clock_flags(clock, 2, 7, None) == ()
    assert clock_flags(None, 2, 7, 1410) == ()


# -- locked clocks, in processes of their own (the library is found when a process starts)

LOCK = """
import dataclasses, json, sys, time
from specjoule.meters.clocks import ClockHooks, ClockLock
uuid, mhz, what, *hooks = sys.argv[1:]
with ClockLock(uuid, int(mhz), ClockHooks((hooks[0],), (hooks[1],)) if hooks else None) as outcome:
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    if what == "raise":
        raise RuntimeError
    if what == "wait":
        time.sleep(60)
"""


def lock(fake: FakeDriver, what: str = "leave", *hooks: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", LOCK, fake.uuid(), "1410", what, *hooks],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_sites_own_tool_locks_the_clock_of_a_block(driver: Make, tmp_path: Path) -> None:
    fake = driver({"clock_error": 4})
    done = tmp_path / "done.txt"
    code = f"""
from pathlib import Path
from specjoule.blocks.devices import open_devices
from specjoule.study.load import load_study
study = load_study(Path({str(REPO / "config/paper.yaml")!r}))
say = ("bash", "-c", 'echo "$0 $SPECJOULE_BOARD $SPECJOULE_MHZ" >> {done}')
devices = open_devices(study, study.gpus["H100"], "b", 1, {fake.uuid()!r}, ((*say, "lock"), (*say, "unlock")))
with devices.locked_clock({fake.uuid()!r}, 1410):
    pass
with devices.locked_clock({fake.uuid()!r}, None):
    pass
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert done.read_text(encoding="utf-8") == f"lock {fake.uuid()} 1410\nunlock {fake.uuid()} \n"
    assert fake[0].sets == 0


@pytest.mark.parametrize("what", ["leave", "raise"])
def test_clocks_are_locked_read_back_and_restored(driver: Make, what: str) -> None:
    fake = driver()
    outcome = lock(fake, what)
    assert (outcome["read_back_mhz"], outcome["reason"]) == (1410, None)
    assert (fake[0].sets, fake[0].resets, fake[0].locked_max) == (1, 1, 0)


def test_a_board_that_ignores_the_lock_shows_another_clock(driver: Make) -> None:
    outcome = lock(driver({"obeys_clock": 0}))
    assert outcome["read_back_mhz"] == 1980


def test_no_permission_to_lock_is_a_reason_with_a_remedy(driver: Make) -> None:
    fake = driver({"clock_error": 4})
    outcome = lock(fake)
    assert outcome["reason"] == "no_permission"
    assert "clocks.lock" in str(outcome["message"])
    assert not list((Path(fake.path).parent / "state" / "locked-clocks").glob("*.json"))


def killed_while_locked(fake: FakeDriver) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, fake.uuid(), "1410", "wait"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert fake[0].locked_max == 1410
    holder.kill()
    holder.communicate()


def test_after_kill_9_the_next_start_restores_the_clocks(driver: Make) -> None:
    fake = driver()
    killed_while_locked(fake)
    assert fake[0].locked_max == 1410
    meter = open_meter(MeterSettings(name="nvml", board=fake.uuid()))
    try:
        meter.start()
    finally:
        meter.stop()
    assert (fake[0].locked_max, fake[0].resets) == (0, 1)


def test_after_kill_9_the_next_lock_works_too(driver: Make) -> None:
    fake = driver()
    killed_while_locked(fake)
    assert lock(fake)["read_back_mhz"] == 1410
    assert (fake[0].locked_max, fake[0].resets) == (0, 2)


def test_the_sampler_restores_what_its_killed_parent_locked(driver: Make) -> None:
    fake = driver()
    code = (
        "import sys, time\n"
        "from specjoule.meters.clocks import ClockLock\n"
        "from specjoule.meters.factory import MeterSettings, open_meter\n"
        "meter = open_meter(MeterSettings(name='nvml', board=sys.argv[1]))\n"
        "meter.start()\n"
        "with ClockLock(sys.argv[1], 1410):\n"
        "    print(meter.sampler_pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, fake.uuid()], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    sampler = int(parent.stdout.readline())
    assert fake[0].locked_max == 1410
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 15
    while fake[0].locked_max or (psutil.pid_exists(sampler) and psutil.Process(sampler).status() != "zombie"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_another_live_holder_is_respected(driver: Make) -> None:
    fake = driver()
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, fake.uuid(), "1410", "wait"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        second = subprocess.run(
            [sys.executable, "-c", LOCK, fake.uuid(), "1200", "leave"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "Another process has locked" in second.stderr
        assert fake[0].locked_max == 1410
    finally:
        holder.kill()
        holder.communicate()


def test_a_sites_hooks_take_the_place_of_the_driver(driver: Make, tmp_path: Path) -> None:
    fake = driver()
    log = tmp_path / "hooks.txt"
    for name in ("before", "after", "refuse"):
        script = tmp_path / name
        text = (
            "echo no >&2; exit 3" if name == "refuse" else f'echo {name} "$SPECJOULE_BOARD" "$SPECJOULE_MHZ" >> {log}'
        )
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    lock(fake, "raise", str(tmp_path / "before"), str(tmp_path / "after"))
    assert log.read_text().splitlines() == [f"before {fake.uuid()} 1410", f"after {fake.uuid()} "]
    assert fake[0].sets == 0
    refused = lock(fake, "leave", str(tmp_path / "refuse"), str(tmp_path / "after"))
    assert refused["reason"] == "no_permission"
