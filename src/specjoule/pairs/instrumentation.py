"""What the study's own flags cost: the paired ratio with them against the ratio without, in the same block."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS
from specjoule.study.model import BASELINES

LIMIT = 0.005
"""Change of the paired ratio that the flags may make: half a percent."""


def without_minimal(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out what was measured with minimal flags: it answers one question only."""
    return frame.loc[frame["instrumentation"].isna()] if "instrumentation" in frame else frame


def only_minimal(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep what was measured with minimal flags."""
    return frame.loc[frame["instrumentation"].notna()] if "instrumentation" in frame else frame.iloc[:0]


def instrumentation_effect(pairs: pd.DataFrame, minimal: pd.DataFrame) -> pd.DataFrame:
    """Compare pairs under the study's flags with those of the same block, seed and drafter under minimal flags.

    Per seed: `ratio_study` and `ratio_minimal` (paired ratios, each of two launches under the same flags) and
    `ratio_change` = ratio_study / ratio_minimal - 1; `plain_change`, `spec_change` likewise of either side's J/token.
    Returned per configuration: medians over seeds, `ratio_change_half_range`, `n_seeds`, and `negligible`: the median
    change is within half a percent.
    """
    keys = [k for k in GROUP_KEYS if k in pairs.columns]
    block = ["block_id", "segment_id", "seed", "replicate"]
    shown = [*keys, "n_seeds", "ratio_study", "ratio_minimal", "ratio_change", "ratio_change_half_range"]
    values = ["energy_ratio", "e_spec_j", "e_plain_j"]
    both = pairs.loc[~pairs["scheme"].isin(list(BASELINES)), [*keys, *block, *values]] if len(pairs) else pairs
    if both.empty or minimal.empty:
        return pd.DataFrame(columns=[*shown, "plain_change", "spec_change", "negligible"])
    both = both.merge(minimal[[*keys, *block, *values]], on=[*keys, *block], suffixes=("_study", "_minimal"))
    for name, value in (("ratio", "energy_ratio"), ("spec", "e_spec_j"), ("plain", "e_plain_j")):
        both[f"{name}_change"] = both[f"{value}_study"] / both[f"{value}_minimal"] - 1
    both = both.rename(columns={"energy_ratio_study": "ratio_study", "energy_ratio_minimal": "ratio_minimal"})
    grouped = both.groupby(keys, dropna=False, sort=True)
    out = grouped[["ratio_study", "ratio_minimal", "ratio_change", "plain_change", "spec_change"]].median()
    out["n_seeds"] = grouped["seed"].nunique()
    out["ratio_change_half_range"] = (grouped["ratio_change"].max() - grouped["ratio_change"].min()) / 2
    out["negligible"] = out["ratio_change"].abs() <= LIMIT
    return out.reset_index()[[*shown, "plain_change", "spec_change", "negligible"]]
