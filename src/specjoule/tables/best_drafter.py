"""Which drafter spends least at each concurrency, on the same board, text and clock."""

from __future__ import annotations

import pandas as pd

from specjoule.study.model import BASELINES

PLACE_KEYS: tuple[str, ...] = (
    "model", "gpu", "corpus", "context_tokens", "capture", "locked_mhz", "ignore_eos", "max_new_tokens", "engine",
    "meter", "concurrency",
)  # fmt: skip
"""Where drafters compete: everything but the drafter itself."""

SHOWN: tuple[str, ...] = (
    "model", "gpu", "corpus", "concurrency", "capture", "locked_mhz", "context_tokens", "best_drafter",
    "saving_median", "ratio_half_range", "saving_low", "saving_high", "n_seeds", "verdict", "runner_up",
    "saving_runner_up", "lead", "comparison", "ties", "candidates",
)  # fmt: skip


def best_drafter(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the drafter with the lowest median paired ratio at each place, with the runner-up.

    `summary` is the output of `summarise`. Baselines do not compete. Ties are not judged here (see the statistics);
    where every drafter costs energy the best one's saving is negative and stands as it is. Drafters measured at fewer
    seeds than the best-covered one of the place do not compete, and `candidates` counts those that do.
    """
    place = [k for k in PLACE_KEYS if k in summary.columns]
    pool = summary.loc[~summary["scheme"].isin(list(BASELINES))]
    if pool.empty:
        return pd.DataFrame(columns=[*place, "best_drafter", "saving_median", "runner_up", "candidates"])
    most = pool.groupby(place, dropna=False)["n_seeds"].transform("max")
    pool = pool.loc[pool["n_seeds"] == most]
    pool = pool.sort_values([*place, "ratio_median", "drafter"], kind="stable")
    rank = pool.groupby(place, dropna=False).cumcount()
    best = pool.loc[rank == 0].rename(columns={"drafter": "best_drafter"})
    second = pool.loc[rank == 1, [*place, "drafter", "saving_median"]]
    second = second.rename(columns={"drafter": "runner_up", "saving_median": "saving_runner_up"})
    counted = pool.groupby(place, dropna=False).size().rename("candidates").reset_index()
    out = best.merge(second, on=place, how="left").merge(counted, on=place, how="left")
    front = [*place, "best_drafter", "scheme", "saving_median", "ratio_half_range", "n_seeds", "n_pairs"]
    rest = [
        "saving_low",
        "saving_high",
        "verdict",
        "interval_note",
        "saving_totals",
        "speedup",
        "e_spec_j",
        "e_plain_j",
        "itl_spec_ms",
        "itl_plain_ms",
    ]
    columns = [c for c in (*front, *rest, "runner_up", "saving_runner_up", "candidates") if c in out.columns]
    return out[columns].sort_values(place, kind="stable").reset_index(drop=True)
