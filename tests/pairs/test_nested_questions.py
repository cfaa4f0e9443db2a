"""Questions that stand on single requests: survival, gaps, language, the first end of sequence, a block's timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from specjoule.pairs.cells import sum_waves
from specjoule.pairs.configurations import counted_cells
from specjoule.pairs.language import energy_retention, language_counts, retention, with_quality
from specjoule.pairs.pairing import make_pairs
from specjoule.pairs.sensitivity import up_to_first_eos
from specjoule.pairs.survival import survival_curves
from specjoule.pairs.sweeps import context_sweep, ngram_length
from specjoule.pairs.tail import distribution_percentiles, gap_distribution, gaps_of_chunks, percentiles
from specjoule.pairs.timeline import block_timeline
from specjoule.statistics.intervals import with_intervals
from tests.pairs.frames import cell, frame

JOIN = ["cell_hash", "segment_id", "attempt", "launch", "role"]


def joined(cells: pd.DataFrame, drafter: str, parts: list[dict[str, Any]], **place: Any) -> pd.DataFrame:
    """Rows of a nested frame that belong to one cell."""
    mine = cells.loc[cells["drafter"] == drafter]
    for key, value in place.items():
        mine = mine.loc[mine[key] == value]
    keys = mine.iloc[0][JOIN].to_dict()
    return pd.DataFrame([{**keys, **part} for part in parts])


def test_survival_counts_positions_at_which_no_round_stopped() -> None:
    cells = sum_waves(frame(cell("plain") + cell("dspark-7", committed_per_round=2.8)))
    # 10 rounds keep none, 20 one, none two, 30 three, 40 all six: S = .9 .7 .7 .4 .4 .4
    parts = [{"kept": k, "rounds": n} for k, n in ((0, 10.0), (1, 20.0), (3, 30.0), (6, 40.0))]
    table = survival_curves(joined(cells, "dspark-7", parts), counted_cells(cells))
    assert table["position"].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.allclose(table["survival"], [0.9, 0.7, 0.7, 0.4, 0.4, 0.4])
    assert table["a_k"].iloc[-1] == pytest.approx(1 + 3.5)  # = 1 + mean kept: (20 + 90 + 240)/100
    assert table["marginal_limit"].iloc[0] == pytest.approx(0.9)
    assert table["marginal_limit"].iloc[2] == pytest.approx(0.7 / 2.6)
    assert survival_curves(joined(cells, "plain", [{"kept": 0, "rounds": 5.0}]), counted_cells(cells)).empty


def test_gaps_tell_chunks_from_single_tokens() -> None:
    ms = 1_000_000
    chunked = gaps_of_chunks([0, 40 * ms, 80 * ms], [1, 4, 4])
    single = gaps_of_chunks([i * 10 * ms for i in range(9)], [1] * 9)
    assert chunked.mean() == single.mean() == 10.0  # the same mean interval ...
    assert percentiles(chunked)["p95_ms"] == 40.0 and percentiles(single)["p95_ms"] == 10.0  # ... and another wait
    assert percentiles(chunked)["p50_ms"] == 0.0 and percentiles(chunked)["stall_max_ms"] == 40.0
    cells = sum_waves(frame(cell("plain") + cell("dspark-7", committed_per_round=2.8)))
    edges = np.array([0.0, 1.0, 10.0, 100.0])
    parts = [{"bin": 0, "gaps": 75.0}, {"bin": 1, "gaps": 20.0}, {"bin": 2, "gaps": 5.0}]
    table = gap_distribution(joined(cells, "dspark-7", parts), counted_cells(cells), edges)
    assert np.allclose(table["share_longer"], [0.25, 0.05, 0.0]) and table["gap_ms"].tolist() == [1.0, 10.0, 100.0]
    found = distribution_percentiles(table).iloc[0]
    assert (found["gap_p50_ms"], found["gap_p95_ms"], found["gap_p99_ms"]) == (1.0, 10.0, 100.0)


def news(kept_rm: int, rm_rounds: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Ten answers in each language at concurrency 1 and 4; of the Romansh ones `kept_rm` stay in the language."""
    rows = []
    for corpus, language in (("news_en", "en"), ("news_rm", "rm")):
        for c in (1, 4):
            place = {"corpus": corpus, "language": language, "concurrency": c}
            rows += cell("plain", **place)
            rows += cell("dspark-7", committed_per_round=2.0, step_j=1.2 if language == "en" else 1.5, **place)
    cells = sum_waves(frame(rows))
    parts = []
    for corpus, language in (("news_en", "en"), ("news_rm", "rm")):
        for c in (1, 4):
            for i in range(10):
                stays = language == "en" or i < kept_rm
                asked = {
                    "wave": 0, "prompt_id": i + (100 if language == "rm" else 0), "document_id": i + 1,
                    "committed_tokens": 101.0, "rounds": 50.0 if language == "en" else (rm_rounds if stays else 25.0),
                    "language_ok": float(stays), "degenerate": 0.0, "answer_language": language if stays else "it",
                }  # fmt: skip
                parts.append(joined(cells, "dspark-7", [asked], corpus=corpus, concurrency=c))
    return cells, pd.concat(parts, ignore_index=True)


