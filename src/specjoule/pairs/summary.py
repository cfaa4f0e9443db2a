"""Headline of a configuration: median of the paired ratios over seeds, with half-range, and the ratio of totals."""

from __future__ import annotations

import numpy as np
import pandas as pd

GROUP_KEYS: tuple[str, ...] = (
    "model", "gpu", "drafter", "scheme", "draft_tokens", "verify_width", "concurrency", "corpus", "context_tokens",
    "capture", "locked_mhz", "ignore_eos", "max_new_tokens", "engine", "meter",
)  # fmt: skip
"""What makes one configuration; its pairs differ in seed and replicate (and board) only. Meters are never mixed."""

_MEDIANS = {
    "e_spec_j": "e_spec_j", "e_plain_j": "e_plain_j", "speedup": "speedup", "power_ratio": "power_ratio", "r_e": "r_e",
    "a_spec": "a_spec", "itl_spec_ms": "itl_spec_ms", "itl_plain_ms": "itl_plain_ms",
    "itl_p95_spec_ms": "itl_p95_spec_ms", "itl_p95_plain_ms": "itl_p95_plain_ms", "itl_p99_spec_ms": "itl_p99_spec_ms",
    "itl_p99_plain_ms": "itl_p99_plain_ms", "realized_batch_spec": "realized_batch_spec",
    "realized_batch_plain": "realized_batch_plain", "energy_ratio_matched": "energy_ratio_matched",
    "block_drift": "block_drift",
}  # fmt: skip


def summarise(pairs: pd.DataFrame, keys: tuple[str, ...] = GROUP_KEYS) -> pd.DataFrame:
    """Summarise pairs per configuration.

    Columns: `keys`; `n_pairs` (seed x replicate), `n_seeds`; `ratio_median` and `saving_median` = 1 - it, the median
    over pairs of the paired ratios; `ratio_half_range` = (max - min)/2; `ratio_min`, `ratio_max`; `ratio_totals` =
    (sum of E / sum of N) of the speculative sides over that of the plain sides; `tasks` (requests completed on each
    side), sums of tokens, energy (J) and duration (s) of both sides; medians over pairs of J/token, latencies (ms),
    speed-up, power ratio, r_e and A. The median ratio is never the ratio of two medians.
    """
    present = [k for k in keys if k in pairs.columns]
    columns = [*present, "n_pairs", "n_seeds", "ratio_median", "saving_median", "ratio_half_range"]
    if pairs.empty:
        return pd.DataFrame(columns=columns)
    grouped = pairs.groupby(present, dropna=False, sort=True, observed=True)
    aggregations: dict[str, tuple[str, str]] = {
        "n_pairs": ("energy_ratio", "size"),
        "n_seeds": ("seed", "nunique"),
        "ratio_median": ("energy_ratio", "median"),
        "ratio_min": ("energy_ratio", "min"),
        "ratio_max": ("energy_ratio", "max"),
        "n_boards": ("gpu_uuid", "nunique"),
        "r_e_window": ("r_e_window", "first"),
        "r_e_windows": ("r_e_window", "nunique"),
    }
    for side in ("spec", "plain"):
        aggregations[f"energy_{side}_j"] = (f"energy_{side}_j", "sum")
        aggregations[f"tokens_{side}"] = (f"tokens_{side}", "sum")
        aggregations[f"duration_{side}_s"] = (f"duration_{side}_s", "sum")
    aggregations["tasks"] = ("unique_prompts", "sum")
    for out, source in _MEDIANS.items():
        if source in pairs.columns:
            aggregations[out] = (source, "median")
    known = {k: v for k, v in aggregations.items() if v[0] in pairs.columns}
    table = grouped.agg(**known).reset_index()
    table["saving_median"] = 1.0 - table["ratio_median"]
    table["ratio_half_range"] = (table["ratio_max"] - table["ratio_min"]) / 2.0
    e_spec = table["energy_spec_j"] / table["tokens_spec"]
    e_plain = table["energy_plain_j"] / table["tokens_plain"]
    table["ratio_totals"] = e_spec / e_plain
    table["saving_totals"] = 1.0 - table["ratio_totals"]
    if "r_e_windows" in table:
        table["r_e_window"] = np.where(table["r_e_windows"] > 1, "mixed", table["r_e_window"])
        table = table.drop(columns="r_e_windows")
    return table
