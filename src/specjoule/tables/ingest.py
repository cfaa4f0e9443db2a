"""From folders of raw windows to judged rows and flat nested frames, block by block, remembered on disk.

Works on any folder of raw windows, without Snakemake and without the study's configuration. A block's tables are kept
under the digest of its files' contents and of the rules: after one block changed, only that one is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from specjoule.errors import StoreError
from specjoule.files import write_json
from specjoule.study.model import ValidityConfig
from specjoule.version import __version__
from specjoule.windows.collect import StoredNested, collect, frame_of, read_frame, write_collected
from specjoule.windows.nested import KEYS, PARTS, Nested, combine
from specjoule.windows.schema import SCHEMA_VERSION

CACHE_VERSION = 2
INDEX = "files.json"
"""In a cache: the digest of each file's content by its path, size and time of change, so that it is not read again."""

Group = list[tuple[Path, Path]]
"""(root, file) of raw files that were measured together."""


@dataclass(frozen=True)
class Ingested:
    """Everything the analysis needs of a study."""

    rows: pd.DataFrame
    nested: Nested | StoredNested
    read: tuple[str, ...] = ()
    """The raw files that were read this time, the others came from the cache."""


def find_raw_files(folders: Iterable[Path]) -> Group:
    """Return (root, file) of every Parquet file below the folders, sorted. Raises StoreError where there is none."""
    found: Group = []
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(folder.rglob("[!.]*.parquet"))
        if not files:
            raise StoreError(f"{folder}: no raw window file (*.parquet) in this folder; name one such as results/raw")
        found += [(folder if folder.is_dir() else folder.parent, f) for f in files]
    return found


def group_by_block(files: Sequence[tuple[Path, Path]]) -> list[Group]:
    """Group files that were measured together: same study, model, board, seed and replicate, by their names.

    Whatever else a name says (clock, capture, context) was measured in the same block. Files laid out otherwise form
    one group per folder, and pairs still follow the columns, not the paths; only the drift of a block needs its plain
    files in one group.
    """
    groups: dict[tuple[str, ...], Group] = {}
    for root, file in files:
        parts = file.relative_to(root).parts
        words = file.stem.split("-")
        launch = (words[0], *(w for w in words[1:] if re.fullmatch(r"r\d+", w)))
        key = (str(root), *parts[:-4], *launch) if len(parts) >= 5 else (str(root), *parts[:-1])
        groups.setdefault(key, []).append((root, file))
    return list(groups.values())


def ingest(
    folders: Iterable[Path], rules: ValidityConfig | None = None, *, cache: Path | None = None, workers: int = 2
) -> Ingested:
    """Read, judge and flatten every raw file below `folders`; blocks in `workers` processes, cached where `cache` is.

    Raises StoreError for files that are no raw windows or come from different protocol versions.
    """
    groups = group_by_block(find_raw_files(folders))
    rules = rules or ValidityConfig()
    if cache is None:
        parts = [collect([f for _, f in group], group[0][0], rules) for group in groups]
        rows = frame_of(pa.concat_tables([p.rows for p in parts]))
        check_protocols(rows)
        check_distinct(rows)
        return Ingested(rows, combine([p.nested for p in parts]), tuple(str(f) for g in groups for _, f in g))
    digests = _contents(groups, cache)
    targets = [cache / _key(group, digests, rules) for group in groups]
    jobs = [(g, rules, t) for g, t in zip(groups, targets, strict=True) if not _kept(t)]
    if workers > 1 and len(jobs) > 1:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(_keep, jobs, chunksize=1))
    else:
        for job in jobs:
            _keep(job)
    rows = read_frame([t / "rows.parquet" for t in targets])
    check_protocols(rows)
    check_distinct(rows)
    nested = StoredNested({name: [t / f"{name}.parquet" for t in targets] for name in PARTS})
    return Ingested(rows, nested, tuple(str(f) for group, _, _ in jobs for _, f in group))


def check_protocols(rows: pd.DataFrame) -> None:
    """Raise StoreError where rows of different protocol versions would be merged."""
    versions = sorted(rows["protocol_version"].dropna().unique().tolist())
    if len(versions) > 1:
        raise StoreError(
            f"the windows come from protocol versions {', '.join(map(str, versions))}; numbers measured differently "
            "are not merged: analyse them apart"
        )


def check_distinct(rows: pd.DataFrame) -> None:
    """Raise StoreError where one window would count twice, as when two folders hold the same study."""
    twice = rows.duplicated([*KEYS, "wave", "window"])
    if twice.any():
        files = rows.loc[twice, "raw_file"]
        raise StoreError(
            f"{files.nunique()} raw files hold windows that others hold too (first: {files.iloc[0]}); "
            "leave one of the copies out"
        )


def forget_others(cache: Path, nested: object) -> None:
    """Remove from a cache that serves one output alone the blocks that its tables do not come from."""
    if isinstance(nested, StoredNested):
        used = {path.parent.name for path in nested.files("requests")}
        for folder in cache.iterdir():
            if folder.is_dir() and folder.name not in used:
                shutil.rmtree(folder, ignore_errors=True)


def _kept(target: Path) -> bool:
    return (target / "rows.parquet").is_file()  # written last


def _keep(job: tuple[Group, ValidityConfig, Path]) -> None:
    """Collect one block into the cache: whole or not at all, whoever else does the same."""
    group, rules, target = job
    collected = collect([f for _, f in group], group[0][0], rules)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    write_collected(collected, temporary / "rows.parquet", {name: temporary / f"{name}.parquet" for name in PARTS})
    try:
        temporary.rename(target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not _kept(target):
            raise


def _key(group: Group, digests: Mapping[Path, str], rules: ValidityConfig) -> str:
    contents = [(str(f.relative_to(root)), digests[f]) for root, f in group]
    text = json.dumps([CACHE_VERSION, __version__, SCHEMA_VERSION, contents, rules.model_dump(mode="json")])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _contents(groups: Sequence[Group], cache: Path) -> dict[Path, str]:
    """Return the digest of each file's content; a file whose size and time of change are known is not read."""
    index = cache / INDEX
    try:
        known: dict[str, list[Any]] = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    digests: dict[Path, str] = {}
    found: dict[str, list[Any]] = {}
    for _, file in (entry for group in groups for entry in group):
        try:
            stat = file.stat()
            path, seen = str(file.absolute()), [stat.st_size, stat.st_mtime_ns]
            entry = known.get(path)
            digest = entry[2] if entry and entry[:2] == seen else _digest(file)
        except OSError as error:
            raise StoreError(f"{file}: cannot be read ({error.strerror or error})") from error
        digests[file], found[path] = digest, [*seen, digest]
    if found != {path: known.get(path) for path in found}:
        write_json(index, {**known, **found})
    return digests


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:32]
