"""Prompt corpora: JSON Lines in, checked prompts out, and the draw that a seed makes from them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specjoule.errors import ConfigurationError
from specjoule.prompts.jsonlines import parse, read_bytes, require_texts

DOCUMENTS_FILE = "documents.jsonl"
REQUIRED = ("id", "language", "license")
"""Texts that every prompt and every document has."""


@dataclass(frozen=True)
class Prompt:
    """One prompt as a chat: roles and contents, ready for the model's chat template."""

    id: str
    corpus: str
    language: str
    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs; the last is the user's."""
    digest: str
    license: str
    document_id: str | None = None
    twin: str | None = None

    def chat(self) -> list[dict[str, str]]:
        """Return the messages in the form chat templates take."""
        return [{"role": role, "content": content} for role, content in self.messages]


def canonical_digest(value: Any) -> str:
    """Return the sha256 (hex) of a JSON value in canonical form: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def load_corpus(path: Path, name: str | None = None) -> list[Prompt]:
    """Read a corpus file; a prompt that names a document gets its text before the question.

    Each line: `id`, `license`, `language`, `messages` ([{role, content}, ...], the last by the user), `digest`
    (`canonical_digest` of the messages, or of {"document": digest, "messages": ...}), optionally `document` (an id in
    `documents.jsonl` beside the file), `twin`, `tags`. Raises ConfigurationError naming file and line.
    """
    documents: dict[str, dict[str, Any]] | None = None
    prompts: list[Prompt] = []
    for where, item in _lines(path, "check the corpus's 'path' in config/corpora.yaml"):
        messages = chat_of(item, where)
        document_id = item.get("document")
        digested: Any = messages
        turns = [(m["role"], m["content"]) for m in messages]
        if document_id is not None:
            if documents is None:
                documents = {d["id"]: d for _, d in _lines(path.with_name(DOCUMENTS_FILE), f"{where} names a document")}
            if not isinstance(document_id, str) or document_id not in documents:
                raise ConfigurationError(f"{where}: document '{document_id}' is not in {DOCUMENTS_FILE} beside it")
            document = documents[document_id]
            require_texts(document, ("text",), f"{path.with_name(DOCUMENTS_FILE)}: document '{document_id}'")
            if hashlib.sha256(document["text"].encode()).hexdigest() != document.get("digest"):
                raise ConfigurationError(f"{where}: the text of document '{document_id}' does not match its digest")
            digested = {"document": document["digest"], "messages": messages}
            first = next(i for i, (role, _) in enumerate(turns) if role == "user")
            turns[first] = ("user", f"{document['text']}\n\n{turns[first][1]}")
        digest = canonical_digest(digested)
        if digest != item.get("digest"):
            raise ConfigurationError(
                f"{where}: the digest of '{item['id']}' does not match its text; expected {digest} "
                "(a changed prompt is a new prompt: give it its new digest)"
            )
        prompts.append(
            Prompt(
                id=item["id"],
                corpus=name or item.get("corpus", path.stem),
                language=item["language"],
                messages=tuple(turns),
                digest=digest,
                license=item["license"],
                document_id=document_id,
                twin=item.get("twin"),
            )
        )
    _refuse_duplicates(path, prompts)
    return prompts


def corpus_digest(prompts: list[Prompt]) -> str:
    """Return one digest of a pool: of its prompts' digests in order."""
    return canonical_digest([p.digest for p in prompts])


def draw(prompts: list[Prompt], seed: int, pool_seed_salt: str = "") -> list[Prompt]:
    """Return the pool in the order that `seed` draws; wave i of concurrency c takes items i*c to (i+1)*c.

    Prompts over documents are dealt so that no document comes twice before every other came once: a batch no larger
    than the number of documents then never holds one twice. Twins (the same item in two languages) keep the same
    order under the same seed, because the draw looks at positions only.
    """
    rng = random.Random(f"specjoule-draw/{seed}/{pool_seed_salt}")
    if all(p.document_id is None for p in prompts):
        order = list(range(len(prompts)))
        rng.shuffle(order)
        return [prompts[i] for i in order]
    by_document: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_document.setdefault(prompt.document_id or prompt.id, []).append(prompt)
    documents = list(by_document)
    rng.shuffle(documents)
    for questions in by_document.values():
        rng.shuffle(questions)
    rounds = max(len(q) for q in by_document.values())
    return [by_document[d][r] for r in range(rounds) for d in documents if r < len(by_document[d])]


def _lines(path: Path, absent: str) -> list[tuple[str, dict[str, Any]]]:
    data = read_bytes(path, absent=absent)
    found = list(parse(data, path))
    for where, item in found:
        require_texts(item, REQUIRED, where)
    return found


def chat_of(item: Mapping[str, Any], where: str) -> Any:
    """Return the messages of a prompt as they were written. Raises ConfigurationError where they are no chat."""
    messages = item.get("messages")
    if not (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
        and messages[-1]["role"] == "user"
    ):
        raise ConfigurationError(
            f"{where}: 'messages' must be a non-empty list of {{role, content}} that ends with the user's turn"
        )
    return messages


def _refuse_duplicates(path: Path, prompts: list[Prompt]) -> None:
    seen: dict[str, str] = {}
    for prompt in prompts:
        for key in (f"id {prompt.id}", f"digest {prompt.digest}"):
            if key in seen:
                raise ConfigurationError(
                    f"{path}: '{prompt.id}' repeats '{seen[key]}'; a pool holds distinct prompts only"
                )
            seen[key] = prompt.id
