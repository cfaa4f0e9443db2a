"""The detection floor: how far apart two equal arms come out, from plain relaunched against plain.

A difference between drafters that is smaller than plain's difference from itself has not been seen. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


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
