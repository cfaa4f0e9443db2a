"""Scatter of a paired log ratio that its own waves explain: prompts and reading errors, seen inside one block.

The waves of a cell hold distinct prompts and are the same on both sides of a pair, so that their differences measure
how much the drawn prompts matter, without asking for more seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

_SIDE = ["segment_id", "cell_hash", "attempt", "launch"]


def wave_pairs(rows: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair and wave: `pair` (position in `pairs`), `wave`, energies (J) and tokens of both sides."""
    part = rows.loc[(rows["window"] == "generation") & (rows["role"] == "cell")]
    part = part[[*_SIDE, "wave", "energy_j", "committed_tokens"]]
    keys = pairs[["segment_id", *(f"{k}_{s}" for s in ("spec", "plain") for k in ("hash", "attempt", "launch"))]]
    out = keys.assign(pair=np.arange(len(pairs)))
    for side in ("spec", "plain"):
        names = {"cell_hash": f"hash_{side}", "attempt": f"attempt_{side}", "launch": f"launch_{side}"}
        values = {"energy_j": f"energy_{side}_j", "committed_tokens": f"tokens_{side}"}
        mine = part.rename(columns=names | values)
        on = ["segment_id", *names.values()] + (["wave"] if side == "plain" else [])
        out = out.merge(mine, on=on, how="inner")
    return out[["pair", "wave", "energy_spec_j", "tokens_spec", "energy_plain_j", "tokens_plain"]]


def with_wave_variance(pairs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add `wave_var`, the variance of a pair's log ratio as its waves show it, and `wave_df` = waves - 1.

    Linearised ratio of sums: each wave's influence on log rho is u = E_s/sum E_s - N_s/sum N_s - E_p/sum E_p
    + N_p/sum N_p, and Var(log rho) = W/(W - 1) sum u^2. Null with one wave. Dimensionless.
    """
    waves = wave_pairs(rows, pairs)
    total = waves.groupby("pair")[["energy_spec_j", "tokens_spec", "energy_plain_j", "tokens_plain"]].transform("sum")
    u = (
        waves["energy_spec_j"] / total["energy_spec_j"]
        - waves["tokens_spec"] / total["tokens_spec"]
        - waves["energy_plain_j"] / total["energy_plain_j"]
        + waves["tokens_plain"] / total["tokens_plain"]
    )
    squares = (u**2).groupby(waves["pair"]).agg(["sum", "size"]).reindex(range(len(pairs)))
    count = squares["size"].to_numpy(dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(count > 1, count / (count - 1.0) * squares["sum"].to_numpy(), np.nan)
    return pairs.assign(wave_var=variance, wave_df=np.where(count > 1, count - 1.0, 0.0))
