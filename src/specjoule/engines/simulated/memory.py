"""Memory of a board: weights, caches, rollback buffers, captured graphs; and so how many requests can run at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specjoule.engines.simulated.parameters import MemoryParameters
from specjoule.engines.simulated.workload import Network
from specjoule.reasons import Reason


@dataclass(frozen=True)
class MemoryPlan:
    """What fits. `capacity` is 0 where not even one request does."""

    capacity: int
    """Requests that can run at once with the reserved running limit; where that cannot be started, the highest limit
    whose requests all run at once."""
    kv_tokens: int
    rollback_bytes: float
    reason: Reason | None
    """Why the wanted running limit cannot be started; None if it can."""
    cache_bytes: float = 0.0
    """What is left for the KV of running requests."""


def request_bytes(target: Network, draft_kv_bytes: float, tokens: float) -> float:
    """Return the KV memory of one request that grows to so many tokens."""
    return float(target.cache_bytes(tokens)) + draft_kv_bytes * tokens


def plan_memory(
    *,
    memory_bytes: float,
    target: Network,
    draft_weight_bytes: float,
    draft_kv_bytes: float,
    verify_width: int,
    running_limit: int,
    captured_batches: int,
    tokens_per_request: int,
    p: MemoryParameters,
) -> MemoryPlan:
    """Divide the board's memory as the study's server does.

    Recurrent models reserve, for the running limit and one padding slot, a state and (under speculation) one snapshot
    per verified position before the KV pool gets the rest; a limit for which nothing is left cannot be started.
    Windowed layers are counted at what they really keep.
    """
    room = memory_bytes * p.static_fraction - p.workspace_bytes
    room -= target.bytes_loaded + draft_weight_bytes
    if room <= 0:
        return MemoryPlan(0, 0, 0.0, Reason.OOM_LOAD)
    room -= captured_batches * p.graph_bytes_per_batch
    if room <= 0:
        return MemoryPlan(0, 0, 0.0, Reason.OOM_CAPTURE)
    snapshots = verify_width if verify_width > 1 else 0
    per_slot = target.state_bytes * (1 + snapshots)
    kv_request = request_bytes(target, draft_kv_bytes, float(tokens_per_request))
    rollback = (running_limit + p.reserve_pool_slot) * target.state_bytes * snapshots
    if per_slot:
        left = room - (running_limit + p.reserve_pool_slot) * per_slot
        if left < kv_request:
            fitting = math.floor((room - p.reserve_pool_slot * per_slot) / (per_slot + kv_request))
            return MemoryPlan(max(0, fitting), 0, rollback, Reason.OOM_LOAD)
        room = left
    if kv_request <= 0:
        return MemoryPlan(running_limit, 0, rollback, None, room)
    fits = math.floor(room / kv_request)
    if fits < 1:
        return MemoryPlan(0, 0, rollback, Reason.OOM_LOAD)
    kv_tokens = math.floor(room / (kv_request / tokens_per_request))
    return MemoryPlan(min(running_limit, fits), kv_tokens, rollback, None, room)
