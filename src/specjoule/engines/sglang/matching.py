"""The second baseline: plain decoding under the scheduler settings that speculation runs with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjoule.errors import ConfigurationError

MATCHED: Mapping[str, str] = {
    "max_total_tokens": "--max-total-tokens",
    "max_running_requests": "--max-running-requests",
    "chunked_prefill_size": "--chunked-prefill-size",
    "max_prefill_tokens": "--max-prefill-tokens",
    "page_size": "--page-size",
    "attention_backend": "--attention-backend",
    "prefill_attention_backend": "--prefill-attention-backend",
    "decode_attention_backend": "--decode-attention-backend",
    "sampling_backend": "--sampling-backend",
    "mamba_radix_cache_strategy": "--mamba-radix-cache-strategy",
}
"""Resolved fields that the matched baseline takes over, and the flag that sets each."""

SWITCHES: Mapping[str, str] = {
    "disable_overlap_schedule": "--disable-overlap-schedule",
    "enable_mixed_chunk": "--enable-mixed-chunk",
}
"""Resolved booleans whose flag is passed when they are true."""


def matched_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `plain-matched` takes from the stored `resolved` of a speculative launch.

    The token pool is the one the server really had (`max_total_num_tokens`), not the one asked for.
    """
    values = {key: resolved[key] for key in (*MATCHED, *SWITCHES) if resolved.get(key) is not None}
    if resolved.get("max_total_num_tokens") is not None:
        values["max_total_tokens"] = resolved["max_total_num_tokens"]
    return values


def matched_flags(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flags of a matched baseline. Raises ConfigurationError for a field that has none."""
    unknown = sorted(set(values) - set(MATCHED) - set(SWITCHES))
    if unknown:
        known = ", ".join(sorted({*MATCHED, *SWITCHES}))
        raise ConfigurationError(f"matched settings: '{unknown[0]}' cannot be set by a flag (known: {known})")
    flags: list[str] = []
    for key, flag in MATCHED.items():
        if values.get(key) is not None:
            flags += [flag, str(values[key])]
    flags += [flag for key, flag in SWITCHES.items() if values.get(key)]
    return tuple(flags)
