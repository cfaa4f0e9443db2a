"""What a forward pass reads and computes: from a model's and a drafter's sizes to bytes, operations and kernels.

Everything is per pass and vectorised over steps. Units: bytes, floating-point operations, counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from specjoule.engines.simulated.parameters import DraftParameters, KernelParameters
from specjoule.meters.base import F64, I64
from specjoule.study.catalogue import Drafter, Model

DTYPE_BYTES: Mapping[str, float] = {
    "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int4": 0.5,
}  # fmt: skip


def expert_reach(experts: float, q: F64 | float, chosen: float = 1.0) -> F64:
    """Return how many of `experts` equally likely experts `q` positions touch that choose `chosen` different ones each.

    Choices are without replacement: one position misses a given expert with 1 - chosen / experts.
    """
    return np.asarray(experts * -np.expm1(np.asarray(q, dtype=np.float64) * np.log1p(-chosen / experts)))


@dataclass(frozen=True)
class Network:
    """Sizes of a target or draft network, as far as costs go."""

    dense_parameters: float
    """Parameters read in every pass."""
    expert_parameters: float
    """Parameters of all routed experts; 0 for dense networks."""
    experts: int
    experts_per_token: int
    layers: float
    hidden: float
    weight_bytes: float
    """Bytes per parameter."""
    kv_bytes: float
    """KV bytes per token of layers that keep everything."""
    sliding_kv_bytes: float
    window: float
    state_bytes: float
    """One recurrent snapshot of one request."""
    attention_flop: float
    """Operations per query position and cached token."""
    kernels: float

    @property
    def bytes_loaded(self) -> float:
        """Memory that the weights take."""
        return (self.dense_parameters + self.expert_parameters) * self.weight_bytes

    @property
    def flop_per_position(self) -> float:
        """Useful operations of one position, attention to the cache left out."""
        active = self.expert_parameters * self.experts_per_token / self.experts if self.experts else 0.0
        return 2.0 * (self.dense_parameters + active)

    def cache_bytes(self, tokens: F64 | float) -> F64:
        """Return the KV bytes of one request that holds `tokens`."""
        t = np.asarray(tokens, dtype=np.float64)
        return self.kv_bytes * t + self.sliding_kv_bytes * np.minimum(t, self.window)


@dataclass(frozen=True)
class Cost:
    """What passes read and compute; arrays over steps."""

    weight_bytes: F64
    expert_bytes: F64
    kv_bytes: F64
    other_bytes: F64
    flop: F64
    kernels: float

    def __add__(self, other: Cost) -> Cost:
        """Return the passes one after the other."""
        return Cost(
            self.weight_bytes + other.weight_bytes,
            self.expert_bytes + other.expert_bytes,
            self.kv_bytes + other.kv_bytes,
            self.other_bytes + other.other_bytes,
            self.flop + other.flop,
            self.kernels + other.kernels,
        )

    def times(self, passes: float) -> Cost:
        """Return `passes` equal passes."""
        return Cost(
            self.weight_bytes * passes,
            self.expert_bytes * passes,
            self.kv_bytes * passes,
            self.other_bytes * passes,
            self.flop * passes,
            self.kernels * passes,
        )

    @property
    def bytes(self) -> F64:
        """All bytes moved."""
        return self.weight_bytes + self.expert_bytes + self.kv_bytes + self.other_bytes

    def __getitem__(self, index: I64 | slice) -> Cost:
        """Return the cost of some of the steps."""
        return replace(
            self,
            weight_bytes=self.weight_bytes[index],
            expert_bytes=self.expert_bytes[index],
            kv_bytes=self.kv_bytes[index],
            other_bytes=self.other_bytes[index],
            flop=self.flop[index],
        )


def target_network(model: Model, kernels: KernelParameters) -> Network:
    """Return the target's sizes."""
    a = model.architecture
    width = DTYPE_BYTES[model.weight_dtype]
    kv_width = DTYPE_BYTES[model.kv_dtype]
    attending = a.attention_layers if a.attention_layers is not None else a.layers
    kv = (
        a.kv_bytes_per_token if a.kv_bytes_per_token is not None else 2 * attending * a.kv_heads * a.head_dim * kv_width
    )
    experts, chosen = a.experts or 0, a.experts_per_token or 0
    routed = 0.0
    if experts and a.active_parameters:
        routed = (a.parameters - a.active_parameters) / (1 - chosen / experts)
    per_layer = kernels.per_layer[model.attention] + (kernels.per_expert_layer if experts else 0.0)
    return Network(
        dense_parameters=a.parameters - routed,
        expert_parameters=routed,
        experts=experts,
        experts_per_token=chosen,
        layers=a.layers,
        hidden=a.hidden_size,
        weight_bytes=width,
        kv_bytes=kv,
        sliding_kv_bytes=a.sliding_kv_bytes_per_token or 0.0,
        window=a.sliding_window or 0.0,
        state_bytes=a.recurrent_state_bytes or 0.0,
        attention_flop=4.0 * a.query_heads * a.head_dim * attending,
        kernels=a.layers * per_layer,
    )


