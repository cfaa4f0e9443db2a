"""A study's journals read once: what `status` and `plan` are made from. No Parquet file is opened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block, with_partners
from specjoule.blocks.estimate import cell_seconds
from specjoule.blocks.journal import BlockState, read_events, summarise
from specjoule.blocks.lock import held_by
from specjoule.blocks.relatives import inheritable, relatives
from specjoule.blocks.todo import Why, todo
from specjoule.blocks.usage import NOT_USED, Usage, total_usage
from specjoule.cells.cell import Cell
from specjoule.study.model import Study
from specjoule.workflow import Project

LATEST_LAUNCHES = 50


@dataclass(frozen=True)
class BlockProgress:
    """What a block's journal and lock say."""

    block: Block
    state: BlockState
    todo: dict[str, Why]
    """Why each unfinished cell, by path, has to be measured."""
    holder: dict[str, Any] | None
    """The live runner of the block, if there is one."""
    usage: Usage = NOT_USED
    """Where the board's time went in its ended segments."""

    @property
    def finished(self) -> bool:
        """Say whether nothing is left to measure."""
        return not self.todo

    @cached_property
    def to_measure(self) -> list[Cell]:
        """Unfinished cells and the plain partners that have to run beside them."""
        return with_partners(self.block, [c for c in self.block.cells if c.path in self.todo])


@dataclass(frozen=True)
class Pace:
    """How measured times compare with the forecast, by model and GPU, and what a launch takes."""

    by_model_gpu: dict[tuple[str, str], float]
    overall: float
    launch_s: float
    measured_cells: int

    def seconds(self, study: Study, cells: Sequence[Cell], known: dict[str, float]) -> float:
        """Return the time that measuring `cells` in one segment takes, launches and closing plain included, s."""
        if not cells:
            return 0.0
        work = 0.0
        for cell in cells:
            scale = self.by_model_gpu.get((cell.model, cell.gpu), self.overall)
            work += known.get(cell.hash) or cell_seconds(study, cell) * scale
        launches = len({c.launch_key for c in cells}) + len({c.condition for c in cells})
        return work + launches * self.launch_s


def read_progress(project: Project) -> list[BlockProgress]:
    """Read every block's journal and lock, in the study's order. Raises StoreError for an unreadable journal."""
    found = []
    study_folder = project.store / project.name
    names = {path.name for path in study_folder.iterdir()} if study_folder.is_dir() else set()
    retired = names - {block.id for block in project.blocks}
    for block in project.blocks:
        folder = block_folder(project, block)
        events = read_events(folder / "journal.jsonl")
        state = summarise(events)
        if retired:
            wanted = frozenset(c.hash for c in block.cells) - frozenset(state.finished)
            for old in (f for f in relatives(folder.parent, block) if f.name in retired):
                events = inheritable(read_events(old / "journal.jsonl"), wanted) + events
            state = summarise(events)
        found.append(BlockProgress(block, state, todo(block, state), held_by(folder / "lock"), total_usage([events])))
    return found


def block_folder(project: Project, block: Block) -> Path:
    """Return the folder of a block's store."""
    return project.store / project.name / block.id


def pace(study: Study, blocks: Sequence[BlockProgress]) -> Pace:
    """Return how fast measuring went so far, against the forecast; a study not begun has the forecast's own pace."""
    measured: dict[tuple[str, str], float] = {}
    forecast: dict[tuple[str, str], float] = {}
    launches: list[float] = []
    count = 0
    for progress in blocks:
        block, seconds = progress.block, progress.state.seconds
        launches += [
            float(e.get("start_s") or 0) + float(e.get("ready_s") or 0)
            for e in progress.state.launches[-LATEST_LAUNCHES:]
        ]
        if not seconds:
            continue
        key = (block.model, block.gpu)
        for cell in block.cells:
            if cell.hash in seconds:
                measured[key] = measured.get(key, 0.0) + seconds[cell.hash]
                forecast[key] = forecast.get(key, 0.0) + cell_seconds(study, cell)
                count += 1
    total = sum(forecast.values())
    return Pace(
        by_model_gpu={key: measured[key] / forecast[key] for key in measured if forecast[key] > 0},
        overall=sum(measured.values()) / total if total > 0 else 1.0,
        launch_s=statistics.median(launches) if launches else study.file.blocks.overhead_s,
        measured_cells=count,
    )
