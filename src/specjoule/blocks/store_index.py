"""Which cells a block's store holds, by names alone: one listing a block, no file opened."""

from __future__ import annotations

import zipfile
from pathlib import Path

PACK = "cells.zip"
"""Finished attempts of a compacted block: one archive beside the journal, members `{cell hash}/{file}`."""


def stored_hashes(folder: Path) -> frozenset[str]:
    """Return the hashes of the cells that have files in the block's store (`folder`), loose or packed."""
    cells = folder / "cells"
    loose = {entry.name for entry in cells.iterdir()} if cells.is_dir() else set()
    return frozenset(loose | {name.split("/", 1)[0] for name in packed_names(folder / PACK)})


def packed_names(pack: Path) -> list[str]:
    """Return the member names of a pack; a missing or damaged one holds nothing."""
    try:
        with zipfile.ZipFile(pack) as archive:
            return archive.namelist()
    except (FileNotFoundError, zipfile.BadZipFile, OSError):
        return []
