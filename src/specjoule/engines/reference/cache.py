"""A static key-value cache whose rows have lengths of their own.

Keys and values of a layer are one tensor [rows, kv_heads, length, head_dim], allocated once. The slot of a token *is*
its position, so that nothing is padded: a forward pass scatters its new entries to the slots named by the plan and
reads the first `visible` slots, and the mask hides from each query what lies beyond its own position. Rolling back is
therefore forgetting: the owner lowers a row's length, and the entries beyond are overwritten before they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specjoule.engines.reference.acceptance import Ids


@dataclass
class WritePlan:
    """Where one forward pass writes and how far it reads; the same for all layers."""

    first_row: int
    slots: Ids
    """[n, q]: slot of each new token."""
    run: int | None
    """Where every row writes the same q slots in a row, the first of them: a copy, several times cheaper."""
    visible: int
    """Slots that attention reads: at least 1 + the largest position of the pass."""
    device: torch.device
    _indices: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def indices(self, kv_heads: int, length: int) -> torch.Tensor:
        """Return [n * kv_heads * q] rows of the layer's tensor seen as [rows * kv_heads * length, head_dim]."""
        key = (kv_heads, length)
        if key not in self._indices:
            rows = np.arange(self.first_row, self.first_row + self.slots.shape[0])[:, None, None] * kv_heads
            flat = (rows + np.arange(kv_heads)[None, :, None]) * length + self.slots[:, None, :]
            self._indices[key] = torch.from_numpy(flat.reshape(-1)).to(self.device)
        return self._indices[key]


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values; sized by the first states it sees, so that any head layout fits."""

    is_sliding = False

    def __init__(self, owner: RaggedCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate both tensors. Zeros, because a masked slot still enters a product: 0 * NaN would spread."""
        self.device = key_states.device
        self.keys = self._zeros(key_states)
        self.values = self._zeros(value_states)
        self._flat_keys = self.keys.view(-1, self.keys.shape[-1])
        self._flat_values = self.values.view(-1, self.values.shape[-1])
        self.is_initialized = True

    def _zeros(self, states: torch.Tensor) -> torch.Tensor:
        shape = (self.owner.rows, states.shape[1], self.owner.length, states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter the states [n, kv_heads, q, head_dim] of this pass; return views over the visible slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan, keys, values = self.owner.plan, self.keys, self.values
        # Runs once per layer and pass: views are kept and rows narrowed only where there are fewer than allocated.
        if plan.run is None:
            indices = plan.indices(keys.shape[1], keys.shape[2])
            self._flat_keys.index_copy_(0, indices, key_states.reshape(-1, key_states.shape[-1]))
            self._flat_values.index_copy_(0, indices, value_states.reshape(-1, value_states.shape[-1]))
        if key_states.shape[0] != keys.shape[0]:
            keys = keys.narrow(0, plan.first_row, key_states.shape[0])
            values = values.narrow(0, plan.first_row, key_states.shape[0])
        if plan.run is not None:
            keys.narrow(2, plan.run, key_states.shape[2]).copy_(key_states)
            values.narrow(2, plan.run, key_states.shape[2]).copy_(value_states)
        return keys.narrow(2, 0, plan.visible), values.narrow(2, 0, plan.visible)

    def move_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` slots of one row over another's."""
        if self.is_initialized:
            for store in (self.keys, self.values):
                store[destination, :, :length] = store[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (slots read, offset); models ask although the mask is given."""
        return self.owner.plan.visible, 0

    def get_seq_length(self) -> int:
        """Return 0: rows have no common length, and positions are always given."""
        return 0

    def get_max_length(self) -> int:
        """Return the slots of a row."""
        return self.owner.length


class RaggedCache(Cache):  # type: ignore[misc]
    """All layers of one model; `rows` requests of up to `length` slots, the last of them scratch for padding."""

    def __init__(self, layers: int, rows: int, length: int) -> None:
        self.rows = rows
        self.length = length
        self.plan = WritePlan(0, np.zeros((1, 1), np.int64), 0, 1, torch.device("cpu"))
        super().__init__(layers=[RaggedLayer(self) for _ in range(layers)])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hand the states to their layer; nothing is offloaded and no layer is added while a pass runs."""
        updated: tuple[torch.Tensor, torch.Tensor] = self.layers[layer_idx].update(key_states, value_states)
        return updated

    def move_rows(self, moves: Sequence[tuple[int, int]], lengths: Ids) -> None:
        """Apply compaction moves in order; lengths [rows] before the moves bounds what is copied."""
        with torch.inference_mode():
            for source, destination in moves:
                for layer in self.layers:
                    layer.move_row(source, destination, int(lengths[source]))
