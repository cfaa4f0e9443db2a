"""Runs a command in this process as `specjoule` would, and measures the tiny study once where a test wants one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from specjoule.workflow import Project, open_project


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line of an error; fails where there is none or more than one."""
        assert self.code == 1, self
        lines = self.err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), self
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `specjoule` with these arguments, in a terminal of so many columns."""
    from specjoule.cli.app import main

    def call(*arguments: object, columns: int = 200) -> Ran:
        monkeypatch.setattr(sys, "argv", ["specjoule", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        seen = capsys.readouterr()
        return Ran(code, seen.out, seen.err)

    return call


def measure_all(project: Project) -> None:
    """Measure what the project lacks, block by block, without Snakemake."""
    from specjoule.blocks.devices import open_devices
    from specjoule.blocks.runner import Folders, measure_block

    for block in project.blocks:
        gpu = project.study.gpus[block.gpu]
        measure_block(
            project.study,
            block,
            Folders(Path(project.raw), project.store, Path(project.cache), Path(project.logs)),
            lambda block=block, gpu=gpu: open_devices(project.study, gpu, block.id, block.replicate),  # type: ignore[misc]
        )


@pytest.fixture
def measured(project_folder: Path) -> Project:
    """The tiny study, measured."""
    project = open_project()
    measure_all(project)
    return project
