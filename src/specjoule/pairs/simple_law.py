"""The SIMPLE law: energy of a generation from model sizes and token counts, fitted with non-negative coefficients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def terms(
    hidden_size: npt.ArrayLike, layers: npt.ArrayLike, kv_ratio: npt.ArrayLike, tokens_in: npt.ArrayLike,
    tokens_out: npt.ArrayLike,
) -> F64:  # fmt: skip
    """Return the law's four terms as columns, so that E = terms @ theta (J for theta in J per unit of each term).

    d^2 L I (prefill), d L R (I O + O^2/2) (attention over the growing context), O (per token), d L O (per token and
    size), with hidden size d, layers L, R = KV heads over query heads, I and O tokens in and out.
    """
    d, depth, r, i, o = (
        np.asarray(v, dtype=np.float64) for v in (hidden_size, layers, kv_ratio, tokens_in, tokens_out)
    )
    columns = np.broadcast_arrays(d**2 * depth * i, d * depth * r * (i * o + o**2 / 2.0), o + 0.0 * d, d * depth * o)
    return np.stack(columns, axis=-1)


def fit(features: F64, energy_j: F64) -> F64:
    """Least squares on relative errors with theta >= 0 (an energy share is never negative)."""
    from scipy.optimize import nnls

    scale = np.linalg.norm(features / energy_j[:, None], axis=0)
    scale[scale == 0] = 1.0
    theta, _ = nnls(features / energy_j[:, None] / scale, np.ones(len(energy_j)))
    return np.asarray(theta / scale, dtype=np.float64)


def mape_percent(measured_j: F64, predicted_j: F64) -> float:
    """Mean absolute relative error, percent of the measured energy."""
    return float(100.0 * np.mean(np.abs(predicted_j / measured_j - 1.0)))


def leave_one_group_out(features: F64, energy_j: F64, group: npt.NDArray[np.object_]) -> F64:
    """Predict each group (model) from a fit to all others; returns energies in J."""
    out = np.empty_like(energy_j)
    for name in np.unique(group.astype(str)):
        mine = group.astype(str) == name
        out[mine] = features[mine] @ fit(features[~mine], energy_j[~mine])
    return out
