"""What the engine keeps of one running request, and the record it becomes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from specjoule.engines.base import EngineBug, FinishReason, RequestResult
from specjoule.engines.reference.acceptance import cut_round


@dataclass
class RequestState:
    """One request while it runs. `tokens` is prompt and committed output, as plain ints."""

    index: int
    """Place in the wave."""
    prompt_id: str
    tokens: list[int]
    prompt_tokens: int
    limit: int
    """Most tokens to deliver."""
    draft_tokens: int
    rounds: int = 0
    accepted: int = 0
    cut: int = 0
    histogram: list[int] = field(default_factory=list)
    chunk_t_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    first_eos: int | None = None
    ended_by: FinishReason | None = None

    def __post_init__(self) -> None:
        """Size the histogram: one bin for each possible number of kept drafts."""
        self.histogram = [0] * (self.draft_tokens + 1)

    @property
    def committed(self) -> int:
        """Tokens delivered so far."""
        return len(self.tokens) - self.prompt_tokens

    def deliver(self, offered: Sequence[int], t_ns: int, eos_ids: Collection[int], ignore_eos: bool) -> None:
        """Append what the limit and end-of-sequence leave of `offered`, as one chunk that arrived at `t_ns`."""
        before = self.committed
        cut = cut_round(offered, self.limit - before, eos_ids, ignore_eos)
        self.tokens.extend(offered[: cut.kept])
        self.chunk_t_ns.append(t_ns)
        self.chunk_tokens.append(cut.kept)
        self.cut += cut.dropped
        if cut.first_eos is not None and self.first_eos is None:
            self.first_eos = before + cut.first_eos
        if cut.ended_by is not None:
            self.ended_by = "eos" if cut.ended_by == "eos" else "length"

    def deliver_round(self, offered: Sequence[int], t_ns: int, eos_ids: Collection[int], ignore_eos: bool) -> None:
        """Count one verified round that offers its accepted drafts and the target's own token, and deliver it."""
        self.rounds += 1
        self.accepted += len(offered) - 1
        self.histogram[len(offered) - 1] += 1
        self.deliver(offered, t_ns, eos_ids, ignore_eos)

    def result(self, text: str) -> RequestResult:
        """Return the record of the finished request; EngineBug where its counts contradict each other."""
        output = tuple(self.tokens[self.prompt_tokens :])
        if self.ended_by is None:
            raise EngineBug(f"request {self.prompt_id}: asked for its result before it ended")
        if len(output) != 1 + self.accepted + self.rounds - self.cut or sum(self.chunk_tokens) != len(output):
            raise EngineBug(
                f"request {self.prompt_id}: {len(output)} tokens delivered, but 1 + {self.accepted} accepted "
                f"+ {self.rounds} rounds - {self.cut} cut, in chunks of {sum(self.chunk_tokens)}"
            )
        return RequestResult(
            prompt_id=self.prompt_id,
            prompt_tokens=self.prompt_tokens,
            committed_tokens=len(output),
            finish_reason=self.ended_by,
            first_eos_position=self.first_eos,
            rounds=self.rounds,
            proposed_tokens=self.rounds * self.draft_tokens,
            accepted_draft_tokens=self.accepted,
            acceptance_histogram=tuple(self.histogram),
            cut_tokens=self.cut,
            chunk_t_ns=tuple(self.chunk_t_ns),
            chunk_tokens=tuple(self.chunk_tokens),
            cached_tokens=0,
            output_token_ids=output,
            text=text,
        )
