"""From raw files to judged rows and flat nested frames, one block at a time, remembered on disk.

Works on any folder of raw windows, without Snakemake and without the study's configuration. A block's result is
kept under the digest of its files (name, size, time of change) and of the rules: after one block changed, only that
one is read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specjoule.errors import StoreError
from specjoule.reasons import Reason
from specjoule.study.model import ValidityConfig
from specjoule.tables.nested import LIST_FIELDS, REQUEST_FIELDS, Nested, combine, flatten
from specjoule.version import __version__
from specjoule.windows.schema import SCALARS, SCHEMA_VERSION
from specjoule.windows.validity import judge_rows

CACHE_VERSION = 1
_JUDGED_FIELDS = (
    "committed_tokens", "rounds", "accepted_draft_tokens", "cut_tokens", "distinct_token_ratio", "repeated_ngram_share",
)  # fmt: skip
_WANTED_FIELDS = tuple(dict.fromkeys((*REQUEST_FIELDS, *LIST_FIELDS, *_JUDGED_FIELDS, "output_token_ids")))
_REFRESH_FIELDS = ("read_start_ns", "read_end_ns", "counter_j", "channel")
_READ = [*SCALARS, *(f"requests.list.element.{f}" for f in _WANTED_FIELDS),
         *(f"refreshes.list.element.{f}" for f in _REFRESH_FIELDS)]  # fmt: skip


@dataclass(frozen=True)
class Ingested:
    """Everything the analysis needs of a study."""

    rows: pd.DataFrame
    nested: Nested


def find_raw_files(folders: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return (root, file) of every Parquet file below the folders, sorted. Raises StoreError where there is none."""
    found: list[tuple[Path, Path]] = []
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet"))
        if not files:
            raise StoreError(f"{folder}: no raw window file (*.parquet) in this folder; name one such as results/raw")
        found += [(folder if folder.is_dir() else folder.parent, f) for f in files]
    return found


def group_by_block(files: Sequence[tuple[Path, Path]]) -> list[list[tuple[Path, Path]]]:
    """Group files that were measured together: same study, model, board and seed, by the layout of raw folders.

    Files laid out otherwise form one group per folder, and pairs still follow the columns, not the paths; only the
    drift of a block needs its plain files in one group.
    """
    groups: dict[tuple[str, ...], list[tuple[Path, Path]]] = {}
    for root, file in files:
        parts = file.relative_to(root).parts
        key = (str(root), *parts[:-4], parts[-1]) if len(parts) >= 5 else (str(root), *parts[:-1])
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
    jobs = [(group, rules.model_dump(mode="json"), cache) for group in groups]
    if workers > 1 and len(jobs) > 1:
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(_ingest_group, jobs, chunksize=1))
    else:
        parts = [_ingest_group(job) for job in jobs]
    if cache is not None:
        parts = [_load(Path(p)) for p in parts]  # workers hand over paths: frames need not cross processes
    rows = pd.concat([p.rows for p in parts], ignore_index=True)
    check_protocols(rows)
    return Ingested(rows, combine([p.nested for p in parts]))


def check_protocols(rows: pd.DataFrame) -> None:
    """Raise StoreError where rows of different protocol versions would be merged."""
    versions = sorted(rows["protocol_version"].dropna().unique().tolist())
    if len(versions) > 1:
        raise StoreError(
            f"the windows come from protocol versions {', '.join(map(str, versions))}; numbers measured differently "
            "are not merged: analyse them apart"
        )


def _ingest_group(job: tuple[list[tuple[Path, Path]], Mapping[str, Any], Path | None]) -> Any:
    files, rules, cache = job
    if cache is None:
        return _read_group(files, ValidityConfig.model_validate(rules))
    target = cache / _digest(files, rules)
    if not target.is_dir():
        _save(_read_group(files, ValidityConfig.model_validate(rules)), target)
    return str(target)


