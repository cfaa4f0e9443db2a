"""JSON Lines as prompts come in: one object a line, and where each one stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specjoule.errors import ConfigurationError


def read_bytes(path: Path, *, absent: str) -> bytes:
    """Return a file's content; `absent` says what to do where there is no such file.

    Raises ConfigurationError for a file that is missing, a folder, unreadable or empty.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such prompt file; {absent}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder; name the JSON Lines file in it") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not data.strip():
        raise ConfigurationError(f"{path}: is empty")
    return data


def parse(data: bytes, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line, object) of every line that is not blank; `path` is for messages only.

    Raises ConfigurationError naming the line that is not a JSON object.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        hint = "; unpack it first (gunzip)" if data[:2] == b"\x1f\x8b" else ""
        raise ConfigurationError(f"{path}: is not UTF-8 text but binary{hint}") from None
    # At newlines only: JSON text may hold the other separators that str.splitlines() cuts at (U+2028, U+0085 ...).
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigurationError(
                f"{where}: not JSON ({error.msg} at column {error.colno}); one JSON object a line is expected"
            ) from error
        if not isinstance(item, dict):
            raise ConfigurationError(f"{where}: not a JSON object")
        if "\\u" in line and not _is_unicode(item):
            raise ConfigurationError(f"{where}: holds half a character (a lone \\ud... escape); write the whole one")
        yield where, item


def _is_unicode(item: Any) -> bool:
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def require_texts(item: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Raise ConfigurationError for the names that an object lacks, or that hold something else than text."""
    missing = sorted(set(names) - set(item))
    if missing:
        raise ConfigurationError(f"{where}: lacks {', '.join(missing)}")
    for name in names:
        if not (isinstance(item[name], str) and item[name].strip()):
            raise ConfigurationError(f"{where}: '{name}' must be a text, not {item[name]!r:.80}")


def as_lines(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as JSON Lines."""
    return "".join(json.dumps(dict(record), ensure_ascii=False) + "\n" for record in records)
