"""Two drafters at the same place: does the one that commits more per round also spend less energy?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from specjoule.study.model import BASELINES
from specjoule.tables.best_drafter import PLACE_KEYS

WARNING = "Pairs of drafters share baselines, boards and drafters; their number is no sample size."


def scheme_pairs(summary: pd.DataFrame, serial_steps: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return every pair of drafters of one place (model, board, batch, text, capture, clock).

    `longer` commits more tokens per round (`a_longer` > `a_shorter`); `agrees`: it also has the lower median ratio. For
    the rest `explained_by`: 'verifies more positions' where the longer one is wider, else 'more serial draft steps'
    where `serial_steps` (by drafter) says so, else 'neither'. Pairs with equal A are left out.
    """
    place = [k for k in PLACE_KEYS if k in summary.columns]
    columns = ["drafter", "verify_width", "a_spec", "ratio_median"]
    mine = summary.loc[~summary["scheme"].isin(list(BASELINES)), [*place, *columns]].dropna(subset=["a_spec"])
    both = mine.merge(mine, on=place, suffixes=("_longer", "_shorter"))
    both = both.loc[both["a_spec_longer"] > both["a_spec_shorter"]].reset_index(drop=True)
    both = both.rename(columns={"a_spec_longer": "a_longer", "a_spec_shorter": "a_shorter"})
    both["agrees"] = both["ratio_median_longer"] < both["ratio_median_shorter"]
    steps = dict(serial_steps or {})
    more_steps = both["drafter_longer"].map(steps).fillna(0) > both["drafter_shorter"].map(steps).fillna(0)
    wider = both["verify_width_longer"] > both["verify_width_shorter"]
    reason = np.where(wider, "verifies more positions", np.where(more_steps, "more serial draft steps", "neither"))
    both["explained_by"] = pd.Series(reason, index=both.index, dtype="str").where(~both["agrees"])
    return both


def count_scheme_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Count pairs in which the longer drafter spends less, and the rest by what explains them (also per text)."""
    found = []
    for name, part in [("all", pairs), *((str(c), p) for c, p in pairs.groupby("corpus"))]:
        rest = part.loc[~part["agrees"]]
        counts = rest["explained_by"].value_counts()
        found.append({
            "corpus": name, "pairs": len(part), "longer_spends_less": int(part["agrees"].sum()),
            "share": float(part["agrees"].mean()) if len(part) else float("nan"), "rest": len(rest),
            "rest_wider": int(counts.get("verifies more positions", 0)),
            "rest_serial": int(counts.get("more serial draft steps", 0)), "rest_neither": int(counts.get("neither", 0)),
        })  # fmt: skip
    return pd.DataFrame(found)
