"""Every fault a server is known for, put in from outside and followed to what collect says, or to the failed job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from specjoule.blocks.block import Block
from specjoule.blocks.devices import open_devices
from specjoule.blocks.journal import CELL, ERROR, LAUNCH
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import BlockFailed, Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.windows.collect import collect_files
from specjoule.windows.drift import drifts_of
from specjoule.workflow import Project, open_project
from tests.engines.sglang.test_block import make_project
from tests.engines.sglang.test_engine import CAPTURE_OOM, OOM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HANG = {"stall_s": 1.5}
TORN = "tiny-eagle"
LENIENT = {
    "max_client_lag_ms": 1e4, "max_relative_uncertainty": 1, "max_cross_check": 9, "max_batch_disagreement": 0.5,
}  # fmt: skip
"""What is judged here is the fault; a busy machine's meter and client are judged elsewhere."""


@dataclass
class Told:
    """What a block says after it was measured, and the error its job ended with."""

    project: Project
    rows: list[dict[str, Any]]
    failed: str | None
    events: list[dict[str, Any]]
    files: list[Path] = field(default_factory=list)

    def of(self, drafter: str) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["drafter"] == drafter and r["window"] == "generation" and r["role"] == "cell"]

    def verdict(self, drafter: str = TORN) -> tuple[str, str | None, str, str | None]:
        """The one verdict on a drafter's cells: status, reason, validity, its reasons."""
        (found,) = {(r["status"], r["reason"], r["validity"], r["validity_reason"]) for r in self.of(drafter)}
        return found

    def launches(self, drafter: str = TORN) -> int:
        return sum(e["event"] == LAUNCH and e["drafter"] == drafter for e in self.events)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The transient troubles that the journal keeps."""
        return [e for e in self.events if e["event"] == ERROR]


VALID = ("ok", None, "valid", None)


def told(project: Project) -> Told:
    """Measure the block and collect what it left."""
    (block,) = project.blocks
    folders = Folders(project.raw, project.store, project.cache, project.logs)
    failed = None
    try:
        measure_block(project.study, block, folders, lambda: _devices(project, block))
    except BlockFailed as error:
        failed = str(error)
    store = BlockStore(project.store, project.name, block.id)
    files = [f for f in map(project.raw_file, block.cells) if f.exists()]
    rules = project.study.file.validity
    rows = collect_files(files, project.raw, rules, drifts_of(block_record(block, store, rules)))
    return Told(project, rows.to_pylist(), failed, list(store.journal.events()), files)


def _devices(project: Project, block: Block) -> Any:
    return open_devices(project.study, project.study.gpus[block.gpu], block.id, block.replicate)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Project:
    """Change the study file and open it again."""
    path = folder / "config" / "config.yaml"
    study = yaml.safe_load(path.read_text())
    change(study)
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return open_project()


@pytest.fixture
def torn(project_folder: Path) -> Callable[..., Told]:
    """Return a function that measures plain and one drafter whose servers (all, or the first alone) have faults."""

    def run(
        faults: dict[str, Any], *, once: bool = False, host: dict[str, Any] | None = None, concurrency: Any = (4,)
    ) -> Told:
        more: dict[str, Any] = {"faults_once": str(project_folder / "struck")} if once else {}
        make_project(project_folder, faults, faults_on="EAGLE3", **more)

        def change(study: dict[str, Any]) -> None:
            study["engine"]["host_settings"] |= host or {}
            study["grids"]["base"] |= {"drafters": ["plain", TORN], "concurrency": list(concurrency)}
            study["protocol"] |= {"reference_cells": 0}
            study["validity"] = dict(LENIENT)

        return told(edit(project_folder, change))

    return run


Torn = Callable[..., Told]


def test_without_a_fault_both_sides_count(torn: Torn) -> None:
    found = torn({})
    assert found.failed is None
    assert found.verdict("plain") == found.verdict() == VALID
    assert found.errors == []


# -- transient: ends that server, keeps what was measured, one more on a fresh one, then fails the job with the log


TRANSIENT = [
    ("engine_hang", {"never_ready": True}, {"start_deadline_s": 2}, "fired up and ready"),
    ("engine_hang", {"hang_after": 20}, HANG, "stopped answering"),
    ("stream_broken", {"drop_after": 20}, {}, "ended early"),
    ("engine_crash", {"kill_after": 20, "orphan": True}, {}, "SIGKILL"),
    (
        "engine_hang",
        {"die_after": [20, "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"]},
        {},
        "watchdog timeout",
    ),
]


@pytest.mark.parametrize(("reason", "faults", "host", "words"), TRANSIENT)
def test_trouble_that_stays_fails_the_job_with_the_logs_lines(
    torn: Torn, reason: str, faults: dict[str, Any], host: dict[str, Any], words: str
) -> None:
    found = torn(faults, host=host)
    assert found.failed is not None and words in found.failed and "run again to go on" in found.failed
    assert found.verdict("plain") == VALID, "a crash in one cell never loses another"
    assert found.of(TORN) == [], "a cell without a result leaves no row"
    (cell,) = [e for e in found.events if e["event"] == CELL and e["drafter"] == TORN]
    assert (cell["status"], cell["reason"]) == ("failed", reason)
    assert words in cell["message"]
    assert [e["reason"] for e in found.errors] == [reason, reason], "tried once more and no more"


@pytest.mark.parametrize(("reason", "faults", "host", "words"), [TRANSIENT[1], TRANSIENT[3]])
def test_trouble_that_passes_costs_one_launch(
    torn: Torn, reason: str, faults: dict[str, Any], host: dict[str, Any], words: str
) -> None:
    found = torn(faults, once=True, host=host)
    assert found.failed is None
    assert found.verdict("plain") == found.verdict() == VALID
    (error,) = found.errors
    assert error["reason"] == reason and words in error["message"]


def test_a_crash_keeps_the_cell_before_it(torn: Torn) -> None:
    # Warm-up takes some 15 chunks and each of the two cells some 60: every server of both dies in its second cell.
    found = torn({"kill_after": 100}, concurrency=(1, 4))
    assert found.failed is None
    assert found.verdict("plain") == found.verdict() == VALID
    assert {r["concurrency"] for r in found.of(TORN)} == {1, 4}
    assert (found.launches(), len(found.errors)) == (2, 1)
    first, second = [e for e in found.events if e["event"] == CELL and e["drafter"] == TORN]
    assert first["launch"] < second["launch"]


# -- infeasible: a row with reason and capacity, not retried


def test_out_of_memory_in_capture_is_a_row_with_the_log(torn: Torn) -> None:
    found = torn({"die": {"phase": "capture", "message": CAPTURE_OOM}}, concurrency=(1, 4))
    assert found.failed is None
    assert found.verdict("plain") == VALID
    assert found.verdict() == ("infeasible", "oom_capture", "not_measured", "oom_capture")
    assert all(CAPTURE_OOM.splitlines()[0] in r["reason_detail"] for r in found.of(TORN))
    assert {r["energy_j"] for r in found.of(TORN)} == {None}
    assert found.errors == []


def test_out_of_memory_in_a_wave_names_the_capacity(torn: Torn) -> None:
    found = torn({"die_after": [20, OOM]})
    assert found.failed is None
    assert found.verdict() == ("infeasible", "oom_run", "not_measured", "oom_run")
    assert {r["capacity_requests"] for r in found.of(TORN)} == {4}
    assert found.launches() == 1


# -- the server's word is wrong: never a zero, never retried


@pytest.mark.parametrize("name", ["spec_verify_ct", "decode_moments"])
def test_a_missing_field_fails_the_job_and_names_it(torn: Torn, name: str) -> None:
    found = torn({"omit": name})
    assert found.failed is not None and f"lacks '{name}'" in found.failed
    assert found.verdict("plain") == VALID
    assert found.of(TORN) == []
    (cell,) = [e for e in found.events if e["event"] == CELL and e["drafter"] == TORN]
    assert (cell["status"], cell["reason"]) == ("failed", "counts_missing")


@pytest.mark.parametrize(
    ("faults", "reasons"),
    [
        ({"short": 6}, "short_answer"),
        ({"lose": 1}, "denominator_mismatch,short_answer"),
        ({"cached": 5}, "cache_hit"),
        ({"eager": True}, "capture_fell_back"),
        ({"no_draft_graph": True}, "capture_fell_back"),
    ],
)
def test_a_wave_that_is_not_what_was_asked_is_kept_and_invalid(
    torn: Torn, faults: dict[str, Any], reasons: str
) -> None:
    found = torn(faults)
    assert found.failed is None
    assert found.verdict("plain") == VALID
    assert found.verdict() == ("ok", None, "invalid", reasons)
    assert all(r["energy_j"] > 0 and r["attempt"] == 1 for r in found.of(TORN)), "content is not tried again"


def test_a_batch_below_the_asked_one_is_partial_at_its_own(torn: Torn) -> None:
    found = torn({"running_limit": 3})
    assert found.failed is None
    status, reason, _, _ = found.verdict()
    assert (status, reason) == ("partial", "capacity")
    for row in found.of(TORN):
        assert (row["capacity_requests"], row["realized_batch_peak"], row["concurrency"]) == (3, 3, 4)
        assert row["energy_j"] > 0


# -- beginnings and ends


def test_a_slow_start_is_waited_for(torn: Torn) -> None:
    found = torn({"slow_start_s": 3})
    assert found.verdict() == VALID and found.launches() == 1


def test_ignored_term_and_an_orphan_cost_nothing(torn: Torn) -> None:
    found = torn({"ignore_term": True, "orphan": True})
    assert found.verdict() == VALID
    (log,) = [e["log"] for e in found.events if e["event"] == LAUNCH and e["drafter"] == TORN]
    orphan = int(Path(log).read_text().split("orphan ")[1].split()[0])
    assert not psutil.pid_exists(orphan)


def test_the_failed_job_says_why_and_a_rerun_measures_the_rest(project_folder: Path) -> None:
    """Through `snakemake`, as a user meets it: the log's lines on the screen, and nothing measured twice."""
    broken = project_folder / "broken"
    broken.touch()
    make_project(project_folder, {"never_ready": True}, faults_on="EAGLE3", faults_while=str(broken))

    def change(study: dict[str, Any]) -> None:
        study["engine"]["host_settings"] |= {"start_deadline_s": 3}
        study["grids"]["base"] |= {"drafters": ["plain", "ngram-4", TORN], "concurrency": [4]}
        study["validity"] = dict(LENIENT)

    project = edit(project_folder, change)
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}

    def snakemake() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(binaries / "snakemake"), "--cores", "2", "raw"],
            cwd=project_folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    def finished() -> list[str]:
        journal = BlockStore(project.store, project.name, project.blocks[0].id).journal
        return [
            e["drafter"] for e in journal.events()
            if e["event"] == CELL and e["role"] == "cell" and e["status"] != "failed"
        ]  # fmt: skip

    first = snakemake()
    assert first.returncode == 1
    assert "The engine stopped answering" in first.stderr and "fired up and ready" in first.stderr
    assert sorted(finished()) == ["ngram-4", "plain"]
    broken.unlink()
    second = snakemake()
    assert second.returncode == 0, second.stderr
    # The drafter that failed, and plain once more as its partner in the new segment.
    assert sorted(finished()) == ["ngram-4", "plain", "plain", TORN]
