"""The five shipped corpora keep what they promise."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from specjoule.prompts.corpus import draw, load_corpus
from specjoule.prompts.quality import (
    MAX_JACCARD,
    largest_overlap,
    numbers,
    own_texts,
    repeated_frames,
    words,
)

PROMPTS = Path(__file__).resolve().parents[2] / "prompts"
CORPORA = {"code": "en", "conversation": "en", "long_document": "en", "news_en": "en", "news_rm": "rm"}


def file(name: str) -> Path:
    return PROMPTS / f"{name}.jsonl"


def documents() -> dict[str, str]:
    lines = (PROMPTS / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    return {d["id"]: d["text"] for d in map(json.loads, lines)}


@pytest.mark.parametrize("name", CORPORA)
def test_size_licence_language_and_digests(name: str) -> None:
    prompts = load_corpus(file(name), name)  # checks every digest and refuses repeated prompts
    assert len(prompts) >= 96
    assert {p.license for p in prompts} == {"CC0-1.0"}
    assert {p.language for p in prompts} == {CORPORA[name]}


@pytest.mark.parametrize("name", CORPORA)
def test_no_two_prompts_are_near_copies(name: str) -> None:
    overlap = largest_overlap(own_texts(file(name)))
    assert overlap.jaccard <= MAX_JACCARD, overlap


def test_no_two_documents_are_near_copies() -> None:
    overlap = largest_overlap(documents())
    assert overlap.jaccard <= MAX_JACCARD, overlap


@pytest.mark.parametrize("name", CORPORA)
def test_no_sentence_frame_comes_more_than_three_times(name: str) -> None:
    assert repeated_frames(own_texts(file(name)), CORPORA[name]) == {}


def test_documents_are_long_enough_and_no_batch_of_32_holds_one_twice() -> None:
    texts = documents()
    assert len(texts) >= 32
    # A token of English prose is about three quarters of a word: 600 to 1500 tokens.
    assert all(400 <= len(words(text)) <= 1200 for text in texts.values())
    pool = load_corpus(file("long_document"))
    assert len({p.document_id for p in pool}) == len(texts)
    for seed in range(5):
        drawn = draw(pool, seed)
        for start in range(0, len(drawn) - 31, 32):
            assert len({p.document_id for p in drawn[start : start + 32]}) == 32


def test_conversations_have_several_turns() -> None:
    turns = Counter(sum(role == "user" for role, _ in p.messages) for p in load_corpus(file("conversation")))
    assert sum(n for users, n in turns.items() if users > 1) >= 48


def test_code_is_varied() -> None:
    tags = [json.loads(line)["tags"] for line in file("code").read_text(encoding="utf-8").splitlines()]
    assert len({t["programming_language"] for t in tags}) >= 8
    assert len({t["kind"] for t in tags}) >= 8


def test_news_twins_point_at_each_other_and_state_the_same_numbers() -> None:
    english, romansh = load_corpus(file("news_en")), load_corpus(file("news_rm"))
    assert [p.twin for p in english] == [p.id for p in romansh]
    assert [p.twin for p in romansh] == [p.id for p in english]
    ours, theirs = own_texts(file("news_en")), own_texts(file("news_rm"))
    different = {
        a: (numbers(x, "en"), numbers(y, "rm"))
        for (a, x), y in zip(ours.items(), theirs.values(), strict=True)
        if numbers(x, "en") != numbers(y, "rm")
    }
    assert different == {}
    # The comparison is worth something only where there are numbers to compare.
    assert sum(len(numbers(x, "en")) >= 3 for x in ours.values()) >= 60


def test_a_second_reader_of_languages_agrees() -> None:
    pycld2 = pytest.importorskip("pycld2")
    called = {
        name: [pycld2.detect(text)[2][0][1] for text in own_texts(file(name)).values()]
        for name in ("news_en", "news_rm")
    }
    assert called["news_rm"].count("rm") >= 0.95 * len(called["news_rm"])
    assert "rm" not in called["news_en"]
