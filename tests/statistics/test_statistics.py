from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import make_pairs
from specjoule.statistics.budget import error_budget
from specjoule.statistics.equivalence import compare
from specjoule.statistics.floor import DetectionFloor, floor_of, smallest_seen
from specjoule.statistics.intervals import with_intervals
from specjoule.statistics.nested import with_wave_variance
from specjoule.statistics.selection import held_out_prompts, held_out_seeds
from specjoule.statistics.synthetic import Truth, simulate, true_ratio
from specjoule.statistics.verdicts import adjusted_p, noise_points, with_verdicts
from specjoule.tables.best_drafter import PLACE_KEYS, best_drafter


def analysed(truth: Truth, n_seeds: int, studies: int = 1, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = simulate(truth, n_seeds, studies=studies, seed=seed)
    made = make_pairs(sum_waves(rows))
    assert made.excluded.empty
    return rows, with_wave_variance(made.pairs, rows)


@pytest.mark.parametrize("n_seeds", [3, 5, 10])
def test_coverage_small_version(n_seeds: int) -> None:
    """The full version (1,000 studies) is benchmarks/analysis_coverage.py; 60 studies hold +-5 points here."""
    truth = Truth(concurrencies=(1, 16))
    known = {(d, c): true_ratio(truth, d, c, prompts=200_000) for d in truth.drafters for c in truth.concurrencies}
    _, pairs = analysed(truth, n_seeds, studies=60, seed=n_seeds)
    tables = [with_intervals(p) for _, p in pairs.groupby("study")]
    table = pd.concat(tables)
    true = np.array([known[k] for k in zip(table["drafter"], table["concurrency"], strict=True)])
    covered = ((table["ratio_low"] <= true) & (true <= table["ratio_high"])).mean()
    assert 0.89 <= covered <= 1.0
    assert (table["ratio_high"] - table["ratio_low"]).median() <= 1.1 * (
        table["alone_high"] - table["alone_low"]
    ).median()


def test_without_disturbance_the_truth_is_recovered() -> None:
    quiet = Truth(prompt_skew=1e-9, launch=0, board=0, drift=0, meter=0)
    _, pairs = analysed(quiet, 3)
    table = with_intervals(pairs)
    for row in table.itertuples():
        assert row.ratio_median == pytest.approx(true_ratio(quiet, row.drafter, row.concurrency, prompts=640), rel=1e-9)


def test_few_seeds_say_so() -> None:
    _, one = analysed(Truth(), 1)
    table = with_intervals(one)
    assert table["ratio_low"].isna().all() and set(table["interval_note"]) == {"one block: no interval"}
    _, two = analysed(Truth(), 2)
    assert with_intervals(two)["interval_note"].str.contains("cannot carry").all()


def test_false_discovery_rate_is_controlled_where_nothing_differs() -> None:
    rng = np.random.default_rng(3)
    p = rng.uniform(size=(200, 50))
    assert np.mean([(adjusted_p(x) <= 0.05).any() for x in p]) < 0.1
    q = adjusted_p([0.01, np.nan, 0.02, 0.5])
    assert q[0] == pytest.approx(0.03) and np.isnan(q[1]) and q[3] == 0.5


def test_verdicts_need_the_floor() -> None:
    _, pairs = analysed(Truth(), 5)
    table = with_intervals(pairs)
    sure = with_verdicts(table, floor_of(pairs))
    assert "saves" in set(sure["verdict"])
    assert set(with_verdicts(table, DetectionFloor(10.0, 5.0, 5, 5, 0.0))["verdict"]) == {"cannot tell"}


def test_the_floor_is_never_below_half_a_percent_of_one_pair() -> None:
    assert smallest_seen(None, 1) == 0.005 == smallest_seen(DetectionFloor(1e-6, 9.0, 9, 9, 0.0), 1)
    wide = DetectionFloor(0.02, 4.0, 4, 4, 0.0)
    assert smallest_seen(wide, 4) == pytest.approx(wide.log_ratio(4))


def test_the_floor_counts_each_launch_pair_once() -> None:
    rows = pd.DataFrame({
        "study": "s", "block_id": ["a", "a", "a", "b"], "segment_id": ["1", "1", "2", "3"], "capture": True,
        "locked_mhz": np.nan, "block_drift": [0.02, 0.02, -0.01, None],
    })  # fmt: skip
    floor = floor_of(rows)
    assert floor is not None and (floor.n_blocks, floor.n_ratios) == (1, 2)
    assert floor.sd_log == pytest.approx(np.sqrt((np.log(1.02) ** 2 + np.log(0.99) ** 2) / 2))
    assert floor_of(rows.assign(block_drift=None)) is None


def test_equal_drafters_tie_and_different_ones_do_not() -> None:
    twins = {"a-4": ("ngram", 3, 1.6), "b-4": ("ngram", 3, 1.6), "far-4": ("mtp", 3, 3.5)}
    quiet = Truth(drafters=twins, launch=0.0005, meter=0.0005, concurrencies=(4,))
    _, pairs = analysed(quiet, 5)
    table = with_intervals(pairs.loc[pairs["drafter"] != "far-4"])
    best = best_drafter(table)
    place = [k for k in PLACE_KEYS if k in best.columns]
    out = compare(pairs.loc[pairs["drafter"] != "far-4"], best, place, table)
    assert list(out["comparison"]) == ["tie"] and out["ties"].notna().all()
    table = with_intervals(pairs)
    out = compare(pairs, best_drafter(table), place, table)
    assert list(out["best_drafter"]) == ["far-4"] and list(out["comparison"]) == ["ahead"]
    assert out["lead_low"].iloc[0] > 0


def test_winners_curse_is_seen_where_drafters_are_equal() -> None:
    same = {f"d{i}-4": ("ngram", 3, 1.6) for i in range(6)}
    noisy = Truth(drafters=same, launch=0.03, concurrencies=(4,))
    rows, pairs = analysed(noisy, 4, studies=30)
    optimism = [held_out_seeds(p)["optimism"].iloc[0] for _, p in pairs.groupby("study")]
    assert np.mean(optimism) > 0.01  # the winner looks better than it is
    out = held_out_seeds(pairs.loc[pairs["study"] == "sim-0"])
    assert (out["regret"] >= 0).all() and out["folds"].iloc[0] == 4
    assert len(held_out_prompts(pairs.loc[pairs["study"] == "sim-0"], rows)) == 1


def test_error_budget_finds_the_largest_source() -> None:
    _, pairs = analysed(Truth(prompt_skew=0.8, launch=0.001, board=0.0, drift=0.001), 5)
    budget = error_budget(pairs, with_intervals(pairs))
    wide = budget.loc[(budget["drafter"] == "dflash-16") & (budget["concurrency"] == 1)].iloc[0]
    assert wide["prompts_percent"] > wide["launch_percent"]
    assert wide["meter_percent"] == pytest.approx(100 * np.sqrt(2) * 0.004, rel=0.05)
    noise = noise_points(pairs)
    assert set(noise["kind"]) == {"drift", "seed"}
