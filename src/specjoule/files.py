"""Writing files so that a reader never sees half of one, whatever ends the writer."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specjoule.errors import StoreError

RUN_AGAIN = "run snakemake, which makes it anew (delete it first if it is damaged)"
"""What to do where a file that the workflow makes from others is missing or damaged."""


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
        _remove(temporary)
        raise StoreError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed") from error
    except BaseException:
        _remove(temporary)
        raise


def _remove(temporary: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that is a file, or read-only: then nothing was written either
        temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON document that this project wrote; `remedy` says what to do where that fails. Raises StoreError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file; {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read ({error}); {remedy}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
