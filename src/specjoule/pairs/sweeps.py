"""One factor moved at a time: n-gram length, locked clock, context length."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.configurations import PLACE
from specjoule.pairs.summary import GROUP_KEYS


def ngram_length(table: pd.DataFrame, least_lengths: int = 3) -> pd.DataFrame:
    """Return n-gram configurations of places with at least `least_lengths` lengths, by *proposals* k.

    `best_length` marks the lowest median ratio of its place; `marginal` is the change of the ratio from the next
    shorter length (negative: the longer one saves more).
    """
    place = [k for k in GROUP_KEYS if k in table.columns and k not in ("drafter", "draft_tokens", "verify_width")]
    mine = table.loc[table["scheme"] == "ngram"].copy()
    many = mine.groupby(place, dropna=False)["draft_tokens"].transform("nunique") >= least_lengths
    mine = mine.loc[many].sort_values([*place, "draft_tokens"], kind="stable")
    grouped = mine.groupby(place, dropna=False)["ratio_median"]
    mine["best_length"] = mine["ratio_median"] == grouped.transform("min")
    mine["marginal"] = grouped.diff()
    return mine.reset_index(drop=True)


def clock_sweep(counted: pd.DataFrame) -> pd.DataFrame:
    """Compare locked clocks with the default clock of the same drafter, batch, block and seed.

    Medians over seeds, per configuration and clock: `energy_saving` = 1 - e(locked)/e(default) in J/token,
    `throughput_loss` = 1 - X(locked)/X(default), `clock_default_mhz` (mean SM clock that the default ran at),
    `j_per_token`, `itl_mean_ms`. Cells of either side missing: left out.
    """
    keys = [k for k in (*PLACE, "drafter", "scheme", "verify_width", "concurrency", "capture") if k in counted.columns]
    block = ["block_id", "seed", "replicate"]
    values = ["j_per_token", "throughput_tok_s", "sm_clock_mean_mhz", "itl_mean_ms"]
    base = counted.loc[counted["locked_mhz"].isna(), [*keys, *block, *values]]
    locked = counted.loc[counted["locked_mhz"].notna(), [*keys, *block, "locked_mhz", *values]]
    both = locked.merge(base, on=[*keys, *block], suffixes=("", "_default"))
    both["energy_saving"] = 1.0 - both["j_per_token"] / both["j_per_token_default"]
    both["throughput_loss"] = 1.0 - both["throughput_tok_s"] / both["throughput_tok_s_default"]
    out = both.groupby([*keys, "locked_mhz"], dropna=False).agg(
        n_seeds=("seed", "nunique"), energy_saving=("energy_saving", "median"),
        energy_saving_min=("energy_saving", "min"), energy_saving_max=("energy_saving", "max"),
        throughput_loss=("throughput_loss", "median"), clock_default_mhz=("sm_clock_mean_mhz_default", "median"),
        j_per_token=("j_per_token", "median"), itl_mean_ms=("itl_mean_ms", "median"),
    )  # fmt: skip
    return out.reset_index()


def context_sweep(table: pd.DataFrame) -> pd.DataFrame:
    """Return configurations of places that were measured at two or more context lengths (tokens of prompt)."""
    place = [k for k in GROUP_KEYS if k in table.columns and k != "context_tokens"]
    mine = table.loc[table["context_tokens"].notna()]
    many = mine.groupby(place, dropna=False)["context_tokens"].transform("nunique") > 1
    return mine.loc[many].sort_values([*place, "context_tokens"], kind="stable").reset_index(drop=True)
