"""Each command and each piece of Python that README and docs show is run, in a finished study."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.conftest import ALL, PAGES, REPO, Fence

SHELL = [f for f in ALL if f.language in ("sh", "bash", "console", "shell") and f.elsewhere is None]
PYTHON = [f for f in ALL if f.language in ("python", "py")]


def test_every_command_block_is_run_somewhere() -> None:
    for fence in ALL:
        if fence.elsewhere is not None:
            assert (REPO / fence.elsewhere).exists() or fence.elsewhere == ".ci/run", fence.name
    assert SHELL and PYTHON


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({f.page for f in SHELL}), ids=lambda p: p.name)
def test_commands(page: Path, copy_of_study: Path, environment: dict[str, str]) -> None:
    for fence in SHELL:
        if fence.page != page:
            continue
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", fence.text],
            cwd=copy_of_study, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{fence.name}\n{fence.text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("fence", PYTHON, ids=lambda f: f.name)
def test_python(fence: Fence, finished_study: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", fence.text],
        cwd=finished_study, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{fence.name}\n{fence.text}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_yaml_and_json_blocks_are_valid(page: Path) -> None:
    for fence in ALL:
        if fence.page == page and fence.language in ("yaml", "json"):
            assert yaml.safe_load(fence.text) is not None, fence.name