def test_language_filter_keeps_qualifying_answers_and_says_where_the_rest_went() -> None:
    cells, requests = news(kept_rm=7, rm_rounds=62.5)
    work = with_quality(requests, cells)
    counts = language_counts(work).set_index("language").loc["rm"]
    assert (counts["answers"], counts["kept"], counts["dropped"], counts["drifted_to"]) == (20, 14, 6, "it 6")
    table = retention(work, {"dspark-7": "third-party"}).set_index("concurrency").loc[1]
    # Kept: 100/62.5 tokens a round against 100/50; all: the three Italian answers count 100/25.
    assert table["retention_kept"] == pytest.approx(0.8) and table["origin"] == "third-party"
    assert table["retention_all"] == pytest.approx((1000 / (7 * 62.5 + 3 * 25)) / 2.0)
    assert table["kept_low"] <= 0.8 <= table["kept_high"] and table["clusters_kept"] == 7
    energy = energy_retention(work, cells)
    mine = energy.loc[energy["drafter"] == "dspark-7"].set_index("concurrency")
    assert np.allclose(mine["energy_retention_all"], 1.25) and mine["energy_retention_kept"].isna().all()
    assert (mine["reason"] == "not_all_qualify").all()
    cells, requests = news(kept_rm=10, rm_rounds=62.5)
    mine = energy_retention(with_quality(requests, cells), cells).set_index(["drafter", "concurrency"])
    assert np.allclose(mine.loc["dspark-7", "energy_retention_kept"], 1.25)


def test_retention_intervals_cover_the_truth_and_gain_from_twins() -> None:
    """Documents differ in ease by a third, alike in both languages: an interval that knows it is far narrower."""
    rng = np.random.default_rng(3)
    truth, covered, widths = 0.8, 0, []
    for _ in range(60):
        ease = np.exp(0.3 * rng.standard_normal(32))
        sides = []
        for language, factor in (("en", 1.0), ("rm", truth)):
            rounds = 400.0 / (ease * factor * 2.0 * np.exp(0.05 * rng.standard_normal(32)))
            sides.append(
                pd.DataFrame({
                    "corpus": f"news_{language}", "language": language, "document_id": np.arange(1, 33),
                    "prompt_id": 0, "decoded": 400.0, "rounds": rounds,
                })
            )  # fmt: skip
        work = pd.concat(sides).assign(
            model="m", gpu="g", drafter="dspark-7", scheme="dspark", verify_width=8, concurrency=1, qualifies=True
        )
        row = retention(work, {}, draws=200).iloc[0]
        covered += row["all_low"] <= truth <= row["all_high"]
        widths.append(row["all_high"] - row["all_low"])
    assert covered >= 51  # 57 expected; fewer than 51 of 60 at 95 % happens once in 200
    independent = 2 * 1.96 * truth * 0.3 * np.sqrt(2 / 32)
    assert np.median(widths) < 0.4 * independent


