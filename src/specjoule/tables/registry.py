"""Build any table or figure alone by name, or all of them with the manifest.

The Snakemake rules and `specjoule analyse` both call this module; every item is listed in `specjoule.tables.items`.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from specjoule.errors import ConfigurationError
from specjoule.files import write_text
from specjoule.tables.context import Context
from specjoule.tables.items import ITEMS, Item
from specjoule.tables.render import write_table
from specjoule.windows.collect import StoredNested

__all__ = ["ITEMS", "build", "build_all", "check_names"]


def build(name: str, rows: pd.DataFrame | Context, output_dir: Path, study_name: str = "study") -> list[Path]:
    """Compute one item from collected rows (or a shared `Context`) and write its files; return their paths.

    Raises ConfigurationError for a name that is not in `ITEMS`.
    """
    item = ITEMS[check_names([name])[0]]
    context = rows if isinstance(rows, Context) else Context(rows, study_name)
    frame = _resolve(item.compute)(context)
    if item.kind == "table":
        return _write_table(item, frame, context, output_dir)
    return _write_figure(item, frame, context, output_dir)


def build_all(
    rows: pd.DataFrame | Context,
    output_dir: Path,
    study_name: str = "study",
    only: Iterable[str] | None = None,
    workers: int = 1,
) -> list[Path]:
    """Build `only` these items (default: all) and the manifest; return every path written.

    Pass a `Context` where more than the rows is known: the analysis constants, catalogue entries, raw files, records.
    With several `workers` the items are made in that many processes, which share what all of them need.
    """
    from specjoule.figures.manifest import write_manifest

    names = check_names(list(only)) if only else list(ITEMS)
    context = rows if isinstance(rows, Context) else Context(rows, study_name)
    paths = _build_each(names, context, output_dir, workers)
    listed = [describe(ITEMS[name]) for name in names]
    manifest = write_manifest(
        output_dir, study=context.study, cells=context.cells, pairs=context.pairs, excluded=context.excluded,
        items=listed,
    )  # fmt: skip
    return [*paths, manifest]


def _build_each(names: list[str], context: Context, output_dir: Path, workers: int) -> list[Path]:
    if workers == 1 or len(names) == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [p for name in names for p in build(name, context, output_dir)]
    context.prepare()
    importlib.import_module("matplotlib.pyplot")  # here, so that the workers share it
    gc.collect()
    gc.freeze()
    together: dict[str, list[str]] = {}
    for name in names:  # what shares a computation stays together
        compute = ITEMS[name].compute.removesuffix("_points")
        together.setdefault("requests" if compute in _OF_REQUESTS else compute, []).append(name)
    global _shared
    _shared = (context, output_dir)
    try:
        # The context reaches the workers by the fork, not by pickling it: it may be a gigabyte.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            made = dict(pair for found in pool.map(_build_group, together.values()) for pair in found)
    finally:
        _shared = None
        gc.unfreeze()
    return [p for name in names for p in made[name]]


_OF_REQUESTS = {f"tables.compute:{name}" for name in ("language", "language_counts", "agreement")}
"""What reads the frame of all requests, the largest there is: one process holds it."""
_shared: tuple[Context, Path] | None = None


def _build_group(names: list[str]) -> list[tuple[str, list[Path]]]:
    assert _shared is not None
    context, output_dir = _shared
    made = [(name, build(name, context, output_dir)) for name in names]
    if isinstance(context.nested, StoredNested):
        context.nested.forget()
    return made


def describe(item: Item) -> dict[str, Any]:
    """Return an item as the manifest lists it."""
    return {
        "name": item.name, "kind": item.kind, "question": item.question, "rule": item.rule,
        "windows": list(item.windows), "files": list(item.files),
    }  # fmt: skip


def check_names(names: list[str]) -> list[str]:
    """Return the names, or raise ConfigurationError that names the unknown one and the nearest known."""
    for name in names:
        if name not in ITEMS:
            near = get_close_matches(name, list(ITEMS), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(ITEMS)}"
            raise ConfigurationError(f"there is no table or figure named {name!r}{hint}")
    return names


def _resolve(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(f"specjoule.{module}"), function)  # type: ignore[no-any-return]


def _write_table(item: Item, frame: pd.DataFrame, context: Context, output_dir: Path) -> list[Path]:
    shown: Any = _resolve(item.shown) if item.shown else None
    return write_table(
        frame, output_dir, item.name, caption=f"{item.question} {item.rule} Study: {context.study}.",
        provenance=context.provenance, excluded=context.excluded, columns=shown,
    )  # fmt: skip


def _write_figure(item: Item, frame: pd.DataFrame, context: Context, output_dir: Path) -> list[Path]:
    from specjoule.figures.style import empty_figure, house_style, mark_provenance, save_figure

    assert item.draw is not None
    with house_style():
        if frame.empty:
            fig = empty_figure("No cell of this data answers this question:\n" + item.question)
        else:
            fig = _resolve(item.draw)(frame)
        mark_provenance(fig, context.meters, context.assumed_w_per_core)
        paths = save_figure(fig, output_dir, item.name)
    data = frame.assign(provenance=context.provenance).to_csv(index=False, lineterminator="\n")
    path = output_dir / f"{item.name}.csv"
    write_text(path, data)
    return [*paths, path]
