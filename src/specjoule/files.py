"""Writing files so that a reader never sees half of one, whatever ends the writer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specjoule.errors import StoreError


def ensure_folder(path: Path) -> None:
    """Make a folder and those above it; where it is there already, a look is cheaper than the attempt."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk and put it in place in one step.

    Raises StoreError (no space, no permission) and leaves neither the temporary nor a damaged file behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        ensure_folder(path.parent)
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
