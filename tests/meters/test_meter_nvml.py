"""The nvml meter end to end: real bindings, real sampler process, a driver of our own underneath."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from fake_nvml import UUID, FakeDriver

from specjoule.errors import MeterError
from specjoule.meters.base import Calibration
from specjoule.meters.calibration_store import BoardCalibration, save_calibration
from specjoule.meters.energy import WindowEnergy
from specjoule.meters.factory import MeterSettings, open_meter
from specjoule.meters.recompute import host_energy, recompute_window
from specjoule.meters.sampled import SampledMeter
from specjoule.reasons import Reason

Make = Callable[..., FakeDriver]
LOST, NOT_SUPPORTED, NO_PERMISSION = 15, 3, 4


def calibrated(uuid: str, lag_ms: float = 0.0, driver: str = "580.95.05") -> BoardCalibration:
    return BoardCalibration(
        uuid=uuid, name="fake", driver=driver, date="2026-01-01", refresh_ns=100_000_000, refresh_jitter=0.1,
        dating_ns=1_000_000, idle_w=120.0, busy_w=600.0, lag_ns=round(lag_ms * 1e6), lag_uncertainty_ns=1_000_000,
        lag_on_ns=0, lag_off_ns=0, n_steps=10, aliasing=(), smallest_generation_s=0.3, smallest_decode_s=0.3,
    )  # fmt: skip


@contextmanager
def metering(driver: FakeDriver, lag_ms: float = 0.0, **settings: object) -> Iterator[SampledMeter]:
    save_calibration(calibrated(driver.uuid(), lag_ms))
    meter = open_meter(MeterSettings(name="nvml", board=driver.uuid(), **settings))  # type: ignore[arg-type]
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def window(meter: SampledMeter, start_ns: int, end_ns: int, edges: str = "generation") -> WindowEnergy:
    trace = meter.trace(start_ns, end_ns)
    return recompute_window(
        trace, start_ns, end_ns, edges=edges, calibration=meter.calibration, power_limit_w=700.0  # type: ignore[arg-type]
    )  # fmt: skip


def test_board_says_what_it_is(driver: Make) -> None:
    fake = driver({}, {"name": b"NVIDIA GH200 480GB", "numa_node": 3})
    with metering(fake) as meter:
        info = meter.start()
    assert (info.uuid, info.driver, info.power_limit_w) == (UUID.format(0), "580.95.05", 700.0)
    assert (info.ecc, info.persistence, info.numa_node) == (True, True, 0)
    assert info.pci_bus_id == "00000000:18:00.0"
    assert info.scope == "board"
    other = open_meter(MeterSettings(name="nvml", board=UUID.format(1)))
    try:
        assert other.start().scope == "module"
    finally:
        other.stop()


@pytest.mark.parametrize(("refresh_s", "lag_ms", "limit"), [(0.02, 0.0, 0.002), (0.1, 60.0, 0.004)])
def test_windows_have_the_true_energy(driver: Make, refresh_s: float, lag_ms: float, limit: float) -> None:
    fake = driver({"refresh_s": refresh_s, "lag_s": lag_ms * 1e-3, "latency_s": 0.001})
    begin = time.monotonic_ns() + 3_500_000_000
    spans = [(begin + i * 2_200_000_000, begin + i * 2_200_000_000 + 1_130_000_000) for i in range(3)]
    fake.plan(spans)
    with metering(fake, lag_ms) as meter:
        for start_ns, end_ns in spans:
            time.sleep(max(end_ns - time.monotonic_ns(), 0) * 1e-9)
            result = window(meter, start_ns, end_ns)
            truth_j = fake.truth_j(start_ns, end_ns)
            assert result.energy_j is not None
            assert result.uncertainty_j is not None
            # A busy machine may date a refresh late: then the uncertainty says so, and the window may be flagged.
            assert abs(result.energy_j - truth_j) < max(limit * truth_j, 1.5 * result.uncertainty_j)
            assert set(result.flags) <= {Reason.WINDOW_TOO_SHORT}
            assert result.power_integral_j == pytest.approx(truth_j, rel=0.15)
            decode = window(meter, start_ns, end_ns, "decode")
            assert decode.energy_j is not None
            true_decode_j = fake.truth_j(decode.start_ns, decode.end_ns)
            assert decode.uncertainty_j is not None
            assert abs(decode.energy_j - true_decode_j) < max(0.002 * true_decode_j, 1.5 * decode.uncertainty_j)
            assert start_ns <= decode.start_ns < decode.end_ns <= end_ns


def test_samples_of_everything_else(driver: Make) -> None:
    fake = driver({"throttle_bits": 4, "temperature_c": 61})
    fake[0].pids[0], fake[0].pids[1] = os.getpid(), 1
    fake[0].n_processes = 2
    with metering(fake) as meter:
        time.sleep(0.6)
        fake[0].capped_ns = 10**15
        start_ns = time.monotonic_ns()
        time.sleep(1.6)
        samples = meter.trace(start_ns, time.monotonic_ns()).samples
    assert np.median(samples["power_w"].value) == pytest.approx(120.0, rel=0.01)
    assert np.median(samples["power_average_w"].value) == pytest.approx(120.0, rel=0.01)
    assert np.median(np.diff(samples["power_w"].t_ns)) < 120e6
    assert set(samples["temperature_c"].value) == {61.0}
    assert set(samples["throttle_bits"].value) == {4.0}
    assert set(samples["sm_clock_mhz"].value) == {1980.0}
    assert samples["power_capped_share"].value.max() == 1.0
    assert set(samples["foreign_processes"].value) == {1.0}
    assert samples["memory_used_bytes"].value[0] == 2**30
    offset_ns = time.time_ns() - time.monotonic_ns()
    assert abs(samples["wall_offset_ns"].value[-1] - offset_ns) < 1e6


def test_polling_is_cheap(driver: Make) -> None:
    with metering(driver({"refresh_s": 0.1, "latency_s": 0.0002})) as meter:
        assert meter.sampler_pid is not None
        time.sleep(1.5)
        process = psutil.Process(meter.sampler_pid)
        shares = []
        for _ in range(4):
            before, begin = process.cpu_times(), time.monotonic()
            time.sleep(2.5)
            after, seconds = process.cpu_times(), time.monotonic() - begin
            shares.append((after.user + after.system - before.user - before.system) / seconds)
    # Neighbours on a shared core make the same polls cost more (cold caches): the least disturbed stretch tells.
    assert min(shares) < 0.05, shares


# -- faults, injected from outside the process


def fault_window(driver: FakeDriver, inject: Callable[[FakeDriver], None], seconds: float = 0.8) -> WindowEnergy:
    with metering(driver) as meter:
        time.sleep(1.2)
        start_ns = driver.load_on()
        time.sleep(seconds / 2)
        inject(driver)
        time.sleep(seconds / 2)
        end_ns = driver.load_off()
        return window(meter, start_ns, end_ns)


def set_(name: str, value: Callable[[], int]) -> Callable[[FakeDriver], None]:
    return lambda fake: setattr(fake[0], name, value())


def reload_driver(fake: FakeDriver) -> None:
    fake[0].reset_ns = time.monotonic_ns()
    fake.state.driver_loads += 1


def lose_for_a_moment(fake: FakeDriver) -> None:
    fake[0].any_error = LOST
    time.sleep(0.3)
    fake[0].any_error = 0


@pytest.mark.parametrize(
    ("inject", "reason"),
    [
        (set_("reset_ns", time.monotonic_ns), Reason.COUNTER_RESET),
        (set_("drop_mj", lambda: 5_000_000), Reason.COUNTER_DECREASE),
        (set_("freeze_ns", time.monotonic_ns), Reason.COUNTER_FROZEN),
        (set_("any_error", lambda: LOST), Reason.BOARD_LOST),
        (lose_for_a_moment, Reason.BOARD_LOST),
        (set_("energy_error", lambda: NOT_SUPPORTED), Reason.COUNTER_NOT_SUPPORTED),
        (set_("energy_error", lambda: NO_PERMISSION), Reason.NO_PERMISSION),
        (reload_driver, Reason.DRIVER_RELOADED),
    ],
    ids=["reset", "decrease", "freeze", "lost", "lost-and-back", "not-supported", "no-permission", "driver-reload"],
)
def test_a_fault_leaves_the_energy_unknown(driver: Make, inject: Callable[[FakeDriver], None], reason: Reason) -> None:
    result = fault_window(driver(), inject, seconds=1.6)
    assert result.energy_j is None
    assert result.uncertainty_j is None
    assert reason in result.flags


def test_a_frozen_board_has_no_zero_energy(driver: Make) -> None:
    fake = driver()
    with metering(fake) as meter:
        time.sleep(1.2)
        fake[0].freeze_ns = time.monotonic_ns()
        time.sleep(1.5)
        start_ns = time.monotonic_ns()
        time.sleep(0.5)
        result = window(meter, start_ns, time.monotonic_ns())
    assert result.energy_j is None
    assert Reason.COUNTER_FROZEN in result.flags


def test_more_than_the_power_limit_allows(driver: Make) -> None:
    result = fault_window(driver(), set_("add_mj", lambda: 5_000_000))
    assert Reason.POWER_ABOVE_LIMIT in result.flags


def test_a_stopped_sampler_is_a_gap(driver: Make) -> None:
    fake = driver()
    with metering(fake) as meter:
        pid = meter.sampler_pid
        assert pid is not None
        time.sleep(1.2)
        start_ns = fake.load_on()
        time.sleep(0.3)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)
        result = window(meter, start_ns, fake.load_off())
    assert Reason.METER_GAP in result.flags


def test_counter_and_power_that_disagree(driver: Make) -> None:
    fake = driver({"power_scale": 1.2})
    result = fault_window(fake, lambda _: None, seconds=2.8)
    assert result.energy_j is not None
    assert Reason.CROSS_CHECK in result.flags


def test_a_window_too_short_is_flagged(driver: Make) -> None:
    fake = driver({"latency_s": 0.005})
    with metering(fake) as meter:
        time.sleep(1.2)
        start_ns = fake.load_on()
        time.sleep(0.12)
        end_ns = fake.load_off()
        short = window(meter, start_ns, end_ns)
        decode = window(meter, start_ns, start_ns + 60_000_000, "decode")
    assert Reason.WINDOW_TOO_SHORT in short.flags
    assert decode.energy_j is None
    assert decode.flags == (Reason.WINDOW_TOO_SHORT,)


def test_an_uncalibrated_board_and_a_stale_calibration_are_flagged(driver: Make) -> None:
    fake = driver()
    meter = open_meter(MeterSettings(name="nvml", board=fake.uuid()))
    meter.start()
    try:
        assert meter.calibration == Calibration()
    finally:
        meter.stop()
    save_calibration(calibrated(fake.uuid(), driver="535.1"))
    meter = open_meter(MeterSettings(name="nvml", board=fake.uuid()))
    meter.start()
    try:
        time.sleep(1.0)
        start_ns = fake.load_on()
        time.sleep(1.0)
        result = window(meter, start_ns, fake.load_off())
    finally:
        meter.stop()
    assert {Reason.CALIBRATION_STALE, Reason.LAG_NOT_CALIBRATED} <= set(result.flags)
    assert result.uncertainty_j is not None
    assert result.energy_j == pytest.approx(fake.truth_j(result.start_ns, result.end_ns), rel=0.015)


def test_a_window_at_the_very_start_is_outside_the_trace(driver: Make) -> None:
    with metering(driver()) as meter:
        now = time.monotonic_ns()
        result = window(meter, now - 2_000_000_000, now)
    assert result.energy_j is None
    assert Reason.OUTSIDE_TRACE in result.flags


# -- boards that are refused


def test_mig_is_refused(driver: Make) -> None:
    fake = driver({"mig": 1})
    with pytest.raises(MeterError, match="MIG"):
        open_meter(MeterSettings(name="nvml", board=fake.uuid())).start()


def test_a_board_without_a_counter_is_refused(driver: Make) -> None:
    fake = driver({"energy_error": NOT_SUPPORTED})
    with pytest.raises(MeterError, match="no energy counter"):
        open_meter(MeterSettings(name="nvml", board=fake.uuid())).start()


def test_two_boards_need_a_name(driver: Make) -> None:
    driver({}, {})
    with pytest.raises(MeterError, match="names one"):
        open_meter(MeterSettings(name="nvml")).start()


def test_no_driver_has_a_remedy(driver: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    driver()
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    with pytest.raises(MeterError, match="No NVIDIA driver"):
        open_meter(MeterSettings(name="nvml")).start()


# -- the host beside the board


def test_host_energy_in_the_same_trace(driver: Make, powercap: Callable[..., object]) -> None:
    fake, tree = driver(), powercap(watts=40.0)
    with metering(fake, host=True, powercap_root=tree.root) as meter:  # type: ignore[attr-defined]
        time.sleep(1.0)
        start_ns = fake.load_on()
        time.sleep(1.0)
        end_ns = fake.load_off()
        trace = meter.trace(start_ns, end_ns)
    assert set(trace.refreshes) == {"board", "package-0", "package-1", "dram-0", "dram-1"}
    host = host_energy(trace, start_ns, end_ns)
    assert host.flags == ()
    assert host.energy_j == pytest.approx(160.0 * (end_ns - start_ns) * 1e-9, rel=0.03)


def test_a_shared_node_has_no_host_energy(
    driver: Make, powercap: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, tree = driver(), powercap()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    meter = open_meter(
        MeterSettings(name="nvml", board=fake.uuid(), host=True, powercap_root=tree.root)  # type: ignore[attr-defined]
    )
    assert meter.note is not None
    assert "shared_node" in meter.note
    meter.start()
    try:
        time.sleep(0.5)
        trace = meter.trace(time.monotonic_ns() - 100_000_000, time.monotonic_ns())
    finally:
        meter.stop()
    assert set(trace.refreshes) == {"board"}
