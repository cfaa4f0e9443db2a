"""One wave: prefill, then rounds of propose, verify, commit, roll back, until the last request has ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from specjoule.clock import Clock
from specjoule.engines.reference.acceptance import accepted_prefix, compaction_moves
from specjoule.engines.reference.drafters.base import Drafter
from specjoule.engines.reference.model import RaggedModel, to_host
from specjoule.engines.reference.requests import RequestState


@dataclass
class WaveTimes:
    """Where the time of a wave went, ns of the process's own clock; `rounds_ns` holds the two others."""

    prefill_ns: int = 0
    rounds_ns: int = 0
    verify_ns: int = 0
    """The target's forward pass until its choice is on the host."""
    draft_ns: int = 0


@dataclass
class WaveOutcome:
    """What a wave left behind, beside the request states that it filled."""

    steps: int = 0
    times: WaveTimes = field(default_factory=WaveTimes)


class Wave:
    """Runs the requests of one batch together; finished ones leave the batch at once."""

    def __init__(
        self,
        target: RaggedModel,
        drafter: Drafter,
        clock: Clock,
        eos_ids: Collection[int],
        ignore_eos: bool,
    ) -> None:
        """Take the target, a drafter that shares no cache with it, and what ends a request."""
        self._target = target
        self._drafter = drafter
        self._clock = clock
        self._eos_ids = eos_ids
        self._ignore_eos = ignore_eos
        self._rows: list[RequestState] = []
        self.outcome = WaveOutcome()

    def run(self, requests: Sequence[RequestState]) -> WaveOutcome:
        """Run all requests to their end; each state then holds its tokens, stamps and counts."""
        started = time.perf_counter_ns()
        # Row order is by prompt length, so that prefill passes pad little.
        self._rows = sorted(requests, key=lambda request: len(request.tokens))
        slots = max(r.prompt_tokens + r.limit for r in requests) + self._drafter.draft_tokens
        self._target.reserve(len(requests), slots)
        self._drafter.reserve(len(requests), slots)
        # Before the first tokens are out: a decode window starts there and must hold no prefill, the drafter's neither.
        self._drafter.prefill(self._rows)
        self._prefill()
        self._compact()
        if self._rows:
            self._drafter.begin(self._rows)
        prefilled = time.perf_counter_ns()
        self.outcome.times.prefill_ns = prefilled - started
        while self._rows:
            self._round()
            self._compact()
        self.outcome.times.rounds_ns = time.perf_counter_ns() - prefilled
        return self.outcome

    def _prefill(self) -> None:
        for group in self._target.prefill_groups([len(row.tokens) for row in self._rows]):
            members = self._rows[group.start : group.stop]
            first = self._target.prefill([row.tokens for row in members], group.start)
            now = self._clock.now_ns()
            for row, token in zip(members, first.tolist(), strict=True):
                row.deliver([token], now, self._eos_ids, self._ignore_eos)

    def _round(self) -> None:
        rows, target, times = self._rows, self._target, self.outcome.times
        n = len(rows)
        begun = time.perf_counter_ns()
        drafts = self._drafter.propose(rows)
        drafted = time.perf_counter_ns()
        tokens = np.empty((n, drafts.shape[1] + 1), np.int64)
        tokens[:, 0] = [row.tokens[-1] for row in rows]
        tokens[:, 1:] = drafts
        before = target.lengths[:n]
        chosen = to_host(target.step(tokens, before, None, keep=tokens.shape[1]))
        now = self._clock.now_ns()
        verified = time.perf_counter_ns()
        accepted = accepted_prefix(drafts, chosen)
        # The entry of the round's first token and of each accepted draft stay; the rest is forgotten here.
        target.lengths[:n] = before + accepted + 1
        for row, kept, choice in zip(rows, accepted.tolist(), chosen.tolist(), strict=True):
            # Accepted drafts *are* the target's choices, so that the choices alone spell what is committed.
            row.deliver_round(choice[: kept + 1], now, self._eos_ids, self._ignore_eos)
        self._drafter.commit(rows, accepted)
        self.outcome.steps += 1
        times.draft_ns += drafted - begun
        times.verify_ns += verified - drafted

    def _compact(self) -> None:
        """Close the gaps that finished requests leave, so that they cost nothing more."""
        finished = [r for r, row in enumerate(self._rows) if row.ended_by is not None]
        if not finished:
            return
        moves = compaction_moves(len(self._rows), finished)
        remaining = len(self._rows) - len(finished)
        self._target.move_rows(moves)
        if self.outcome.steps:  # before the first round the drafter has not begun and holds no rows
            self._drafter.move_rows(moves, remaining)
        for source, destination in moves:
            self._rows[destination] = self._rows[source]
        del self._rows[remaining:]
