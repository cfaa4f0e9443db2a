"""The distinctness measures find what they are for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specjoule.prompts.quality import (
    five_grams,
    largest_overlap,
    numbers,
    opening,
    repeated_frames,
    skeleton,
    too_much_alike,
)

TEXT = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "zeta", "eta", "theta"]), max_size=30).map(" ".join)


def test_a_copy_with_one_word_changed_is_found() -> None:
    base = "write a small program that reads a file of temperatures and prints the warmest day of every month"
    other = base.replace("warmest", "coldest")
    found = largest_overlap({"a": base, "b": other, "c": "something else altogether about boats and the sea today"})
    assert {found.first, found.second} == {"a", "b"}
    assert found.jaccard > 0.4


@given(st.dictionaries(st.sampled_from("abcdef"), TEXT, min_size=2))
def test_largest_overlap_is_the_maximum_over_all_pairs(texts: dict[str, str]) -> None:
    grams = {k: five_grams(v) for k, v in texts.items()}
    expected = max(
        (len(grams[a] & grams[b]) / len(grams[a] | grams[b]) if grams[a] | grams[b] else 0.0)
        for a in texts
        for b in texts
        if a < b
    )
    assert largest_overlap(texts).jaccard == expected


def test_frames_are_counted_by_item_not_by_occurrence() -> None:
    one = {"a": "Could you please explain tides. Could you please explain bells. Could you please explain paper."}
    assert repeated_frames(one, "en") == {}
    four = {n: f"Could you please explain {n} to me" for n in ("tides", "bells", "paper", "boats")}
    assert "could you please explain ..." in repeated_frames(four, "en")


def test_a_template_with_other_words_in_it_is_found_by_its_skeleton() -> None:
    items = {
        n: f"{verb} a {n} that has {x} in it and tell us what it should do with the {y}"
        for n, verb, x, y in (
            ("module", "Write", "queues", "waiting jobs"),
            ("script", "Draft", "colours", "spare paint"),
            ("poem", "Sketch", "gulls", "old pier"),
            ("letter", "Compose", "thanks", "broken mug"),
        )
    }
    assert len({opening(t) for t in items.values()}) == 4
    assert any("_" in frame for frame in repeated_frames(items, "en"))
    assert too_much_alike(items, {"en"})


def test_code_is_no_frame() -> None:
    items = {str(i): f"Number {i}.\n```python\nfor i in range(10):\n    print(i)\n```" for i in range(9)}
    assert repeated_frames(items, "en") == {}


def test_skeleton_needs_enough_function_words() -> None:
    assert skeleton("Bridges rot quickly", "en") is None
    assert skeleton("The bridge of the village was not in use", "en") == "the _ of the _ was not in _"


def test_numbers_have_one_form_in_both_languages() -> None:
    assert numbers("480,000 francs, 3.5 tonnes, on 1 April.", "en") == numbers(
        "480'000 francs, 3,5 tonnas, il 1. d'avrigl.", "rm"
    )
