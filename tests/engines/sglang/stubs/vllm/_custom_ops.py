"""Pure-torch rotary embedding with the signature of vLLM's kernel (in place)."""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate `query` and `key` in place."""
    cos, sin = cos_sin_cache[positions.flatten()].chunk(2, dim=-1)
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)
        rotary = heads[..., : 2 * cos.shape[-1]]
        c, s = cos.unsqueeze(1).to(heads.dtype), sin.unsqueeze(1).to(heads.dtype)
        if is_neox:
            first, second = rotary.chunk(2, dim=-1)
        else:
            first, second = rotary[..., ::2], rotary[..., 1::2]
        a, b = first * c - second * s, second * c + first * s
        if is_neox:
            rotary.copy_(torch.cat((a, b), dim=-1))
        else:
            rotary.copy_(torch.stack((a, b), dim=-1).flatten(-2))
