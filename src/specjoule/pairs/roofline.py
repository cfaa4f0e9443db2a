"""Arithmetic intensity of a verification step, and where it crosses a board's balance point.

A trend, not single-stream truth: kernels pad small batches, and executed operations differ from useful ones. Dense
models; the positions of one request share its KV reads; drafting and launches are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepCost:
    """What one step of a model moves and computes."""

    flop_per_position: float
    """F: operations per verified position (about twice the parameters that are active)."""
    weight_bytes: float
    """W: weight bytes read per step."""
    kv_bytes_per_token: float
    """Bytes of KV per token of context and request."""

    def kv_bytes(self, context_tokens: float) -> float:
        """K(c): KV bytes read per request and step at a context of c tokens."""
        return self.kv_bytes_per_token * context_tokens


def intensity(cost: StepCost, batch: npt.ArrayLike, width: npt.ArrayLike, context_tokens: float) -> F64:
    """I = n w F / (W + n K(c)), FLOP per byte."""
    n, w = np.asarray(batch, dtype=np.float64), np.asarray(width, dtype=np.float64)
    bytes_read = cost.weight_bytes + n * cost.kv_bytes(context_tokens)
    return np.asarray(n * w * cost.flop_per_position / bytes_read, dtype=np.float64)


def intensity_limit(cost: StepCost, width: float, context_tokens: float) -> float:
    """Limit of the intensity for an infinite batch: w F / K(c), FLOP per byte; infinite without KV reads."""
    kv = cost.kv_bytes(context_tokens)
    return width * cost.flop_per_position / kv if kv > 0 else math.inf


def crossing_batch(cost: StepCost, width: float, context_tokens: float, balance: float) -> float:
    """Batch n* at which the intensity reaches the board's balance point I* (FLOP per byte): I* W / (w F - I* K(c)).

    Infinite where the denominator is not positive: no batch reaches it.
    """
    denominator = width * cost.flop_per_position - balance * cost.kv_bytes(context_tokens)
    return balance * cost.weight_bytes / denominator if denominator > 0 else math.inf


def attainable_flop_s(intensity_flop_per_byte: npt.ArrayLike, peak_flop_s: float, bandwidth_byte_s: float) -> F64:
    """Roofline: the smaller of peak and intensity times bandwidth, FLOP/s."""
    return np.minimum(peak_flop_s, np.asarray(intensity_flop_per_byte, dtype=np.float64) * bandwidth_byte_s)


def rollback_bytes(batch: float, draft_tokens: float, snapshot_bytes: float) -> float:
    """Memory for returning recurrent layers to the acceptance boundary: about n k S bytes, S one snapshot."""
    return batch * draft_tokens * snapshot_bytes


def experts_reached(experts: int, draws: npt.ArrayLike) -> F64:
    """Expected distinct experts hit by q independent uniform draws of M: M (1 - (1 - 1/M)^q)."""
    q = np.asarray(draws, dtype=np.float64)
    return np.asarray(experts * (1.0 - (1.0 - 1.0 / experts) ** q), dtype=np.float64)