def _digest(files: list[tuple[Path, Path]], rules: Mapping[str, Any]) -> str:
    stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for _, f in files]
    text = json.dumps([CACHE_VERSION, __version__, SCHEMA_VERSION, stats, dict(rules)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _save(part: Ingested, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    part.rows.to_parquet(temporary / "rows.parquet", index=False)
    for field in fields(Nested):
        getattr(part.nested, field.name).to_parquet(temporary / f"{field.name}.parquet", index=False)
    if target.exists():
        shutil.rmtree(temporary)
    else:
        temporary.rename(target)


def _load(folder: Path) -> Ingested:
    nested = Nested(*(pd.read_parquet(folder / f"{field.name}.parquet") for field in fields(Nested)))
    return Ingested(pd.read_parquet(folder / "rows.parquet"), nested)


def read_raw(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read some columns of a raw file. Raises StoreError naming the file and what is wrong with it."""
    try:
        parquet = pq.ParquetFile(file)
        version = int((parquet.schema_arrow.metadata or {}).get(b"specjoule_schema_version", b"0"))
        if not 0 < version <= SCHEMA_VERSION:
            raise StoreError(
                f"{file}: "
                + (
                    "is not a file of raw windows"
                    if version == 0
                    else "was written by a newer release; upgrade specjoule"
                )
            )
        return parquet.read(columns=list(columns) if columns else None, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{file}: cannot be read ({str(error).splitlines()[0]})") from error


def _read_group(files: list[tuple[Path, Path]], rules: ValidityConfig) -> Ingested:
    tables, names = [], []
    for root, file in files:
        table = read_raw(file, _READ)
        tables.append(table)
        names += [str(file.relative_to(root))] * len(table)
    whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    rows = whole.select(list(SCALARS)).to_pandas()
    verdicts = _judge(whole, rows, rules)
    rows["validity"], rows["validity_reason"] = verdicts
    rows["raw_file"] = names
    rows = _with_drift(rows, rules.max_block_drift)
    for column in ("flags", "throttle_reasons"):
        rows[column] = rows[column].map(lambda v: ",".join(v) if v is not None and len(v) else None)
    return Ingested(rows, flatten(whole))


def _judge(whole: pa.Table, rows: pd.DataFrame, rules: ValidityConfig) -> tuple[list[str], list[str | None]]:
    """Judge every row with `windows.validity.judge_rows`, giving it only the counts it looks at."""
    records = whole.select(list(SCALARS)).to_pylist()
    counts = _request_counts(whole)
    validity, reasons = [], []
    for verdict in judge_rows(records, counts, rules):
        validity.append(str(verdict.validity))
        reasons.append(",".join(str(r) for r in verdict.reasons) or None)
    return validity, reasons


def _request_counts(whole: pa.Table) -> list[list[dict[str, Any]] | None]:
    column = whole["requests"]
    lists = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    offsets = lists.offsets.to_numpy()
    items = lists.values
    columns: dict[str, list[Any]] = {name: items.field(name).to_pylist() for name in _JUDGED_FIELDS}
    columns["acceptance_histogram"] = items.field("acceptance_histogram").to_pylist()
    lengths = pc.fill_null(pc.list_value_length(items.field("output_token_ids")), 0).to_pylist()
    columns["output_token_ids"] = [range(n) for n in lengths]
    columns["chunk_tokens"] = [[n] for n in _list_sums(items.field("chunk_tokens"))]
    names = list(columns)
    flat = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    present = lists.is_valid().to_pylist()
    return [flat[offsets[i] : offsets[i + 1]] if present[i] else None for i in range(len(lists))]


def _list_sums(lists: Any) -> list[int]:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    sums: list[int] = np.bincount(owner, weights=values, minlength=len(lengths)).astype(np.int64).tolist()
    return sums


def _with_drift(rows: pd.DataFrame, limit: float) -> pd.DataFrame:
    """Add `block_drift` per segment, capture state and clock, and apply its limit.

    Drift: median over the cells that the closing plain launch measured again of J/token there over J/token at the first
    launch, minus 1; null without a closing plain.
    """
    keys = ["segment_id", "capture", "locked_mhz"]
    plain = rows.loc[(rows["window"] == "generation") & (rows["scheme"] == "plain") & rows["energy_j"].notna()]
    each = plain.groupby([*keys, "cell_hash", "role", "launch"], dropna=False)[["energy_j", "committed_tokens"]].sum()
    each = each.reset_index()
    each["e"] = each["energy_j"] / each["committed_tokens"]
    first = each.loc[each["role"] == "cell"].drop_duplicates([*keys, "cell_hash"])
    closing = each.loc[each["role"] == "reference"].drop_duplicates([*keys, "cell_hash"])
    both = closing.merge(first, on=[*keys, "cell_hash"], suffixes=("", "_first"))
    both["block_drift"] = both["e"] / both["e_first"] - 1.0
    drift = both.groupby(keys, dropna=False)["block_drift"].median().reset_index()
    out = rows.drop(columns=["block_drift"], errors="ignore").merge(drift, on=keys, how="left")
    beyond = (out["block_drift"].abs() > limit) & (out["validity"] != "not_measured")
    code = str(Reason.BLOCK_DRIFT)
    out.loc[beyond, "validity"] = "invalid"
    had = out["validity_reason"].fillna("").astype("str")
    out["validity_reason"] = out["validity_reason"].where(~beyond, (had + "," + code).str.strip(","))
    return out
