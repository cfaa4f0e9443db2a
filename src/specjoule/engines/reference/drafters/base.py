"""What the wave asks of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from specjoule.engines.reference.acceptance import Ids
from specjoule.engines.reference.requests import RequestState


class Drafter(ABC):
    """Proposes k tokens for each running row, and follows what became of them.

    Order of calls in a wave: `reserve`, `prefill`, `begin`, then per round `propose`, `commit` (the rows already hold
    the new tokens) and, when requests have ended, `move_rows`. Row r is always the r-th of the rows passed.
    """

    draft_tokens: int
    """k >= 0."""

    @property
    def revision(self) -> str | None:
        """Revision of the draft weights; None where there are none of their own."""
        return None

    def reserve(self, rows: int, slots: int) -> None:  # noqa: B027 - a drafter without a cache has nothing to do
        """Make room for `rows` requests of `slots` positions."""

    def prefill(self, rows: Sequence[RequestState]) -> None:  # noqa: B027
        """Take in the prompts, before the target's prefill: what a draft model pays here is no part of a round."""

    @abstractmethod
    def begin(self, rows: Sequence[RequestState]) -> None:
        """Start cold on requests that hold their prompt and first token."""

    @abstractmethod
    def propose(self, rows: Sequence[RequestState]) -> Ids:
        """Return proposals [n, k] to follow each row's last token."""

    def commit(self, rows: Sequence[RequestState], accepted: Ids) -> None:  # noqa: B027
        """Take note that accepted [n] of the last proposals were kept; drop what was not."""

    def move_rows(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:  # noqa: B027
        """Apply (source, destination) moves in order, then forget rows from `remaining` on."""

    def flush(self) -> None:  # noqa: B027
        """Forget everything learnt from earlier waves."""

    def counters(self) -> Mapping[str, int]:
        """Return cumulative counts: draft passes, rounds with a proposal ..."""
        return {}
