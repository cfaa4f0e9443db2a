"""Plain decoding, as the drafter that proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specjoule.engines.reference.acceptance import Ids
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.requests import RequestState


class PlainDrafter(Drafter):
    """k = 0: each round verifies, and commits, one position."""

    draft_tokens = 0

    def begin(self, rows: Sequence[RequestState]) -> None:
        """Keep nothing."""

    def propose(self, rows: Sequence[RequestState]) -> Ids:
        """Return [n, 0]."""
        return np.zeros((len(rows), 0), np.int64)
