"""Grouped-query attention under a mask, without copying keys and values.

Before a masked pass over several positions, transformers repeats keys and values once per query head of a group,
since the fast kernels of a GPU take either a mask or groups. Folding the heads of a group into the query positions
asks the same question of the same kernel without that copy. The kernel of the CPU takes both, and there folding pays
only for a few positions of several requests (`benchmarks/reference_parts.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED = "specjoule_packed"

FOLDED_QUERIES = 8
"""Most positions of a request for which folding pays on a CPU: beyond, the folded mask costs more than it saves."""


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend query [n, heads, q, d] to key and value [n, kv_heads, visible, d] under mask [n, 1, q, visible].

    Returns [n, q, heads, d] as transformers wants it. Other masks go to transformers' own function; scores that are
    changed in another way than by a mask raise ValueError.
    """
    n, heads, q, _ = query.shape
    _refuse_unknown(kwargs)
    if attention_mask is None or attention_mask.shape[1] != 1 or heads == key.shape[1]:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if query.device.type != "cpu" or folding_pays(n, q):
        out = folded(query, key, value, attention_mask, dropout, scaling)
    else:
        # `RaggedModel` reads no slot that a lone query may not see: there the mask hides nothing.
        out = grouped(query, key, value, None if n * q == 1 else attention_mask, dropout, scaling)
    return out.transpose(1, 2).contiguous(), None


def folding_pays(n: int, q: int) -> bool:
    """Say whether to fold on a CPU, for n requests of q positions each; measured, see the module."""
    return n * q > 1 and q <= FOLDED_QUERIES


def grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
) -> torch.Tensor:
    """Leave the groups to the kernel; returns [n, heads, q, d]."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling, enable_gqa=True
    )


def folded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
) -> torch.Tensor:
    """Ask for all heads of a group as if they were more positions; returns [n, heads, q, d]."""
    n, heads, q, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    # Heads of a group are neighbours, so that [kv_heads, group, q] is a view of [heads, q].
    packed = query.reshape(n, kv_heads, group * q, size)
    if q > 1:
        visible = mask.shape[-1]
        mask = mask.expand(n, group, q, visible).reshape(n, 1, group * q, visible)
    out = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(n, heads, q, out.shape[-1])


def register() -> None:
    """Make the implementation known to transformers under the name `PACKED`; harmless to repeat."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Raise ValueError for what would change the scores and no kernel here takes: it must not be left out silently."""
    # Runs once per layer and pass: spelled out, a loop would cost as much as the copy that this module saves.
    if kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None or kwargs.get("s_aux") is not None:
        raise ValueError("packed attention knows no softcap, position bias or attention sink")
