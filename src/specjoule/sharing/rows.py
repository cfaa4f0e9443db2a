"""Collected rows from wherever they are: a table, a folder of block tables, a project, an opened bundle."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.windows.collect import read_rows


def collected_files(source: Path) -> list[Path]:
    """Return the collected tables that `source` means. Raises ConfigurationError if there are none.

    `source`: a Parquet file, a folder of them (`results/collected/STUDY/blocks`), or a folder that holds
    `results/collected` (a project, an opened bundle) with one study in it.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ConfigurationError(f"{source}: no such file or folder; name a collected table or a project's folder")
    own = sorted(source.glob("*.parquet")) or sorted(source.glob("blocks/*.parquet"))
    if own:
        return own
    studies = sorted(p.parent for p in source.glob("results/collected/*/blocks"))
    if len(studies) > 1:
        raise ConfigurationError(
            f"{source}: holds several studies ({', '.join(s.name for s in studies)}); "
            f"name one, for example {studies[0]}"
        )
    found = sorted(studies[0].glob("blocks/*.parquet")) if studies else []
    if not found:
        raise ConfigurationError(f"{source}: holds no collected tables; run the study there first")
    return found


def collected_rows(source: Path) -> pd.DataFrame:
    """Return the collected rows of `source` as one frame. Raises ConfigurationError, StoreError."""
    frame: pd.DataFrame = read_rows(collected_files(source))
    return frame
