from __future__ import annotations

from pathlib import Path

import pytest

from .studies import copy_inputs


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