def draft_network(
    drafter: Drafter, model: Model, target: Network, kernels: KernelParameters, draft: DraftParameters
) -> Network | None:
    """Return the sizes of one draft pass with its output head; None for drafters without a network.

    Heads without a checkpoint of their own (multi-token prediction, skipped layers) take the target's own layers.
    """
    if drafter.is_plain or drafter.scheme == "ngram":
        return None
    a = model.architecture
    own = drafter.checkpoints.get(model.name)
    head = draft.vocabulary.get(drafter.scheme, a.vocabulary) * float(
        own.hidden_size if own and own.hidden_size else a.hidden_size
    )
    block = drafter.scheme in ("dflash", "dspark")
    layers = float((own.layers if own else None) or (draft.block_layers if block else draft.head_layers))
    if drafter.scheme == "layer-skip":
        layers = float(drafter.settings.get("kept_layers", a.layers))
    share = layers / a.layers
    if own is not None and own.parameters:
        dense, routed = float(own.parameters), 0.0
    else:
        body = max(0.0, target.dense_parameters - a.vocabulary * a.hidden_size)
        dense, routed = body * share, target.expert_parameters * share
    return Network(
        dense_parameters=dense + (head if drafter.scheme != "draft-model" else 0.0),
        expert_parameters=routed,
        experts=target.experts if routed else 0,
        experts_per_token=target.experts_per_token if routed else 0,
        layers=layers,
        hidden=float(own.hidden_size if own and own.hidden_size else a.hidden_size),
        weight_bytes=target.weight_bytes,
        kv_bytes=target.kv_bytes * share if target.kv_bytes else 0.0,
        sliding_kv_bytes=0.0,
        window=0.0,
        state_bytes=0.0,
        attention_flop=target.attention_flop * share,
        kernels=layers * (kernels.per_layer["full"] + (kernels.per_expert_layer if routed else 0.0)) + 3,
    )


def draft_weight_bytes(drafter: Drafter, model: Model, network: Network | None) -> float:
    """Return the memory that draft weights take beside the target's (shared heads and own layers take none)."""
    own = drafter.checkpoints.get(model.name)
    if network is None:
        return 0.0
    if own is not None and own.parameters:
        return float(own.parameters) * network.weight_bytes
    if drafter.scheme == "mtp":
        head = model.architecture.vocabulary * network.hidden
        return (network.dense_parameters - head + network.expert_parameters) * network.weight_bytes
    return 0.0


def pass_cost(
    network: Network,
    requests: F64,
    width: float,
    cached_tokens: F64,
    windowed_tokens: F64,
    p: KernelParameters,
    *,
    snapshots: float = 1.0,
) -> Cost:
    """Return the cost of one pass over `requests` x `width` positions.

    `cached_tokens` and `windowed_tokens` are summed over the requests that really run; `requests` may be padded up to a
    captured batch. `snapshots` is how many recurrent states are written per request (one per verified position where
    the state may have to go back).
    """
    positions = requests * width
    padded = np.ceil(positions / p.tile_positions) * p.tile_positions
    flop = 2.0 * network.dense_parameters * padded
    expert_bytes = np.zeros_like(positions)
    if network.experts:
        distinct = requests * (1.0 + (width - 1.0) * (1.0 - p.routing_overlap))
        popular = max(network.experts * p.expert_popular_share, network.experts_per_token + 1.0)
        reached = expert_reach(popular, distinct, network.experts_per_token)
        each = positions * network.experts_per_token / reached
        each = np.ceil(each / p.expert_tile_positions) * p.expert_tile_positions
        one = network.expert_parameters / network.experts
        flop = flop + 2.0 * one * reached * each
        expert_bytes = one * reached * network.weight_bytes
    kv = network.kv_bytes * cached_tokens + network.sliding_kv_bytes * windowed_tokens
    state = requests * network.state_bytes * (1.0 + snapshots)
    return Cost(
        weight_bytes=np.full_like(positions, network.dense_parameters * network.weight_bytes),
        expert_bytes=expert_bytes,
        kv_bytes=kv,
        other_bytes=state + positions * network.hidden * network.layers * p.activation_bytes,
        flop=flop + network.attention_flop * width * cached_tokens,
        kernels=network.kernels,
    )
