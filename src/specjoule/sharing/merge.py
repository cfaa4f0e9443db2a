"""Merging studies: one table of rows with `site` filled in, each measurement once.

The rule for duplicates, fixed beforehand:

1. The same measurement (site, block, segment, cell, launch, attempt, role, wave, window) that arrives twice is kept
   once; if the two copies differ in anything that was measured, merging stops: one of them was altered.
2. The same cell measured again at the same site (in another segment) stays, and the rule for segments decides as in a
   single study: the newest segment with both sides finished.
3. The same cell measured at another site stays as a replicate of its own; pairs are never made across sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.sharing.rows import collected_rows

IDENTITY = (
    "study", "site", "block_id", "segment_id", "cell_hash", "launch", "attempt", "role", "wave", "window",
)  # fmt: skip
"""What tells one measurement from every other."""
MEASURED = ("energy_j", "committed_tokens", "rounds", "t_start_ns", "t_end_ns", "status", "gpu_uuid", "meter")
"""Columns in which two copies of one measurement must agree."""


@dataclass(frozen=True)
class Merged:
    """Merged rows and what merging did."""

    rows: pd.DataFrame
    sources: tuple[dict[str, Any], ...]
    same_measurements: int
    """Rows that arrived more than once and were kept once."""
    cells_at_several_sites: int
    cells_measured_again: int
    """Cells with several segments at one site."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows as plain JSON values."""
        found = asdict(self)
        del found["rows"]
        return {**found, "rows": len(self.rows)}


@dataclass(frozen=True)
class Source:
    """Collected rows of one site; `site` names it where the rows do not."""

    path: Path
    site: str | None = None


def parse_source(text: str) -> Source:
    """Read `PATH` or `SITE=PATH`."""
    site, equals, path = text.partition("=")
    if equals and "/" not in site and site:
        return Source(Path(path), site)
    return Source(Path(text))


def merge(sources: Sequence[Source]) -> Merged:
    """Read and merge collected tables. Raises ConfigurationError, StoreError."""
    return merge_frames([(str(s.path), s.site, collected_rows(s.path)) for s in sources])


def merge_frames(parts: Sequence[tuple[str, str | None, pd.DataFrame]]) -> Merged:
    """Merge frames given as (name, site, rows); a pure function. Raises ConfigurationError."""
    frames, described = [], []
    for name, site, rows in parts:
        frame = rows.copy()
        if site is not None:
            frame["site"] = site
        elif frame["site"].isna().any():
            raise ConfigurationError(f"{name}: its rows name no site; give it one: SITE={name}")
        frames.append(frame)
        described.append({"source": name, "rows": len(frame), "sites": sorted(frame["site"].unique())})
    both = pd.concat(frames, ignore_index=True)
    twice = both.duplicated(list(IDENTITY), keep=False)
    _refuse_altered(both.loc[twice])
    rows = both.drop_duplicates(list(IDENTITY), ignore_index=True)
    cells = rows.loc[rows["role"] == "cell"]
    sites = cells.groupby(["study", "cell_hash"])["site"].nunique()
    segments = cells.groupby(["study", "site", "cell_hash"])["segment_id"].nunique()
    return Merged(rows, tuple(described), len(both) - len(rows), int((sites > 1).sum()), int((segments > 1).sum()))


def _refuse_altered(copies: pd.DataFrame) -> None:
    if copies.empty:
        return
    known = [c for c in MEASURED if c in copies.columns]
    differing = copies.groupby(list(IDENTITY), dropna=False)[known].nunique(dropna=False).max()
    wrong = [name for name in known if differing[name] > 1]
    if wrong:
        first = copies.iloc[0]
        raise ConfigurationError(
            f"two copies of one measurement differ in {', '.join(wrong)} (for example cell {first['cell_hash']} of "
            f"{first['block_id']} at {first['site']}): one of the tables was altered; collect both again"
        )
