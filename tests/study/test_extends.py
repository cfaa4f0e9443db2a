"""A study file may extend another: keys are replaced one by one, a section of another engine as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specjoule.errors import ConfigurationError
from specjoule.study.load import load_study, study_from_mapping

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("models", "drafters", "gpus", "corpora"):
        (tmp_path / f"{name}.yaml").write_text((CONFIG / f"{name}.yaml").read_text())
    (tmp_path / "base.yaml").write_text((CONFIG / "config.yaml").read_text())
    return tmp_path


def write(folder: Path, name: str, **content: object) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return path


def test_keys_replace_the_others_one_by_one(folder: Path) -> None:
    base = load_study(folder / "base.yaml").file
    study = load_study(
        write(folder, "mine.yaml", extends="base.yaml", study="mine", protocol={"max_new_tokens": 7})
    ).file
    assert study.study == "mine" and study.protocol.max_new_tokens == 7
    assert study.protocol.min_prompts == base.protocol.min_prompts
    assert study.engine == base.engine and study.grids == base.grids


PINNED = "torch-2.9.1+transformers-4.57.3"


def test_another_engine_replaces_the_whole_section(folder: Path) -> None:
    base = load_study(folder / "base.yaml").file
    assert base.engine.settings
    mine = write(folder, "mine.yaml", extends="base.yaml", engine={"name": "scripted"})
    assert load_study(mine).file.engine.settings == {}
    same = write(folder, "same.yaml", extends="base.yaml", engine={"name": base.engine.name, "version": PINNED})
    assert load_study(same).file.engine.settings == base.engine.settings
    assert load_study(folder / "base.yaml", {"engine": {"name": "scripted"}}).file.engine.settings == {}


def test_it_goes_over_several_files_and_from_a_mapping(folder: Path) -> None:
    write(folder, "one.yaml", extends="base.yaml", study="one", title="t")
    two = write(folder, "two.yaml", extends="one.yaml", study="two")
    assert load_study(two).file.title == "t"
    assert study_from_mapping({"extends": "one.yaml", "study": "three"}, two).file.title == "t"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"extends": "nowhere.yaml"}, "nowhere.yaml: no such file"),
        ({"extends": "mine.yaml"}, "extends this file in turn"),
        ({"extends": ["base.yaml"]}, "must name one study file"),
    ],
)
def test_what_cannot_be_extended_is_refused(folder: Path, content: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match="yaml") as error:
        load_study(write(folder, "mine.yaml", **content))
    assert words in str(error.value)
