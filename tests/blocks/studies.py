"""Small studies on the scripted engine, in a folder of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import Folders, measure_block
from specjoule.workflow import Project, open_project

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTED: dict[str, Any] = {"engine": {"name": "scripted", "settings": {}}, "meter": {"name": "simulated"}}
GRID: dict[str, Any] = {
    "models": ["smollm2-135m-instruct"], "gpus": ["cpu"], "drafters": ["plain", "ngram-4", "layerskip-4"],
    "concurrency": [1, 4], "corpora": ["code"], "seeds": [1, 2], "capture": [False],
}  # fmt: skip


def copy_inputs(folder: Path) -> Path:
    """Copy configuration and prompts of the checkout."""
    for name in ("config", "prompts"):
        shutil.copytree(CHECKOUT / name, folder / name)
    return folder


def small_project(**overrides: Any) -> Project:
    """Open the small study in the present folder; `grid` replaces keys of its only grid."""
    grid = {**GRID, **overrides.pop("grid", {})}
    return open_project(Path("config/config.yaml"), {**SCRIPTED, "grids": {"base": grid}, **overrides})


def folders(project: Project) -> Folders:
    return Folders(project.raw, project.store, project.cache, project.logs)


def measure(project: Project, block: Block, **keywords: Any) -> None:
    gpu = project.study.gpus[block.gpu]
    measure_block(
        project.study,
        block,
        folders(project),
        lambda: open_devices(project.study, gpu, block.id, block.replicate),
        **keywords,
    )
