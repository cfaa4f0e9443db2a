"""Prompt look-up: the text that followed the last occurrence of the present suffix, in the request itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from specjoule.engines.reference.acceptance import Ids
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.requests import RequestState


class SuffixIndex:
    """Where each n-gram of one token list was last followed by something. Each token is indexed once."""

    def __init__(self, tokens: list[int], min_ngram: int, max_ngram: int) -> None:
        """Index `tokens`, which the owner goes on to extend; `update` catches up."""
        self._tokens = tokens
        self._sizes = range(min_ngram, max_ngram + 1)
        self._last: dict[tuple[int, ...], int] = {}
        self._seen = 1
        self.update()

    def update(self) -> None:
        """Index what was appended: for each token j, the n-grams that end just before it point to j."""
        tokens, last = self._tokens, self._last
        for j in range(self._seen, len(tokens)):
            for size in self._sizes:
                if size > j:
                    break
                last[tuple(tokens[j - size : j])] = j
        self._seen = len(tokens)

    def continuation(self, count: int) -> list[int] | None:
        """Return `count` tokens that followed the longest matching suffix; None where no suffix occurred before.

        A match near the end is copied beyond itself, so that a loop of any period is continued, not cut off.
        """
        tokens = self._tokens
        for size in reversed(self._sizes):
            if size < len(tokens) and (start := self._last.get(tuple(tokens[-size:]))) is not None:
                period = len(tokens) - start
                return [tokens[start + i % period] for i in range(count)]
        return None


class NgramDrafter(Drafter):
    """Longest suffix match from `max_ngram` down to `min_ngram` tokens; each request sees its own text only."""

    def __init__(self, draft_tokens: int, min_ngram: int, max_ngram: int) -> None:
        """Take k and the n-gram sizes, 1 <= min_ngram <= max_ngram."""
        self.draft_tokens = draft_tokens
        self._min, self._max = min_ngram, max_ngram
        self._rows: list[SuffixIndex] = []
        self._matched = self._unmatched = 0

    def begin(self, rows: Sequence[RequestState]) -> None:
        """Index each request's prompt and first token."""
        self._rows = [SuffixIndex(row.tokens, self._min, self._max) for row in rows]

    def propose(self, rows: Sequence[RequestState]) -> Ids:
        """Return [n, k]; where nothing matches, the last token repeated: the width verified stays the same."""
        proposals = np.empty((len(rows), self.draft_tokens), np.int64)
        for r, (row, index) in enumerate(zip(rows, self._rows, strict=True)):
            found = index.continuation(self.draft_tokens)
            if found is None:
                self._unmatched += 1
                proposals[r] = row.tokens[-1]
            else:
                self._matched += 1
                proposals[r] = found
        return proposals

    def commit(self, rows: Sequence[RequestState], accepted: Ids) -> None:
        """Index the tokens that were committed; rejected drafts were never in it."""
        for index in self._rows:
            index.update()

    def move_rows(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        """Follow a compaction of the batch."""
        for source, destination in moves:
            self._rows[destination] = self._rows[source]
        del self._rows[remaining:]

    def flush(self) -> None:
        """Forget all n-grams. A wave starts cold anyway: an index belongs to one request."""
        self._rows = []

    def counters(self) -> Mapping[str, int]:
        """Return request-rounds with a real proposal and with a padded one."""
        return {"ngram_matched_rounds": self._matched, "ngram_padded_rounds": self._unmatched}
