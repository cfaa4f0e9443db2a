"""Known truth: what the simulator knows is recovered by the real analysis, and a fault costs cells, not correctness.

Truth comes from three sides that share no code with the estimators: the exact energy of every simulated window, sums
over many seeds on boards that are all alike, and the engine's own counts over whole corpora.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specjoule.engines.base import Batch
from specjoule.engines.simulated import open_simulated
from specjoule.pairs.language import energy_retention, retention, with_quality
from specjoule.prompts.corpus import load_corpus
from specjoule.study.model import Study
from specjoule.tables import compute
from specjoule.tables.context import Context
from specjoule.tables.ingest import ingest
from tests.engines.simulated.conftest import launch
from tests.recovery.simulated_study import (
    NO_SPREAD,
    ROOT,
    collected,
    context_of,
    folders_in,
    measure,
    small_study,
    struck,
)

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3, 4, 5)
STRUCK = (2, 4)
TRUTH_SEEDS = tuple(range(101, 117))


@pytest.fixture(scope="module")
def study() -> Study:
    return small_study(seeds=SEEDS)


@pytest.fixture(scope="module")
def clean(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean") / "study"
    assert measure(study, folder) == []
    return folder


@pytest.fixture(scope="module")
def clean_rows(study: Study, clean: Path) -> pd.DataFrame:
    return collected(study, clean)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """One row a seed, drafter and concurrency of many seeds on boards all alike, from exact energies and counts."""
    many = small_study(seeds=TRUTH_SEEDS, overrides=NO_SPREAD, protocol={"reference_cells": 0})
    folder = tmp_path_factory.mktemp("truth")
    assert measure(many, folder) == []
    rows = collected(many, folder)
    keys = ["seed", "drafter", "concurrency"]
    generation = rows.loc[rows["window"] == "generation"]
    names = ["energy_true_j", "committed_tokens", "rounds", "accepted_draft_tokens", "cut_tokens"]
    sums = generation.groupby(keys)[names].sum()
    sums["e"] = sums["energy_true_j"] / sums["committed_tokens"]
    sums["a"] = 1.0 + (sums["accepted_draft_tokens"] - sums["cut_tokens"]) / sums["rounds"]
    spent = generation.assign(weighted=generation["itl_mean_ms"] * generation["committed_tokens"])
    sums["itl"] = spent.groupby(keys)["weighted"].sum() / sums["committed_tokens"]
    decode = rows.loc[(rows["window"] == "decode") & rows["energy_true_j"].notna()]
    steps = decode.groupby(keys)[["energy_true_j", "steps", "committed_tokens", "rounds"]].sum()
    sums["j_per_step"] = steps["energy_true_j"] / steps["steps"]
    sums["a_decode"] = steps["committed_tokens"] / steps["rounds"]
    table = sums.reset_index()
    plain = table.loc[table["drafter"] == "plain", ["seed", "concurrency", "e", "j_per_step", "itl"]]
    return table.loc[table["drafter"] != "plain"].merge(plain, on=["seed", "concurrency"], suffixes=("", "_plain"))


def true_ratios(truth: pd.DataFrame) -> dict[tuple[str, int], float]:
    """The ratio of every configuration: geometric mean over seeds."""
    logs = np.log(truth["e"] / truth["e_plain"]).groupby([truth["drafter"], truth["concurrency"]]).mean()
    return {(str(d), int(c)): float(np.exp(v)) for (d, c), v in logs.items()}


def assert_covers(context: Context, ratios: dict[tuple[str, int], float]) -> None:
    table = context.judged
    assert len(table) == len(ratios)
    for row in table.itertuples():
        assert row.ratio_low <= ratios[row.drafter, row.concurrency] <= row.ratio_high, (row.drafter, row.concurrency)
        assert row.saving_low <= 1 - ratios[row.drafter, row.concurrency] <= row.saving_high


def test_every_estimator_of_the_clean_study(study: Study, clean_rows: pd.DataFrame, truth: pd.DataFrame) -> None:
    context = context_of(study, clean_rows)
    assert context.excluded.empty and len(context.pairs) == 4 * len(SEEDS)
    assert_covers(context, true_ratios(truth))
    pairs = context.pairs
    for side in ("spec", "plain"):  # J/token of either side, each pair within what its own windows state
        off = (pairs[f"energy_{side}_j"] - pairs[f"energy_true_{side}_j"]).abs()
        assert (off <= pairs[f"uncertainty_{side}_j"]).mean() >= 0.95
        assert (pairs[f"energy_{side}_j"] / pairs[f"energy_true_{side}_j"]).mean() == pytest.approx(1, abs=0.002)
    ratio = (pairs["energy_true_spec_j"] / pairs["tokens_spec"]) / (
        pairs["energy_true_plain_j"] / pairs["tokens_plain"]
    )
    assert np.allclose(pairs["energy_ratio"], ratio, rtol=0.01)
    assert np.allclose(pairs["energy_ratio"], pairs["power_ratio"] / pairs["speedup"], rtol=1e-9)
    known = truth.groupby(["drafter", "concurrency"])
    mean, error = known.mean(numeric_only=True), known.std(numeric_only=True)
    for row in context.summary.itertuples():
        place = (row.drafter, row.concurrency)
        # tokens a round, over whole waves (where seeds differ in their prompts only) and over decode windows
        mine = pairs.loc[(pairs["drafter"] == place[0]) & (pairs["concurrency"] == place[1])]
        for seen, name, cut in ((mine["a_generation_spec"], "a", 1e-9), (mine["a_spec"], "a_decode", 0.005)):
            prompts = 3 * error.loc[place, name] / np.sqrt(len(SEEDS))
            assert seen.mean() == pytest.approx(mean.loc[place, name], abs=cut * mean.loc[place, name] + prompts)
        # interval of a user: launches differ by 0.3 %, boards by 0.4 %
        scatter = error.loc[place, "itl"] / mean.loc[place, "itl"]
        assert row.itl_spec_ms == pytest.approx(mean.loc[place, "itl"], rel=0.01 + 3 * scatter / np.sqrt(len(SEEDS)))
        assert row.itl_plain_ms == pytest.approx(mean.loc[place, "itl_plain"], rel=0.015)
        # break-even tokens: energy per step of either side's decode windows
        r_e = float((truth["j_per_step"] / truth["j_per_step_plain"])[
            (truth["drafter"] == place[0]) & (truth["concurrency"] == place[1])
        ].median())  # fmt: skip
        assert row.r_e_window == "decode" and row.r_e == pytest.approx(r_e, rel=0.02)
    needed = compute.needed(context).set_index(["drafter", "concurrency"])
    assert (needed["break_even_a"] - context.summary.set_index(["drafter", "concurrency"])["r_e"]).abs().max() < 1e-9


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, pd.DataFrame]:
    """Texts, capture states and clocks in one study, so that every estimator across them has data."""
    texts = ("code", "conversation", "news_en", "news_rm")
    beside = [{"corpora": ("code",), "capture": (False,)}, {"corpora": ("code",), "locked_mhz": (1200,)}]
    study = small_study(seeds=(1, 2, 3), corpora=texts, beside=beside)
    analysis = study.file.analysis.model_copy(update={"mixes": {"chat": {"conversation": 0.7, "code": 0.3}}})
    study = study.model_copy(update={"file": study.file.model_copy(update={"analysis": analysis})})
    folder = tmp_path_factory.mktemp("wide")
    assert measure(study, folder) == []
    return study, folder, collected(study, folder)


ORACLE: dict[str, tuple[str, ...]] = {
    "verdicts": ("ratio_median", "ratio_totals", "e_spec_j", "e_plain_j"),
    "capture": ("saving_on", "saving_off", "c_spec", "c_plain"),
    "corpora": ("ratio_median", "ratio_totals"),
    "mixes": ("ratio_median",),
    "clocks": ("energy_saving", "throughput_loss"),
    "factors": ("gamma_t", "gamma_board"),
    "needed": ("break_even_a",),
    "targets": ("plain_j", "spec_j", "ratio_median"),
    "first_wave": ("saving_median_first_wave",),
}
"""Tables whose numbers are compared with the same table made from the exact energies."""


@pytest.mark.parametrize("name", sorted(ORACLE))
def test_tables_say_what_exact_energies_say(wide: tuple[Study, Path, pd.DataFrame], name: str) -> None:
    study, folder, rows = wide
    exact = rows.assign(energy_j=rows["energy_true_j"].where(rows["energy_j"].notna()))
    seen, true = (getattr(compute, name)(context_of(study, r, folder / "raw")) for r in (rows, exact))
    assert len(seen) == len(true) > 0
    for column in ORACLE[name]:
        a, b = seen[column].to_numpy(dtype=float), true[column].to_numpy(dtype=float)
        assert (np.isnan(a) == np.isnan(b)).all() and not np.isnan(b).all(), column
        # Single windows of about a second are known to 1 %; sums over a cell's windows to 0.5 %.
        assert np.nanmax(np.abs(a - b)) < (0.02 if name in ("first_wave", "needed") else 0.01) * np.nanmax(np.abs(b))


def test_language_retention_and_what_drifted(wide: tuple[Study, Path, pd.DataFrame]) -> None:
    study, folder, rows = wide
    context = context_of(study, rows, folder / "raw")
    assert context.nested is not None
    work = with_quality(context.nested.requests, context.cells)
    work = work.loc[work["corpus"].isin(["news_en", "news_rm"]) & (work["drafter"] == "DSpark-7")]
    table = retention(work, {"DSpark-7": "third-party"}).set_index("concurrency")
    sums = {}
    for corpus in ("news_en", "news_rm"):  # every prompt of either corpus once, counted by the engine itself
        engine, _ = open_simulated(study, study.gpus["H100"], "truth", 1)
        engine.start(launch(study, "Qwen3-8B", "H100", "DSpark-7", sizes=(16,)))
        pool = load_corpus(ROOT / study.corpora[corpus].path, corpus)
        found = []
        for i in range(0, len(pool), 16):
            batch = tuple(pool[i : i + 16])
            wave = engine.run(Batch(batch, 512, True))
            answers = [engine.world.answer("Qwen3-8B", p) for p in batch]
            found += [
                (r.committed_tokens - 1, r.rounds, a.language == p.language and not a.degenerate)
                for r, a, p in zip(wave.requests, answers, batch, strict=True)
            ]
        sums[corpus] = np.array(found, dtype=float)
    for name, keep in (("all", False), ("kept", True)):
        a = {c: (s[s[:, 2] == 1] if keep else s).sum(axis=0) for c, s in sums.items()}
        true = (a["news_rm"][0] / a["news_rm"][1]) / (a["news_en"][0] / a["news_en"][1])
        for row in table.itertuples():
            assert getattr(row, f"{name}_low") <= true <= getattr(row, f"{name}_high"), (name, row.Index)
    kept = work.groupby("corpus", observed=True)["qualifies"].mean()
    assert kept["news_rm"] < kept["news_en"]
    counts = compute.language_counts(context).set_index(["drafter", "language"])
    assert "it" in counts.loc[("DSpark-7", "rm"), "drifted_to"]
    assert counts.loc[("DSpark-7", "rm"), "answers"] == (work["corpus"] == "news_rm").sum()
    energy = energy_retention(work, context.cells).set_index(["concurrency", "locked_mhz"])
    assert (energy.loc[16, "reason"] == "not_all_qualify").all()  # sixteen answers never all stay in Romansh here


SPEC16: dict[str, Any] = {"drafters": ["DSpark-7"], "concurrency": [16]}
BOTH = [("DSpark-7", 16)]
EVERY = [("DSpark-7", 1), ("DSpark-7", 16), ("ngram-4", 1), ("ngram-4", 16)]
AT16 = [("DSpark-7", 16), ("ngram-4", 16)]


@pytest.mark.parametrize(
    ("fault", "cells", "reason"),
    [
        ({"kind": "early_eos", **SPEC16}, BOTH, "short_answer"),
        ({"kind": "repeated_prompts", **SPEC16}, BOTH, "repeated_prompts"),
        ({"kind": "cache_hit", **SPEC16}, BOTH, "cache_hit"),
        ({"kind": "degenerate", "share": 1.0, **SPEC16}, BOTH, "degenerate_output"),
        ({"kind": "thermal_slowdown", **SPEC16}, BOTH, "thermal_slowdown"),
        ({"kind": "thermal_slowdown", "drafters": ["plain"], "concurrency": [16]}, AT16, "plain_invalid"),
        ({"kind": "hardware_slowdown", **SPEC16}, BOTH, "hardware_slowdown"),
        ({"kind": "capture_fallback", **SPEC16}, BOTH, "capture_fell_back"),
        ({"kind": "capture_fallback", "drafters": ["plain"], "concurrency": [16]}, AT16, "plain_invalid"),
        ({"kind": "partial_batch", "value": 9, **SPEC16}, BOTH, "capacity"),
        ({"kind": "partial_batch", "value": 9, "drafters": ["plain"], "concurrency": [16]}, AT16, "plain_partial"),
        ({"kind": "counter_reset", **SPEC16}, BOTH, "counter_reset"),
        ({"kind": "counter_frozen", **SPEC16}, BOTH, "counter_frozen"),
        ({"kind": "meter_gap", **SPEC16}, BOTH, "meter_gap"),
        ({"kind": "width_change", **SPEC16}, BOTH, "draft_width_changed"),
        ({"kind": "foreign_process", **SPEC16}, BOTH, "foreign_processes"),
        ({"kind": "slow_client", **SPEC16}, BOTH, "client_behind"),
        ({"kind": "out_of_memory", "value": "run", **SPEC16}, BOTH, "oom_run"),
        ({"kind": "drift", "value": 1.0}, EVERY, "block_drift"),
    ],
    ids=lambda v: v["kind"] + ("-plain" if v.get("drafters") == ["plain"] else "") if isinstance(v, dict) else None,
)
def test_a_fault_costs_its_cells_and_nothing_else(
    study: Study, clean: Path, clean_rows: pd.DataFrame, truth: pd.DataFrame, tmp_path: Path,
    fault: dict[str, Any], cells: Sequence[tuple[str, int]], reason: str,
) -> None:  # fmt: skip
    context = fault_context(study, clean, clean_rows, tmp_path / "study", fault)
    out = context.excluded
    assert set(zip(out["drafter"], out["concurrency"], out["seed"], strict=True)) == {
        (d, c, s) for d, c in cells for s in STRUCK
    }
    assert all(reason in codes.split(",") for codes in out["reason"]), set(out["reason"])
    assert len(context.pairs) == len(EVERY) * len(SEEDS) - len(cells) * len(STRUCK)
    assert_covers(context, true_ratios(truth))
    counts = compute.outcomes(context)
    assert reason in set(counts["reason"])  # and the table of exclusions says so


def fault_context(study: Study, clean: Path, clean_rows: pd.DataFrame, folder: Path, fault: dict[str, Any]) -> Context:
    struck(study, clean, folder, [fault], STRUCK)
    fresh = collected(study, folder, lambda b: b.seed in STRUCK)
    untouched = clean_rows.loc[~clean_rows["seed"].isin(STRUCK)]
    return context_of(study, pd.concat([untouched, fresh], ignore_index=True), folders_in(folder).raw)


def test_another_board_within_a_block_is_no_partner(
    study: Study, clean: Path, clean_rows: pd.DataFrame, truth: pd.DataFrame, tmp_path: Path
) -> None:
    context = fault_context(study, clean, clean_rows, tmp_path / "study", {"kind": "other_board", "value": 2})
    first = context.cells.loc[context.cells["role"] == "cell"]
    board = first.loc[first["scheme"] == "plain"].groupby("seed")["gpu_uuid"].first()
    apart = first.loc[(first["scheme"] != "plain") & (first["gpu_uuid"] != first["seed"].map(board))]
    wanted = set(zip(apart["drafter"], apart["concurrency"], apart["seed"], strict=True))
    assert wanted and {s for _, _, s in wanted} <= set(STRUCK)
    out = context.excluded
    assert set(zip(out["drafter"], out["concurrency"], out["seed"], strict=True)) == wanted
    assert set(out["reason"]) == {"keys_differ"} and out["reason_detail"].str.contains("gpu_uuid").all()
    assert_covers(context, true_ratios(truth))
    # The closing plain ran on the other board: what it says is no drift of the first.
    assert context.rows.loc[context.rows["seed"].isin(STRUCK), "block_drift"].isna().all()
    # ... nor do the same windows say so where no block record is at hand.
    alone = ingest([folders_in(tmp_path / "study").raw], study.file.validity).rows
    drifts = alone.groupby("seed")["block_drift"].first()
    assert drifts[list(STRUCK)].isna().all() and drifts.drop(list(STRUCK)).notna().all()


@pytest.mark.parametrize("kind", ["hang", "crash", "counter_reset", "meter_gap", "foreign_process"])
def test_trouble_of_the_environment_once_costs_nothing(
    study: Study, clean: Path, clean_rows: pd.DataFrame, truth: pd.DataFrame, tmp_path: Path, kind: str
) -> None:
    context = fault_context(study, clean, clean_rows, tmp_path / "study", {"kind": kind, "times": 1, **SPEC16})
    assert context.excluded.empty and len(context.pairs) == len(EVERY) * len(SEEDS)
    assert_covers(context, true_ratios(truth))


def test_an_ignored_clock_is_no_clock(tmp_path: Path) -> None:
    study = small_study(seeds=(1,), drafters=("plain", "DSpark-7"), concurrency=(16,), locked_mhz=(None, 1200),
                        faults=[{"kind": "clock_not_obeyed", "drafters": ["DSpark-7"]}])  # fmt: skip
    measure(study, tmp_path)
    context = context_of(study, collected(study, tmp_path))
    assert context.excluded["reason"].tolist() == ["clock_not_obeyed"]
    assert context.excluded["locked_mhz"].tolist() == [1200] and len(context.pairs) == 1
    assert compute.clocks(context)["drafter"].tolist() == ["plain"]
