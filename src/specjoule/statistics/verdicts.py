"""Saves, costs, or cannot tell: against zero, against what plain shows against plain, and over a whole table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from specjoule.statistics.floor import DetectionFloor, smallest_seen

F64 = npt.NDArray[np.float64]

SAVES, COSTS, CANNOT_TELL = "saves", "costs", "cannot tell"


def adjusted_p(p_values: npt.ArrayLike) -> F64:
    """Benjamini-Hochberg adjusted p-values; nulls stay null and do not count as tests."""
    p = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p))
    out = np.full(len(p), np.nan)
    if len(known) == 0:
        return out
    order = known[np.argsort(p[known], kind="stable")]
    m = len(order)
    scaled = p[order] * m / np.arange(1, m + 1)
    out[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return out


def with_verdicts(table: pd.DataFrame, floor: DetectionFloor | None, *, rate: float = 0.05) -> pd.DataFrame:
    """Add `q_value`, `detection_floor` and `verdict` to a table with intervals.

    *saves* or *costs* where the adjusted p-value over the whole table is at most `rate` (the expected share of false
    statements among those made) and |log ratio| exceeds the floor of its number of blocks; otherwise *cannot tell*.
    `detection_floor` is the smallest saving that could have been told: 1 - exp(-max(floor/sqrt(n), t se)).
    """
    from scipy import stats

    out = table.copy()
    if out.empty:
        return out.assign(q_value=[], detection_floor=[], verdict=[])
    out["q_value"] = adjusted_p(out["p_value"])
    effect = np.log(out["ratio_mean"].to_numpy(dtype=np.float64))
    own_floor = smallest_seen(floor, 1) / np.sqrt(out["n_pairs"].to_numpy(dtype=np.float64))
    df = np.maximum(out["df"].to_numpy(dtype=np.float64), 1e-9)
    reach = stats.t.ppf(0.975, df) * out["log_se"].to_numpy(dtype=np.float64)
    out["detection_floor"] = 1.0 - np.exp(-np.fmax(own_floor, reach))
    told = (out["q_value"].to_numpy() <= rate) & (np.abs(effect) > own_floor)
    out["verdict"] = np.where(told, np.where(effect < 0, SAVES, COSTS), CANNOT_TELL)
    return out


def noise_points(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return what two equal things differ by: plain against closing plain, and one seed's ratio against the mean.

    Long frame, percent: `kind` 'drift' (one value a block) and 'seed' (each pair's log ratio minus its configuration's
    mean, times sqrt(n/(n - 1)) to undo what fitting the mean takes away), with concurrency for the latter.
    """
    from specjoule.pairs.summary import GROUP_KEYS

    blocks = pairs.drop_duplicates(["study", "block_id"])
    drift = pd.DataFrame({"kind": "drift", "percent": 100.0 * np.log1p(blocks["block_drift"].astype("float64"))})
    y = pd.Series(np.log(pairs["energy_ratio"].to_numpy(dtype=np.float64)), index=pairs.index)
    grouped = y.groupby([pairs[k] for k in GROUP_KEYS if k in pairs.columns], dropna=False)
    n = grouped.transform("size")
    residual = 100.0 * (y - grouped.transform("mean")) * np.sqrt(n / (n - 1).clip(lower=1))
    seed = pd.DataFrame({"kind": "seed", "percent": residual, "concurrency": pairs["concurrency"]}).loc[n > 1]
    out = pd.concat([drift.dropna(), seed], ignore_index=True)
    return out
