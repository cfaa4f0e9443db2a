"""Configurations as they ran, plain and speculative alike: energy and latency of the same cells, seed by seed.

Where batch, drafter and clock may all be chosen, plain decoding at other batches competes too; so this stands on cells,
not on pairs. Only cells that count: valid, complete, at the concurrency asked for.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.pairs.keys import CELL_KEYS, group_ids

PLACE: tuple[str, ...] = (
    "model", "gpu", "corpus", "context_tokens", "ignore_eos", "max_new_tokens", "engine", "meter",
)  # fmt: skip
"""What is given when a setting is chosen."""

SETTING: tuple[str, ...] = ("drafter", "scheme", "verify_width", "concurrency", "capture", "locked_mhz")
"""What may be chosen."""

BLOCK: tuple[str, ...] = ("seed", "replicate")

LATENCIES: dict[str, str] = {"mean": "itl_mean_ms", "p95": "itl_p95_ms", "p99": "itl_p99_ms"}
"""Latency statistics a target may be set on, and their columns (ms)."""


def counted_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the attempt of each cell that counts: newest segment that finished it, first valid attempt in it."""
    mine = cells.loc[(cells["role"] == "cell") & (cells["status"] == "ok") & cells["complete"]].copy()
    mine["_cell"] = group_ids(mine, CELL_KEYS)
    mine["_start"] = mine.groupby("segment_id")["started_at"].transform("min")
    mine["_bad"] = mine["validity"] != "valid"
    mine = mine.sort_values(["_start", "segment_id"], ascending=False, kind="stable")
    newest = mine.drop_duplicates("_cell")[["_cell", "segment_id"]]
    mine = mine.merge(newest, on=["_cell", "segment_id"]).sort_values(["_bad", "attempt", "launch"], kind="stable")
    mine = mine.drop_duplicates("_cell")
    good = mine.loc[~mine["_bad"] & (mine["energy_j"] > 0) & (mine["committed_tokens"] > 0)]
    return good.drop(columns=[c for c in good.columns if c.startswith("_")]).reset_index(drop=True)


def configurations(counted: pd.DataFrame) -> pd.DataFrame:
    """Summarise counted cells per place and setting: medians over seeds, and the extremes of latency over seeds.

    Columns: `PLACE`, `SETTING`; `n_seeds`; `j_per_token` (J/token), `itl_mean_ms`, `itl_p95_ms`, `itl_p99_ms` (ms),
    `throughput_tok_s`, `realized_batch`: medians over seeds; `*_max_ms`: the slowest seed's value of each latency.
    """
    keys = [k for k in (*PLACE, *SETTING) if k in counted.columns]
    spec: dict[str, tuple[str, str]] = {
        "n_seeds": ("seed", "nunique"),
        "j_per_token": ("j_per_token", "median"),
        "throughput_tok_s": ("throughput_tok_s", "median"),
        "realized_batch": ("realized_batch", "median"),
    }
    for name in LATENCIES.values():
        if name in counted.columns:
            spec[name] = (name, "median")
            spec[name.replace("_ms", "_max_ms")] = (name, "max")
    return counted.groupby(keys, dropna=False, sort=True).agg(**spec).reset_index()


def setting_words(table: pd.DataFrame) -> pd.Series[str]:
    """Name a setting in words: 'DFlash-16 at 4' with capture and clock where they are not the default."""
    words = table["drafter"].astype("str") + " at " + table["concurrency"].astype("int64").astype("str")
    if "capture" in table.columns and table["capture"].nunique(dropna=False) > 1:
        words = words + np.where(table["capture"].eq(True), "", ", capture off")
    if "locked_mhz" in table.columns and table["locked_mhz"].notna().any():
        clock = table["locked_mhz"].map(lambda v: "" if pd.isna(v) else f", {v:.0f} MHz")
        words = words + clock.astype("str")
    return words.astype("str")
