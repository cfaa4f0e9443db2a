"""The sub-study of what the study's own flags cost: both sides with and without them, in one block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specjoule.blocks.journal import LAUNCH
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.sglang.commands import command_records
from specjoule.pairs.instrumentation import instrumentation_effect
from specjoule.study.load import load_study
from specjoule.tables.context import Context
from specjoule.tables.registry import build
from tests.engines.sglang.conftest import ROOT
from tests.engines.sglang.test_block import make_project
from tests.engines.sglang.test_faults import edit, told

WHERE = {"model": "m", "gpu": "H100", "scheme": "ngram", "drafter": "ngram-4", "segment_id": "s", "replicate": 1}


def pairs(ratios: list[float], plain_j: float, **more: Any) -> pd.DataFrame:
    rows = [
        {**WHERE, "seed": i, "block_id": f"b{i}", "concurrency": 1, "energy_ratio": r, "e_plain_j": plain_j,
         "e_spec_j": r * plain_j, **more}
        for i, r in enumerate(ratios)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_change_of_the_ratio_is_per_seed_and_then_the_median() -> None:
    study = pd.concat([pairs([0.702, 0.7007, 0.72], 1.01), pairs([0.9], 1.0, concurrency=64)])
    found = instrumentation_effect(study, pairs([0.7, 0.7, 0.7], 1.0)).iloc[0]
    assert found["ratio_change"] == pytest.approx(0.702 / 0.7 - 1)
    assert found["ratio_change_half_range"] == pytest.approx((0.72 - 0.7007) / 0.7 / 2)
    assert found["plain_change"] == pytest.approx(0.01)
    assert found["negligible"] and found["n_seeds"] == 3
    assert not instrumentation_effect(study, pairs([0.69] * 3, 1.0)).iloc[0]["negligible"]
    assert instrumentation_effect(study, study.iloc[:0]).empty


def test_the_paper_study_measures_both_sides_both_ways() -> None:
    study = load_study(ROOT / "config" / "paper.yaml")
    cells = [c for c in expand(study, load_pools(study)) if "instrumentation" in c.grids]
    shapes = {(c.drafter, c.concurrency, c.seed, c.instrumentation) for c in cells}
    drafters = ("plain", "ngram-4", "DFlash-16")
    assert shapes == {
        (d, n, s, i) for d in drafters for n in (1, 64) for s in (1, 2, 3) for i in (None, "minimal")
    }  # fmt: skip
    assert len({c.path for c in cells}) == len({c.hash for c in cells}) == len(cells)
    records = [r for r in command_records(study) if r["model"] == "Qwen3-4B" and r["drafter"] == "ngram-4"]
    assert {"--enable-metrics" in r["command"] for r in records} == {True, False}


def metrics(launched: dict[str, Any]) -> bool:
    return "--enable-metrics" in launched["resolved"]["specjoule"]["argv"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_both_flags_in_one_block_give_a_change_and_stay_out_of_the_headline(project_folder: Path) -> None:
    make_project(project_folder)

    def change(study: dict[str, Any]) -> None:
        study["grids"]["base"] |= {
            "drafters": ["plain", "ngram-4"],
            "concurrency": [4],
            "instrumentation": [None, "minimal"],
        }
        study["validity"] = {
            "max_client_lag_ms": 1e4, "max_relative_uncertainty": 1, "max_cross_check": 9,
            "max_batch_disagreement": 0.5, "max_block_drift": 9,
        }  # fmt: skip

    found = told(edit(project_folder, change))
    assert found.failed is None
    started = [e for e in found.events if e["event"] == LAUNCH]
    kinds = [(e["drafter"], e["instrumentation"], e["role"], metrics(e)) for e in started]
    assert sorted(kinds, key=str) == sorted(
        [
            ("plain", None, "cell", True), ("ngram-4", None, "cell", True), ("plain", None, "reference", True),
            ("plain", "minimal", "cell", False), ("ngram-4", "minimal", "cell", False),
        ],
        key=str,
    )  # fmt: skip
    assert {r["validity"] for r in found.rows if r["window"] == "generation"} == {"valid"}
    context = Context(pd.DataFrame(found.rows), "double")
    assert len(context.pairs) == 1 and context.excluded.empty
    build("table_instrumentation", context, project_folder / "out")
    (row,) = pd.read_csv(project_folder / "out" / "table_instrumentation.csv").to_dict("records")
    assert row["ratio_change"] == pytest.approx(row["ratio_study"] / row["ratio_minimal"] - 1)
    build("table_cells", context, project_folder / "out")
    assert pd.read_csv(project_folder / "out" / "table_cells.csv")["instrumentation"].notna().sum() == 2
