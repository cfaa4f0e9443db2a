"""A small study on simulated boards, measured by the real runner, collected and analysed by the real analysis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specjoule.blocks.block import Block, make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import BlockFailed, Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.simulated.synthetic import narrowed
from specjoule.study.load import load_study
from specjoule.study.model import Study
from specjoule.tables.context import Context
from specjoule.tables.ingest import ingest
from specjoule.windows.collect import collect_files
from specjoule.windows.drift import drifts_of

ROOT = Path(__file__).resolve().parents[2]

NO_SPREAD: dict[str, Any] = {
    "board": {
        "board_power_spread": 0, "board_bandwidth_spread": 0, "launch_power_spread": 0, "launch_time_spread": 0,
        "step_time_spread": 0, "stall_probability": 0,
    }
}  # fmt: skip
"""Boards, launches and steps all alike: what then differs between seeds is the prompts."""


def small_study(
    *,
    seeds: Sequence[int],
    drafters: tuple[str, ...] = ("plain", "ngram-4", "DSpark-7"),
    corpora: tuple[str, ...] = ("code",),
    overrides: dict[str, Any] | None = None,
    faults: Sequence[dict[str, Any]] = (),
    protocol: dict[str, Any] | None = None,
    beside: Sequence[dict[str, Any]] = (),
    **grid: Any,
) -> Study:
    """One model on one board type; `grid` replaces further lists of the grid, `beside` makes further grids of it."""
    settings: dict[str, Any] = {"faults": list(faults)}
    if overrides:
        settings["overrides"] = overrides
    rehearsal = load_study(ROOT / "config" / "rehearsal.yaml")
    out = narrowed(rehearsal, grids=["base-h100"], models=["Qwen3-8B"], settings=settings)
    change = {"drafters": drafters, "corpora": corpora, "seeds": tuple(seeds), "concurrency": (1, 16), **grid}
    only = out.file.grids["base-h100"].model_copy(update=change)
    rules = out.file.protocol.model_copy(update=protocol or {})
    grids = {"base": only, **{f"beside-{i}": only.model_copy(update=more) for i, more in enumerate(beside)}}
    file = out.file.model_copy(update={"grids": grids, "protocol": rules, "study": "recovery"})
    used = {name: rehearsal.corpora[name] for name in corpora}
    return out.model_copy(update={"file": file, "corpora": used})


def with_faults(study: Study, faults: Sequence[dict[str, Any]]) -> Study:
    """The same study on boards that misbehave."""
    settings = {**study.file.engine.settings, "faults": list(faults)}
    engine = study.file.engine.model_copy(update={"settings": settings})
    return study.model_copy(update={"file": study.file.model_copy(update={"engine": engine})})


def blocks_of(study: Study) -> list[Block]:
    """The study's blocks, in order of seed."""
    return sorted(make_blocks(expand(study, load_pools(study))), key=lambda b: b.seed)


def folders_in(folder: Path) -> Folders:
    """Where a study below `folder` keeps its files."""
    return Folders(folder / "raw", folder / "store", folder / "cache", folder / "logs")


def measure(
    study: Study, folder: Path, only: Callable[[Block], bool] = lambda b: True, board: Study | None = None
) -> list[str]:
    """Measure blocks, on the boards of `board` (default: the study's own); return what the runner complained of."""
    folders, errors = folders_in(folder), []
    for block in filter(only, blocks_of(study)):
        boards = board or study

        def devices(block: Block = block, boards: Study = boards) -> Any:
            return open_devices(boards, boards.gpus[block.gpu], block.id, block.replicate)

        try:
            measure_block(study, block, folders, devices)
        except BlockFailed as error:
            errors.append(str(error))
    return errors


def struck(study: Study, clean: Path, folder: Path, faults: Sequence[dict[str, Any]], seeds: Collection[int]) -> None:
    """Make a study in which the boards of some seeds misbehave; the other seeds' blocks are those of `clean`."""
    shutil.copytree(clean, folder)
    for block in blocks_of(study):
        if block.seed in seeds:
            shutil.rmtree(folder / "store" / study.name / block.id)
            for cell in block.cells:
                (folder / "raw" / cell.path).unlink()
    measure(study, folder, lambda b: b.seed in seeds, with_faults(study, faults))


def collected(study: Study, folder: Path, only: Callable[[Block], bool] = lambda b: True) -> pd.DataFrame:
    """Collect blocks as the workflow does."""
    folders, tables = folders_in(folder), []
    for block in filter(only, blocks_of(study)):
        store = BlockStore(folders.store, study.name, block.id)
        record = json.loads(json.dumps(block_record(block, store, study.file.validity)))
        files = [path for cell in block.cells if (path := folders.raw / cell.path).exists()]
        tables.append(collect_files(files, folders.raw, study.file.validity, drifts_of(record)).to_pandas())
    return pd.concat(tables, ignore_index=True)


def context_of(study: Study, rows: pd.DataFrame, raw: Path | None = None) -> Context:
    """The analysis of these rows."""
    return Context(
        rows, study.name, analysis=study.file.analysis, models=study.models, drafters=study.drafters, gpus=study.gpus,
        nested=ingest([raw], study.file.validity).nested if raw else None,
    )  # fmt: skip
