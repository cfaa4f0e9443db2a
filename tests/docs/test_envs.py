"""Environment files for cluster users hold the lock file's versions and everything their extra names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.docs.conftest import REPO

EXTRAS = {"core": (), "reference": ("reference",), "slurm": ("slurm",), "docs": ("docs", "notebooks")}
FILES = [REPO / "envs" / f"{name}.yaml" for name in EXTRAS]
"""Those of this project's own lock file; servers such as SGLang have their own pins and tests."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    text = (REPO / "requirements" / "lock.txt").read_text(encoding="utf-8")
    return {
        canonical(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", text, re.M)
    }


def pinned(path: Path) -> dict[str, str]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    (pip,) = [d["pip"] for d in content["dependencies"] if isinstance(d, dict)]
    return {canonical(line.split("==")[0]): line.split("==")[1] for line in pip}


def test_all_are_here() -> None:
    assert all(path.is_file() for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_pin_is_the_lock_files(path: Path) -> None:
    lock = locked()
    different = {n: (v, lock.get(n)) for n, v in pinned(path).items() if lock.get(n) != v}
    assert different == {}, "run requirements/envs.py"


@pytest.mark.parametrize("name", EXTRAS)
def test_everything_the_project_names_is_pinned(name: str) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS[name]:
        wanted += project["optional-dependencies"][extra]
    here = pinned(REPO / "envs" / f"{name}.yaml")
    for requirement in wanted:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None and canonical(match.group()) in here, requirement


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_python_is_a_supported_one_and_no_address_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"python=3\.1[123]\b", text)
    assert "://" not in text


@pytest.mark.parametrize("folder", ["results", "paper_figures"])
def test_output_folders_say_what_will_be_there(folder: str) -> None:
    assert len((REPO / folder / "README.md").read_text(encoding="utf-8")) > 200
