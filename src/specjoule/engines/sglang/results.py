"""From the events of a wave to one result a request, from raw counts only.

The server's own means and rates are not used: its accepted length divides a token count that includes the prefill's
token by the rounds, and its proposed count knows no adaptive width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specjoule.client.stamps import Event, Parsed
from specjoule.engines.base import (
    EngineBug,
    EngineInfeasible,
    EngineTransient,
    FinishReason,
    RequestResult,
)
from specjoule.engines.sglang.fields import need, need_count
from specjoule.reasons import Reason

FINISHES: Mapping[str, FinishReason] = {"length": "length", "stop": "eos", "abort": "abort"}

TIMES: tuple[str, ...] = ("request_received_ts", "forward_entry_time", "prefill_finished_time", "request_finished_ts")
"""Wall-clock stamps of the server, kept beside ours where `--enable-metrics` gives them."""


@dataclass
class _Stream:
    """What has come of one request so far."""

    t_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    last: Mapping[str, Any] | None = None
    """`meta_info` of the chunk that carries the finish reason."""

    def take(self, event: Event) -> None:
        """Add one chunk. Raises EngineBug for a chunk after the end."""
        if self.last is not None:
            raise EngineBug("a chunk came after its request had finished")
        meta = need("a chunk", event.content, "meta_info", Mapping)  # type: ignore[type-abstract]
        ids = need("a chunk", event.content, "output_ids", list)
        if ids:
            self.t_ns.append(event.t_ns)
            self.tokens.append(len(ids))
            self.ids += ids
        self.text.append(need("a chunk", event.content, "text", str, type(None)) or "")
        if need("a chunk's meta_info", meta, "finish_reason", Mapping, type(None)) is not None:  # type: ignore[type-abstract]
            self.last = meta


@dataclass(frozen=True)
class Asked:
    """What a wave asked for, as far as its answers are judged by it."""

    prompt_ids: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    speculative: bool
    draft_tokens: int
    eos_ids: frozenset[int]
    batched: bool
    """One call carries all requests and its chunks carry `index`; otherwise each connection is one request."""


@dataclass(frozen=True)
class Answers:
    """The results of a wave and what the server said beside them."""

    requests: tuple[RequestResult, ...]
    end_ns: int
    server_times: tuple[Mapping[str, float], ...]
    cap_lengths: tuple[int, ...]
    """Summed histogram of scheduled verify lengths, where the server schedules them by confidence."""
    token_count_mismatches: tuple[str, ...]
    """Requests whose reported token count is not what was delivered."""
    retractions: int


def read_answers(parsed: Parsed, asked: Asked) -> Answers:
    """Return the wave's results.

    Raises EngineTransient for a stream that ended early, EngineInfeasible for prompts the model cannot hold, EngineBug
    for a missing or impossible field.
    """
    streams = [_Stream() for _ in asked.prompt_ids]
    for event in parsed.events:
        if "error" in event.content:
            raise refusal(event.content["error"])
        index = need("a chunk of a batched call", event.content, "index", int) if asked.batched else event.connection
        if not 0 <= index < len(streams):
            raise EngineBug(f"a chunk has index {index}, but {len(streams)} requests were sent")
        streams[index].take(event)
    connections = 1 if asked.batched else len(streams)
    open_ends = [asked.prompt_ids[i] for i, stream in enumerate(streams) if stream.last is None]
    if open_ends or len(parsed.finished) < connections:
        named = ", ".join(open_ends[:3]) or "the call"
        raise EngineTransient(Reason.STREAM_BROKEN, f"{Reason.STREAM_BROKEN.text} Without an end: {named}.")
    results, mismatches = [], []
    for i, stream in enumerate(streams):
        result, reported = _result(i, stream, asked)
        results.append(result)
        if reported != result.committed_tokens:
            mismatches.append(result.prompt_id)
    return Answers(
        requests=tuple(results),
        end_ns=max(r.chunk_t_ns[-1] for r in results),
        server_times=tuple(_times(s.last or {}) for s in streams),
        cap_lengths=_summed([s.last or {} for s in streams], "spec_cap_lens_histogram"),
        token_count_mismatches=tuple(mismatches),
        retractions=sum(need_count("meta_info", s.last or {}, "num_retractions") for s in streams),
    )


def _result(i: int, stream: _Stream, asked: Asked) -> tuple[RequestResult, int]:
    meta = stream.last or {}
    where = f"the last chunk of '{asked.prompt_ids[i]}'"
    reported = need_count(where, meta, "completion_tokens")
    prompt_tokens = need_count(where, meta, "prompt_tokens")
    if prompt_tokens != asked.prompt_tokens[i]:
        raise EngineBug(f"{where}: {prompt_tokens} prompt tokens, but {asked.prompt_tokens[i]} were sent")
    finish = need(where, meta, "finish_reason", Mapping)  # type: ignore[type-abstract]
    kind = need(f"{where}, finish_reason", finish, "type", str)
    if kind not in FINISHES:
        raise EngineBug(f"{where}: finish reason '{kind}' is none of {', '.join(FINISHES)}")
    delivered = len(stream.ids)
    if delivered == 0:
        raise EngineTransient(Reason.STREAM_BROKEN, f"'{asked.prompt_ids[i]}' ended without a token ({dict(finish)})")
    rounds, accepted, histogram = _speculation(where, meta, asked, reported)
    result = RequestResult(
        prompt_id=asked.prompt_ids[i],
        prompt_tokens=prompt_tokens,
        committed_tokens=delivered,
        finish_reason=FINISHES[kind],
        first_eos_position=first_eos(stream.ids, asked.eos_ids),
        rounds=rounds,
        proposed_tokens=rounds * asked.draft_tokens,
        accepted_draft_tokens=accepted,
        acceptance_histogram=histogram,
        cut_tokens=1 + accepted + rounds - delivered,
        chunk_t_ns=tuple(stream.t_ns),
        chunk_tokens=tuple(stream.tokens),
        cached_tokens=need_count(where, meta, "cached_tokens"),
        output_token_ids=tuple(stream.ids),
        text="".join(stream.text),
    )
    return result, reported


def _speculation(
    where: str, meta: Mapping[str, Any], asked: Asked, reported: int
) -> tuple[int, int, tuple[int, ...] | None]:
    """Return rounds, accepted drafts and histogram. The server leaves its counts out only where no round ran.

    Plain rounds follow from the count the server reports, so that tokens lost on the way show as a contradiction.
    """
    if not asked.speculative:
        return reported - 1, 0, None
    width = asked.draft_tokens + 1
    if reported == 1 and "spec_verify_ct" not in meta:
        return 0, 0, (0,) * width
    rounds = need_count(where, meta, "spec_verify_ct")
    accepted = need_count(where, meta, "spec_num_correct_drafts")
    need_count(where, meta, "spec_num_proposed_drafts")
    histogram = need(where, meta, "spec_correct_drafts_histogram", list)
    if len(histogram) > width or not all(isinstance(h, int) and h >= 0 for h in histogram):
        raise EngineBug(f"{where}: histogram {histogram!r} does not fit {asked.draft_tokens} draft tokens")
    return rounds, accepted, tuple(histogram) + (0,) * (width - len(histogram))


def first_eos(ids: Sequence[int], eos_ids: Collection[int]) -> int | None:
    """Return the position of the first end-of-sequence token; None if there is none."""
    return next((i for i, token in enumerate(ids) if token in eos_ids), None)


def client_mean_batch(requests: Sequence[RequestResult]) -> float | None:
    """Return the client's time-weighted mean batch from the first token of the wave to the last; None for no time."""
    start = min(r.chunk_t_ns[0] for r in requests)
    end = max(r.chunk_t_ns[-1] for r in requests)
    if end <= start:
        return None
    return sum(r.chunk_t_ns[-1] - r.chunk_t_ns[0] for r in requests) / (end - start)


def refusal(error: Any) -> Exception:
    """Return what a refused request stands for: a context that is too long is a result, all else our mistake."""
    message = str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
    if "context length" in message:
        return EngineInfeasible(Reason.CONTEXT_TOO_LONG, f"{Reason.CONTEXT_TOO_LONG.text} {message}")
    return EngineBug(f"the server refused a request: {message}")


def _times(meta: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(meta[key]) for key in TIMES if isinstance(meta.get(key), int | float)}


def _summed(metas: Sequence[Mapping[str, Any]], key: str) -> tuple[int, ...]:
    histograms = [m[key] for m in metas if m.get(key)]
    width = max((len(h) for h in histograms), default=0)
    return tuple(sum(int(h[i]) for h in histograms if i < len(h)) for i in range(width))
