"""Is the best drafter ahead of the next, or do they tie? Compared on the blocks that both ran in."""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.study.model import BASELINES

AHEAD, TIE, CANNOT_TELL = "ahead", "tie", "cannot tell"


def compare(
    pairs: pd.DataFrame, best: pd.DataFrame, place: list[str], intervals: pd.DataFrame, *, margin: float = 0.02
) -> pd.DataFrame:
    """Add to each row of `best` how far the best drafter is ahead of each rival of its place, and what that is worth.

    The difference of log energy per token between two drafters of one block needs no plain side (it cancels). Its
    standard error is the larger of the own one (n - 1 df) moderated by the two configurations' `log_se` joined in
    quadrature without their covariance, which is conservative as both share prompts and board.

    *ahead* where the 95 % interval of the difference lies below zero; *tie* where the 90 % interval lies within
    +-log(1 + `margin`) (two one-sided tests at 5 %); else *cannot tell*. Against the runner-up: `lead` (relative, at
    least 0), `lead_low`, `lead_high` (95 %), `comparison`; `ties` names every rival that ties or cannot be told apart.
    """
    from scipy import stats

    columns = ["lead", "lead_low", "lead_high", "comparison", "ties"]
    if best.empty:
        return best.assign(**dict.fromkeys(columns))
    pool = pairs.loc[~pairs["scheme"].isin(list(BASELINES))].copy()
    pool["_y"] = np.log(pool["e_spec_j"].to_numpy(dtype=np.float64))
    blocks = ["block_id", "segment_id", "seed", "replicate"]
    keys = [*place, *blocks]
    winner = best[[*place, "best_drafter"]].assign(_row=np.arange(len(best)))
    mine = pool.merge(winner, left_on=[*place, "drafter"], right_on=[*place, "best_drafter"])
    both = pool[[*keys, "drafter", "_y"]].merge(
        mine[[*keys, "best_drafter", "_row", "_y"]], on=keys, suffixes=("_rival", "_best")
    )
    both = both.loc[both["drafter"] != both["best_drafter"]]
    both["_d"] = both["_y_rival"] - both["_y_best"]
    rivals = both.groupby(["_row", "drafter"])["_d"].agg(["mean", "var", "size"]).reset_index()
    se = intervals[[*place, "drafter", "log_se", "df"]].merge(winner, on=place)
    rivals = rivals.merge(se[["_row", "drafter", "log_se", "df"]], on=["_row", "drafter"], how="left")
    own = se.loc[se["drafter"] == se["best_drafter"], ["_row", "log_se", "df"]]
    rivals = rivals.merge(own, on="_row", how="left", suffixes=("", "_best"))
    n = rivals["size"].to_numpy(dtype=np.float64)
    shared_df = rivals[["df", "df_best"]].min(axis=1).to_numpy(dtype=np.float64)
    prior = rivals["log_se"].to_numpy() ** 2 + rivals["log_se_best"].to_numpy() ** 2
    weight = np.maximum(shared_df - (n - 1), 0.0)
    own_var = np.nan_to_num(rivals["var"].to_numpy(dtype=np.float64)) / n
    variance = (weight * prior + (n - 1) * own_var) / np.maximum(weight + n - 1, 1e-12)
    df = np.maximum(weight + n - 1, 1e-9)
    d = rivals["mean"].to_numpy(dtype=np.float64)
    half95, half90 = (stats.t.ppf(q, df) * np.sqrt(variance) for q in (0.975, 0.95))
    band = np.log1p(margin)
    rivals["low"], rivals["high"] = np.expm1(d - half95), np.expm1(d + half95)
    rivals["lead"] = np.expm1(d)
    verdict = np.where(d - half95 > 0, AHEAD, np.where((d - half90 > -band) & (d + half90 < band), TIE, CANNOT_TELL))
    rivals["comparison"] = verdict
    near = rivals.loc[rivals["comparison"] != AHEAD].groupby("_row")["drafter"].agg(", ".join)
    out = best.assign(_row=np.arange(len(best)))
    second = rivals.rename(columns={"drafter": "runner_up", "low": "lead_low", "high": "lead_high"})
    out = out.merge(second[["_row", "runner_up", *columns[:-1]]], on=["_row", "runner_up"], how="left")
    out["ties"] = out["_row"].map(near)
    return out.drop(columns="_row")
