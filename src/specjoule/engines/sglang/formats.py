"""Number formats: names as the study writes them, flags as SGLang takes them."""

from __future__ import annotations

from collections.abc import Mapping

from specjoule.errors import ConfigurationError

WEIGHT_FORMATS: Mapping[str, tuple[str, ...]] = {
    "bfloat16": ("--dtype", "bfloat16"),
    "float16": ("--dtype", "float16"),
    "float32": ("--dtype", "float32"),
    "fp8": ("--dtype", "bfloat16", "--quantization", "fp8"),
    "fp8-checkpoint": ("--dtype", "bfloat16"),
    "df11": ("--dtype", "bfloat16", "--quantization", "df11"),
}
"""`fp8` quantises a BF16 checkpoint while loading; `fp8-checkpoint` takes the format the checkpoint declares. `df11`
(losslessly compressed BF16) is not in the stock release, whose parser refuses it: without a server that knows it the
cells are infeasible rows, which is what they are. Other formats: `engine.settings.weight_formats`."""

KV_FORMATS: Mapping[str, str] = {
    "bfloat16": "bfloat16",
    "float16": "auto",
    "float32": "auto",
    "fp8": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
"""`auto` is the type of the activations; float16 and float32 caches exist only under weights of that type."""


def weight_flags(name: str, extra: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the flags of a weight format. Raises ConfigurationError for a name nobody defined."""
    if name in extra:
        return extra[name]
    if name in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[name]
    known = ", ".join(sorted({*WEIGHT_FORMATS, *extra}))
    raise ConfigurationError(
        f"weight_dtype '{name}': no such format (known: {known}); define it in engine.settings.weight_formats"
    )


def kv_flags(kv: str, weights: str) -> tuple[str, ...]:
    """Return the flags of a KV-cache format. Raises ConfigurationError for one SGLang cannot store."""
    if kv not in KV_FORMATS:
        raise ConfigurationError(f"kv_dtype '{kv}': SGLang stores {', '.join(sorted(KV_FORMATS))}")
    if KV_FORMATS[kv] == "auto" and kv != weights:
        raise ConfigurationError(f"kv_dtype '{kv}' needs weight_dtype '{kv}', not '{weights}'")
    return ("--kv-cache-dtype", KV_FORMATS[kv])
