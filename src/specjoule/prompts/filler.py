"""Text that brings prompts to a context length asked for: from the shipped long documents, another piece a prompt."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from pathlib import Path

from specjoule.prompts.corpus import DOCUMENTS_FILE
from specjoule.prompts.jsonlines import parse, read_bytes, require_texts

CHARACTERS_PER_TOKEN = 8
"""Text cut per token asked for: about twice what tokenizers need of English."""


@lru_cache(maxsize=2)
def documents(root: Path) -> tuple[str, ...]:
    """Return the texts of the project's long documents. Raises ConfigurationError."""
    path = root / "prompts" / DOCUMENTS_FILE
    items = list(parse(read_bytes(path, absent="grids with context_tokens fill prompts up from these documents"), path))
    for where, item in items:
        require_texts(item, ("text",), where)
    return tuple(item["text"] for _, item in items)


@lru_cache(maxsize=2)
def documents_digest(root: Path) -> str:
    """Return one digest of all of them."""
    return hashlib.sha256("\n".join(documents(root)).encode()).hexdigest()


def filler(root: Path, prompt_digest: str, tokens: int) -> str:
    """Return text for at least `tokens` tokens, beginning elsewhere for every prompt: no two share a prefix."""
    rng = random.Random(f"specjoule-filler/{prompt_digest}")
    texts = list(documents(root))
    rng.shuffle(texts)
    words = texts[0].split(" ")
    whole = " ".join(words[rng.randrange(len(words)) :])
    for text in [*texts[1:], *texts] * (1 + tokens * CHARACTERS_PER_TOKEN // sum(map(len, texts))):
        if len(whole) >= tokens * CHARACTERS_PER_TOKEN:
            break
        whole += "\n\n" + text
    return whole[: tokens * CHARACTERS_PER_TOKEN]
