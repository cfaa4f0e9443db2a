from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specjoule.engines.sglang import prefetch
from specjoule.errors import ConfigurationError, SpecJouleError
from specjoule.study.catalogue import Checkpoint, DraftCheckpoint
from tests.conftest import write_study
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
    engine = SimpleNamespace(name="sglang", settings={}, host_settings={})
    return SimpleNamespace(
        root="/nowhere",
        file=SimpleNamespace(grids={"a": grid, "b": grid}, engine=engine),
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
    monkeypatch.setattr("specjoule.study.load.load_study", lambda _, overrides: study())
    hub = Hub()
    assert prefetch.main(["x.yaml", "--to", str(tmp_path), "--forecast"], hub) == 0
    assert hub.fetched == []
    assert "org/model  (model tiny)" in capsys.readouterr().out
    assert prefetch.main(["x.yaml", "--to", str(tmp_path)], hub) == 0
    assert hub.fetched == ["org/model", "org/draft"]
    monkeypatch.setattr("specjoule.study.load.load_study", lambda _, overrides: study("to-be-pinned"))
    assert prefetch.main(["x.yaml", "--to", str(tmp_path)], hub) == 1
    assert "no pinned revision" in capsys.readouterr().err


HUB = """
import pathlib, types
class HfApi:
    def model_info(self, path, revision, files_metadata):
        names = ("config.json", "model.safetensors", "x.bin")
        files = [types.SimpleNamespace(rfilename=n, size=2 * 10**6) for n in names]
        name = "gemma" if "gated" in path else "apache-2.0"
        return types.SimpleNamespace(siblings=files, card_data={"license": name}, gated=name == "gemma")
def snapshot_download(path, revision, local_dir, allow_patterns):
    (pathlib.Path(local_dir) / "config.json").write_text("{}")
"""
"""Stands for the hub's client, which cannot be asked here."""


def hub_study(folder: Path, revision: str, path: str = "org/model") -> None:
    """Make the project's study one of a model on the hub."""
    models = yaml.safe_load((folder / "config/models.yaml").read_text())
    own = {"checkpoint": {"path": path, "revision": revision}, "weight_dtype": "bfloat16", "kv_dtype": "bfloat16"}
    models["models"]["hubbed"] = models["models"]["smollm2-135m-instruct"] | own
    (folder / "config/models.yaml").write_text(yaml.safe_dump(models, sort_keys=False))
    grid = {
        "models": ["hubbed"], "gpus": ["H100"], "drafters": ["plain", "ngram-4"], "concurrency": [1],
        "corpora": ["code"], "seeds": [1],
    }  # fmt: skip
    engine = {"name": "sglang", "version": "0.5.23", "host_settings": {"checkpoints": "checkpoints"}}
    study = {"study": "hub", "engine": engine, "meter": {"name": "nvml"}, "grids": {"base": grid}}
    write_study(folder, study)


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "stub").mkdir(exist_ok=True)
    (folder / "stub" / "huggingface_hub.py").write_text(HUB)
    binaries = Path(sys.executable).parent
    paths = [str(folder / "stub"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths)
    }  # fmt: skip
    return subprocess.run(
        [str(binaries / "snakemake"), "--cores", "1", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_rule_fetches_on_the_login_node_and_once(project_folder: Path) -> None:
    hub_study(project_folder, "c0ffee")
    asked = snakemake(project_folder, "-n", "raw")
    assert "Fetching the checkpoints of hubbed" in asked.stdout + asked.stderr, "blocks wait for their checkpoints"
    done = snakemake(project_folder, "prefetch")
    assert done.returncode == 0, done.stderr
    assert (project_folder / "checkpoints" / "org--model" / "c0ffee" / "config.json").exists()
    stamp = json.loads((project_folder / "results/prefetch/hub/hubbed.json").read_text())
    assert stamp["checkpoints"] == [{"path": "org/model", "revision": "c0ffee", "license": "apache-2.0"}]
    log = (project_folder / "results/logs/hub/prefetch/hubbed.log").read_text()
    assert "0.0 GB  apache-2.0     org/model  (model hubbed)" in log
    again = snakemake(project_folder, "prefetch")
    assert "Nothing to be done" in again.stdout + again.stderr
    hub_study(project_folder, "decade")
    assert snakemake(project_folder, "prefetch").returncode == 0
    assert (project_folder / "checkpoints" / "org--model" / "decade" / "config.json").exists()


@pytest.mark.slow
def test_the_rule_refuses_in_a_plain_sentence(project_folder: Path) -> None:
    hub_study(project_folder, "to-be-pinned")
    refused = snakemake(project_folder, "prefetch")
    assert refused.returncode == 1
    assert "1 checkpoints have no pinned revision (org/model); run `specjoule pin`, or write" in refused.stderr
    hub_study(project_folder, "c0ffee", "org/gated")
    refused = snakemake(project_folder, "prefetch")
    assert "org/gated is under licence 'gemma' and gated; read it, then agree" in refused.stderr
    site = project_folder / "config" / "site.yaml"
    site.write_text(site.read_text() + "\naccepted_licenses: [gemma]\n")
    assert snakemake(project_folder, "prefetch").returncode == 0
