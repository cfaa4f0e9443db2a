"""Published against measured: every known value has its row, and every row says what it is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from specjoule.study.load import load_study
from specjoule.tables import published
from specjoule.tables.context import Context
from specjoule.tables.published import COLUMNS, NOT_ANSWERABLE, PLAUSIBILITY, published_table, published_values
from specjoule.tables.published_answers import _ANSWERS
from tests.conftest import REPO
from tests.pairs.frames import cell, frame, study

VALUES = {item["id"]: item for item in published_values()}


def context_of(rows: list[dict[str, Any]] | pd.DataFrame) -> Context:
    known = load_study(REPO / "config" / "rehearsal.yaml")
    table = rows if isinstance(rows, pd.DataFrame) else frame(rows)
    return Context(table, "t", models=known.models, drafters=known.drafters, gpus=known.gpus)


def told(rows: list[dict[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    return published_table(context_of(rows)).set_index("id")


def drafted(model: str, drafter: str, scheme: str, width: int, ratio: float, n: int = 1, **more: Any) -> list[Any]:
    """Plain and one drafter on three seeds whose ratios differ by a percent."""
    out = []
    for seed in (0, 1, 2):
        place = {"model": model, "gpu": "H100", "concurrency": n, "seed": seed, "gpu_uuid": f"b{seed}", **more}
        out += cell("plain", **place)
        out += cell(drafter, scheme=scheme, draft_tokens=width - 1, verify_width=width, committed_per_round=2.0,
                    step_j=2.0 * ratio * (1 + 0.01 * (seed - 1)), **place)  # fmt: skip
    return out


def test_every_value_has_source_kind_and_either_estimator_or_reason() -> None:
    assert len(VALUES) == len(published_values()) > 130
    for item in VALUES.values():
        assert item["source"] and item["quantity"], item["id"]
        assert ("answer" in item) != ("unanswerable" in item), item["id"]
        assert item.get("answer", "saving") in _ANSWERS, item["id"]
        assert item["kind"] in ("value", "range", "count", "sign", "finding", "setting")
        given = {"value": "value", "count": "value", "range": "low", "setting": "members", "finding": "text"}
        assert given.get(item["kind"], "answer") in item, item["id"]
    per_study = pd.Series([v["study"] for v in VALUES.values()]).value_counts()
    assert set(per_study.index) == {"main", "simple", "dutta", "dspine", "nf12"}
    assert {v["answer"] for v in VALUES.values() if "answer" in v} == set(_ANSWERS)  # no estimator without a question


def test_nothing_is_dropped_and_what_is_missing_says_why() -> None:
    table = told(study(concurrencies=[1]))
    assert list(table.index) == list(VALUES) and list(table.reset_index().columns) == list(COLUMNS)
    silent = table["agreement"] == NOT_ANSWERABLE
    assert (
        silent.sum() > 120 and table.loc[silent, "reason"].notna().all() and table.loc[silent, "measured"].isna().all()
    )
    assert table.loc["coder-1-best", "reason"] == "these data hold no Qwen3-Coder-30B-A3B"
    assert "chat template" in table.loc["no-template", "reason"] and "law" in table.loc["simple-fit-r2", "reason"]
    assert set(table["label"]) == {PLAUSIBILITY}
    measured = published_table(context_of(study(concurrencies=[1], meter="nvml")))
    assert set(measured["label"]) == {published.MEASUREMENT}


def test_an_excluded_cell_is_the_reason() -> None:
    rows = drafted("Gemma-4-12B", "DFlash-16", "dflash", 16, 0.25)
    for row in rows:
        if row["drafter"] == "DFlash-16":
            row.update(validity="invalid", validity_reason="cache_hit")
    assert told(rows).loc["gemma12-1-dflash", "reason"] == "the cells that were run give no pair: cache_hit"


@pytest.mark.parametrize(("ratio", "agreement"), [(0.25, "agrees"), (0.255, "agrees"), (0.32, "differs")])
def test_a_value_is_compared_in_noise_of_both_sides(ratio: float, agreement: str) -> None:
    context = context_of(drafted("Gemma-4-12B", "DFlash-16", "dflash", 16, ratio))
    row = published_table(context).set_index("id").loc["gemma12-1-dflash"]
    judged = context.judged.iloc[0]
    noise = np.hypot(judged["ratio_median"] * judged["log_se"], 0.005 / np.sqrt(3))
    assert row["noise"] == pytest.approx(noise)
    assert row["difference"] == pytest.approx(judged["saving_median"] - 0.75)
    assert row["difference_in_noise"] == pytest.approx(row["difference"] / noise)
    assert row["agreement"] == agreement
    assert published_table(context).set_index("id").loc["gemma12-1-winner", "agreement"] == "agrees"


def test_a_range_is_left_by_what_lies_outside() -> None:
    rows = drafted("Gemma-4-12B", "DFlash-16", "dflash", 16, 0.70, n=64)
    rows += drafted("Qwen3-4B", "DFlash-16", "dflash", 16, 0.35, n=64)
    row = told(rows).loc["best-at-64"]
    assert row["measured_low"] == pytest.approx(0.30, abs=0.01) and row["measured_high"] == pytest.approx(
        0.65, abs=0.01
    )
    assert row["difference"] == pytest.approx(row["measured_high"] - 0.52) and row["agreement"] == "differs"
    assert row["measured"].endswith("(2 of 11 models)")
    inside = told(drafted("Gemma-4-12B", "DFlash-16", "dflash", 16, 0.70, n=64)).loc["best-at-64"]
    assert inside["difference"] == 0 and inside["agreement"] == "agrees"


@pytest.mark.parametrize(("at_16", "at_64", "agreement"), [(0.8, 1.3, "agrees"), (1.2, 1.3, "differs")])
def test_signs_are_verdicts_with_the_least_favourable_effect(at_16: float, at_64: float, agreement: str) -> None:
    rows = [
        r for n, x in ((1, 0.5), (16, at_16), (64, at_64)) for r in drafted("Qwen3-4B", "DFlash-16", "dflash", 16, x, n)
    ]
    row = told(rows).loc["sign-h100-dflash"]
    assert row["agreement"] == agreement and (row["difference_in_noise"] > 2) == (agreement == "agrees")
    assert row["measured"].startswith("1: saves; 16:") and row["published"] == "saves up to 16, costs from 32"
    unsure = [r for n, x in ((1, 0.5), (16, 1.001)) for r in drafted("Qwen3-4B", "DFlash-16", "dflash", 16, x, n)]
    assert told(unsure).loc["sign-h100-dflash", "agreement"] == "cannot tell"


def test_counts_belong_to_the_whole_grid() -> None:
    table = told(drafted("Qwen3-4B", "DFlash-16", "dflash", 16, 0.5))
    for name in ("scheme-pairs", "scheme-pairs-wider", "target-feasible", "equal-energy-none"):
        assert table.loc[name, "reason"] == "the count belongs to the whole grid; these data hold 1 of its 11 models"


def test_outcomes_of_runs_answer_capacities() -> None:
    place = {"model": "Qwen3.6-27B", "gpu": "H100", "concurrency": 16}
    rows = cell("plain", **place)
    rows += cell("DFlash-16", scheme="dflash", verify_width=16, status="infeasible", reason="oom_load",
                 validity="not_measured", **place)  # fmt: skip
    rows += cell("MTP-4", scheme="mtp", verify_width=4, status="partial", reason="capacity",
                 **place)  # fmt: skip
    for row in rows:
        row["realized_batch_peak"] = 12 if row["drafter"] == "MTP-4" else 16
    table = told(rows)
    assert table.loc["capacity-27b-plain", "agreement"] == "agrees"
    assert table.loc["capacity-27b-dflash", "measured"] == "cannot start (oom_load)"
    assert table.loc["capacity-27b-mtp-h100", "measured"] == "12"
    assert table.loc["capacity-27b-mtp-h100", "agreement"] == "agrees"
    assert table.loc["capacity-27b-mtp-h200", "agreement"] == NOT_ANSWERABLE


def test_what_went_into_a_parameter_is_marked() -> None:
    given = {i for i, v in VALUES.items() if v.get("parameter")}
    assert {"retention-cotrained", "retention-posttrained", "balance-h100", "natural-length"} <= given
    assert not given & {"coder-1-best", "sign-h200-dflash", "plain-growth-moe"}
