"""Acceptance survival curves and marginal width, pooled over the rounds of counted cells."""

from __future__ import annotations

import pandas as pd

_KEYS = ["cell_hash", "segment_id", "attempt", "launch", "role"]
_PLACE = ["model", "gpu", "drafter", "scheme", "verify_width", "corpus", "meter"]


def survival_curves(acceptance: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Return S_j (share of rounds that kept at least j drafts) per model, board, drafter and text, j = 1..k.

    Pooled over batches and seeds: acceptance does not depend on the batch. `a_k` = 1 + S_1 + ... + S_j is the tokens
    per round that proposing j positions would commit; `marginal_limit` = S_j / a_{j-1} is the largest relative growth
    of energy per step at which position j pays, if the first positions' proposals keep their distribution.
    """
    work = acceptance.merge(counted[[*_KEYS, *_PLACE]], on=_KEYS)
    work = work.loc[work["verify_width"] > 1]
    columns = [*_PLACE, "position", "survival", "a_k", "marginal_limit"]
    if work.empty:
        return pd.DataFrame(columns=columns)
    table = _every_position(work.groupby([*_PLACE, "kept"], dropna=False)["rounds"].sum().reset_index())
    table = table.sort_values([*_PLACE, "kept"], ascending=[True] * len(_PLACE) + [False], kind="stable")
    grouped = table.groupby(_PLACE, dropna=False)["rounds"]
    table["survival"] = grouped.cumsum() / grouped.transform("sum")
    table = table.sort_values([*_PLACE, "kept"], kind="stable")
    table = table.loc[table["kept"] > 0]
    table["a_k"] = 1.0 + table.groupby(_PLACE, dropna=False)["survival"].cumsum()
    table["marginal_limit"] = table["survival"] / (table["a_k"] - table["survival"])
    return table.rename(columns={"kept": "position"})[columns].reset_index(drop=True)


def _every_position(table: pd.DataFrame) -> pd.DataFrame:
    """Add the positions 0..k at which no round stopped: their survival is that of the next position."""
    places = table[_PLACE].drop_duplicates()
    widths = places["verify_width"].astype("int64")
    whole = places.loc[places.index.repeat(widths)].reset_index(drop=True)
    whole["kept"] = whole.groupby(_PLACE, dropna=False).cumcount()
    out = whole.merge(table, on=[*_PLACE, "kept"], how="outer")
    out["rounds"] = out["rounds"].fillna(0.0)
    return out
