"""What is judged and drawn again, though nothing is measured again."""

from __future__ import annotations

from pathlib import Path

import pytest

from specjoule import workflow
from specjoule.workflow import open_project

REAL = {"engine": {"name": "reference"}, "meter": {"name": "auto"}}


def digests() -> tuple[list[str], str, str]:
    project = open_project(overrides=REAL)
    return [cell.hash for cell in project.cells], project.validity_digest, project.analysis_digest


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("gpus.yaml", "    product: host processor", "    product: host processor\n    peak_flop_s: 1.0e+12"),
        ("drafters.yaml", "    scheme: ngram\n", "    scheme: ngram\n    origin: third-party\n"),
        ("models.yaml", "    family: SmolLM2", "    family: another"),
    ],
)
def test_what_tables_look_up_in_a_catalogue_draws_them_again(
    project_folder: Path, file: str, old: str, new: str
) -> None:
    cells, rules, constants = digests()
    catalogue = project_folder / "config" / file
    text = catalogue.read_text(encoding="utf-8")
    assert old in text
    catalogue.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert digests()[:2] == (cells, rules)
    assert digests()[2] != constants


def test_a_label_changes_nothing(project_folder: Path) -> None:
    before = digests()
    catalogue = project_folder / "config" / "drafters.yaml"
    catalogue.write_text(catalogue.read_text(encoding="utf-8").replace("label: n-gram,", "label: lookup,"))
    assert digests() == before


def test_another_release_judges_and_draws_again(project_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, rules, constants = digests()
    monkeypatch.setattr(workflow, "__version__", "999")
    again = digests()
    assert again[0] == cells and again[1] != rules and again[2] != constants
