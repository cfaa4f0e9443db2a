"""Prompt look-up against a definition by search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specjoule.engines.reference.drafters.ngram import SuffixIndex


def searched(tokens: list[int], low: int, high: int, count: int) -> list[int] | None:
    """Longest suffix that occurred before, its last occurrence, copied on beyond the end."""
    for size in range(high, low - 1, -1):
        for start in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[start - size : start] == tokens[-size:]:
                text = tokens[start:]
                while len(text) < count:
                    text = text + tokens[start:]
                return text[:count]
    return None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 7),
)
def test_index_equals_search(start: list[int], more: list[list[int]], low: int, extra: int, count: int) -> None:
    tokens = list(start)
    index = SuffixIndex(tokens, low, low + extra)
    assert index.continuation(count) == searched(tokens, low, low + extra, count)
    for new in more:
        tokens.extend(new)
        index.update()
        assert index.continuation(count) == searched(tokens, low, low + extra, count)


def test_a_loop_is_continued_beyond_the_end() -> None:
    assert SuffixIndex([9, 1, 2, 1, 2], 1, 3).continuation(5) == [1, 2, 1, 2, 1]


def test_nothing_to_match() -> None:
    assert SuffixIndex([1, 2, 3], 1, 3).continuation(2) is None
    assert SuffixIndex([1], 1, 3).continuation(2) is None
