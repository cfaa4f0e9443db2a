"""The golden study: frozen raw windows, and the tables that the analysis made of them when they were last looked at.

`raw/` was measured once on simulated boards and is not measured again by the tests, so that a change of the simulation
changes nothing here; `tables/` holds the CSV of every table, and of every figure's data that is small.

After a change of the analysis that is *meant* to change numbers: `python -m tests.golden.study tables`, look at the
difference (`git diff tests/golden/tables`), and commit it with the reason. After a change of the raw schema:
`python -m tests.golden.study raw tables`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from specjoule.study.load import load_study
from specjoule.tables.context import Context
from specjoule.tables.ingest import ingest
from specjoule.tables.items import ITEMS
from specjoule.tables.registry import build
from specjoule.windows.io import read_window_table, table_from_rows
from tests.recovery.simulated_study import ROOT, blocks_of, folders_in, measure, small_study

HERE = Path(__file__).resolve().parent
RAW, TABLES = HERE / "raw", HERE / "tables"
LARGEST = 60_000
"""Bytes of a figure's data that are still kept."""
NAMED: dict[str, Any] = {
    "study": "golden", "host": "golden-host", "boot_id": "golden-boot", "cpu_model": "golden processor",
    "governor": None, "numa_node": None, "git_commit": None, "load_average": 0.0, "started_at": None,
    "wall_offset_ns": 0,
}  # fmt: skip
"""Facts of the machine that happened to run the simulation."""


def make_raw() -> None:
    """Measure the study on simulated boards and freeze it, one file a block."""
    texts = ("code", "conversation", "news_en", "news_rm")
    beside = [
        {"corpora": ("code",), "capture": (False,)}, {"corpora": ("code",), "locked_mhz": (1200,)},
        {"corpora": ("code",), "context_tokens": (260, 1024), "drafters": ("plain", "DSpark-7")},
    ]  # fmt: skip
    study = small_study(
        seeds=(1, 2, 3), drafters=("plain", "ngram-4", "ngram-16", "DSpark-7"), concurrency=(1, 4), corpora=texts,
        beside=beside, protocol={"max_new_tokens": 256, "min_prompts": 4, "min_window_s": 0.0, "reference_cells": 1},
        overrides={"meter": {"sample_ms": 50}},
        faults=[{"kind": "cache_hit", "drafters": ["ngram-16"], "corpora": ["conversation"], "concurrency": [4]}],
    )  # fmt: skip
    shutil.rmtree(RAW, ignore_errors=True)
    RAW.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        measure(study, Path(folder))
        for block in blocks_of(study):
            rows = [
                r for c in block.cells for r in read_window_table(folders_in(Path(folder)).raw / c.path).to_pylist()
            ]
            for row in rows:
                row.update(NAMED)
                row["started_at"] = f"2026-01-01T00:00:{block.seed:02d}Z"
                row["segment_id"] = f"000.golden{block.seed:02d}"
            pq.write_table(table_from_rows(rows), RAW / f"seed-{block.seed}.parquet", compression="zstd",
                           compression_level=19)  # fmt: skip


def golden_context() -> Context:
    """The analysis of the frozen windows."""
    study = load_study(ROOT / "config" / "rehearsal.yaml")
    data = ingest([RAW], study.file.validity, workers=1)
    analysis = study.file.analysis.model_copy(update={"mixes": {"chat": {"conversation": 0.7, "code": 0.3}}})
    return Context(
        data.rows, "golden", analysis=analysis, models=study.models, drafters=study.drafters, gpus=study.gpus,
        nested=data.nested,
    )  # fmt: skip


def compared_items() -> list[str]:
    """Every table, and every figure whose data are kept."""
    return [n for n, item in ITEMS.items() if item.kind == "table" or (TABLES / f"{n}.csv").exists()]


def make_tables() -> None:
    """Freeze what the analysis says now."""
    shutil.rmtree(TABLES, ignore_errors=True)
    TABLES.mkdir(parents=True)
    context = golden_context()
    with tempfile.TemporaryDirectory() as folder:
        for name, item in ITEMS.items():
            build(name, context, Path(folder))
            made = Path(folder) / f"{name}.csv"
            if item.kind == "table" or made.stat().st_size <= LARGEST:
                shutil.copy(made, TABLES / made.name)


def difference(seen: pd.DataFrame, frozen: pd.DataFrame, relative: float = 1e-6) -> str | None:
    """Say where two tables differ first, or None: columns, rows, words, and numbers beyond the tolerance."""
    if list(seen.columns) != list(frozen.columns):
        gone, new = set(frozen.columns) - set(seen.columns), set(seen.columns) - set(frozen.columns)
        return f"columns: without {sorted(gone)}, with {sorted(new)}" if gone or new else "order of columns"
    if len(seen) != len(frozen):
        return f"{len(seen)} rows instead of {len(frozen)}"
    for column in seen.columns:
        a, b = seen[column], frozen[column]
        numbers = pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b)
        if numbers and not pd.api.types.is_bool_dtype(a):
            near = (a.astype(float) - b.astype(float)).abs() <= relative * b.astype(float).abs() + 1e-9
            same = near | (a.isna() & b.isna()) | (a == b)
        else:
            same = (a == b) | (a.isna() & b.isna())
        if not same.all():
            at = int((~same).to_numpy().argmax())
            return f"row {at}, column {column}: {a.iloc[at]!r} instead of {b.iloc[at]!r}"
    return None


def main(what: list[str]) -> None:
    """Make again what is named: 'raw', 'tables'."""
    if not what or set(what) - {"raw", "tables"}:
        raise SystemExit("name what to make again: raw, tables")
    if "raw" in what:
        make_raw()
    if "tables" in what:
        make_tables()


if __name__ == "__main__":
    main(sys.argv[1:])
