"""How distinct the prompts of a corpus are: overlap of 5-grams and sentence frames used again and again.

Near-copies make a drafter look good (what one answer holds, the next repeats) and make 96 prompts fewer than 96.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specjoule.prompts.jsonlines import parse, read_bytes

NGRAM = 5
MAX_JACCARD = 0.2
MAX_FRAME = 3
"""No sentence frame in more items than this."""
OPENING = 4
"""Words at a sentence's start that make one frame."""
MIN_SKELETON = 5
"""Function words that a sentence must have before its skeleton says anything."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*", re.UNICODE)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n+")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION: Mapping[str, frozenset[str]] = {
    "en": _set(
        "a an the of and to is that it was for with as are this be by from at have which in on or not but if so than "
        "then when where who what how why i you he she we they me my your his her its our their one no all any each "
        "can could will would should may must do does did has had been were there into out up about over after "
        "before between without within please us them some such only also just more most other"
    ),
    "rm": _set(
        "il la ils las in ina da dal dals dad cun e ed che chi è èn era eran ha han sto ston pon po vegn vegnan vegnir "
        "a al als en sin sur sut per pli betg na sco quai quest questa quests questas ses sia lur nus vus els ellas el "
        "ella tar tut tuttas tuts tras tranter suenter avant anc er u ma sche sa se ins nua cura co tge perquai "
        "dentant mo uschia gia fin enfin mintga sias"
    ),
}
"""Words that carry a sentence's frame rather than its subject, by language."""


@dataclass(frozen=True)
class Overlap:
    """The two most similar texts of a corpus."""

    jaccard: float
    first: str
    second: str


def words(text: str) -> list[str]:
    """Return the lower-case words of a text."""
    return [w.lower() for w in _WORD.findall(text)]


def five_grams(text: str) -> frozenset[tuple[str, ...]]:
    """Return the distinct 5-grams of a text's words."""
    found = words(text)
    return frozenset(tuple(found[i : i + NGRAM]) for i in range(len(found) - NGRAM + 1))


def largest_overlap(texts: Mapping[str, str]) -> Overlap:
    """Return the pair of texts with the largest Jaccard index of their 5-grams (0 where none share one).

    Only pairs that share a 5-gram are compared, so a few hundred texts take milliseconds.
    """
    grams = {name: five_grams(text) for name, text in texts.items()}
    holders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, mine in grams.items():
        for gram in mine:
            holders[gram].append(name)
    shared: dict[tuple[str, str], int] = defaultdict(int)
    for names in holders.values():
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                shared[a, b] += 1
    best = Overlap(0.0, "", "")
    for (a, b), common in shared.items():
        jaccard = common / (len(grams[a]) + len(grams[b]) - common)
        if jaccard > best.jaccard:
            best = Overlap(jaccard, a, b)
    return best


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, code left out."""
    return [s for s in _SENTENCE.split(_CODE.sub(" ", text)) if len(words(s)) >= OPENING]


def opening(sentence: str) -> str:
    """Return a sentence's first four words."""
    return " ".join(words(sentence)[:OPENING])


def skeleton(sentence: str, language: str) -> str | None:
    """Return a sentence with each run of content words replaced by `_`; None where too little is left to compare."""
    kept: list[str] = []
    function = FUNCTION.get(language, FUNCTION["en"])
    for word in words(sentence):
        if word in function:
            kept.append(word)
        elif not kept or kept[-1] != "_":
            kept.append("_")
    return " ".join(kept) if sum(w != "_" for w in kept) >= MIN_SKELETON else None


def repeated_frames(texts: Mapping[str, str], language: str, limit: int = MAX_FRAME) -> dict[str, list[str]]:
    """Return the frames (first four words; function-word skeleton) that occur in more than `limit` texts, with ids."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, text in texts.items():
        for sentence in sentences(text):
            users[f"{opening(sentence)} ..."].add(name)
            frame = skeleton(sentence, language)
            if frame is not None:
                users[frame].add(name)
    return {frame: sorted(names) for frame, names in sorted(users.items()) if len(names) > limit}


_NUMBER = re.compile(r"\d[\d'’.,]*")


def numbers(text: str, language: str) -> list[str]:
    """Return the numbers of a text in one form, sorted: thousands without separators, decimals with a point.

    English separates thousands by commas, Romansh (as Switzerland) by apostrophes, and writes decimals with a comma.
    """
    found = []
    for raw in _NUMBER.findall(text):
        token = raw.rstrip("'’.,")
        if language == "rm":
            token = token.replace("'", "").replace("’", "").replace(",", ".")
        else:
            token = token.replace(",", "")
        found.append(token)
    return sorted(found)


def too_much_alike(texts: Mapping[str, str], languages: Iterable[str]) -> list[str]:
    """Return sentences that say where a corpus is not distinct enough; empty where it is."""
    out = []
    overlap = largest_overlap(texts)
    if overlap.jaccard > MAX_JACCARD:
        out.append(
            f"'{overlap.first}' and '{overlap.second}' share {100 * overlap.jaccard:.0f} % of their 5-grams (at most "
            f"{100 * MAX_JACCARD:.0f} %)"
        )
    for language in sorted(set(languages)):
        for frame, names in repeated_frames(texts, language).items():
            out.append(
                f"the frame '{frame}' is in {len(names)} prompts ({', '.join(names[:4])} ...; at most {MAX_FRAME})"
            )
    return out


def own_texts(path: Path) -> dict[str, str]:
    """Return what the user says in each prompt of a corpus file (already checked by `load_corpus`), by id.

    Turns are joined by blank lines; of a prompt over a document it is the question alone.
    """
    items = parse(read_bytes(path, absent="name a corpus file"), path)
    return {i["id"]: "\n\n".join(m["content"] for m in i["messages"] if m["role"] == "user") for _, i in items}
