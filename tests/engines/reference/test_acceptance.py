"""The pure functions: acceptance, cuts, compaction, the suffix index, one request's counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.engines.base import EngineBug
from specjoule.engines.reference.acceptance import accepted_prefix, compaction_moves, cut_round
from specjoule.engines.reference.requests import RequestState

TOKENS = st.integers(0, 3)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n, k = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    drafts = draw(st.lists(st.lists(TOKENS, min_size=k, max_size=k), min_size=n, max_size=n))
    targets = draw(st.lists(st.lists(TOKENS, min_size=k + 1, max_size=k + 1), min_size=n, max_size=n))
    return np.array(drafts, np.int64).reshape(n, k), np.array(targets, np.int64)


@given(rounds())
def test_accepted_prefix_is_the_longest_agreement(case: tuple[np.ndarray, np.ndarray]) -> None:
    drafts, targets = case
    for row, accepted in enumerate(accepted_prefix(drafts, targets)):
        assert (drafts[row, :accepted] == targets[row, :accepted]).all()
        assert accepted == drafts.shape[1] or drafts[row, accepted] != targets[row, accepted]


def test_a_late_agreement_does_not_count() -> None:
    assert accepted_prefix(np.array([[5, 9, 7]]), np.array([[5, 6, 7, 8]])).tolist() == [1]


@given(st.lists(TOKENS, min_size=1, max_size=8), st.integers(1, 10), st.sets(TOKENS), st.booleans())
def test_cut_round(offered: list[int], room: int, eos: set[int], ignore_eos: bool) -> None:
    cut = cut_round(offered, room, eos, ignore_eos)
    assert 1 <= cut.kept <= min(room, len(offered))
    assert cut.kept + cut.dropped == len(offered)
    kept = offered[: cut.kept]
    hits = [i for i, token in enumerate(kept) if token in eos]
    assert cut.first_eos == (hits[0] if hits else None)
    if hits and not ignore_eos:
        assert cut.ended_by == "eos" and hits == [cut.kept - 1]
    else:
        assert cut.ended_by == ("length" if cut.kept == room else None)
        assert cut.ended_by == "length" or cut.dropped == 0


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_compaction_keeps_every_running_row_once(case: tuple[int, set[int]]) -> None:
    n, finished = case
    rows = list(range(n))
    moves = compaction_moves(n, finished)
    for source, destination in moves:
        assert source not in finished and destination in finished
        rows[destination] = rows[source]
    assert len(moves) <= len(finished)
    assert sorted(rows[: n - len(finished)]) == sorted(set(range(n)) - finished)


@given(
    st.integers(0, 5).flatmap(
        lambda k: st.tuples(
            st.just(k), st.lists(st.lists(TOKENS, min_size=1, max_size=k + 1), min_size=40, max_size=40)
        )
    ),
    st.integers(1, 30),
    st.sets(TOKENS, max_size=2),
    st.booleans(),
)
def test_identities_of_a_request(
    case: tuple[int, list[list[int]]], limit: int, eos: set[int], ignore_eos: bool
) -> None:
    k, offers = case
    state = RequestState(index=0, prompt_id="p", tokens=[7, 7], prompt_tokens=2, limit=limit, draft_tokens=k)
    state.deliver([3], 1, eos, ignore_eos)
    steps = 0
    while state.ended_by is None:
        state.deliver_round(offers[steps], steps + 2, eos, ignore_eos)
        steps += 1
    result = state.result("text")
    histogram = result.acceptance_histogram
    assert histogram is not None and len(histogram) == k + 1
    assert result.rounds == steps == sum(histogram)
    assert result.accepted_draft_tokens == sum(i * count for i, count in enumerate(histogram))
    assert result.committed_tokens == 1 + result.accepted_draft_tokens + result.rounds - result.cut_tokens
    assert result.committed_tokens == len(result.output_token_ids) == sum(result.chunk_tokens) <= limit
    assert result.rounds <= result.committed_tokens - 1 <= result.rounds * (k + 1)
    assert result.proposed_tokens == k * result.rounds
    assert len(result.chunk_t_ns) == result.rounds + 1
    where = [i for i, token in enumerate(result.output_token_ids) if token in eos]
    assert result.first_eos_position == (where[0] if where else None)
    assert (result.finish_reason == "eos") == bool(where and not ignore_eos)


def test_contradicting_counts_are_a_bug() -> None:
    state = RequestState(index=0, prompt_id="p", tokens=[1], prompt_tokens=1, limit=1, draft_tokens=0)
    with pytest.raises(EngineBug, match="before it ended"):
        state.result("")
    state.deliver([3], 1, (), True)
    state.rounds = 3
    with pytest.raises(EngineBug, match="p: 1 tokens delivered"):
        state.result("")
