"""A whole study from `snakemake` to figures: the double as server, the stand-in driver as board of known power."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from specjoule.blocks.journal import LAUNCH, read_events
from specjoule.study.load import load_study
from tests.conftest import make_project_folder
from tests.engines.sglang.double_board import METERS
from tests.engines.sglang.test_block import make_project

sys.path.insert(0, str(METERS))
import fake_nvml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
BOARD = {"idle_w": 100.0, "busy_w": 500.0, "ripple_w": 0.0, "decay_w": 0.0, "refresh_s": 0.05}
TOKENS, STEP_MS, WIDTH_MS = 96, 24, 1.0
DRAFTERS = ("plain", "ngram-4", "ngram-16", "tiny-eagle")


@dataclass(frozen=True)
class Done:
    """A finished run of the study."""

    folder: Path
    driver: fake_nvml.FakeDriver
    said: str

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / "paper_figures" / "double" / f"{name}.csv")

    def collected(self) -> pd.DataFrame:
        files = sorted((self.folder / "results" / "collected" / "double" / "blocks").glob("*.parquet"))
        return pd.concat([pd.read_parquet(f) for f in files])

    def record(self) -> dict[str, Any]:
        (file,) = (self.folder / "results" / "blocks" / "double").glob("*.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def board_study(folder: Path) -> None:
    """Make the block's study one of an H100 whose energy NVML tells."""
    make_project(folder, step_ms=STEP_MS, width_ms=WIDTH_MS)
    path = folder / "config" / "config.yaml"
    study = yaml.safe_load(path.read_text())
    study["meter"] = {"name": "nvml", "poll_ms": 5}
    settle = {"min_s": 0.2, "max_s": 1, "band_c": 1, "idle_s": 1}
    study["protocol"] |= {"max_new_tokens": TOKENS, "min_prompts": 8, "settle": settle}  # a second or more a window
    # The machine that tests is not one that measures: how late its client wakes is none of this test's business.
    study["validity"] = {"max_client_lag_ms": 2000, "max_batch_disagreement": 0.2}
    # One setting beyond speculation on the speculative side, which the record and the table have to name.
    study["engine"]["settings"]["models"] = {"tiny": {"speculative_flags": ["--disable-overlap-schedule"]}}
    study["grids"]["base"] |= {"gpus": ["H100"], "drafters": list(DRAFTERS), "concurrency": [4, 8]}
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    load_study(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Run the study once through Snakemake."""
    folder = tmp_path_factory.mktemp("study")
    make_project_folder(folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        board_study(folder)
    finally:
        os.chdir(here)
    driver = fake_nvml.FakeDriver(folder, fake_nvml.build(tmp_path_factory.mktemp("nvml")), [BOARD])
    hidden = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "SPECJOULE_STATE_DIR": str(folder / "state"),
        **driver.environment,
    }  # fmt: skip
    run = subprocess.run(
        [str(BIN / "snakemake"), "--cores", "2", "--configfile", "config/config.yaml"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    logs = "\n".join(p.read_text()[-3000:] for p in (folder / "results" / "logs" / "double").glob("*.log"))
    assert run.returncode == 0, run.stdout + run.stderr + logs
    return Done(folder, driver, run.stdout + run.stderr)


def test_every_cell_counts_and_every_item_is_there(done: Done) -> None:
    rows = done.collected()
    generation = rows[rows["window"] == "generation"]
    assert set(zip(generation["drafter"], generation["concurrency"], strict=True)) == {
        (d, c) for d in DRAFTERS for c in (4, 8)
    }
    assert set(generation["status"]) == {"ok"}
    assert set(generation["validity"]) == {"valid"}, generation["validity_reason"].unique()
    assert set(generation["meter"]) == {"nvml"}
    assert set(generation["gpu_uuid"]) == {done.driver.uuid()}
    assert generation["foreign_processes"].max() == 0
    manifest = json.loads((done.folder / "paper_figures/double/manifest.json").read_text())
    assert (manifest["cells"]["pairs"], manifest["cells"]["excluded"]) == (6, 0)
    for item in manifest["items"]:
        for file in item["files"]:
            assert (done.folder / "paper_figures/double" / file).stat().st_size > 0
    assert "Cells: 6 pairs, 0 excluded" in done.said


def test_energy_is_the_boards_known_power_times_time(done: Done) -> None:
    rows = done.collected()
    for row in rows[rows["energy_j"].notna()].to_dict("records"):
        truth = done.driver.truth_j(row["t_start_ns"], row["t_end_ns"])
        where = (row["drafter"], row["window"], row["duration_s"], row["energy_j"], truth)
        # A machine too busy to date the refreshes says so in the uncertainty; what is valid is within 2 % of it.
        assert abs(row["energy_j"] - truth) <= max(row["energy_uncertainty_j"], 0.005 * truth), where
        assert row["energy_j"] == pytest.approx(truth, rel=0.02), where
        assert truth == pytest.approx(BOARD["busy_w"] * row["duration_s"], rel=0.1), where
    assert rows["idle_power_w"].to_numpy() == pytest.approx(BOARD["idle_w"], rel=0.1)


def test_tables_hold_joules_per_committed_token(done: Done) -> None:
    rows = done.collected()
    rows = rows[(rows["window"] == "generation") & (rows["role"] == "cell")]
    cells = done.table("table_cells")
    for (drafter, n), cell in cells[cells["role"] == "cell"].groupby(["drafter", "concurrency"]):
        mine = rows[(rows["drafter"] == drafter) & (rows["concurrency"] == n)]
        truth = sum(done.driver.truth_j(a, b) for a, b in zip(mine["t_start_ns"], mine["t_end_ns"], strict=True))
        assert mine["committed_tokens"].sum() == TOKENS * n * len(mine)
        assert cell["j_per_token"].item() == pytest.approx(truth / mine["committed_tokens"].sum(), rel=0.02)
    seconds = rows.groupby(["drafter", "concurrency"])["duration_s"].sum()
    pairs = done.table("table_verdicts")
    assert len(pairs) == 6
    for pair in pairs.to_dict("records"):
        here = (pair["drafter"], pair["concurrency"])
        # One power, the same tokens on both sides: the ratio of energies is that of times.
        assert pair["ratio_median"] == pytest.approx(seconds[here] / seconds["plain", here[1]], rel=0.05)


def test_plain_stands_at_both_ends_and_barely_drifts(done: Done) -> None:
    (journal,) = (done.folder / "results" / "store").rglob("journal.jsonl")
    started = [e for e in read_events(journal) if e["event"] == LAUNCH]
    assert [e["drafter"] for e in started[:: len(started) - 1]] == ["plain", "plain"]
    assert sorted(e["drafter"] for e in started[1:-1]) == sorted(DRAFTERS[1:])
    assert all(e["idle_power_w"] == pytest.approx(BOARD["idle_w"], rel=0.1) for e in started)
    (segment,) = done.record()["segments"]
    assert segment["outcome"] == "finished" and segment["errors"] == []
    assert abs(segment["drift"][0]["drift"]) < 0.05
    shown = {e["drafter"]: e["graphs"]["roles"] for e in segment["launches"] if e["role"] == "cell"}
    assert set(shown["plain"]) == set(shown["ngram-4"]) == {"target"}
    assert set(shown["tiny-eagle"]) == {"target", "draft", "draft_extend"}
    assert all(r["with_graph"] == r["passes"] > 0 for roles in shown.values() for r in roles.values())


def test_what_differs_beyond_speculation_is_in_the_record_and_in_a_table(done: Done) -> None:
    (segment,) = done.record()["segments"]
    difference = {"setting": "disable_overlap_schedule", "kind": "scheduler", "plain": False, "value": True}
    compared = segment["settings_compared"]
    assert sorted(c["drafter"] for c in compared) == sorted(DRAFTERS[1:])
    assert all(c["against"] == "plain" and c["differences"] == [difference] for c in compared)
    table = done.table("table_settings")
    assert sorted(table["drafter"]) == sorted(DRAFTERS[1:])
    assert set(table["setting"]) == {"disable_overlap_schedule"} and set(table["kind"]) == {"scheduler"}


def test_nothing_of_it_runs_on(done: Done) -> None:
    assert done.driver[0].n_processes == 0
