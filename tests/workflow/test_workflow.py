"""The workflow as its users call it: plain `snakemake` in a copy of the project, counted by what was measured."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import REPO, SCRIPTED, write_study

from specjoule.blocks.journal import CELL, read_events

BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}


def snakemake(folder: Path, *arguments: str, expect: int = 0) -> str:
    command = [str(BIN / "snakemake"), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def measured(folder: Path) -> list[dict[str, Any]]:
    """Every finished attempt in the journals, in no order."""
    events = [e for j in (folder / "results" / "store").rglob("journal.jsonl") for e in read_events(j)]
    return [e for e in events if e["event"] == CELL and e["status"] != "failed"]


def keys(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((e["role"], e["path"]) for e in events)


def edit_study(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    study = copy.deepcopy(SCRIPTED)
    edit(study)
    write_study(folder, study)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny study was run once; tests take copies."""
    from tests.conftest import make_project_folder

    folder = tmp_path_factory.mktemp("study")
    make_project_folder(folder)
    said = snakemake(folder)
    assert "tables and figures in paper_figures/tiny/" in said
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "copy"
    shutil.copytree(finished, copied, copy_function=shutil.copy2)
    return copied


def test_a_plain_run_measures_all_and_builds_every_item(finished: Path) -> None:
    events = measured(finished)
    assert sum(e["role"] == "cell" for e in events) == 8
    assert sum(e["role"] == "reference" for e in events) == 2
    manifest = json.loads((finished / "paper_figures/tiny/manifest.json").read_text())
    for item in manifest["items"]:
        for file in item["files"]:
            assert (finished / "paper_figures/tiny" / file).stat().st_size > 0
    assert "simulated" in manifest["energy"]


def test_a_second_run_has_nothing_to_do(folder: Path) -> None:
    assert "Nothing to be done" in snakemake(folder)


def test_one_drafters_setting_measures_its_cells_and_their_partners(folder: Path) -> None:
    before = measured(folder)
    path = folder / "config" / "drafters.yaml"
    path.write_text(path.read_text().replace("{max_ngram: 3, min_ngram: 1}", "{max_ngram: 4, min_ngram: 1}", 1))
    snakemake(folder)
    new = measured(folder)[len(before) :]
    counted = [(e["role"], e["drafter"]) for e in new]
    assert counted.count(("cell", "ngram-4")) == 4
    assert counted.count(("cell", "plain")) == 4
    assert counted.count(("reference", "plain")) == 2
    assert len(counted) == 10


def test_an_added_concurrency_measures_the_new_cells_only(folder: Path) -> None:
    before = keys(measured(folder))
    edit_study(folder, lambda s: s["grids"]["base"].update(concurrency=[1, 4, 8]))
    snakemake(folder)
    new = keys(measured(folder))
    for key in before:
        new.remove(key)
    assert len([k for k in new if k[0] == "cell"]) == 4
    assert all("/c8/" in path for _, path in new)


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.update(analysis={"tie_margin": 0.03}),
        lambda s: s.update(validity={"max_block_drift": 0.04}),
        lambda s: s.update(title="a better title"),
    ],
)
def test_an_analysis_constant_measures_nothing(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    before = keys(measured(folder))
    edit_study(folder, edit)
    snakemake(folder)
    assert keys(measured(folder)) == before


def test_a_comment_in_a_script_measures_nothing(folder: Path) -> None:
    before = keys(measured(folder))
    for script in (folder / "workflow" / "scripts").glob("*.py"):
        script.write_text(script.read_text() + "\n# a comment\n")
    for rules in (folder / "workflow" / "rules").glob("*.smk"):
        rules.write_text(rules.read_text() + "\n# a comment\n")
    (folder / "Snakefile").write_text((folder / "Snakefile").read_text() + "\n# a comment\n")
    assert "Nothing to be done" in snakemake(folder)
    assert keys(measured(folder)) == before


@pytest.mark.parametrize("key", ["protocol", "engine"])
def test_a_new_protocol_or_engine_version_measures_everything(folder: Path, key: str) -> None:
    before = measured(folder)
    if key == "engine":
        edit_study(folder, lambda s: s["engine"].update(version="next"))
        snakemake(folder)
    else:
        # The version is a constant of the library; a library that is one version on stands beside this one.
        ahead = folder / "ahead"
        ahead.mkdir()
        (ahead / "sitecustomize.py").write_text("import specjoule.version\nspecjoule.version.PROTOCOL_VERSION += 1\n")
        command = [str(BIN / "snakemake")]
        env = environment() | {"PYTHONPATH": str(ahead)}
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=240)
    new = measured(folder)[len(before) :]
    assert sum(e["role"] == "cell" for e in new) == 8


def test_a_deleted_raw_file_comes_back_without_a_measurement(folder: Path) -> None:
    before = keys(measured(folder))
    victim = next((folder / "results" / "raw").rglob("*.parquet"))
    content = victim.read_bytes()
    victim.unlink()
    snakemake(folder)
    assert victim.read_bytes() == content
    assert keys(measured(folder)) == before


