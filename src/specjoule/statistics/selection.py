"""The winner's curse: what the chosen drafter saves on seeds and prompts that did not choose it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from specjoule.statistics.nested import wave_pairs
from specjoule.study.model import BASELINES
from specjoule.tables.best_drafter import PLACE_KEYS


def held_out_seeds(pairs: pd.DataFrame) -> pd.DataFrame:
    """Choose the best drafter without each seed in turn, and evaluate it on that seed.

    Per place: `apparent_saving` (median saving of the winner on the seeds that chose it), `held_out_saving` (its mean
    saving on the seeds left out), `optimism` = apparent - held out, `regret` (mean over folds of the chosen drafter's
    energy over that of the drafter that was best on the left-out seed, minus 1; at least 0), `distinct_winners`,
    `folds`. Places with one seed or one drafter are left out. All dimensionless.
    """
    place = [k for k in PLACE_KEYS if k in pairs.columns]
    pool = pairs.loc[~pairs["scheme"].isin(list(BASELINES))]
    scores = _score(pool, place, "seed")
    return _folds(scores, place, "seed", "seeds")


def held_out_prompts(pairs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Choose the best drafter on half of the waves (their prompts) of every seed and evaluate it on the other half.

    Same columns as `held_out_seeds`; places whose cells have one wave are left out.
    """
    place = [k for k in PLACE_KEYS if k in pairs.columns]
    waves = wave_pairs(rows, pairs)
    waves = waves.assign(half=waves["wave"] % 2)
    sums = waves.groupby(["pair", "half"])[["energy_spec_j", "tokens_spec", "energy_plain_j", "tokens_plain"]].sum()
    sums = sums.reset_index()
    ratio = (sums["energy_spec_j"] / sums["tokens_spec"]) / (sums["energy_plain_j"] / sums["tokens_plain"])
    named = pairs[[*place, "drafter", "scheme", "seed"]].iloc[sums["pair"].to_numpy()].reset_index(drop=True)
    halves = named.assign(energy_ratio=ratio.to_numpy(), half=sums["half"].to_numpy())
    halves = halves.loc[~halves["scheme"].isin(list(BASELINES))]
    return _folds(_score(halves, place, "half"), place, "half", "prompts")


def _score(pool: pd.DataFrame, place: list[str], fold: str) -> pd.DataFrame:
    """Log ratio per place, drafter and fold (mean over what the fold holds)."""
    y = pool.assign(_y=np.log(pool["energy_ratio"].to_numpy(dtype=np.float64)))
    return y.groupby([*place, "drafter", fold], dropna=False)["_y"].mean().reset_index()


def _folds(scores: pd.DataFrame, place: list[str], fold: str, kind: str) -> pd.DataFrame:
    """Leave each fold out once: choose on the mean of the others, evaluate on it."""
    if scores.empty:
        return pd.DataFrame(columns=[*place, "held_out", "apparent_saving", "held_out_saving", "optimism", "regret"])
    by = scores.groupby([*place, "drafter"], dropna=False)["_y"]
    scores = scores.assign(_sum=by.transform("sum"), _n=by.transform("size"))
    group = scores.groupby(place, dropna=False)
    full = scores["_n"] == group["_n"].transform("max")
    scores = scores.loc[full & (scores["_n"] > 1)].copy()
    scores["_train"] = (scores["_sum"] - scores["_y"]) / (scores["_n"] - 1)
    scores["_best_here"] = scores.groupby([*place, fold], dropna=False)["_y"].transform("min")
    chosen = scores.sort_values([*place, fold, "_train", "drafter"], kind="stable").drop_duplicates([*place, fold])
    drafters = scores.groupby(place, dropna=False)["drafter"].nunique().rename("drafters").reset_index()
    chosen = chosen.assign(
        _apparent=1.0 - np.exp(chosen["_train"]), _held=1.0 - np.exp(chosen["_y"]),
        _regret=np.expm1(chosen["_y"] - chosen["_best_here"]),
    )  # fmt: skip
    out = chosen.groupby(place, dropna=False).agg(
        apparent_saving=("_apparent", "mean"), held_out_saving=("_held", "mean"), regret=("_regret", "mean"),
        distinct_winners=("drafter", "nunique"), folds=("drafter", "size"),
    ).reset_index()  # fmt: skip
    out = out.merge(drafters, on=place, how="left")
    out = out.loc[out["drafters"] > 1].assign(held_out=kind)
    out["optimism"] = out["apparent_saving"] - out["held_out_saving"]
    return out.reset_index(drop=True)
