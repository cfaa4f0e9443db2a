"""How many tokens a round must commit before speculation pays, and whether a better drafter could get there."""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.study.model import BASELINES

HELPS = "a better drafter would pay"
PAYS = "pays already"
NEVER = "no drafter of this width can pay"


def break_even_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return per configuration the break-even A* = r_E (tokens per request and round), beside what was committed.

    `needed_gain` = A*/A - 1: how much longer the committed prefix must be at unchanged energy per step (negative: by
    how much it may shrink). A round commits at most w tokens: where A* exceeds the verify width no drafter can pay.
    `needed_acceptance` is the share of proposals that must be kept, (A* - 1)/k. `r_e_window` says which windows r_E is
    from ('generation' includes the prefill).
    """
    mine = summary.loc[~summary["scheme"].isin(list(BASELINES))].dropna(subset=["r_e", "a_spec"]).copy()
    mine["break_even_a"] = mine["r_e"]
    mine["needed_gain"] = mine["break_even_a"] / mine["a_spec"] - 1.0
    mine["needed_acceptance"] = (mine["break_even_a"] - 1.0).clip(lower=0) / mine["draft_tokens"]
    pays = mine["a_spec"] > mine["break_even_a"]
    never = mine["break_even_a"] > mine["verify_width"]
    mine["answer"] = np.where(pays, PAYS, np.where(never, NEVER, HELPS))
    return mine.reset_index(drop=True)