def test_a_checkout_whose_path_has_a_space_runs(tmp_path: Path) -> None:
    from tests.conftest import make_project_folder

    folder = tmp_path / "a check out"
    folder.mkdir()
    make_project_folder(folder)
    edit_study(folder, lambda s: s["grids"]["base"].update(seeds=[1], concurrency=[1]))
    (folder / ".venv").symlink_to(BIN.parent)
    done = subprocess.run(
        [folder / ".venv/bin/python", "-m", "snakemake"], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tables and figures in paper_figures/tiny/" in done.stdout
    assert len(measured(folder)) == 3


def test_the_default_profile_goes_with_another_one(folder: Path) -> None:
    other = folder / "mine"
    other.mkdir()
    (other / "config.yaml").write_text("printshellcmds: true\nkeep-going: true\n")
    assert "Nothing to be done" in snakemake(folder, "--profile", "mine")
    profile = yaml.safe_load((folder / "profiles" / "default" / "config.yaml").read_text())
    assert set(profile) == {"cores"}


def test_a_wrong_study_starts_no_job_and_says_what_to_do(folder: Path) -> None:
    edit_study(folder, lambda s: s["grids"]["base"].update(drafters=["plain", "ngrm-4"]))
    said = snakemake(folder, expect=1)
    assert "config/config.yaml: grids.base.drafters: no 'ngrm-4' in the catalogue; did you mean 'ngram-4'?" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_interrupted_at_any_moment_a_plain_rerun_finishes(project_folder: Path, end: signal.Signals) -> None:
    study = copy.deepcopy(SCRIPTED)
    study["engine"]["host_settings"] = {"seconds_per_wave": 0.25}
    write_study(project_folder, study)
    run = subprocess.Popen(
        [str(BIN / "snakemake")], cwd=project_folder, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(measured(project_folder)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(run.pid, end)
    run.wait(60)
    held = measured(project_folder)
    assert 3 <= len(held) < 10
    study["engine"]["host_settings"] = {"seconds_per_wave": 0}
    write_study(project_folder, study)
    if end is signal.SIGKILL:
        snakemake(project_folder, "--unlock")
    snakemake(project_folder, "--rerun-incomplete")
    after = measured(project_folder)
    spec = [e["path"] for e in after if e["drafter"] != "plain" and e["role"] == "cell"]
    assert len(spec) == len(set(spec)) == 4, "a drafter's cell was measured twice or not at all"
    assert (project_folder / "paper_figures" / "tiny" / "manifest.json").exists()


def make_run_arguments() -> list[str]:
    """What `make run` passes to Snakemake."""
    line = next(one for one in (REPO / "Makefile").read_text(encoding="utf-8").splitlines() if " snakemake " in one)
    return line.split(" snakemake ")[1].split()


@pytest.mark.parametrize("whole_group", [True, False], ids=["with its jobs", "alone"])
def test_make_run_goes_on_after_kill_9_of_snakemake(project_folder: Path, whole_group: bool) -> None:
    study = copy.deepcopy(SCRIPTED)
    study["engine"]["host_settings"] = {"seconds_per_wave": 0.25}
    write_study(project_folder, study)
    assert "--nolock" in make_run_arguments()
    run = subprocess.Popen(
        [str(BIN / "snakemake"), *make_run_arguments()], cwd=project_folder, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(measured(project_folder)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    # Its job measures on, and the next run's job for the same block waits for it.
    (os.killpg if whole_group else os.kill)(run.pid, signal.SIGKILL)
    run.wait(60)
    assert 3 <= len(measured(project_folder)) < 10
    snakemake(project_folder, *make_run_arguments())
    paths = Counter((e["role"], e["path"]) for e in measured(project_folder) if e["drafter"] != "plain")
    assert len(paths) == 4 and set(paths.values()) == {1}, "a drafter's cell was measured twice or not at all"
    assert (project_folder / "paper_figures" / "tiny" / "manifest.json").exists()


@pytest.mark.slow
def test_planning_two_thousand_cells_takes_less_than_four_seconds(project_folder: Path) -> None:
    edit_study(
        project_folder,
        lambda s: s["grids"]["base"].update(
            drafters=["plain", "ngram-4", "ngram-16", "layerskip-4"],
            concurrency=[1, 2, 4, 8, 16],
            corpora=["code", "conversation"],
            seeds=list(range(50)),
        ),
    )
    best = float("inf")
    for _ in range(3):
        before = os.times()
        said = snakemake(project_folder, "-n", "--quiet", "all")
        after = os.times()
        # Processor time of the call: on a shared machine the wall clock measures the neighbours.
        used = after.children_user - before.children_user + after.children_system - before.children_system
        best = min(best, used)
    assert best < 4.0, said[-500:]
