"""The worked examples that the definitions come with; each is a check of the function that computes it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specjoule.pairs import simple_law
from specjoule.pairs.acceptance import (
    expected_committed,
    marginal_width_limit,
    survival_from_conditional,
    survival_from_histogram,
)
from specjoule.pairs.boundary import host_per_token, total_per_token
from specjoule.pairs.decomposition import break_even_committed, needed_gain, ratio_from_power, ratio_from_rounds
from specjoule.pairs.draft_share import draft_share, most_saved_by_cheaper_drafting
from specjoule.pairs.mixes import break_even_share, mix_ratio
from specjoule.pairs.roofline import (
    StepCost,
    attainable_flop_s,
    crossing_batch,
    experts_reached,
    intensity,
    intensity_limit,
    rollback_bytes,
)
from specjoule.pairs.summary import summarise
from specjoule.pairs.tail import gaps_of_chunks, percentiles


def test_paired_ratio_is_not_the_ratio_of_medians() -> None:
    pairs = pd.DataFrame(
        {
            "model": "M", "seed": [0, 1, 2], "e_spec_j": [1.0, 3.0, 2.0], "e_plain_j": [2.0, 3.0, 5.0],
            "gpu_uuid": "G", "r_e_window": "decode", "unique_prompts": 1,
            "energy_spec_j": [1.0, 3.0, 2.0], "energy_plain_j": [2.0, 3.0, 5.0],
            "tokens_spec": 1.0, "tokens_plain": 1.0,
            "duration_spec_s": 1.0, "duration_plain_s": 1.0,
        }
    )  # fmt: skip
    pairs["energy_ratio"] = pairs["e_spec_j"] / pairs["e_plain_j"]
    out = summarise(pairs, ("model",)).iloc[0]
    assert out["ratio_median"] == pytest.approx(0.5)  # medians first would give 2/3
    assert out["ratio_half_range"] == pytest.approx((1.0 - 0.4) / 2)
    assert out["ratio_totals"] == pytest.approx(6 / 10)


def test_rounds_explain_the_ratio() -> None:
    assert ratio_from_rounds(1.9, 2.6) == pytest.approx(0.731, abs=5e-4)
    assert ratio_from_rounds(3.6, 3.2) == pytest.approx(1.125)
    assert break_even_committed(3.6) == 3.6
    assert needed_gain(3.6, 3.2) == pytest.approx(1.125)


def test_faster_and_dearer() -> None:
    assert ratio_from_power(1.35, 1.20) == pytest.approx(1.125)


def test_expected_committed_tokens() -> None:
    for k, a in ((6, 3.06), (15, 3.32)):
        assert expected_committed(survival_from_conditional(np.full(k, 0.7))) == pytest.approx(a, abs=5e-3)
    survival = survival_from_histogram([1, 1, 2])  # 4 rounds: none, one, two, two kept
    assert survival.tolist() == [0.75, 0.5]
    assert expected_committed(survival) == 1 + (0 + 1 + 2 + 2) / 4


def test_marginal_width() -> None:
    survival = survival_from_conditional(np.full(15, 0.7))
    assert marginal_width_limit(survival, 6) == pytest.approx(0.0269, abs=5e-5)
    with pytest.raises(ValueError, match="position 16"):
        marginal_width_limit(survival, 15)


def test_roofline_never_crosses_where_kv_reads_dominate() -> None:
    cost = StepCost(flop_per_position=2e10, weight_bytes=2e10, kv_bytes_per_token=1e5)
    n = crossing_batch(cost, 4, 1000, 100)
    assert intensity(cost, n, 4, 1000) == pytest.approx(100)
    assert np.isinf(crossing_batch(cost, 1, 1e6, 316)) and intensity_limit(cost, 1, 1e6) < 316
    assert intensity(cost, 1e9, 4, 1000) == pytest.approx(intensity_limit(cost, 4, 1000), rel=1e-3)
    assert attainable_flop_s(10.0, 1e15, 1e12) == 1e13 and attainable_flop_s(1e4, 1e15, 1e12) == 1e15


def test_rollback_memory_and_expert_reach() -> None:
    assert rollback_bytes(16, 15, 1e8) == 16 * 15 * 1e8
    assert experts_reached(8, 4) == pytest.approx(3.31, abs=5e-3)
    assert experts_reached(8, 16) == pytest.approx(7.06, abs=5e-3)


def test_draft_share() -> None:
    assert draft_share(100, 77) == pytest.approx(0.23)
    assert most_saved_by_cheaper_drafting(0.23, 0.5) == pytest.approx(0.115)


def test_mix() -> None:
    assert break_even_share(0.4, 0.2) == pytest.approx(1 / 3)
    plain, spec = {"a": 1.0, "b": 1.0}, {"a": 0.6, "b": 1.2}
    assert mix_ratio(spec, plain, {"a": 1, "b": 2}) == pytest.approx(1.0)
    assert mix_ratio(spec, plain, {"a": 2, "b": 1}) < 1
    assert np.isnan(break_even_share(0.4, -0.1))


def test_tail_same_mean_other_gaps() -> None:
    bursts = gaps_of_chunks(np.arange(0, 4_000_000_000, 40_000_000), np.full(100, 4))
    steady = gaps_of_chunks(np.arange(0, 4_000_000_000, 10_000_000), np.full(400, 1))
    a, b = percentiles(bursts), percentiles(steady)
    assert a["mean_ms"] == pytest.approx(b["mean_ms"], rel=0.01)
    assert a["p50_ms"] == 0 and a["p95_ms"] == 40 and b["p50_ms"] == b["p99_ms"] == 10


def test_boundary() -> None:
    assert host_per_token(0.1, 4, 2) == 0.0125
    assert total_per_token(500, 0, 2000) == 0.25 and total_per_token(600, 0, 2500) == 0.24
    assert total_per_token(600, 35, 2500) == 0.254
    assert (total_per_token(500, 100, 2000), total_per_token(600, 135, 2500)) == (0.30, 0.294)


def test_simple_law_recovers_its_coefficients() -> None:
    rng = np.random.default_rng(0)
    i, o = rng.integers(64, 4096, (2, 200))
    d, layers = rng.choice([2048, 4096, 5120], 200), rng.choice([24, 36, 48], 200)
    features = simple_law.terms(d, layers, 0.25, i, o)
    theta = np.array([3e-10, 2e-10, 0.02, 1e-7])
    energy = features @ theta
    assert simple_law.fit(features, energy) == pytest.approx(theta, rel=1e-6)
    left_out = simple_law.leave_one_group_out(features, energy, d.astype(object))
    assert simple_law.mape_percent(energy, left_out) < 1e-6
