"""What tests share: a project in a temporary folder that measures with the scripted engine."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from specjoule.workflow import Project, open_project

# A shell's background jobs start with the interrupt ignored, and so would everything that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine with other work takes longer now and then; what a property takes says nothing of whether it holds.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

REPO = Path(__file__).resolve().parent.parent

SCRIPTED: dict[str, Any] = {
    "study": "tiny",
    "engine": {"name": "scripted", "settings": {"accept": 0.5}},
    "meter": {"name": "simulated"},
    "protocol": {"max_new_tokens": 24, "min_prompts": 4, "min_window_s": 0, "reference_cells": 1},
    "grids": {
        "base": {
            "models": ["smollm2-135m-instruct"],
            "gpus": ["cpu"],
            "drafters": ["plain", "ngram-4"],
            "concurrency": [1, 4],
            "corpora": ["code"],
            "seeds": [1, 2],
            "capture": [False],
        }
    },
}


def write_study(folder: Path, study: dict[str, Any]) -> Path:
    """Write a study file beside the project's catalogues."""
    path = folder / "config" / "config.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


def make_project_folder(folder: Path) -> None:
    """Fill a folder with a copy of the workflow and the tiny scripted study."""
    for name in ("config", "workflow", "profiles", "prompts"):
        shutil.copytree(REPO / name, folder / name)
    shutil.copy(REPO / "Snakefile", folder / "Snakefile")
    write_study(folder, SCRIPTED)


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the workflow with the tiny scripted study, as the current folder."""
    make_project_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(project_folder: Path) -> Project:
    """The tiny study, opened."""
    return open_project()
