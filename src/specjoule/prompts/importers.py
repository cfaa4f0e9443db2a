"""Well-known prompt sets, from a local copy, into a corpus file. Nothing is downloaded.

Formats: `humaneval` (HumanEval's JSON Lines: `task_id`, `prompt`) and `questions` (the question files of MT-Bench and
Spec-Bench: `question_id`, `category`, `turns`). Each prompt records the licence that the user names, the set's format,
and the digest of the file it came from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specjoule.errors import ConfigurationError
from specjoule.files import write_text
from specjoule.prompts.corpus import REQUIRED, canonical_digest, chat_of
from specjoule.prompts.jsonlines import as_lines, parse, read_bytes, require_texts

Item = tuple[str, str, dict[str, Any]]
"""(id, the user's text, tags)"""

COMPLETE = (
    "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{prompt}\n```"
)
"""How a HumanEval prompt, which is the head of a function, is put to a chat model."""

_ABSENT = "name a local copy of the set (nothing is downloaded)"

PLACEHOLDERS = frozenset({"", "?", "unknown", "none", "todo", "tbd", "n/a", "na", "license", "licence"})


def _humaneval(lines: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Item]:
    for where, item in lines:
        task, prompt = _text(item, "task_id", where), _text(item, "prompt", where)
        yield task, COMPLETE.format(prompt=prompt.rstrip("\n")), {"entry_point": item.get("entry_point")}


def _questions(lines: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Item]:
    for where, item in lines:
        turns = item.get("turns")
        if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
            raise ConfigurationError(f"{where}: 'turns' must be a list of texts; is this a question file of MT-Bench?")
        if item.get("question_id") is None:
            raise ConfigurationError(f"{where}: lacks 'question_id'")
        yield str(item["question_id"]), turns[0], {"category": item.get("category"), "turns": len(turns)}


FORMATS: dict[str, Callable[[Iterator[tuple[str, dict[str, Any]]]], Iterator[Item]]] = {
    "humaneval": _humaneval,
    "questions": _questions,
}
"""Readers by the name that `specjoule prompts import` takes."""

LANGUAGES = {"humaneval": "en", "questions": "en"}


def import_prompts(
    kind: str, source: Path, output: Path, *, license: str, corpus: str | None = None, language: str | None = None
) -> int:
    """Read the set of format `kind` at `source` and write it as a corpus file to `output`; return how many prompts.

    Texts that occur twice are kept once. Raises ConfigurationError for an unknown format, a licence that is none, or a
    file that does not hold what its format says; StoreError where `output` cannot be written. `output` appears whole
    or not at all, and an existing file is not replaced.
    """
    if kind not in FORMATS:
        from specjoule.study.load import nearest

        raise ConfigurationError(f"there is no prompt format '{kind}'; {nearest(kind, FORMATS)}")
    if license.strip().lower() in PLACEHOLDERS:
        raise ConfigurationError(
            f"{source}: '{license}' is not a licence; name the one its owners give (MIT, Apache-2.0, CC-BY-4.0 ...)"
        )
    if output.exists():
        raise ConfigurationError(f"{output}: exists already; name another file or remove it first")
    data = read_bytes(source, absent=_ABSENT)
    name = corpus or re.sub(r"[^A-Za-z0-9._+-]+", "-", output.stem)
    origin: dict[str, str] = {"format": kind, "file": source.name, "sha256": hashlib.sha256(data).hexdigest()}
    records: list[dict[str, Any]] = []
    seen: set[str] = set()
    for set_id, text, tags in FORMATS[kind](parse(data, source)):
        messages = [{"role": "user", "content": text}]
        digest = canonical_digest(messages)
        if digest in seen:
            continue
        seen.add(digest)
        records.append(
            {
                "id": f"{name}-{re.sub(r'[^A-Za-z0-9]+', '-', set_id).strip('-').lower()}",
                "corpus": name,
                "language": language or LANGUAGES[kind],
                "license": license.strip(),
                "source": {**origin, "id": set_id},
                "tags": {k: v for k, v in tags.items() if v is not None},
                "messages": messages,
                "digest": digest,
            }
        )
    write_text(output, as_lines(records))
    return len(records)


def seal(source: Path, output: Path) -> int:
    """Fill in the digests of a hand-written corpus file and write it to `output`; return how many prompts.

    Raises ConfigurationError naming the line of a prompt that lacks something.
    """
    records = []
    for where, item in parse(read_bytes(source, absent=_ABSENT), source):
        require_texts(item, REQUIRED, where)
        if item.get("document") is not None:
            raise ConfigurationError(
                f"{where}: prompts over documents need the document's digest too; see docs/own-prompts.md"
            )
        records.append({**item, "digest": canonical_digest(chat_of(item, where))})
    write_text(output, as_lines(records))
    return len(records)


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where}: lacks '{key}'; is this the set that the format names?")
    return value
