"""Placeholders of revisions become commits; everything else of a catalogue stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from specjoule.engines.sglang.pin import pin_catalogue
from specjoule.errors import SpecJouleError
from specjoule.study.load import load_study
from tests.conftest import REPO

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("name", ["models.yaml", "drafters.yaml"])
def test_every_placeholder_of_the_shipped_catalogues_is_pinned_and_nothing_else_moves(
    tmp_path: Path, name: str
) -> None:
    shutil.copytree(REPO / "config", tmp_path / "config")
    path = tmp_path / "config" / name
    before = path.read_text(encoding="utf-8")
    asked: list[str] = []

    def head(hub_name: str) -> str:
        asked.append(hub_name)
        return COMMIT

    commits = pin_catalogue(path, head)
    after = path.read_text(encoding="utf-8")
    assert sorted(commits) == sorted(asked) and len(asked) == len(set(asked)) > 5
    assert "revision: to-be-pinned" not in "\n".join(line.partition("#")[0] for line in after.splitlines())
    assert len(after.splitlines()) == len(before.splitlines())
    assert after.replace(COMMIT, "to-be-pinned") == before
    load_study(tmp_path / "config" / "paper.yaml")
    assert pin_catalogue(path, head) == {} and path.read_text(encoding="utf-8") == after


def test_block_style_is_pinned_too(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("a:\n  path: org/a\n  revision: to-be-pinned  # today's\n  license: MIT\n", encoding="utf-8")
    assert pin_catalogue(path, lambda _: COMMIT) == {"org/a": COMMIT}
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["a"]["revision"] == COMMIT


def test_what_cannot_be_looked_up_leaves_the_catalogue_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    text = "a: {path: org/a, revision: to-be-pinned}\nb: {path: org/b, revision: to-be-pinned}\n"
    path.write_text(text, encoding="utf-8")

    def offline(name: str) -> str:
        if name == "org/b":
            raise ConnectionError("no route\nto host")
        return COMMIT

    with pytest.raises(SpecJouleError, match=r"commit of org/b \(no route\); is the name right"):
        pin_catalogue(path, offline)
    with pytest.raises(SpecJouleError, match="is no commit: 'main'"):
        pin_catalogue(path, lambda _: "main")
    assert path.read_text(encoding="utf-8") == text
    path.write_text("a: {revision: to-be-pinned, path: org/a}\n", encoding="utf-8")
    with pytest.raises(SpecJouleError, match="does not follow its `path`"):
        pin_catalogue(path, lambda _: COMMIT)
