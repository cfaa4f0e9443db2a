"""Loose files again from a compacted block's archive."""

from __future__ import annotations

import zipfile
from pathlib import Path

from specjoule.blocks.store_index import PACK
from specjoule.errors import StoreError
from specjoule.files import write_atomically


def unpack(folder: Path) -> int:
    """Put the archive's attempts back as loose files and remove it; returns how many. Raises StoreError."""
    pack = folder / PACK
    if not pack.is_file():
        return 0
    count = 0
    try:
        with zipfile.ZipFile(pack) as archive:
            for name in archive.namelist():
                target = folder / "cells" / name
                if not target.exists():
                    data = archive.read(name)
                    write_atomically(target, lambda temporary, data=data: temporary.write_bytes(data))  # type: ignore[misc]
                count += 1
    except (zipfile.BadZipFile, OSError) as error:
        raise StoreError(f"{pack}: cannot be read ({error}); move it away to measure its cells again") from error
    pack.unlink()
    return count
