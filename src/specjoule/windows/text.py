"""What an answer's text says about itself: repetition before its natural end, and its language.

Both look only at the tokens or words up to the first end of sequence: with EOS ignored, what follows repeats by nature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NGRAM = 8
"""Tokens in the n-grams whose repetition is counted: long enough that prose and code rarely repeat one by chance."""

MIN_WORDS = 8
"""Answers with fewer words have no language."""

_WORD = re.compile(r"[^\W\d_]+", re.UNICODE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROMANSH = _words(
    "las ina cun dals sco vegn èn vegnir davart sin quai vegnan pli betg tar tut tras tenor tranter uschia suenter sut "
    "perquai cunter anc dentant mintga sche"
)
"""Function words of Rumantsch Grischun that are at least 20 times rarer in Italian, French, German and English."""

FUNCTION_WORDS: dict[str, frozenset[str]] = {
    "rm": ROMANSH,
    "en": _words("the of and to is that it was for with as are this be by from at have which"),
    "de": _words("der die und das ist nicht ein eine den mit von zu auf für sich dem des auch als wird"),
    "fr": _words("le les des est une pour dans que qui pas sur avec par ce sont au cette être ont nous"),
    "it": _words("il di che è per una non sono con del della dei gli nel alla come anche più questo si"),
    "es": _words("el los que una por con para del se es y sin como más pero su al fue entre está lo"),
    "pt": _words("o os que uma não com para do da em dos das mais como foi ao pelo pela é são"),
}
"""Words that mark a language; an answer is called by the language with the highest share of them."""

SHARED = _words("il di che è per el se da la le")
"""Markers of other languages that Romansh uses as well: they never speak against Romansh, and alone for nothing."""


@dataclass(frozen=True)
class Repetition:
    """How much an answer repeats itself; null where it is too short to say."""

    distinct_token_ratio: float | None
    repeated_ngram_share: float | None
    degenerate: bool | None


def repetition(
    tokens: Sequence[int], first_eos: int | None, *, min_distinct: float, max_repeated: float, min_tokens: int
) -> Repetition:
    """Judge the repetition of one answer's token ids before its first EOS.

    distinct_token_ratio = distinct tokens / tokens; repeated_ngram_share = share of 8-grams that occurred before.
    """
    own = tuple(tokens[: first_eos if first_eos is not None else len(tokens)])
    if len(own) < min_tokens:
        return Repetition(None, None, None if not tokens else False)
    distinct = len(set(own)) / len(own)
    grams = [own[i : i + NGRAM] for i in range(len(own) - NGRAM + 1)]
    repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
    return Repetition(distinct, repeated, distinct < min_distinct or repeated > max_repeated)


def romansh_rate(text: str) -> float | None:
    """Return the share of an answer's words that are Romansh function words; None for fewer than eight words."""
    words = [w.lower() for w in _WORD.findall(text)]
    if len(words) < MIN_WORDS:
        return None
    return sum(w in ROMANSH for w in words) / len(words)


def before_natural_end(text: str, first_eos: int | None, tokens: int) -> str:
    """Return the part of an answer's text before its first EOS.

    Engines return one text for all tokens, so the cut is made at the same share of the characters as of the tokens.
    """
    if first_eos is None or tokens <= 0:
        return text
    return text[: round(len(text) * first_eos / tokens)]


def answer_language(text: str, min_romansh_rate: float) -> str | None:
    """Return the language an answer is written in: 'rm', 'en', 'de', 'fr', 'it', 'es', 'pt', or None if unclear.

    Romansh needs `min_romansh_rate` of its function words and at least as many of them as any other language has of
    those that Romansh does not use too. An answer that drifts is called by the language that most of it is in.
    """
    words = [w.lower() for w in _WORD.findall(text)]
    if len(words) < MIN_WORDS:
        return None
    rates = {code: sum(w in markers for w in words) / len(words) for code, markers in FUNCTION_WORDS.items()}
    own = {
        code: sum(w in markers and w not in SHARED for w in words) / len(words)
        for code, markers in FUNCTION_WORDS.items()
        if code != "rm"
    }
    if rates["rm"] > 0 and rates["rm"] >= max(min_romansh_rate, *own.values()):
        return "rm"
    best = max(own, key=lambda code: (rates[code], own[code]))
    return best if own[best] > 0 and rates[best] > rates["rm"] else None
