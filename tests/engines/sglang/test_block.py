"""A complete block over the protocol double, through the block runner: plain at both ends, three drafters."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from specjoule.blocks.devices import open_devices
from specjoule.blocks.journal import LAUNCH
from specjoule.blocks.runner import Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.engines.settings_diff import beyond_speculation
from specjoule.workflow import Project, open_project
from tests.conftest import write_study
from tests.engines.sglang.test_engine import DOUBLE
from tests.engines.sglang.tiny import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EAGLE = {
    "scheme": "eagle3", "draft_tokens": 3, "verify_width": 4, "serial_steps": 3, "origin": "third-party",
}  # fmt: skip


def add(path: Path, kind: str, entry: dict[str, Any]) -> None:
    """Add entries to a catalogue file of the copied project."""
    catalogue = yaml.safe_load(path.read_text())
    catalogue[kind] |= entry
    path.write_text(yaml.safe_dump(catalogue, sort_keys=False))


def make_project(folder: Path, faults: dict[str, Any] | None = None, **more: Any) -> Project:
    """Turn the copied project into one that measures the double."""
    config = folder / "config"
    target, draft = write_checkpoint(folder / "tiny"), write_checkpoint(folder / "draft")
    models = yaml.safe_load((config / "models.yaml").read_text())["models"]
    tiny = models["smollm2-135m-instruct"] | {
        "checkpoint": {"path": str(target), "revision": "tiny-1"}, "weight_dtype": "bfloat16", "kv_dtype": "bfloat16"
    }  # fmt: skip
    add(config / "models.yaml", "models", {"tiny": tiny})
    eagle = {"tiny-eagle": EAGLE | {"checkpoints": {"tiny": {"path": str(draft), "revision": "draft-1"}}}}
    add(config / "drafters.yaml", "drafters", eagle)
    double = {"step_ms": 8, "faults": faults or {}, **more}
    study = {
        "study": "double",
        "engine": {
            "name": "sglang",
            "version": "0.5.23",
            "settings": {"environment": {"SPECJOULE_DOUBLE": json.dumps(double)}},
            "host_settings": {
                "entry": [sys.executable, str(DOUBLE)], "stop_grace_s": 2, "ready_poll_s": 0.05, "start_deadline_s": 60
            },
        },
        "meter": {"name": "estimate"},
        "protocol": {
            "max_new_tokens": 32, "min_prompts": 4, "min_window_s": 0, "reference_cells": 1, "warm_up_tokens": 4,
            "settle": {"min_s": 0.1, "max_s": 1, "band_c": 1, "idle_s": 0.1},
        },
        "grids": {
            "base": {
                "models": ["tiny"], "gpus": ["cpu"], "drafters": ["plain", "ngram-4", "ngram-16", "tiny-eagle"],
                "concurrency": [1, 4], "corpora": ["code"], "seeds": [1], "capture": [True],
            }
        },
    }  # fmt: skip
    write_study(folder, study)
    return open_project()


def measure(project: Project) -> list[dict[str, Any]]:
    """Measure the one block; return all its raw rows."""
    (block,) = project.blocks
    folders = Folders(project.raw, project.store, project.cache, project.logs)
    gpu = project.study.gpus[block.gpu]
    measure_block(project.study, block, folders, lambda: open_devices(project.study, gpu, block.id, block.replicate))
    return [row for cell in block.cells for row in pq.read_table(project.raw / cell.path).to_pylist()]


def launches(project: Project) -> list[dict[str, Any]]:
    (block,) = project.blocks
    journal = BlockStore(project.store, project.name, block.id).journal
    return [e for e in journal.events() if e["event"] == LAUNCH]


def test_block_with_plain_at_both_ends_and_three_drafters(project_folder: Path) -> None:
    project = make_project(project_folder)
    rows = [r for r in measure(project) if r["window"] == "generation"]
    started = launches(project)
    assert started[0]["drafter"] == started[-1]["drafter"] == "plain"
    assert Counter(e["drafter"] for e in started) == {"plain": 2, "ngram-4": 1, "ngram-16": 1, "tiny-eagle": 1}
    assert {(r["drafter"], r["concurrency"]) for r in rows} == {
        (d, c) for d in ("plain", "ngram-4", "ngram-16", "tiny-eagle") for c in (1, 4)
    }
    for row in rows:
        assert row["status"] == "ok", row["reason_detail"]
        assert row["committed_tokens"] == 32 * row["concurrency"]
        assert row["engine_version"] == "sglang-0.5.23"
        assert row["model_revision"] == "tiny-1"
        assert row["capture_verified"] is True
        assert row["realized_batch_peak"] == row["concurrency"]
        assert row["cached_tokens"] == 0
        decoded = row["committed_tokens"] - row["concurrency"]
        assert row["rounds"] == decoded if row["drafter"] == "plain" else row["rounds"] < decoded
        assert row["realized_batch_engine"] == pytest.approx(row["realized_batch"], rel=0.25)
    eagle = next(e for e in started if e["drafter"] == "tiny-eagle")
    assert all(r["drafter_revision"] == "draft-1" for r in rows if r["drafter"] == "tiny-eagle")
    assert beyond_speculation(started[0]["resolved"], eagle["resolved"]) == ()


def test_cells_that_cannot_run_are_rows_and_cost_no_other(project_folder: Path) -> None:
    message = "RuntimeError: Prefill out of memory. Try to lower your batch size."
    project = make_project(project_folder, faults={"die_after": [150, message]})
    rows = [r for r in measure(project) if r["window"] == "generation"]
    status = Counter(r["status"] for r in rows)
    assert status["infeasible"] > 0 and status["ok"] > 0
    assert {r["reason"] for r in rows if r["status"] == "infeasible"} == {"oom_run"}


def test_a_grid_of_contexts_brings_both_sides_to_each_length(project_folder: Path) -> None:
    make_project(project_folder)
    path = project_folder / "config" / "config.yaml"
    study = yaml.safe_load(path.read_text())
    study["grids"]["base"] |= {"drafters": ["plain", "ngram-4"], "concurrency": [4], "context_tokens": [900, 1024]}
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    rows = [r for r in measure(open_project()) if r["window"] == "generation"]
    assert {(r["drafter"], r["context_tokens"], r["status"]) for r in rows} == {
        (d, n, "ok") for d in ("plain", "ngram-4") for n in (900, 1024)
    }
    assert all(r["prompt_tokens"] == 4 * r["context_tokens"] for r in rows)
