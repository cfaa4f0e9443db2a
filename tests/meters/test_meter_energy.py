"""Window energy as a pure function: properties, worked cases, and the accuracy it must have (a small study)."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import Case, study
from hypothesis import given, settings
from hypothesis import strategies as st

from specjoule.meters.base import Calibration, Refreshes, Samples
from specjoule.meters.energy import WindowRules, interpolated_energy_j, naive_energy_j, window_energy
from specjoule.meters.power import integrate_power
from specjoule.reasons import Reason

KNOWN = Calibration(lag_ns=0, lag_uncertainty_ns=0, calibrated=True)
MS = 1_000_000


def steady(power_w: float, refresh_ms: float, n: int, width_ms: float = 0.0, base_j: float = 1e6) -> Refreshes:
    """A counter under constant power, each refresh dated exactly in the middle of its bracket."""
    t_ns = (np.arange(n) * refresh_ms * MS).astype(np.int64) + 10**9
    half = round(width_ms * MS / 2)
    return Refreshes(t_ns - half, t_ns + half, base_j + power_w * t_ns * 1e-9)


powers = st.floats(5.0, 1500.0)
refreshes_ms = st.sampled_from([1.0, 20.0, 50.0, 100.0])
edges = st.sampled_from(["generation", "decode"])


@given(powers, refreshes_ms, edges, st.floats(0.25, 0.4), st.floats(0.6, 0.75))
def test_constant_power_is_exact(power_w: float, refresh_ms: float, edge: str, low: float, high: float) -> None:
    counter = steady(power_w, refresh_ms, 60)
    span = counter.t_ns[-1] - counter.t_ns[0]
    start, end = (round(counter.t_ns[0] + share * span) for share in (low, high))
    result = window_energy(counter, start, end, edges=edge, calibration=KNOWN)  # type: ignore[arg-type]
    assert result.energy_j == pytest.approx(power_w * (result.end_ns - result.start_ns) * 1e-9, rel=1e-6)
    assert result.counter_end_j is not None
    assert result.counter_start_j is not None
    assert result.counter_end_j - result.counter_start_j == pytest.approx(result.energy_j)


@given(st.lists(st.floats(0.1, 60.0), min_size=40, max_size=60), st.integers(8, 14), st.integers(22, 30))
def test_decode_windows_add_up(steps_j: list[float], middle: int, last: int) -> None:
    t_ns = (np.arange(len(steps_j)) * 100 * MS).astype(np.int64) + 10**9
    counter = Refreshes(t_ns - MS, t_ns + MS, 1e6 + np.cumsum(steps_j))
    at = [int(t_ns[i]) for i in (3, middle, last)]
    rules = WindowRules(short_limit=1e9)

    def energy(start: int, end: int) -> float:
        # One nanosecond of room: a refresh belongs to a window when its whole bracket does.
        result = window_energy(counter, start - MS, end + MS, edges="decode", calibration=KNOWN, rules=rules)
        assert result.energy_j is not None
        return result.energy_j

    assert energy(at[0], at[1]) + energy(at[1], at[2]) == pytest.approx(energy(at[0], at[2]))


@settings(max_examples=200)
@given(
    st.lists(st.floats(-50.0, 50.0), min_size=0, max_size=40),
    st.integers(0, 4_000),
    st.integers(1, 4_000),
    edges,
    st.integers(0, 120),
)
def test_energy_is_positive_or_unknown_with_a_reason(
    steps_j: list[float], start_ms: int, length_ms: int, edge: str, lag_ms: int
) -> None:
    t_ns = (np.arange(len(steps_j)) * 100 * MS).astype(np.int64)
    counter = Refreshes(t_ns - 2 * MS, t_ns + 2 * MS, 1e3 + np.cumsum(np.array(steps_j, dtype=np.float64)))
    calibration = Calibration(lag_ns=lag_ms * MS, lag_uncertainty_ns=MS, calibrated=True)
    start = start_ms * MS
    result = window_energy(
        counter, start, start + length_ms * MS, edges=edge, calibration=calibration  # type: ignore[arg-type]
    )  # fmt: skip
    if result.energy_j is None:
        assert result.flags
        assert result.uncertainty_j is None
        assert result.counter_start_j is None
    else:
        assert result.energy_j > 0
        assert result.uncertainty_j is not None
        assert result.uncertainty_j >= 0
    assert result.naive_j is None or result.naive_j > 0


@given(st.floats(0.0, 200.0), st.floats(0.0, 2.0))
def test_a_lag_moves_a_counter_and_its_correction_moves_it_back(lag_ms: float, width_ms: float) -> None:
    lag_ns = round(lag_ms * MS)
    t_ns = np.arange(0, 6_000 * MS, 100 * MS, dtype=np.int64)
    true_j = 120.0 * t_ns * 1e-9 + 480.0 * np.clip(t_ns - 2_030 * MS, 0, 1_970 * MS) * 1e-9
    half = round(width_ms * MS / 2)
    counter = Refreshes(t_ns + lag_ns - half, t_ns + lag_ns + half, true_j)
    calibration = Calibration(lag_ns=lag_ns, lag_uncertainty_ns=MS // 2, calibrated=True)
    result = window_energy(counter, 2_030 * MS, 4_000 * MS, edges="generation", calibration=calibration)
    assert result.energy_j == pytest.approx(600.0 * 1.97, rel=1e-4)


def test_method_example_of_naive_bias() -> None:
    """Idle 120 W, busy 600 W, refresh 100 ms: naive and interpolated readings of 1 s err by percents."""
    worst = {"naive": 0.0, "interpolated": 0.0, "corrected": 0.0}
    t_ns = np.arange(0, 4_000 * MS, 100 * MS, dtype=np.int64)
    for shift_ms in range(0, 100, 7):
        start, end = (1_000 + shift_ms) * MS, (2_000 + shift_ms) * MS - 37 * MS
        true_j = 600.0 * (end - start) * 1e-9
        counter = Refreshes(t_ns, t_ns, 120.0 * t_ns * 1e-9 + 480.0 * np.clip(t_ns - start, 0, end - start) * 1e-9)
        result = window_energy(counter, start, end, edges="generation", calibration=KNOWN)
        found = {
            "naive": naive_energy_j(counter, start, end),
            "interpolated": interpolated_energy_j(counter, start, end),
            "corrected": result.energy_j,
        }
        for name, energy_j in found.items():
            assert energy_j is not None
            worst[name] = max(worst[name], abs(energy_j / true_j - 1))
    assert worst["naive"] > 0.03
    assert 0.005 < worst["interpolated"] < worst["naive"]
    assert worst["corrected"] < 1e-6


def test_the_next_load_close_by_does_not_leak_in() -> None:
    """Three idle refreshes between two waves: the power outside is taken from them, not from the wave beyond."""
    t_ns = np.arange(0, 6_000 * MS, 100 * MS, dtype=np.int64)
    spans = [(1_000 * MS, 2_020 * MS), (2_400 * MS, 3_410 * MS), (3_800 * MS, 5_000 * MS)]
    counter_j = 120.0 * t_ns * 1e-9
    for start, end in spans:
        counter_j = counter_j + 480.0 * np.clip(t_ns - start, 0, end - start) * 1e-9
    start, end = spans[1]
    result = window_energy(Refreshes(t_ns, t_ns, counter_j), start, end, edges="generation", calibration=KNOWN)
    assert result.energy_j == pytest.approx(600.0 * (end - start) * 1e-9, rel=1e-6)


def test_wall_limits_and_gaps() -> None:
    counter = steady(900.0, 100.0, 40)
    start, end = 10**9 + 1_000 * MS, 10**9 + 3_000 * MS
    hot = window_energy(counter, start, end, edges="decode", calibration=KNOWN, power_limit_w=700.0)
    assert hot.flags == (Reason.POWER_ABOVE_LIMIT,)
    assert hot.energy_j is not None
    read_start = counter.read_start_ns.copy()
    read_start[20] = read_start[13]
    keep = np.r_[0:14, 20:40]
    paused = Refreshes(read_start[keep], counter.read_end_ns[keep], counter.counter_j[keep])
    gap = window_energy(paused, start, end, edges="generation", calibration=KNOWN)
    assert gap.flags == (Reason.METER_GAP,)
    frozen = Refreshes(counter.read_start_ns[keep], counter.read_end_ns[keep], counter.counter_j[keep])
    still = window_energy(frozen, start, end, edges="generation", calibration=KNOWN)
    assert still.energy_j is None
    assert still.flags == (Reason.COUNTER_FROZEN,)


def test_no_trace_at_all() -> None:
    nothing = Refreshes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    result = window_energy(nothing, 0, 10, edges="decode", calibration=KNOWN)
    assert (result.energy_j, result.flags) == (None, (Reason.NO_METER,))
    with pytest.raises(ValueError, match="end after it starts"):
        window_energy(nothing, 10, 10, edges="decode", calibration=KNOWN)


def test_faults_void_the_energy() -> None:
    counter = steady(300.0, 100.0, 40)
    start, end = 10**9 + 1_000 * MS, 10**9 + 3_000 * MS
    lost = window_energy(
        counter, start, end, edges="decode", calibration=KNOWN, faults=(Reason.BOARD_LOST,)
    )  # fmt: skip
    assert (lost.energy_j, lost.flags) == (None, (Reason.BOARD_LOST,))
    assert lost.naive_j is not None


def test_power_integral() -> None:
    t_ns = np.arange(0, 3_000 * MS, 50 * MS, dtype=np.int64)
    ramp = Samples(t_ns, 100.0 + t_ns * 1e-9)
    energy_j, n = integrate_power(ramp, 1_010 * MS, 2_030 * MS)
    assert energy_j == pytest.approx(100 * 1.02 + (2.03**2 - 1.01**2) / 2)
    assert n == 20
    assert integrate_power(ramp, 2_500 * MS, 3_500 * MS)[0] is None
    assert integrate_power(None, 0, 1) == (None, 0)
    holey = Samples(np.delete(t_ns, np.s_[25:38]), np.delete(ramp.value, np.s_[25:38]))
    assert integrate_power(holey, 1_010 * MS, 2_030 * MS)[0] is None


LIMITS = {("generation", 5.0): 0.1, ("generation", 1.0): 0.5}


@pytest.mark.parametrize("refresh_ms", [20.0, 100.0])
@pytest.mark.parametrize("latency_ms", [1.0, 5.0])
@pytest.mark.parametrize("lag_ms", [0.0, 100.0])
def test_accuracy_through_the_sampler_loop(refresh_ms: float, latency_ms: float, lag_ms: float) -> None:
    """A small version of `benchmarks/meter_error.py`, which runs 200 windows of every kind."""
    for edge, length_s, n, limit in (
        ("generation", 1.0, 60, 0.5),
        ("generation", 5.0, 20, 0.1),
        ("decode", 1.0, 60, 0.1 if latency_ms <= 1 else 0.5),
    ):
        found = study(Case(refresh_ms, latency_ms, lag_ms, length_s, edge), n=n, seed=11)  # type: ignore[arg-type]
        assert found.unknown == 0
        assert found.corrected.p95_percent <= limit * 1.15, found  # 1.15: the noise of a percentile from few windows
        assert abs(found.corrected.bias_percent) <= 0.06, found
        assert found.coverage_percent >= 93, found
        assert found.naive.p95_percent > 3 * found.corrected.p95_percent
