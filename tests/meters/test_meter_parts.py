"""The small parts: log, schedule, trace file, recompute, detection floor."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjoule.errors import MeterError
from specjoule.meters.base import BoardInfo, Calibration, Refreshes, Samples, Trace
from specjoule.meters.boardstate import board_state
from specjoule.meters.energy import window_energy
from specjoule.meters.log import LogReader, LogWriter
from specjoule.meters.recompute import host_energy, recompute_window
from specjoule.meters.sampled import cut
from specjoule.meters.schedule import FixedSchedule, RefreshSchedule
from specjoule.meters.tracefile import RecordedTrace, read_trace, write_trace
from specjoule.reasons import Reason
from specjoule.statistics.floor import detection_floor

MS = 1_000_000
KNOWN = Calibration(lag_uncertainty_ns=MS, calibrated=True)


def test_log_is_read_while_it_grows_and_a_cut_record_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path, ["board", "power_w", "board_lost"], {"board": {}})
    reader = LogReader(path)
    assert reader.read().refreshes == {}
    writer.refreshes(1, 2, {"board": 10.0})
    writer.samples(3, 5, {"power_w": 7.0})
    content = reader.read()
    assert list(content.refreshes["board"].counter_j) == [10.0]
    assert list(content.samples["power_w"].t_ns) == [4]
    writer.refreshes(6, 7, {"board": 11.0})
    writer.fault(9, "board_lost", since_ns=8)
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-32:][:11])  # a kill in the middle of a record
    content = reader.read()
    assert list(content.refreshes["board"].read_start_ns) == [1, 6]
    assert [list(times) for times in content.faults["board_lost"]] == [[8], [9]]
    with path.open("ab") as handle:
        handle.write(whole[-32:][11:])
    assert len(reader.read().faults["board_lost"][0]) == 2


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"hello")
    with pytest.raises(MeterError, match="not a log"):
        LogReader(path).read()


@given(st.lists(st.integers(0, 40 * MS), min_size=1, max_size=50))
def test_late_reads_do_not_shift_a_fixed_schedule(lateness: list[int]) -> None:
    schedule = FixedSchedule(5 * MS)
    due = 10**9
    for late in lateness:
        end = due + late
        following = schedule.next_ns(due, end, None)
        assert following > end
        assert (following - 10**9) % (5 * MS) == 0
        due = following


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([20, 50, 100]), st.integers(0, 10), st.randoms(use_true_random=False))
def test_refreshes_are_dated_densely_once_learnt(refresh_ms: int, jitter_percent: int, random: object) -> None:
    schedule = RefreshSchedule(5 * MS, MS // 2)
    refresh, t, reads, widths, last_start = 0, 0, 0, [], 0
    due_refresh = refresh_ms * MS
    while refresh < 60:
        start, end = t, t + 50_000
        found = end >= due_refresh
        if found:
            if refresh > 20:
                widths.append(end - last_start)
            share = 1 + random.uniform(-jitter_percent, jitter_percent) / 100  # type: ignore[attr-defined]
            due_refresh += round(refresh_ms * MS * share)
            refresh += 1
        t = schedule.next_ns(start, end, (last_start + end) // 2 if found else None)
        last_start = start
        reads += refresh > 20
        assert t >= end
    assert np.median(widths) <= 0.6 * MS
    assert reads < 40 * refresh_ms / 5 * 4


def test_trace_file_and_recompute_give_the_same_window(tmp_path: Path) -> None:
    t_ns = np.arange(0, 4_000 * MS, 100 * MS, dtype=np.int64)
    board = Refreshes(t_ns - MS, t_ns + MS, 300.0 * t_ns * 1e-9)
    host = Refreshes(t_ns - MS, t_ns + MS, 50.0 * t_ns * 1e-9)
    trace = Trace({"board": board, "package-0": host}, {"power_w": Samples(t_ns, np.full(len(t_ns), 301.0))})
    info = BoardInfo(uuid="GPU-1", name="H100", power_limit_w=700.0)
    path = tmp_path / "deep" / "trace.parquet"
    write_trace(path, RecordedTrace(trace, "nvml", info, KNOWN))
    back = read_trace(path)
    assert (back.board, back.calibration, back.meter) == (info, KNOWN, "nvml")
    start, end = 1_020 * MS, 3_050 * MS
    first, again = (
        recompute_window(one, start, end, edges="generation", calibration=KNOWN, power_limit_w=700.0)
        for one in (trace, back.trace)
    )
    assert first == again
    assert first.energy_j == pytest.approx(300.0 * 2.03, rel=1e-6)
    assert host_energy(back.trace, start, end).energy_j == pytest.approx(50.0 * 2.03)
    assert host_energy(Trace({"board": board}), start, end).flags == (Reason.NO_METER,)
    assert host_energy(back.trace, start, 10**11).energy_j is None
    with pytest.raises(MeterError, match="not a trace"):
        bad = tmp_path / "bad.parquet"
        bad.write_text("x")
        read_trace(bad)


def test_faults_travel_with_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path, ["board", "board_lost"], {})
    for i in range(60):
        writer.refreshes(i * 100 * MS - MS, i * 100 * MS + MS, {"board": 1e4 + i * 30.0})
        if i == 20:
            writer.fault(2_050 * MS, "board_lost")
    writer.close()
    content = LogReader(path).read()
    hit = cut(content, 1_500 * MS, 2_500 * MS)
    assert hit.flags == (Reason.BOARD_LOST,)
    stored = Trace(hit.refreshes, hit.samples)  # a stored trace has channels, no flags
    result = recompute_window(stored, 1_500 * MS, 2_500 * MS, edges="decode", calibration=KNOWN)
    assert (result.energy_j, result.flags) == (None, (Reason.BOARD_LOST,))
    missed = cut(content, 2_200 * MS, 3_500 * MS)
    assert missed.flags == ()
    assert recompute_window(missed, 2_200 * MS, 3_500 * MS, edges="decode", calibration=KNOWN).flags == ()


def test_cut_keeps_three_refreshes_on_each_side() -> None:
    t_ns = np.arange(0, 6_000 * MS, 100 * MS, dtype=np.int64)
    board = Refreshes(t_ns - MS, t_ns + MS, 300.0 * t_ns * 1e-9)
    content: Callable[..., object] = lambda: None  # noqa: E731
    content.refreshes, content.samples, content.faults = {"board": board}, {}, {}  # type: ignore[attr-defined]
    start, end = 2_010 * MS, 3_050 * MS
    part = cut(content, start, end).refreshes["board"]  # type: ignore[arg-type]
    assert (part.read_end_ns < start).sum() >= 3
    assert (part.read_start_ns > end).sum() >= 3
    assert len(part) < 25
    whole = window_energy(board, start, end, edges="generation", calibration=KNOWN)
    assert window_energy(part, start, end, edges="generation", calibration=KNOWN) == whole


def test_detection_floor_pools_blocks() -> None:
    assert detection_floor({}) is None
    assert detection_floor({"a": []}) is None
    floor = detection_floor({"a": [1.01], "b": [1 / 1.01], "c": [1.01]})
    assert floor is not None
    assert floor.sd_log == pytest.approx(math.log(1.01))
    assert (floor.dof, floor.n_blocks, floor.n_ratios) == (3.0, 3, 3)
    # t(0.975, 3) = 3.182
    assert floor.log_ratio() == pytest.approx(3.182 * math.log(1.01), rel=1e-3)
    assert floor.log_ratio(n_blocks=4) == pytest.approx(floor.log_ratio() / 2)
    low, high = floor.ratio_band()
    assert low == pytest.approx(1 / high)
    with pytest.raises(ValueError, match="positive"):
        detection_floor({"a": [0.0]})


def test_cells_that_share_their_launches_are_not_independent() -> None:
    alike = detection_floor({"a": [1.01] * 5, "b": [0.99] * 5, "c": [1.02] * 5})
    mixed = detection_floor({"a": [1.01, 0.99, 1.0, 1.02, 0.98], "b": [0.99, 1.01, 1.0, 1.02, 0.98]})
    assert alike is not None and mixed is not None
    assert alike.intraclass_correlation == pytest.approx(1.0, abs=1e-6)
    assert alike.dof == pytest.approx(3.0)
    assert mixed.intraclass_correlation == 0.0
    assert mixed.dof == 10.0


def test_detection_floor_holds_its_level() -> None:
    """Two equal arms fall outside the band in about 5 % of the blocks, with launch and cell noise together."""
    rng = np.random.default_rng(5)
    outside = total = 0
    for _ in range(300):
        logs = [rng.normal(0, 0.006) + rng.normal(0, 0.004, 4) for _ in range(8)]
        floor = detection_floor({str(i): list(np.exp(one)) for i, one in enumerate(logs)})
        assert floor is not None
        fresh = rng.normal(0, 0.006, 50) + rng.normal(0, 0.004, 50)
        outside += int((np.abs(fresh) > floor.log_ratio()).sum())
        total += 50
    assert 0.03 < outside / total < 0.07


def sampled(**channels: list[float]) -> Trace:
    return Trace({}, {name: Samples(np.arange(len(v)) * 200 * MS, np.array(v)) for name, v in channels.items()})


def test_board_state_of_a_window() -> None:
    trace = sampled(
        sm_clock_mhz=[345, 1410, 1410, 1395, 345],
        temperature_c=[40, 50, 55, 61, 70],
        power_capped_share=[0, 0.5, 1.0, 0.0, 0],
        throttle_bits=[1, 4, 4, 0x40, 0x80],
        foreign_processes=[0, 0, 0, 0, 2],
    )
    state = board_state(trace, 150 * MS, 650 * MS, locked_mhz=1410)
    assert (state.sm_clock_mean_mhz, state.sm_clock_min_mhz) == (1405.0, 1395.0)
    assert (state.temperature_start_c, state.temperature_max_c) == (50.0, 61.0)
    assert state.power_capped_share == 0.5
    assert state.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert state.foreign_processes == 2
    assert state.flags == (Reason.THERMAL_SLOWDOWN, Reason.FOREIGN_PROCESSES)
    other = board_state(trace, 750 * MS, 850 * MS, locked_mhz=1410)
    assert other.flags == (Reason.HARDWARE_SLOWDOWN, Reason.FOREIGN_PROCESSES, Reason.CLOCK_NOT_OBEYED)


def test_power_capping_is_normal_and_silence_is_unknown() -> None:
    capped = board_state(sampled(throttle_bits=[4, 4, 4]), 0, 500 * MS)
    assert capped.flags == ()
    assert capped.throttle_reasons == ("sw_power_cap",)
    assert capped.sm_clock_mean_mhz is None
    assert board_state(Trace({}), 0, 1).throttle_reasons is None
