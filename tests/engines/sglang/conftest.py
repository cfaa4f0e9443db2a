"""Fixtures of the sglang engine's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engines.sglang import standins

ROOT = Path(__file__).resolve().parents[3]
STUBS = Path(__file__).with_name("stubs")
INTERPRETER = Path(os.environ.get("SPECJOULE_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """Return the pinned SGLang's interpreter, or skip with the command that makes it."""
    if not INTERPRETER.exists():
        pytest.skip("no SGLang environment; make it with: bash requirements/install_sglang.sh")
    return INTERPRETER


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of all stand-in checkpoints."""
    return standins.write_all(tmp_path_factory.mktemp("stand-ins"))
