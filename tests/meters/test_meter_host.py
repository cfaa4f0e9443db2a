"""RAPL and the estimate through the real sampler process, over a powercap tree of our own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_powercap import Powercap

from specjoule.errors import MeterError
from specjoule.meters import sources
from specjoule.meters.energy import window_energy
from specjoule.meters.factory import MeterSettings, open_meter
from specjoule.meters.sampled import SampledMeter
from specjoule.meters.sampler import DIRECTORY_PREFIX
from specjoule.meters.sources import estimate, rapl
from specjoule.reasons import Reason

BUSY_CHILD = """
import sys, time
sys.stdin.readline()
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
"""


def rapl_meter(tree: Powercap) -> SampledMeter:
    return open_meter(MeterSettings(name="rapl", powercap_root=tree.root))


def measure(meter: SampledMeter, seconds: float, lead_s: float = 0.5):
    time.sleep(lead_s)
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    end_ns = time.monotonic_ns()
    trace = meter.trace(start_ns, end_ns)
    return trace, start_ns, end_ns


def test_rapl_counts_packages_and_dram_once(powercap: Callable[..., Powercap]) -> None:
    meter = rapl_meter(powercap(watts=50.0))
    info = meter.start()
    try:
        trace, start_ns, end_ns = measure(meter, 1.0)
    finally:
        meter.stop()
    assert info.scope == "package"
    assert set(trace.refreshes) == {"board", "package-0", "package-1", "dram-0", "dram-1"}
    result = window_energy(
        trace.refreshes["board"], start_ns, end_ns, edges="generation", calibration=meter.calibration
    )
    assert result.energy_j == pytest.approx(4 * 50.0 * (end_ns - start_ns) * 1e-9, rel=0.02)
    assert result.flags == ()
    one = window_energy(trace.refreshes["dram-1"], start_ns, end_ns, edges="decode", calibration=meter.calibration)
    assert one.energy_j == pytest.approx(50.0 * (one.end_ns - one.start_ns) * 1e-9, rel=0.02)


def test_rapl_wraps(powercap: Callable[..., Powercap]) -> None:
    meter = rapl_meter(powercap(watts=50.0, wrap_uj=20_000_000, start_uj=19_000_000))
    meter.start()
    try:
        trace, start_ns, end_ns = measure(meter, 0.8, lead_s=0.1)
    finally:
        meter.stop()
    board = trace.refreshes["board"]
    assert (np.diff(board.counter_j) > 0).all()
    result = window_energy(board, start_ns, end_ns, edges="generation", calibration=meter.calibration)
    assert result.energy_j == pytest.approx(200.0 * (end_ns - start_ns) * 1e-9, rel=0.05)


def test_unwrapper_tells_wrap_from_reset() -> None:
    counter = rapl.Unwrapper(wrap_uj=1_000_000)
    assert counter.joules(900_000, 0) == pytest.approx(0.9)
    assert counter.joules(100_000, 10_000_000) == pytest.approx(1.1)
    late = rapl.Unwrapper(wrap_uj=262_000_000_000)
    late.joules(200_000_000_000, 0)
    with pytest.raises(sources.ReadFault) as caught:
        late.joules(5, 10_000_000)
    assert caught.value.reason is Reason.COUNTER_RESET
    assert late.joules(1_000_005, 20_000_000) == pytest.approx(1.000005)


def test_frozen_rapl_is_unknown_not_zero(powercap: Callable[..., Powercap]) -> None:
    tree = powercap()
    meter = rapl_meter(tree)
    meter.start()
    try:
        time.sleep(0.5)
        tree.frozen = True
        trace, start_ns, end_ns = measure(meter, 0.8, lead_s=0.1)
    finally:
        meter.stop()
    result = window_energy(
        trace.refreshes["board"], start_ns, end_ns, edges="generation", calibration=meter.calibration,
        faults=trace.flags,
    )  # fmt: skip
    assert result.energy_j is None
    assert result.uncertainty_j is None
    assert Reason.COUNTER_FROZEN in result.flags


def test_auto_says_why_rapl_cannot_be_read(tmp_path: Path) -> None:
    meter = open_meter(MeterSettings(name="auto", powercap_root=tmp_path))
    assert meter.name == "estimate"
    assert meter.note is not None
    assert "no CPU package zone" in meter.note
    assert "not measured" in meter.note
    with pytest.raises(MeterError, match="modprobe"):
        open_meter(MeterSettings(name="rapl", powercap_root=tmp_path))


def test_auto_says_how_to_allow_rapl(powercap: Callable[..., Powercap], monkeypatch: pytest.MonkeyPatch) -> None:
    tree = powercap()
    read_text = Path.read_text

    def refuse(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refuse)  # tests may run as root, whom no file mode stops
    meter = open_meter(MeterSettings(powercap_root=tree.root))
    assert meter.name == "estimate"
    assert meter.note is not None
    assert "chmod" in meter.note


def test_estimate_counts_cpu_time_of_the_tree_even_after_it_ended() -> None:
    meter = open_meter(MeterSettings(name="estimate", watts_per_core=10.0))
    meter.start()
    child = subprocess.Popen([sys.executable, "-c", BUSY_CHILD, "0.6"], stdin=subprocess.PIPE)
    try:
        meter.attach(os.getpid())
        time.sleep(0.3)
        start_ns = time.monotonic_ns()
        child.communicate(b"go\n", timeout=60)
        time.sleep(0.1)
        end_ns = time.monotonic_ns()
        trace = meter.trace(start_ns, end_ns)
    finally:
        meter.stop()
    board = trace.refreshes["board"]
    assert (np.diff(board.counter_j) >= 0).all()
    result = window_energy(board, start_ns, end_ns, edges="generation", calibration=meter.calibration)
    assert result.energy_j is not None
    # The child used 0.6 s; this process adds its own waiting.
    assert 5.7 < result.energy_j < 8.0


def test_cpu_clock_agrees_with_the_process_itself() -> None:
    before = time.process_time_ns()
    other = time.clock_gettime_ns(estimate.cpu_clock_id(os.getpid()))
    assert before <= other <= time.process_time_ns()


def test_the_sampler_does_not_count_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "children", lambda pid: {1: [2, 3], 3: [4]}.get(pid, []))
    assert sorted(estimate.tree(1, excluded=3)) == [1, 2]


def test_an_idle_process_gives_no_zero_energy() -> None:
    meter = open_meter(MeterSettings(name="estimate"))
    meter.start()
    try:
        trace, start_ns, end_ns = measure(meter, 0.3, lead_s=0.2)
    finally:
        meter.stop()
    result = window_energy(
        trace.refreshes["board"], start_ns, end_ns, edges="generation", calibration=meter.calibration
    )
    assert result.energy_j is None
    assert result.flags == (Reason.ZERO_ENERGY,)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_sampler_survives_its_parent(how: signal.Signals) -> None:
    code = (
        "import time\n"
        "from specjoule.meters.factory import MeterSettings, open_meter\n"
        "meter = open_meter(MeterSettings(name='estimate'))\n"
        "meter.start()\n"
        "print(meter.sampler_pid, meter.directory, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, directory = parent.stdout.readline().split()
    sampler = int(pid)
    assert Path(directory, "meter.log").exists()
    assert psutil.pid_exists(sampler)
    parent.send_signal(how)
    parent.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(sampler) and psutil.Process(sampler).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not Path(directory).exists()


def test_a_sampler_whose_parent_died_while_it_started_ends_too(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    directory = tmp_path / f"{DIRECTORY_PREFIX}orphan"
    directory.mkdir()
    spec = json.dumps(asdict(sources.SourceSpec("estimate", 20_000_000)))
    command = [sys.executable, "-m", "specjoule.meters.sampler", str(directory / "meter.log"), spec, str(gone.pid)]
    sampler = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert sampler.wait(timeout=30) == 0
    finally:
        sampler.kill()
        sampler.communicate()
    assert not directory.exists()


def test_an_interrupt_leaves_the_sampler_to_its_parent() -> None:
    meter = open_meter(MeterSettings(name="estimate"))
    meter.start()
    try:
        assert meter.sampler_pid is not None
        os.kill(meter.sampler_pid, signal.SIGINT)
        trace, _, _ = measure(meter, 0.2)
        assert len(trace.refreshes["board"]) > 10
        meter.stop()
        meter.stop()
    finally:
        meter.stop()


def test_a_sampler_that_died_is_an_error_with_words() -> None:
    meter = open_meter(MeterSettings(name="estimate"))
    meter.start()
    try:
        assert meter.sampler_pid is not None
        os.kill(meter.sampler_pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(MeterError, match="ended by itself"):
            meter.attach(1)
        now_ns = meter.clock.now_ns()
        with pytest.raises(MeterError, match="ended within a window"):
            meter.trace(now_ns - 100_000_000, now_ns)
    finally:
        meter.stop()
