"""Every command of the shipped studies is built, and the environment files agree with each other."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from specjoule.engines.sglang.commands import command_records
from specjoule.engines.sglang.settings import RELEASE
from specjoule.study.load import load_study
from tests.engines.sglang.conftest import ROOT

KEYS = {"model", "drafter", "gpu", "capture", "locked_mhz", "command", "environment"}


def pins(lines: list[str]) -> dict[str, str]:
    return dict(m.groups() for line in lines if (m := re.match(r"([A-Za-z0-9_.-]+)==([^ ;]+)", line)))  # type: ignore[misc]


def test_every_launch_of_the_paper_study_is_one_json_object() -> None:
    records = list(command_records(load_study(ROOT / "config" / "paper.yaml")))
    assert len(records) > 50
    for record in records:
        assert set(json.loads(json.dumps(record))) == KEYS
        assert record["command"][:2] == ["sglang", "serve"]
        asked = [w for w in record["command"] if w == "--max-running-requests"]
        assert len(asked) == 1
    lines = [json.dumps(r, sort_keys=True) for r in records]
    assert len(set(lines)) == len(lines)
    assert {r["drafter"] for r in records} >= {"plain", "ngram-4", "DFlash-16", "DSpark-7"}


def test_environment_file_has_the_lock_files_pins() -> None:
    lock = pins((ROOT / "requirements" / "sglang.txt").read_text().splitlines())
    environment = yaml.safe_load((ROOT / "envs" / "sglang.yaml").read_text())
    pinned = pins(next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict)))
    torch = re.search(r"pip torch==(\S+)", (ROOT / "requirements" / "install_sglang.sh").read_text())
    assert torch is not None and pinned.pop("torch") == torch[1]
    assert pinned == {name: lock[name] for name in pinned}
    assert lock["sglang"] == RELEASE


@pytest.mark.parametrize("name", ["requirements/sglang.txt", "requirements/install_sglang.sh", "envs/sglang.yaml"])
def test_no_registry_is_named(name: str) -> None:
    assert not re.search(r"https?://|index-url|pypi", (ROOT / name).read_text())
