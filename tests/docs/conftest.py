"""The default study measured with the scripted engine, and every fenced block of README and docs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted([REPO / "README.md", *(REPO / "docs").glob("*.md"), *(REPO / "prompts").glob("README.md")])
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.M | re.S)
_ELSEWHERE = re.compile(r"<!-- run elsewhere: ([^>]+?) -->\s*$")


@dataclass(frozen=True)
class Fence:
    """One fenced block of a page."""

    page: Path
    number: int
    language: str
    text: str
    elsewhere: str | None
    """Where it is run, for blocks that this folder's tests cannot run (a comment before the block says so)."""

    @property
    def name(self) -> str:
        return f"{self.page.name}-{self.number}"


def fences(page: Path) -> list[Fence]:
    source = page.read_text(encoding="utf-8")
    found = []
    for number, match in enumerate(_FENCE.finditer(source), start=1):
        indent, language, body = match.groups()
        text = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        note = _ELSEWHERE.search(source[: match.start()])
        found.append(Fence(page, number, language, text, note.group(1) if note else None))
    return found


ALL = [fence for page in PAGES for fence in fences(page)]


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder in which the default study is measured, collected and drawn, with the scripted engine."""
    from specjoule.cli.jobs import collect_main, figures_main, measure_main
    from specjoule.workflow import open_project

    folder = tmp_path_factory.mktemp("finished")
    for name in ("config", "workflow", "profiles", "prompts", "requirements", "docs", "notebooks", "envs"):
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    shutil.copytree(REPO / "tests" / "data", folder / "tests" / "data")
    shutil.copy(REPO / "Snakefile", folder / "Snakefile")
    study_file = folder / "config" / "config.yaml"
    study = yaml.safe_load(study_file.read_text(encoding="utf-8"))
    study["engine"] = {"name": "scripted", "settings": {}}
    study["meter"] = {"name": "simulated"}
    study_file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        project = open_project()
        for block in project.blocks:
            assert measure_main(["--block", block.id]) == 0
            rows = project.rows(block.id)
            assert collect_main(["--block", block.id, "--output", str(rows)]) == 0
        assert figures_main(["--output", str(project.figures)]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def copy_of_study(finished_study: Path, tmp_path: Path) -> Path:
    """A copy to do as one likes with."""
    folder = tmp_path / "study"
    shutil.copytree(finished_study, folder, symlinks=True)
    return folder


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a shell that has the project's commands on its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "120", "NO_MKDOCS_2_WARNING": "1"}
