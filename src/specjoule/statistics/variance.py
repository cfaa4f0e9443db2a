"""How much a paired log ratio scatters between blocks, when three blocks cannot say it alone.

Two sources of knowledge are joined for every configuration:

- *between blocks*: its own variance s^2 over d = n - 1 degrees of freedom (everything is in it);
- *expected*: V0 = P + L, where P is what the drawn prompts and reading errors contribute, seen between the waves inside
  each block with many degrees of freedom, and L what launches, boards and drift contribute, the same for all
  configurations of a study: the larger of the mean square of closing plain against first plain, and of what the
  between-block variances leave unexplained by P on average.

The two are moderated as in empirical-Bayes analysis of many small experiments (Smyth 2004):
s~^2 = (d0 V0 + d s^2)/(d0 + d), where the weight d0 is estimated from how well V0 predicts the s^2 of all
configurations, and the degrees of freedom are at most those of V0 (Satterthwaite). Where V0 is smaller than the s^2
say on average it is scaled up; it is never scaled down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

F64 = npt.NDArray[np.float64]


MIN_WAVE_DF = 4
"""Fewer degrees of freedom between waves than this do not give a configuration a prompt variance of its own."""


@dataclass(frozen=True)
class Expected:
    """Expected variance of each configuration's log ratio between blocks, and what that knowledge is worth."""

    variance: F64
    df: F64
    prompt_part: F64
    """P: the part that prompts and reading errors explain."""
    launch_part: float
    """L: launches, boards and drift; common to all configurations."""
    launch_df: float
    prior_df: float
    """d0: weight of the expectation in degrees of freedom; 0 where it does not predict, infinite where it does."""


def prompt_variance(
    config: npt.NDArray[np.int64], wave_var: F64, wave_df: F64, prompts: F64, kin: npt.NDArray[np.int64]
) -> tuple[F64, F64]:
    """Return P and its degrees of freedom per configuration, pooled over its blocks.

    `config`: configuration number of each pair; `wave_var`, `wave_df`: of each pair; `prompts`: prompts in the pair's
    cell; `kin`: number of the family (same model, board, drafter and text) of each configuration. A configuration whose
    cells have one wave takes the largest variance per prompt of its family (batches with a ragged end scatter more than
    single requests), divided by its own number of prompts; NaN where no member of the family has two waves.
    """
    n = len(kin)
    known = (wave_df > 0) & ~np.isnan(wave_var)
    df = np.bincount(config[known], weights=wave_df[known], minlength=n)
    weighted = np.bincount(config[known], weights=(wave_var * wave_df)[known], minlength=n)
    mean_prompts = np.bincount(config, weights=prompts, minlength=n) / np.maximum(np.bincount(config, minlength=n), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.where(df > 0, weighted / df, np.nan)
    family = pd.DataFrame({"kin": kin, "df": df, "per_prompt": own * mean_prompts})
    largest = family.dropna().sort_values("per_prompt", ascending=False).drop_duplicates("kin").set_index("kin")
    borrowed = pd.Series(kin).map(largest["per_prompt"]).to_numpy(dtype=np.float64) / mean_prompts
    borrowed_df = pd.Series(kin).map(largest["df"]).fillna(0.0).to_numpy(dtype=np.float64)
    few = df < MIN_WAVE_DF
    return np.where(few, borrowed, own), np.where(few, borrowed_df, df)


def expected_variance(
    own: F64, own_df: F64, prompt_part: F64, prompt_df: F64, plain_to_plain: F64, independent: float
) -> Expected:
    """Join prompt and launch parts into the expectation V0 for every configuration.

    `plain_to_plain`: log ratios of closing plain to first plain, one a block (may be empty); `independent`: degrees of
    freedom of independent blocks in the study, the most that the launch part can be known by.
    """
    known = own_df > 0
    p = np.nan_to_num(prompt_part, nan=0.0)
    drift = plain_to_plain[~np.isnan(plain_to_plain)]
    floor = float(np.mean(drift**2)) if len(drift) else 0.0
    start = floor if floor > 0 else max(float(np.mean(own[known])) if known.any() else 0.0, 1e-12)
    launch = _unexplained(own, own_df, p, start, known)
    launch = _unexplained(own, own_df, p, max(launch, floor, 1e-12), known)
    launch = max(launch, floor, 0.0)
    launch_df = max(independent, float(len(drift)) if floor > 0 else 0.0, 1e-9)
    v0 = p + launch
    if known.any() and (v0[known] > 0).all():
        scale = float(np.average(own[known] / v0[known], weights=own_df[known]))
        v0 = v0 * max(1.0, scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        df = np.where(v0 > 0, (p + launch) ** 2 / (p**2 / np.maximum(prompt_df, 1e-9) + launch**2 / launch_df), 0.0)
    ratio = own[known] / v0[known] if (v0[known] > 0).all() else np.empty(0)
    return Expected(v0, df, p, launch, launch_df, _prior_df(ratio, own_df[known]))


def _unexplained(own: F64, own_df: F64, p: F64, launch: float, known: npt.NDArray[np.bool_]) -> float:
    """Weighted mean of s^2 - P; configurations whose s^2 is known best (small total variance) count most."""
    if not known.any():
        return 0.0
    weight = own_df[known] / (p[known] + launch) ** 2
    return max(0.0, float(np.average(own[known] - p[known], weights=weight)))


def _prior_df(ratio: F64, df: F64) -> float:
    """Estimate d0 from the spread of log(s^2/V0) beyond chance (method of moments about zero, Smyth 2004)."""
    from scipy.special import digamma, polygamma

    good = ratio > 0
    if good.sum() < 3:
        return 0.0
    half = df[good] / 2.0
    e = np.log(ratio[good]) - digamma(half) + np.log(half)
    excess = float(np.mean((e - e.mean()) ** 2) * len(e) / (len(e) - 1) - np.mean(polygamma(1, half)))
    return np.inf if excess <= 0 else 2.0 * _trigamma_inverse(excess)


def _trigamma_inverse(x: float) -> float:
    """Solve trigamma(y) = x for y > 0 (Newton)."""
    from scipy.special import polygamma

    if x > 1e7:
        return float(1.0 / np.sqrt(x))
    y = 0.5 + 1.0 / x
    for _ in range(50):
        tri = float(polygamma(1, y))
        step = tri * (1.0 - tri / x) / float(polygamma(2, y))
        y += step
        if abs(step) < 1e-8 * y:
            break
    return float(y)


def moderated(own: F64, own_df: F64, expected: Expected) -> tuple[F64, F64]:
    """Return the moderated variance of each configuration and its degrees of freedom (never fewer than its own)."""
    weight = np.minimum(expected.prior_df, expected.df)
    known = np.nan_to_num(own, nan=0.0)
    total = weight + own_df
    variance = (weight * expected.variance + own_df * known) / np.maximum(total, 1e-12)
    return variance, total
