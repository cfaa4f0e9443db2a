"""`check`: each probe says what is wrong and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specjoule.errors import ConfigurationError
from specjoule.fitness import host, meters, project
from specjoule.fitness.finding import Finding
from specjoule.study.load import load_study
from specjoule.study.model import Study
from tests.cli.conftest import Run


def test_a_simulated_study_is_fit_anywhere(project_folder: Path, run: Run) -> None:
    ran = run("check", "--json")
    document = json.loads(ran.out)
    assert ran.code == (0 if document["fit"] else 1)
    names = [f["name"] for f in document["findings"]]
    for name in ("software", "versions", "study", "engine", "models", "processor meter", "cores", "load", "governor",
                 "disk", "timer"):  # fmt: skip
        assert name in names
    assert all(f["remedy"] for f in document["findings"] if f["level"] != "ok")


def test_a_broken_study_is_a_failure_with_the_reason(project_folder: Path, run: Run) -> None:
    Path("config/config.yaml").write_text("study: x\n")
    ran = run("check")
    assert ran.code == 1
    assert "engine: missing" in ran.out
    assert "Not fit to measure." in ran.out


def test_strict_makes_warnings_fail(project_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = Finding("load", "warn", "busy", "wait")
    monkeypatch.setattr("specjoule.fitness.everything.examine", lambda path: [warning])
    assert run("check").code == 0
    assert run("check", "--strict").code == 1
    assert "→ wait" in run("check").out


def test_load() -> None:
    assert host.load(99.0).level == "warn"
    assert host.load(0.0).level == "ok"


@pytest.mark.parametrize(("name", "level"), [("performance", "ok"), ("powersave", "warn"), (None, "ok")])
def test_governor(tmp_path: Path, name: str | None, level: str) -> None:
    if name:
        folder = tmp_path / "cpu0" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert host.governor(tmp_path).level == level


@pytest.mark.parametrize(("states", "level"), [([], "ok"), (["0"], "warn"), (["0", "1"], "ok")])
def test_battery(tmp_path: Path, states: list[str], level: str) -> None:
    for i, state in enumerate(states):
        (tmp_path / f"AC{i}").mkdir()
        (tmp_path / f"AC{i}" / "online").write_text(state)
    assert host.power_supply(tmp_path).level == level


def test_memory(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 9 kB\nMemAvailable: 900000 kB\n")
    assert host.memory(info).level == "warn"
    info.write_text("MemAvailable: 9000000 kB\n")
    assert host.memory(info).level == "ok"


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.disk(tmp_path / "results").level in ("ok", "warn")
    monkeypatch.setattr(host.shutil, "disk_usage", lambda p: SimpleNamespace(free=1e6))
    assert host.disk(tmp_path).level == "fail"
    monkeypatch.setattr(host.os, "access", lambda p, m: False)
    assert "not writable" in host.disk(tmp_path).found


def test_processor_meter(tmp_path: Path) -> None:
    absent = meters.rapl(tmp_path)
    assert absent.level == "warn"
    assert "estimated from CPU time" in absent.found
    assert absent.remedy is not None
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0")
    (zone / "energy_uj").write_text("12")
    assert meters.rapl(tmp_path).level == "ok"


class Nvml(SimpleNamespace):
    """The few calls of pynvml that the probe makes."""

    class NVMLError(Exception):
        pass


def fake_nvml(**changes: Any) -> Nvml:
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda h: "NVIDIA H100",
        "nvmlDeviceGetUUID": lambda h: b"GPU-1",
        "nvmlDeviceGetTotalEnergyConsumption": lambda h: 5,
        "nvmlDeviceGetMigMode": lambda h: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": lambda h: [],
        "nvmlDeviceGetPersistenceMode": lambda h: 1,
    }
    return Nvml(**{**calls, **changes})


def refuse(*_: object) -> None:
    raise Nvml.NVMLError("Not Supported")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, "ok", "energy counter readable"),
        ({"nvmlInit": refuse}, "fail", "no NVIDIA board can be read"),
        ({"nvmlDeviceGetCount": lambda: 0}, "fail", "shows no board"),
        ({"nvmlDeviceGetHandleByIndex": refuse}, "fail", "cannot be opened"),
        ({"nvmlDeviceGetTotalEnergyConsumption": refuse}, "fail", "no energy counter"),
        ({"nvmlDeviceGetMigMode": lambda h: (1, 1)}, "fail", "split by MIG"),
        ({"nvmlDeviceGetMigMode": refuse}, "ok", "energy counter readable"),
        ({"nvmlDeviceGetComputeRunningProcesses": lambda h: [1, 2]}, "warn", "2 other process"),
        ({"nvmlDeviceGetPersistenceMode": lambda h: 0}, "warn", "persistence mode is off"),
    ],
)
def test_boards(changes: dict[str, Any], level: str, words: str) -> None:
    (finding,) = meters.boards(fake_nvml(**changes), needed=True)
    assert finding.level == level
    assert words in finding.found
    assert (finding.remedy is None) == (level == "ok")


def test_boards_are_no_failure_where_none_is_needed() -> None:
    assert meters.boards(fake_nvml(nvmlInit=refuse))[0].level == "ok"


@pytest.mark.parametrize(
    ("drifts", "level", "words"),
    [
        ([], "ok", "not known yet"),
        ([None], "ok", "not known yet"),
        ([0.01, -0.01, 0.01, -0.01], "ok", r"by 1 % .*4 blocks, 4 degrees of freedom\); 2 seeds tell 2 % from nothing"),
        ([0.05, -0.05], "warn", "by 5 %"),
    ],
)
def test_noise_is_pooled_from_finished_blocks(
    project_folder: Path, drifts: list[float | None], level: str, words: str
) -> None:
    study = load_study(project_folder / "config/config.yaml")
    folder = Path("results/blocks/tiny")
    folder.mkdir(parents=True)
    for i, drift in enumerate(drifts):
        condition = {"capture": False, "locked_mhz": None, "drift": drift, "references": []}
        segment = {"segment_id": "000.a", "outcome": "finished", "drift": [condition]}
        record = {"block_id": f"{i}", "cells": {}, "segments": [segment]}
        (folder / f"{i}.json").write_text(json.dumps(record), encoding="utf-8")
    found = project.noise(study)
    assert found.level == level and re.search(words, found.found)
    if drifts:
        (folder / "torn.json").write_text("{", encoding="utf-8")
        assert project.noise(study).level == "warn"


PINNED = "0123456789" * 4


def study_with_checkpoint(engine: str, path: str, revision: str | None) -> Study:
    study = load_study(Path("config/config.yaml"))
    (model,) = study.models.values()
    checkpoint = model.checkpoint.model_copy(update={"path": path, "revision": revision, "prepare": None})
    models = {model.name: model.model_copy(update={"checkpoint": checkpoint})}
    used = study.file.engine.model_copy(update={"name": engine, "settings": {}})
    return study.model_copy(update={"models": models, "file": study.file.model_copy(update={"engine": used})})


@pytest.mark.parametrize("revision", [None, "main", PINNED])
@pytest.mark.parametrize(
    "path", ["m/tiny", "./m/tiny", "m", "deep/m/tiny", "/m/tiny", "~/m", "there/whole", "there/empty"]
)
def test_a_missing_checkpoint_fails_as_the_reference_engine_will(
    project_folder: Path, path: str, revision: str | None
) -> None:
    from specjoule.engines.reference.loading import locate

    for name in ("whole", "empty"):
        (project_folder / "there" / name).mkdir(parents=True)
    (project_folder / "there/whole/config.json").write_text("{}")
    study = study_with_checkpoint("reference", path, revision)
    found = project.models(study)
    (model,) = study.models.values()
    try:
        locate(model.checkpoint, None, model.name)
    except ConfigurationError:
        assert found.level == "fail" and f"no files for {model.name}: " in found.found and found.remedy
    else:
        assert found.level == "ok"


@pytest.mark.parametrize(
    ("path", "revision", "level"),
    [
        ("m/tiny", None, "fail"),
        ("Qwen/Qwen3-4B", "to-be-pinned", "ok"),
        ("deep/m/tiny", PINNED, "fail"),
        ("there", None, "ok"),
    ],
)
def test_a_missing_checkpoint_of_a_server_fails(
    project_folder: Path, path: str, revision: str | None, level: str
) -> None:
    Path("there").mkdir()
    assert project.models(study_with_checkpoint("sglang", path, revision)).level == level


def test_versions_are_compared_with_the_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# made\nnumpy==0.0.1\npandas[x]==0.0.2 ; python_version > '3'\n")
    assert project.pins(lock) == {"numpy": "0.0.1", "pandas": "0.0.2"}
    found = project.versions(lock)
    assert found.level == "warn"
    assert "instead of 0.0.1" in found.found
    assert project.versions(tmp_path / "none").level == "ok"
