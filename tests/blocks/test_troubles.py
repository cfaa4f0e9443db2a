"""File systems without flock or hard links, a full disk: nothing is lost, a rerun finishes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from specjoule.blocks.status import study_status
from specjoule.errors import StoreError

from .studies import measure, small_project


def test_neither_flock_nor_hard_links_are_needed(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: object) -> None:
        raise OSError(95, "Operation not supported")

    for module, name in ((fcntl, "flock"), (fcntl, "lockf"), (os, "link")):
        monkeypatch.setattr(module, name, refused)
    project = small_project(grid={"seeds": [1]})
    measure(project, project.blocks[0])
    assert all(project.raw_file(c).exists() for c in project.cells)


def test_a_full_disk_is_said_and_the_rerun_finishes(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    real = Path.replace
    written = 0

    def full_after_four(self: Path, target: Path) -> Path:
        nonlocal written
        written += 1
        if written > 4:
            raise OSError(28, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full_after_four)
        with pytest.raises(StoreError, match="No space left"):
            measure(project, block)
    kept = study_status(project).counts["done"]
    assert kept >= 1
    assert not list(Path("results").rglob(".*.tmp"))
    measure(project, block)
    assert study_status(project).counts["done"] == 6
