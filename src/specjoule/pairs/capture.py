"""What captured graphs change for either side, and so for the saving."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.summary import GROUP_KEYS
from specjoule.study.model import BASELINES

IDENTITY_TOLERANCE = 1e-9


def capture_effect(pairs: pd.DataFrame) -> pd.DataFrame:
    """Compare capture on with capture off within the same block, seed and drafter.

    Per seed c_x = e_x,on / e_x,off for x = spec, plain (J/token over J/token), and rho_on / rho_off = c_spec / c_plain:
    the saving shrinks under capture iff c_plain < c_spec. Returned per configuration, medians over seeds: `saving_on`,
    `saving_off` (medians of paired savings), `e_*_on_j`, `e_*_off_j`, `c_spec`, `c_plain`, `saving_change` (on - off),
    `shrinks`, `identity_gap` (largest relative violation of the identity over seeds), `identity_holds`. A ratio across
    capture states is never formed for a saving.
    """
    keys = [k for k in GROUP_KEYS if k in pairs.columns and k != "capture"]
    block = ["block_id", "seed", "replicate"]
    drafted = pairs.loc[~pairs["scheme"].isin(list(BASELINES))]
    values = ["e_spec_j", "e_plain_j", "energy_ratio"]
    on = drafted.loc[drafted["capture"].eq(True), [*keys, *block, *values]]
    off = drafted.loc[drafted["capture"].eq(False), [*keys, *block, *values]]
    both = on.merge(off, on=[*keys, *block], suffixes=("_on", "_off"))
    if both.empty:
        return pd.DataFrame(columns=[*keys, "n_seeds", "saving_on", "saving_off", "c_spec", "c_plain"])
    both["c_spec"] = both["e_spec_j_on"] / both["e_spec_j_off"]
    both["c_plain"] = both["e_plain_j_on"] / both["e_plain_j_off"]
    both["saving_on"], both["saving_off"] = 1 - both["energy_ratio_on"], 1 - both["energy_ratio_off"]
    both["saving_change"] = both["saving_on"] - both["saving_off"]
    quotient = both["energy_ratio_on"] / both["energy_ratio_off"]
    both["identity_gap"] = (quotient / (both["c_spec"] / both["c_plain"]) - 1.0).abs()
    medians = ["saving_off", "saving_on", "saving_change", "c_spec", "c_plain", "e_plain_j_off", "e_plain_j_on",
               "e_spec_j_off", "e_spec_j_on"]  # fmt: skip
    grouped = both.groupby(keys, dropna=False, sort=True)
    out = grouped[medians].median()
    out["n_seeds"], out["identity_gap"] = grouped["seed"].nunique(), grouped["identity_gap"].max()
    out["shrinks"] = out["c_plain"] < out["c_spec"]
    out["identity_holds"] = out["identity_gap"] < IDENTITY_TOLERANCE
    out = out.reset_index()
    return out.rename(columns={f"{e}_j_{s}": f"{e}_{s}_j" for e in ("e_spec", "e_plain") for s in ("on", "off")})
