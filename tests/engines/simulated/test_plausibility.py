"""The table 'published against simulated': pure, honest where the data are silent, labelled on every row."""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.engines.simulated.plausibility import COLUMNS, LABEL, published_against_simulated

CELLS = [
    "model", "gpu", "drafter", "scheme", "verify_width", "concurrency", "corpus", "capture", "locked_mhz",
    "context_tokens",
    "role", "status", "j_per_token", "itl_mean_ms", "throughput_tok_s", "sm_clock_mean_mhz", "realized_batch_peak",
]  # fmt: skip


def cell(**over: object) -> dict[str, object]:
    base: dict[str, object] = {
        "model": "Qwen3-4B", "gpu": "H100", "drafter": "plain", "scheme": "plain", "verify_width": 1,
        "concurrency": 1,
        "corpus": "code", "capture": True, "locked_mhz": np.nan, "context_tokens": np.nan,
        "role": "cell", "status": "ok",
        "j_per_token": 1.0, "itl_mean_ms": 10.0, "throughput_tok_s": 100.0, "sm_clock_mean_mhz": 1900.0,
        "realized_batch_peak": 1.0,
    }  # fmt: skip
    return base | over


def pair(saving: float, **over: object) -> dict[str, object]:
    base = {
        k: v for k, v in cell().items() if k not in ("role", "status", "j_per_token", "itl_mean_ms", "throughput_tok_s")
    }
    base |= {"drafter": "DFlash-16", "scheme": "dflash", "verify_width": 16}
    base |= {"saving": saving, "a_spec": 3.0, "itl_spec_ms": 5.0, "e_spec_j": 1 - saving, "speedup": 2.0}
    return base | over


def test_without_data_every_row_says_not_answered() -> None:
    table = published_against_simulated(pd.DataFrame(columns=CELLS), pd.DataFrame())
    assert list(table.columns) == list(COLUMNS) and len(table) > 40
    assert set(table["verdict"]) == {"not answered"} and set(table["simulated"]) == {"-"}
    assert set(table["label"]) == {LABEL}


def test_signs_are_counted_and_medians_taken_over_seeds() -> None:
    pairs = [pair(s, concurrency=n) for n in (1, 16) for s in (0.1, 0.2, 0.9)]
    pairs += [pair(s, concurrency=32) for s in (-0.3, -0.1, 0.5)] + [pair(0.1, concurrency=64)]
    table = published_against_simulated(pd.DataFrame([cell()]), pd.DataFrame(pairs))
    row = table.loc[table["finding"] == "Qwen3-4B on H100, DFlash-16"].iloc[0]
    # 1 and 16 save as published, 32 costs as published, 64 saves against it.
    assert row["simulated"].startswith("3 of 4 signs (1:+0.20 16:+0.20 32:-0.10 64:+0.10)")
    assert row["verdict"] == "differs"


def test_values_agree_only_within_the_rounding_and_are_near_with_the_same_sign() -> None:
    for saving, verdict in ((0.74, "agrees"), (0.68, "near"), (0.2, "differs")):
        pairs = pd.DataFrame([pair(saving, model="Gemma-4-12B")])
        table = published_against_simulated(pd.DataFrame([cell(model="Gemma-4-12B")]), pairs)
        row = table.loc[table["finding"] == "Gemma-4-12B, concurrency 1"].iloc[0]
        assert row["verdict"] == verdict


def test_what_went_into_a_parameter_is_marked() -> None:
    table = published_against_simulated(pd.DataFrame(columns=CELLS), pd.DataFrame())
    given = table.loc[table["input"] != "", "topic"]
    assert set(given) == {"corpora", "language"}


def test_capacity_reads_outcomes_of_runs() -> None:
    rows = [
        cell(model="Qwen3.6-27B", drafter="DFlash-16", scheme="dflash", concurrency=16, status="infeasible"),
        cell(
            model="Qwen3.6-27B",
            drafter="MTP-4",
            scheme="mtp",
            concurrency=16,
            status="partial",
            realized_batch_peak=12.0,
        ),
    ]
    table = published_against_simulated(pd.DataFrame(rows), pd.DataFrame())
    mine = table.loc[table["topic"] == "capacity"].set_index("finding")
    assert mine.loc["Qwen3.6-27B on H100, DFlash-16, concurrency 16", "verdict"] == "agrees"
    assert mine.loc["Qwen3.6-27B on H100, MTP-4, concurrency 16", "simulated"] == "runs 12"
