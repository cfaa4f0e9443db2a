"""How much of a round's energy is drafting, by runs that skip it, and the control that says whether that is allowed.

Windows: three runs of the same drafter, batch, text and seed. The full run has the drafter's own name; a run that
reuses the first round's drafts and forces the accepted counts (no draft forward) is named `<drafter>+nodraft`; the
control, in
which random or repeated tokens are verified with the draft forward kept, is named `<drafter>+random`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.pairs.configurations import PLACE
from specjoule.pairs.keys import side_by_side

SKIPPED, CONTROL = "+nodraft", "+random"


def draft_share(full_j: float, without_j: float) -> float:
    """Share of drafting: (E_full - E_without)/E_full, same tokens and rounds on both sides. Dimensionless."""
    return (full_j - without_j) / full_j


def most_saved_by_cheaper_drafting(share: float, factor: float) -> float:
    """Largest saving of energy per token when drafting costs `factor` of what it did: share (1 - factor)."""
    return share * (1.0 - factor)


def draft_shares(counted: pd.DataFrame, control_limit: float = 0.03) -> pd.DataFrame:
    """Return per configuration the share of energy per step that drafting takes, where such runs exist.

    `control_change` is the relative change of energy per step when random tokens are verified; beyond `control_limit`
    the identity of tokens itself moves the energy (experts, caches) and `share` is null, `reported` false. Per seed
    first, then medians. Without a control run no share is reported.
    """
    name = counted["drafter"].astype("str")
    kind = np.where(name.str.endswith(SKIPPED), "nodraft", np.where(name.str.endswith(CONTROL), "random", "full"))
    work = counted.assign(_kind=kind, drafter=name.str.removesuffix(SKIPPED).str.removesuffix(CONTROL))
    place = [
        k
        for k in (*PLACE, "drafter", "scheme", "verify_width", "concurrency", "capture", "locked_mhz")
        if k in work.columns
    ]
    keys = [*place, "seed", "replicate"]
    if not {"nodraft", "full"} <= set(kind):
        return pd.DataFrame(columns=[*place, "n_seeds", "share", "control_change", "reported"])
    table = side_by_side(work, keys, "_kind", "j_per_step", ("full", "nodraft", "random"))
    table = table.loc[table["full"].notna() & table["nodraft"].notna()]
    table["share"] = (table["full"] - table["nodraft"]) / table["full"]
    table["control_change"] = table["random"] / table["full"] - 1.0
    out = table.groupby(place, dropna=False).agg(
        n_seeds=("seed", "nunique"), share=("share", "median"), control_change=("control_change", "median")
    ).reset_index()  # fmt: skip
    out["reported"] = out["control_change"].abs() <= control_limit
    out["share"] = out["share"].where(out["reported"])
    return out
