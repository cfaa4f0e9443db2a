"""A causal language model over ragged rows: the one place that runs a forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specjoule.engines.reference.acceptance import Ids
from specjoule.engines.reference.cache import RaggedCache, WritePlan

VISIBLE_MULTIPLE = 16
"""Slots read on a GPU are rounded up to this: its kernels want aligned masks, and shapes repeat more often."""


class RaggedModel:
    """A transformers causal model, its cache, and how far each row of the cache is valid.

    Target and drafters each own one; two may share weights but never a cache.
    """

    def __init__(self, model: Any, layers: int, context: int, prefill_tokens: int) -> None:
        """Wrap `model` (in eval mode, on its device); `layers` bounds the layer indices its attention names."""
        self.model = model
        self.context = context
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.lengths: Ids = np.zeros(0, np.int64)
        """[rows] valid cache entries of each row; lowering one is the rollback."""
        self._layers = layers
        self._prefill_tokens = prefill_tokens
        self._cache: RaggedCache | None = None
        accepted = inspect.signature(model.forward).parameters
        # Renamed in transformers 5.2x; the old name still works there but warns.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._can_skip_logits = "logits_to_keep" in accepted
        self._visible_multiple = 1 if self.device.type == "cpu" else VISIBLE_MULTIPLE
        self._stairs = torch.zeros(0, dtype=self.dtype, device=self.device)
        """[2 * length] zeros, then minus infinity: the mask of a query at p is the part from length - 1 - p on."""

    def reserve(self, rows: int, slots: int) -> None:
        """Make room for `rows` requests of `slots` tokens; what the cache held is forgotten."""
        needed = _round_up(slots + 1, VISIBLE_MULTIPLE)  # one more: the scratch slot that left padding writes to
        cache = self._cache
        if cache is None or cache.rows < rows or cache.length < needed:
            # Freed before the larger one is allocated: the two must not be held at once.
            rows, needed = max(rows, cache.rows if cache else 0), max(needed, cache.length if cache else 0)
            self._cache = cache = None
            self._cache = RaggedCache(self._layers, rows, needed)
            self._stairs = torch.zeros(2 * needed, dtype=self.dtype, device=self.device)
            self._stairs[needed:] = -torch.inf
        self.lengths = np.zeros(rows, np.int64)

    def prefill(self, prompts: Sequence[Sequence[int]], first_row: int) -> Ids:
        """Fill rows first_row.. with prompts in one pass; return the greedy next token of each, [n]."""
        lengths = np.array([len(p) for p in prompts], np.int64)
        width = int(lengths.max())
        tokens = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
        new = None if lengths.min() == width else lengths
        picked = self.step(tokens, np.zeros_like(lengths), new, keep=1, first_row=first_row)
        self.lengths[first_row : first_row + len(prompts)] = lengths
        return to_host(picked)[:, 0]

    def prefill_groups(self, lengths: Sequence[int]) -> list[range]:
        """Split neighbouring rows into passes that pad little and stay below the token budget.

        Sorted rows make few groups. One tenth of padding costs less than reading the weights for one more pass.
        """
        groups: list[range] = []
        start = 0
        for end in range(1, len(lengths) + 1):
            if end < len(lengths):
                members = lengths[start : end + 1]
                padded = max(members) * len(members)
                if padded <= self._prefill_tokens and sum(members) >= 0.9 * padded:
                    continue
            groups.append(range(start, end))
            start = end
        return groups

    def step(
        self, tokens: Ids | torch.Tensor, before: Ids, new: Ids | None, keep: int, first_row: int = 0
    ) -> torch.Tensor:
        """Return the greedy choice after each of the last `keep` tokens, [n, keep]; see `logits`."""
        with torch.inference_mode():
            return self.logits(tokens, before, new, keep, first_row).argmax(dim=-1)

    def logits(
        self, tokens: Ids | torch.Tensor, before: Ids, new: Ids | None, keep: int, first_row: int = 0
    ) -> torch.Tensor:
        """Run one pass over tokens [n, q] and return the logits after each of the last `keep`, [n, keep, vocabulary].

        before [n]: valid entries of each row, which is the position of its first new token. new [n]: how many of the
        q columns are real, counted from the right (None: all); columns left of them are padding that nothing reads.
        """
        assert self._cache is not None
        n, q = tokens.shape
        positions = before[:, None] + np.arange(q)
        slots = positions
        if new is not None:
            positions = positions - (q - new)[:, None]
            padding = np.arange(q) < (q - new)[:, None]
            slots = np.where(padding, self._cache.length - 1, positions)
            positions = np.where(padding, 0, positions)
        visible = min(_round_up(int(positions.max()) + 1, self._visible_multiple), self._cache.length)
        run = int(before[0]) if new is None and (before == before[0]).all() else None
        self._cache.plan = WritePlan(first_row, slots, run, visible, self.device)
        # Verified positions may reach past the model's last one: what they say is cut, but a look-up must not fail.
        places = torch.from_numpy(np.minimum(positions, self.context - 1)).to(self.device)
        starts = torch.from_numpy(self._cache.length - 1 - positions.reshape(-1)).to(self.device)
        mask = self._stairs.unfold(0, visible, 1).index_select(0, starts).view(n, 1, q, visible)
        if isinstance(tokens, np.ndarray):
            tokens = torch.from_numpy(np.ascontiguousarray(tokens)).to(self.device)
        options: dict[str, Any] = {self._cache_name: self._cache, "use_cache": True}
        if self._can_skip_logits:
            options["logits_to_keep"] = keep
        with torch.inference_mode():
            logits: torch.Tensor = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=places, **options
            ).logits
            return logits[:, -keep:]

    def move_rows(self, moves: Sequence[tuple[int, int]]) -> None:
        """Follow a compaction of the batch."""
        if moves and self._cache is not None:
            self._cache.move_rows(moves, self.lengths)
        for source, destination in moves:
            self.lengths[destination] = self.lengths[source]


def to_host(tensor: torch.Tensor) -> Ids:
    """Copy to the host as int64; on a GPU this waits for the result, so a stamp taken afterwards is honest."""
    return np.asarray(tensor.cpu().numpy(), dtype=np.int64)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
