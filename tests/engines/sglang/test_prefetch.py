from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specjoule.engines.sglang import prefetch
from specjoule.errors import ConfigurationError, SpecJouleError
from specjoule.study.catalogue import Checkpoint, DraftCheckpoint
from tests.engines.sglang import specs


class Hub:
    """A hub with one licence and a size for everything."""

    def __init__(self, license_name: str | None = "mit", size: int = 1000) -> None:
        self.license_name, self.size = license_name, size
        self.fetched: list[str] = []

    def describe(self, path: str, revision: str) -> tuple[int, str | None, bool]:
        return self.size, self.license_name, self.license_name == "gemma"

    def fetch(self, path: str, revision: str, folder: Path) -> None:
        self.fetched.append(path)
        (folder / "config.json").write_text("{}")


def study(revision: str | None = "abc", license_name: str | None = None) -> Any:
    target = specs.model("/x").model_copy(
        update={"checkpoint": Checkpoint(path="org/model", revision=revision, license=license_name)}
    )
    how = specs.drafter("eagle3", 4).model_copy(
        update={"checkpoints": {"tiny": DraftCheckpoint(path="org/draft", revision="def")}}
    )
    grid = SimpleNamespace(models=("tiny",), drafters=("plain", "eagle3-4"))
    return SimpleNamespace(
        file=SimpleNamespace(grids={"a": grid, "b": grid}),
        models={"tiny": target},
        drafters={"plain": specs.drafter("plain"), "eagle3-4": how},
    )


def run(wanted: Any, folder: Path, hub: Hub, accepted: frozenset[str] = frozenset(), free: int = 10**9) -> list[str]:
    rows = prefetch.forecast(prefetch.wanted_checkpoints(wanted), folder, hub)
    prefetch.gate(rows, accepted, free)
    said: list[str] = []
    prefetch.fetch_all(rows, folder, hub, said.append)
    return said


def test_each_checkpoint_is_fetched_once_into_its_pinned_folder(tmp_path: Path) -> None:
    hub = Hub()
    run(study(), tmp_path, hub)
    assert hub.fetched == ["org/model", "org/draft"]
    assert (tmp_path / "org--model" / "abc" / "config.json").exists()
    said = run(study(), tmp_path, hub)
    assert hub.fetched == ["org/model", "org/draft"]
    assert said == ["present   org/model", "present   org/draft"]


@pytest.mark.parametrize("revision", [None, "to-be-pinned"])
def test_unpinned_checkpoints_are_refused_all_at_once(revision: str | None) -> None:
    with pytest.raises(ConfigurationError, match="1 checkpoints have no pinned revision"):
        prefetch.wanted_checkpoints(study(revision))


def test_licences_are_gates(tmp_path: Path) -> None:
    with pytest.raises(SpecJouleError, match="gemma' and gated; read it, then agree with --accept-license gemma"):
        run(study(), tmp_path, Hub("gemma"))
    run(study(), tmp_path, Hub("gemma"), frozenset({"gemma"}))
    with pytest.raises(SpecJouleError, match="licence 'unknown'"):
        run(study(), tmp_path / "b", Hub(None))
    with pytest.raises(SpecJouleError, match=r"catalogue says licence 'Apache-2\.0', the hub says 'mit'"):
        run(study(license_name="Apache-2.0"), tmp_path / "c", Hub("mit"))


def test_disk_is_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    hub = Hub(size=10**10)
    with pytest.raises(SpecJouleError, match=r"20\.0 GB are needed, 1\.0 GB are free"):
        run(study(), tmp_path, hub)
    assert hub.fetched == []


def test_command_line_forecasts_and_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specjoule.study.load.load_study", lambda _: study())
    hub = Hub()
    assert prefetch.main(["x.yaml", "--to", str(tmp_path), "--forecast"], hub) == 0
    assert hub.fetched == []
    assert "org/model  (model tiny)" in capsys.readouterr().out
    assert prefetch.main(["x.yaml", "--to", str(tmp_path)], hub) == 0
    assert hub.fetched == ["org/model", "org/draft"]
    monkeypatch.setattr("specjoule.study.load.load_study", lambda _: study("to-be-pinned"))
    assert prefetch.main(["x.yaml", "--to", str(tmp_path)], hub) == 1
    assert "no pinned revision" in capsys.readouterr().err
