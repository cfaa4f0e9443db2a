"""Calibration and the commands, as a user runs them, over the stand-in driver."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_nvml import FakeDriver

from specjoule.errors import MeterError
from specjoule.meters import calibration
from specjoule.meters.base import BoardInfo, Calibration, Refreshes, Samples, Trace
from specjoule.meters.calibration_store import calibration_for, load_calibration
from specjoule.meters.external import add_external
from specjoule.meters.load import ProgramLoad, square_spans

Make = Callable[..., FakeDriver]
LOAD = Path(__file__).with_name("fake_load.py")
METER = [sys.executable, "-c", "from specjoule.meters.commands import app; app()"]
CHECK = [sys.executable, "-c", "from specjoule.meters.commands import check_app; check_app()"]


def run(command: list[str], *arguments: object) -> dict[str, object]:
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("refresh_s", "lag_s"), [(0.1, 0.07), pytest.param(0.02, 0.015, marks=pytest.mark.slow)])
def test_check_measure_finds_what_the_board_is(driver: Make, refresh_s: float, lag_s: float) -> None:
    fake = driver({"refresh_s": refresh_s, "lag_s": lag_s})
    load = f"{sys.executable} {LOAD} {fake.path} 0"
    report = run(
        CHECK, "--board", fake.uuid(), "--measure", "--load-command", load, "--steps", 5, "--step-s", 1.2,
        "--aliasing-s", 0.3,
    )  # fmt: skip
    found = load_calibration(fake.uuid())
    assert found is not None
    assert report["calibration"]["lag_ns"] == found.lag_ns  # type: ignore[index]
    assert found.refresh_ns == pytest.approx(refresh_s * 1e9, rel=0.02)
    assert found.idle_w == pytest.approx(120.0, rel=0.01)
    assert abs(found.lag_ns - lag_s * 1e9) <= max(found.lag_uncertainty_ns, 3e6)
    assert found.lag_uncertainty_ns < 10e6
    assert len(found.aliasing) == 21
    assert max(abs(point.relative_error) for point in found.aliasing) < 0.08
    assert max(abs(point.against_slowest) for point in found.aliasing) < 0.04
    assert found.smallest_generation_s >= 2.9 * refresh_s
    assert found.smallest_decode_s >= found.smallest_generation_s
    now, stale = calibration_for(BoardInfo(uuid=fake.uuid(), name="", driver="580.95.05"))
    assert now.calibrated and not stale
    later, stale = calibration_for(BoardInfo(uuid=fake.uuid(), name="", driver="590.00"))
    assert stale and not later.calibrated


def test_lag_from_steps_is_exact_where_nothing_disturbs() -> None:
    spans = [(2_000_000_000 + i * 2_000_000_000, 3_000_000_000 + i * 2_000_000_000) for i in range(4)]
    t_ns = np.arange(0, 11_000_000_000, 50_000_000, dtype=np.int64)
    lag_ns = 37_000_000
    energy = 100.0 * (t_ns - lag_ns) * 1e-9
    for on, off in spans:
        energy = energy + 400.0 * np.clip(t_ns - lag_ns - on, 0, off - on) * 1e-9
    found = calibration.step_lag(Refreshes(t_ns, t_ns, energy), spans)
    assert found.lag_ns == pytest.approx(lag_ns, abs=1e4)
    assert found.uncertainty_ns == 0.8e6
    with pytest.raises(MeterError, match="No load step"):
        calibration.step_lag(Refreshes(t_ns[:10], t_ns[:10], energy[:10]), spans)


def test_square_spans_are_whole_periods() -> None:
    spans = square_spans(1_000, 0.02, 0.25, 0.1)
    assert len(spans) == 5
    assert spans[1] == (20_001_000, 25_001_000)


def test_a_load_that_cannot_run_has_a_remedy() -> None:
    with (
        ProgramLoad([sys.executable, "-c", "print('null')"]) as load,
        pytest.raises(MeterError, match="--load-command"),
    ):
        load.square(0.1, 0.5, 1.0)


def test_record_and_integrate(driver: Make, tmp_path: Path) -> None:
    fake = driver()
    now = time.monotonic_ns()
    # Room for the interpreter to start on a busy machine.
    span = (now + 4_500_000_000, now + 6_030_000_000)
    fake.plan([span])
    trace = tmp_path / "trace.parquet"
    said = run(METER, "record", "--board", fake.uuid(), "--seconds", 8, "--output", trace)
    assert said["meter"] == "nvml"
    assert said["provenance"] == "measured on the GPU board"
    result = run(METER, "integrate", trace, "--start-ns", span[0], "--end-ns", span[1])
    truth_j = fake.truth_j(*span)
    assert result["energy_j"] == pytest.approx(truth_j, rel=0.01)
    assert result["energy_naive_j"] == pytest.approx(truth_j, rel=0.2)
    assert result["power_integral_j"] == pytest.approx(truth_j, rel=0.15)
    assert result["refresh_ms"] == pytest.approx(100, rel=0.1)
    assert "lag_not_calibrated" in result["flags"]  # type: ignore[operator]
    decode = run(METER, "integrate", trace, "--start-ns", span[0], "--end-ns", span[1], "--edges", "decode")
    assert span[0] <= decode["start_ns"] < decode["end_ns"] <= span[1]  # type: ignore[operator]
    outside = run(METER, "integrate", trace, "--start-ns", 5, "--end-ns", 10)
    assert outside["energy_j"] is None
    assert "outside_trace" in outside["flags"]  # type: ignore[operator]


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [*METER, "integrate", str(tmp_path / "none.parquet"), "--start-ns", "1", "--end-ns", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "specjoule meter record" in done.stderr
    assert "Traceback" not in done.stderr


def test_external_readings_become_a_channel(tmp_path: Path) -> None:
    offset = 1_700_000_000_000_000_000.0
    trace = Trace({}, {"wall_offset_ns": Samples(np.array([0, 10**9]), np.array([offset, offset]))})
    wall = tmp_path / "wall.csv"
    wall.write_text("unix_s,power_w\n1700000000.5,800\n1700000001.500000001,900\n")
    power = add_external(trace, wall, "pdu").samples["external-pdu-power_w"]
    assert list(power.t_ns) == [500_000_000, 1_500_000_001]
    assert list(power.value) == [800.0, 900.0]
    bmc = tmp_path / "bmc.csv"
    bmc.write_text("time,energy_kwh\n2023-11-14T22:13:20+00:00,1.0\n2023-11-14T23:13:21+01:00,1.001\n")
    energy = add_external(trace, bmc, "bmc", clock_error_s=0.25).refreshes["external-bmc"]
    assert list(energy.counter_j) == pytest.approx([3.6e6, 3.6036e6])
    assert list(energy.t_ns) == [0.0, 1e9]
    assert energy.read_end_ns[0] - energy.read_start_ns[0] == 500_000_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "expected a header"),
        ("time,power_w\n2023-11-14T22:13:20,5\n", "no offset from UTC"),
        ("unix_s,energy_j\n1,5\n2,4\n", "decreases"),
        ("unix_s,power_w\n1,x\n", "line 2"),
    ],
)
def test_external_readings_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    trace = Trace({}, {"wall_offset_ns": Samples(np.array([0]), np.array([0.0]))})
    with pytest.raises(MeterError, match=words):
        add_external(trace, path, "x")
    with pytest.raises(MeterError, match="wall-clock offset"):
        add_external(Trace({}), path, "x")


def test_calibration_defaults_are_uncalibrated() -> None:
    assert not Calibration().calibrated
