"""How long accepted prefixes are: survival curve, expected tokens per round, and what one more position must bring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def survival_from_conditional(alpha: F64) -> F64:
    """S_j = product of the first j conditional acceptance probabilities alpha_i, j = 1..k."""
    return np.asarray(np.cumprod(np.asarray(alpha, dtype=np.float64)), dtype=np.float64)


def survival_from_histogram(histogram: npt.ArrayLike) -> F64:
    """S_j = share of rounds in which at least j drafts were kept, j = 1..k, from hist[i] = rounds with exactly i kept.

    The last axis is i = 0..k; leading axes are kept. Null where a histogram holds no round. No independence assumed.
    """
    hist = np.asarray(histogram, dtype=np.float64)
    total = hist.sum(axis=-1, keepdims=True)
    at_least = np.flip(np.cumsum(np.flip(hist, -1), axis=-1), -1)[..., 1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(total > 0, at_least / total, np.nan), dtype=np.float64)


def expected_committed(survival: npt.ArrayLike) -> F64:
    """E[A] = 1 + sum over j of S_j: tokens per request and round, the target's own token included."""
    return np.asarray(1.0 + np.asarray(survival, dtype=np.float64).sum(axis=-1))


def marginal_width_limit(survival: npt.ArrayLike, k: int) -> float:
    """Largest relative growth of energy per step at which proposing k + 1 instead of k still lowers J/token.

    S_{k+1} / A_k with A_k = 1 + S_1 + ... + S_k, valid if the first k positions' proposals keep their distribution
    (the same drafter run one position further). `survival` holds at least k + 1 values. Raises ValueError otherwise.
    """
    s = np.asarray(survival, dtype=np.float64)
    if s.ndim != 1 or len(s) < k + 1:
        raise ValueError(f"the survival curve has {s.shape} values; position {k + 1} is needed")
    return float(s[k] / (1.0 + s[:k].sum()))
