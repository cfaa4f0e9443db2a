"""Drafting by a smaller causal model, one token after the other: a layer-skipped target or a draft checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from specjoule.engines.reference.acceptance import Ids
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.model import RaggedModel, to_host
from specjoule.engines.reference.requests import RequestState


class AutoregressiveDrafter(Drafter):
    """k serial greedy passes of a model with a cache of its own, rolled back as exactly as the target's."""

    def __init__(self, draft_tokens: int, model: RaggedModel, revision: str | None) -> None:
        """Take k >= 1, the drafting model, and its revision (None where it shares the target's weights)."""
        self.draft_tokens = draft_tokens
        self._model = model
        self._revision = revision
        self._processed: Ids = np.zeros(0, np.int64)
        self._passes = 0
        self._prefilled: list[int] = []

    @property
    def revision(self) -> str | None:
        """Revision of the draft checkpoint."""
        return self._revision

    def reserve(self, rows: int, slots: int) -> None:
        """Size the drafter's own cache."""
        self._model.reserve(rows, slots)

    def begin(self, rows: Sequence[RequestState]) -> None:
        """Start on the prefilled rows; where requests ended with their first token, the others are taken in again."""
        if [row.index for row in rows] != self._prefilled:
            self.prefill(rows)

    def prefill(self, rows: Sequence[RequestState]) -> None:
        """Prefill the prompts; the first token is left to the first proposal."""
        self._prefilled = [row.index for row in rows]
        prompts = [row.tokens[: row.prompt_tokens] for row in rows]
        for group in self._model.prefill_groups([len(p) for p in prompts]):
            self._model.prefill(prompts[group.start : group.stop], group.start)

    def propose(self, rows: Sequence[RequestState]) -> Ids:
        """Return [n, k]. The first pass also takes in what was committed without passing through this model."""
        n = len(rows)
        valid = self._model.lengths[:n].copy()
        pending = np.array([len(row.tokens) for row in rows], np.int64) - valid
        width = int(pending.max())
        tokens = np.zeros((n, width), np.int64)
        for r, row in enumerate(rows):
            tokens[r, width - pending[r] :] = row.tokens[-int(pending[r]) :]
        ragged = pending if int(pending.min()) < width else None
        picked = [self._model.step(tokens, valid, ragged, keep=1)]
        valid += pending
        for _ in range(self.draft_tokens - 1):
            picked.append(self._model.step(picked[-1], valid, None, keep=1))
            valid += 1
        self._passes += self.draft_tokens
        self._processed = valid
        return to_host(torch.cat(picked, dim=1))

    def commit(self, rows: Sequence[RequestState], accepted: Ids) -> None:
        """Keep the entries of committed tokens: those up to the last accepted draft that this model has seen."""
        n = len(rows)
        # The last of k drafts was proposed but never fed back, hence k - 1 of them have entries.
        before = self._processed - (self.draft_tokens - 1)
        self._model.lengths[:n] = np.minimum(before + accepted, self._processed)

    def move_rows(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        """Follow a compaction of the batch."""
        self._model.move_rows(moves)

    def counters(self) -> Mapping[str, int]:
        """Return the drafter's forward passes after the prefill."""
        return {"draft_steps": self._passes}
