"""The detection floor: how far apart two equal arms come out, from plain relaunched against plain.

A difference between drafters that is smaller than plain's difference from itself has not been seen. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from specjoule.reasons import Reason

LEAST_LOG_RATIO = 0.005
"""Smallest |ln(ratio)| of one pair that is ever called seen, however quiet a few relaunches were."""
FLOOR_BLOCKS = (1, 3, 5, 10)
"""Numbers of blocks for which the table says what they let one see."""


@dataclass(frozen=True)
class DetectionFloor:
    """Noise of one plain-against-plain ratio, pooled over blocks."""

    sd_log: float
    """Standard deviation of ln(ratio) about 0, one pair."""
    dof: float
    """Effective degrees of freedom: between the number of blocks and of ratios, as cells of a block share launches."""
    n_blocks: int
    n_ratios: int
    intraclass_correlation: float

    def log_ratio(self, n_blocks: int = 1, alpha: float = 0.05, power: float | None = None) -> float:
        """Return the smallest |ln(ratio)| that a mean over `n_blocks` independent blocks tells from 1.

        Two-sided level `alpha`: (t(1 - alpha/2) [+ t(power)]) sd / sqrt(n). Without `power` it is the half-width of the
        band in figures; with it, the effect found with that probability.
        """
        quantile = float(stats.t.ppf(1 - alpha / 2, self.dof))
        if power is not None:
            quantile += float(stats.t.ppf(power, self.dof))
        return quantile * self.sd_log / math.sqrt(n_blocks)

    def ratio_band(self, n_blocks: int = 1, alpha: float = 0.05) -> tuple[float, float]:
        """Return the energy ratios between which nothing was detected."""
        half = self.log_ratio(n_blocks, alpha)
        return math.exp(-half), math.exp(half)


def detection_floor(ratios_by_block: Mapping[str, Sequence[float]]) -> DetectionFloor | None:
    """Pool the plain-against-plain energy ratios of all blocks; None where there is no block with a ratio.

    Two equal arms have ln(ratio) of mean 0 by construction, so no mean is fitted and no deviation is lost. The
    reference cells of one block share its two launches and are correlated: with intraclass correlation r and n cells
    a block they are worth N / (1 + (n - 1) r) independent ones (Kish's design effect); r comes from the products of
    different cells of the same block.
    """
    if any(not 0 < ratio < math.inf for ratios in ratios_by_block.values() for ratio in ratios):
        raise ValueError("energy ratios must be positive numbers")
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in ratios_by_block.values() if len(values)]
    if not logs:
        return None
    pooled = np.concatenate(logs)
    n_ratios = len(pooled)
    variance = float(np.mean(pooled**2))
    pairs = sum(len(one) * (len(one) - 1) for one in logs)
    products = sum(float(one.sum() ** 2 - (one**2).sum()) for one in logs)
    correlation = 0.0
    if pairs and variance > 0:
        correlation = min(max(products / pairs / variance, 0.0), 1.0)
    size = float(np.mean([len(one) ** 2 for one in logs]) / np.mean([len(one) for one in logs]))
    dof = max(n_ratios / (1 + (size - 1) * correlation), float(len(logs)))
    return DetectionFloor(math.sqrt(variance), dof, len(logs), n_ratios, correlation)


def floor_of(frame: pd.DataFrame) -> DetectionFloor | None:
    """Return the floor of collected rows, cells or pairs: from `block_drift`, one ratio per segment and condition."""
    if "block_drift" not in frame.columns:
        return None
    condition = [k for k in ("segment_id", "capture", "locked_mhz") if k in frame.columns]
    block = [k for k in ("study", "site", "block_id") if k in frame.columns]
    known = frame.loc[frame["block_drift"].notna(), [*block, *condition, "block_drift"]].drop_duplicates()
    ratios: dict[str, list[float]] = {}
    for names, drift in zip(known[block].itertuples(index=False), known["block_drift"], strict=True):
        ratios.setdefault(repr(tuple(names)), []).append(1.0 + float(drift))
    return detection_floor(ratios)


def smallest_seen(floor: DetectionFloor | None, n_blocks: float, alpha: float = 0.05) -> float:
    """Return the smallest |ln(ratio)| that a mean over `n_blocks` blocks is held against.

    That of the floor, at least `LEAST_LOG_RATIO` of one pair; without any closing plain the latter alone.
    """
    one = LEAST_LOG_RATIO if floor is None else max(LEAST_LOG_RATIO, floor.log_ratio(1, alpha))
    return one / math.sqrt(n_blocks)


def floor_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kind of board and meter: the pooled noise of plain against plain and what it lets one see.

    `sd_percent`: standard deviation of the log ratio of one pair; `dof`, `n_blocks`, `n_ratios`; `floor_N_percent`: the
    smallest difference that N blocks tell from none (two-sided 95 %). Boards without any closing plain are listed with
    nulls and `reason`.
    """
    out = []
    for (gpu, meter), part in rows.groupby(["gpu", "meter"], sort=True):
        floor = floor_of(part)
        row: dict[str, object] = {"gpu": gpu, "meter": meter}
        if floor is None:
            row |= {"reason": str(Reason.NO_CLOSING_PLAIN)}
        else:
            row |= {
                "n_blocks": floor.n_blocks,
                "n_ratios": floor.n_ratios,
                "dof": floor.dof,
                "intraclass_correlation": floor.intraclass_correlation,
                "sd_percent": 100 * floor.sd_log,
                **{f"floor_{n}_percent": 100 * math.expm1(smallest_seen(floor, n)) for n in FLOOR_BLOCKS},
                "reason": None,
            }
        out.append(row)
    names = ["gpu", "meter", "n_blocks", "n_ratios", "dof", "intraclass_correlation", "sd_percent"]
    return pd.DataFrame(out, columns=[*names, *(f"floor_{n}_percent" for n in FLOOR_BLOCKS), "reason"])
