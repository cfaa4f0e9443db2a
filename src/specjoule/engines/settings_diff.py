"""What differs between the two sides of a pair beyond speculation, from what both launches resolved. Pure.

The kinds are sorted by the names of SGLang's arguments; what another engine resolves is `other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["speculation", "launch", "capacity", "scheduler", "other"]

OWN_TO_A_LAUNCH: frozenset[str] = frozenset(
    {
        "port", "nccl_port", "grpc_port", "dist_init_addr", "launch_command", "startup_time", "specjoule",
        "last_gen_throughput", "internal_state", "status", "served_model_name", "weight_version",
    }
)  # fmt: skip
"""Fields that say which launch this was, not how it computes."""

CAPACITY: frozenset[str] = frozenset(
    {"max_total_num_tokens", "max_total_tokens", "mem_fraction_static", "effective_max_running_requests_per_dp"}
)
SCHEDULER: frozenset[str] = frozenset(
    {
        "max_running_requests", "disable_overlap_schedule", "chunked_prefill_size", "max_prefill_tokens", "page_size",
        "enable_mixed_chunk", "schedule_policy", "schedule_conservativeness", "attention_backend",
        "prefill_attention_backend", "decode_attention_backend", "sampling_backend", "moe_runner_backend",
        "mamba_radix_cache_strategy", "num_continuous_decode_steps", "stream_interval", "cuda_graph_config",
    }
)  # fmt: skip
SPECULATION_PREFIXES: tuple[str, ...] = ("speculative_", "_speculative_", "spec_")
SPECULATION: frozenset[str] = frozenset({"enable_multi_layer_eagle", "uno_lora_path"})


@dataclass(frozen=True)
class Difference:
    """One resolved field (dotted where nested) that is not the same on both sides."""

    field: str
    kind: Kind
    plain: Any
    speculative: Any


def differences(plain: Mapping[str, Any], speculative: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return every field that differs, launch-own fields left out, in the order of kind and name."""
    found = [
        Difference(name, kind_of(name), one, other)
        for name, one, other in _pairs(plain, speculative, "")
        if one != other and kind_of(name) != "launch"
    ]
    order: tuple[Kind, ...] = ("scheduler", "capacity", "other", "speculation", "launch")
    return tuple(sorted(found, key=lambda d: (order.index(d.kind), d.field)))


def beyond_speculation(plain: Mapping[str, Any], speculative: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return what differs besides the speculation itself: the table that stands beside every pair."""
    return tuple(d for d in differences(plain, speculative) if d.kind != "speculation")


def kind_of(name: str) -> Kind:
    """Return what a field is about, by its outermost name."""
    top = name.split(".", maxsplit=1)[0]
    if top in OWN_TO_A_LAUNCH:
        return "launch"
    if top in SPECULATION or top.startswith(SPECULATION_PREFIXES):
        return "speculation"
    if top in CAPACITY:
        return "capacity"
    return "scheduler" if top in SCHEDULER else "other"


def _pairs(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str) -> list[tuple[str, Any, Any]]:
    pairs: list[tuple[str, Any, Any]] = []
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        name = f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            pairs += _pairs(a, b, f"{name}.")
        else:
            pairs.append((name, a, b))
    return pairs
