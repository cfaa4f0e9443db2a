"""`make` sets itself up: what is installed again and what is not, shown with an interpreter that only takes notes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import REPO

NOTES = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/notes"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what `make` reads, with an environment whose interpreter notes what it is asked for."""
    folder = tmp_path / "a check out"
    (folder / "requirements").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements/setup.sh", "requirements/lock.txt"):
        shutil.copy(REPO / name, folder / name)
    make_environment(folder / ".venv")
    return folder


def make_environment(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    python = folder / "bin" / "python"
    python.write_text(NOTES)
    python.chmod(0o755)


def run(folder: Path, *arguments: str, venv: Path | None = None) -> list[str]:
    """Run `make` in the folder; return what its interpreter was asked for, without the questions about itself."""
    notes = (venv or folder / ".venv") / "bin" / "notes"
    notes.unlink(missing_ok=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("VENV", "PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    subprocess.run(["make", "--no-print-directory", *arguments], cwd=folder, env=clean, check=True, capture_output=True)
    return [line for line in notes.read_text().splitlines() if " install " in line or "snakemake" in line]


def test_a_second_call_installs_nothing_and_a_moved_checkout_is_set_up_again(checkout: Path) -> None:
    first, second = run(checkout, "run"), run(checkout, "run")
    assert [" install " in line for line in first] == [True, False]
    assert [line.split()[:2] for line in second] == [["-m", "snakemake"]]
    moved = checkout.rename(checkout.with_name("moved"))
    assert [" install " in line for line in run(moved, "run")] == [True, False]
    (moved / "requirements" / "lock.txt").open("a").write("# changed\n")
    assert [" install " in line for line in run(moved, "run")] == [True, False]


def test_the_environment_may_lie_anywhere(checkout: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make_environment(elsewhere)
    assert any("snakemake" in line for line in run(checkout, "run", f"VENV={elsewhere}", venv=elsewhere))


def test_its_path_may_have_a_space(checkout: Path) -> None:
    spaced = checkout / "an environment"
    make_environment(spaced)
    run(checkout, "test", f"VENV={spaced}", venv=spaced)
    assert "-m pytest" in (spaced / "bin" / "notes").read_text()