def test_up_to_the_first_end_of_sequence_is_paired_again() -> None:
    rows = []
    for seed in range(3):
        rows += cell("plain", seed=seed) + cell("dspark-7", step_j=1.4, committed_per_round=2.8, seed=seed)
    cells = sum_waves(frame(rows))
    pairs = make_pairs(cells).pairs
    waves = []
    for row in cells.itertuples():
        for wave in (0, 1):
            # The first wave ends early: plain has spent half of its joules for half of its tokens, the drafter 60 %.
            share = 1.0 if wave else 0.5 if row.drafter == "plain" else 0.6
            waves.append({
                **{k: getattr(row, k) for k in JOIN}, "wave": wave, "cut": wave == 0,
                "energy_j": share * row.energy_j / 2,
                "committed_tokens": (1.0 if wave else 0.5) * row.committed_tokens / 2, "seconds": 1.0,
            })  # fmt: skip
    out = up_to_first_eos(pd.DataFrame(waves), pairs).iloc[0]
    full = pairs["energy_ratio"].median()
    assert out["ratio_full"] == full and out["cut_share"] == 0.5 and out["n_seeds"] == 3
    assert out["ratio_to_eos"] == pytest.approx(full * (1.6 / 1.5))
    assert out["saving_change"] == pytest.approx(full - full * 1.6 / 1.5)
    whole = pd.DataFrame(waves).assign(cut=False)
    assert up_to_first_eos(whole, pairs).empty


def test_sweeps_mark_the_best_length_and_need_several_points() -> None:
    rows = []
    for seed in range(3):
        for tokens in (260, 1024):
            place = {"seed": seed, "context_tokens": tokens}
            rows += cell("plain", **place)
            for k, step in ((1, 1.2), (4, 1.3), (16, 2.9)):
                rows += cell(f"ngram-proposals-{k}", scheme="ngram", draft_tokens=k, verify_width=k + 1,
                             step_j=step * (1 + tokens / 1e4), committed_per_round=2.0, **place)  # fmt: skip
    judged = with_intervals(make_pairs(sum_waves(frame(rows))).pairs)
    table = ngram_length(judged).set_index(["context_tokens", "draft_tokens"])
    assert table["best_length"].tolist() == [True, False, False] * 2
    first = table.loc[260]
    assert first["marginal"].iloc[0] != first["marginal"].iloc[0]  # the shortest has nothing to be compared with
    assert first["marginal"].iloc[2] == pytest.approx(first["ratio_median"].iloc[2] - first["ratio_median"].iloc[1])
    assert ngram_length(judged.loc[judged["draft_tokens"] < 16]).empty  # two lengths are no sweep
    contexts = context_sweep(judged)
    assert contexts.groupby("draft_tokens")["context_tokens"].apply(list).tolist() == [[260, 1024]] * 3
    assert (contexts.groupby("draft_tokens")["ratio_median"].diff().dropna() > 0).all()
    assert context_sweep(judged.loc[judged["context_tokens"] == 260]).empty


def test_timeline_is_of_one_segment_in_seconds_since_its_start() -> None:
    rows = [r for d in ("plain", "dspark-7") for r in cell(d, waves=1, decode=False, committed_per_round=1.0)]
    start = 5_000_000_000
    for i, row in enumerate(rows):
        row.update(t_start_ns=start + i * 2_000_000_000, t_end_ns=start + i * 2_000_000_000 + 1_000_000_000)
    later = [dict(r, segment_id="zzz", t_start_ns=1, t_end_ns=2) for r in rows]
    samples = pd.DataFrame([
        {"segment_id": segment, "kind": kind, "t_ns": start + j * 10_000_000, "value": value}
        for segment in (rows[0]["segment_id"], "zzz")
        for j in range(300)
        for kind, value in (("power_w", 300.0 + j), ("sm_clock_mhz", 1500.0))
    ])  # fmt: skip
    out = block_timeline(samples, frame(rows + later))
    windows = out.loc[out["kind"] == "window"]
    assert windows["drafter"].tolist() == ["plain", "dspark-7"]
    assert windows["seconds"].tolist() == [0.0, 2.0] and windows["end_seconds"].tolist() == [1.0, 3.0]
    power = out.loc[out["kind"] == "power_w"]
    assert len(power) == 300 and power["seconds"].min() == 0.0 and power["seconds"].max() == pytest.approx(2.99)
    assert out["block"].iloc[0].startswith("M on G, block ")
    assert block_timeline(samples.iloc[:0], frame(rows)).empty
