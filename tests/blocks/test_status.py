"""`study_status`: every state, every reason, from journals alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, CELL_START, ERROR, REMEASURE, SEGMENT, Journal
from specjoule.blocks.lock import block_lock
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import BlockFailed
from specjoule.blocks.status import STATES, study_status
from specjoule.blocks.store import BlockStore
from specjoule.blocks.todo import cell_parts
from specjoule.cells.cell import Cell
from specjoule.errors import StoreError
from specjoule.files import write_json
from specjoule.windows.collect import collect_files
from specjoule.windows.drift import drifts_of
from specjoule.workflow import Project

from .studies import measure, small_project


def journal_of(project: Project, block: Block) -> Journal:
    return Journal(project.store / project.name / block.id / "journal.jsonl")


def finish(journal: Journal, cell: Cell, segment: str = "000.a", **fields: object) -> None:
    given = {"status": "ok", "reason": None, "validity": "valid", "validity_reasons": [], "seconds": 2.0, **fields}
    names = {"segment_id": segment, "cell_hash": cell.hash, "path": cell.path, "parts": cell_parts(cell)}
    journal.append(CELL, role="cell", attempt=1, **names, **given)


def test_nothing_begun(study_folder: Path) -> None:
    status = study_status(small_project())
    assert status.counts == {**dict.fromkeys(STATES, 0), "missing": 12}
    assert status.eta_s is not None and status.eta_s > 0
    assert status.measured_cells == 0
    assert (status.blocks, status.blocks_finished) == (2, 0)


def test_a_finished_study(study_folder: Path) -> None:
    project = small_project()
    for block in project.blocks:
        measure(project, block)
    status = study_status(project)
    assert status.counts["done"] == status.cells == 12
    assert {(r.drafter, r.counts["done"]) for r in status.rows} == {("plain", 4), ("ngram-4", 4), ("layerskip-4", 4)}
    assert status.eta_s is None and status.left_s == 0
    assert status.blocks_finished == 2


def test_every_state_is_counted_with_its_reasons(study_folder: Path) -> None:
    project = small_project(grid={"concurrency": [1, 2, 4, 8], "drafters": ["plain", "ngram-4"], "seeds": [1]})
    (block,) = project.blocks
    journal = journal_of(project, block)
    journal.append(SEGMENT, segment_id="000.a")
    plain = [c for c in block.cells if c.drafter == "plain"]
    drafted = [c for c in block.cells if c.drafter == "ngram-4"]
    for cell in plain:
        finish(journal, cell)
    finish(journal, drafted[0], validity="invalid", validity_reasons=["meter_gap", "foreign_processes"])
    finish(journal, drafted[1], status="partial", reason="capacity")
    finish(journal, drafted[2], status="infeasible", reason="oom_run", validity="not_measured")
    journal.append(ERROR, segment_id="000.a", message="the server ended by itself")
    journal.append(
        CELL, segment_id="000.a", cell_hash=drafted[3].hash, path=drafted[3].path, role="cell", status="failed",
        reason="engine_crash", attempt=0,
    )  # fmt: skip
    status = study_status(project)
    row = next(r for r in status.rows if r.drafter == "ngram-4")
    assert row.counts == {**dict.fromkeys(STATES, 0), "invalid": 1, "partial": 1, "infeasible": 1, "failed": 1}
    assert status.reasons == {
        "invalid": {"meter_gap": 1, "foreign_processes": 1},
        "partial": {"capacity": 1},
        "infeasible": {"oom_run": 1},
        "failed": {"engine_crash": 1},
    }
    assert status.last_error == f"{block.id}: the server ended by itself"
    journal.append(REMEASURE, cell_hash=drafted[0].hash)
    assert study_status(project).reasons["stale"] == {"marked for remeasuring": 1}


def test_running_needs_a_live_runner(study_folder: Path) -> None:
    project = small_project()
    block = project.blocks[0]
    journal = journal_of(project, block)
    journal.append(SEGMENT, segment_id="000.a")
    journal.append(CELL_START, segment_id="000.a", cell_hash=block.cells[0].hash, path=block.cells[0].path)
    assert study_status(project).counts["running"] == 0  # killed: the journal ends in a start, nobody holds the lock
    with block_lock(journal.path.with_name("lock")):
        status = study_status(project, now=time.time() + 5)
    assert status.counts["running"] == 1
    (running,) = status.running
    assert (running.block_id, running.path) == (block.id, block.cells[0].path)
    assert running.since_s is not None and 5 <= running.since_s < 60


def test_one_edit_makes_stale_what_it_concerns(study_folder: Path) -> None:
    project = small_project()
    for block in project.blocks:
        measure(project, block)
    changed = small_project(engine={"name": "scripted", "settings": {"accept": 0.6}})
    status = study_status(changed)
    assert status.counts["stale"] == 12
    assert status.reasons["stale"] == {"engine settings changed": 12}


def test_plain_measured_anew_makes_its_drafters_incomplete(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    broken = {"name": "scripted", "settings": {}, "host_settings": {"fail": {"plain/c4": "bug"}}}
    with pytest.raises(BlockFailed):
        measure(small_project(grid={"seeds": [1]}, engine=broken), block)
    status = study_status(project)
    assert status.reasons["failed"] == {"counts_missing": 1}
    assert status.reasons["stale"] == {"plain side not in the same segment": 2}
    measure(project, block)
    assert study_status(project).counts["done"] == 6


@pytest.mark.parametrize("limit", [0.05, 0.2])
def test_a_block_that_drifted_too_far_does_not_count_as_it_will_not_in_the_tables(
    study_folder: Path, limit: float
) -> None:
    project = small_project(grid={"seeds": [1]}, validity={"max_block_drift": limit})
    (block,) = project.blocks
    measure(project, block)
    record = block_record(block, BlockStore(project.store, project.name, block.id), project.study.file.validity)
    (drift,) = record["segments"][0]["drift"]
    drift["drift"] = -0.11
    write_json(project.record(block.id), record)
    status = study_status(project)
    files = [project.raw_file(cell) for cell in block.cells]
    rows = collect_files(files, project.raw, project.study.file.validity, drifts_of(record)).to_pandas()
    excluded = rows.loc[rows["role"].eq("cell") & rows["validity"].eq("invalid"), "cell_hash"].nunique()
    assert status.counts["invalid"] == excluded == (6 if limit < 0.11 else 0)
    assert status.counts["done"] == 6 - excluded
    assert status.reasons == ({"invalid": {"block_drift": 6}} if excluded else {})


def test_a_damaged_record_is_one_sentence(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    write_json(project.record(project.blocks[0].id), {"segments": [{}]})
    with pytest.raises(StoreError, match=r"is not a block's record .*; run snakemake"):
        study_status(project)


def test_status_is_plain_json(study_folder: Path) -> None:
    assert json.loads(json.dumps(study_status(small_project()).to_dict()))["cells"] == 12


def test_fast_at_fourteen_thousand_cells(study_folder: Path) -> None:
    drafters = ["plain", "ngram-4", "ngram-16", "layerskip-4"]
    seeds, sizes = list(range(1, 42)), list(range(1, 29))
    grid = {"concurrency": sizes, "seeds": seeds, "corpora": ["code", "conversation"], "drafters": drafters}
    grid["replicates"] = [1, 2]
    project = small_project(grid=grid)
    assert len(project.cells) >= 14_000
    for block in project.blocks:
        journal = journal_of(project, block)
        journal.path.parent.mkdir(parents=True)
        lines = []
        for cell in block.cells:
            lines.append(
                {"event": CELL_START, "time": 1.0, "segment_id": "000.a", "cell_hash": cell.hash, "path": cell.path}
            )
            lines.append(
                {
                    "event": CELL, "time": 1.0, "segment_id": "000.a", "cell_hash": cell.hash, "path": cell.path,
                    "drafter": cell.drafter, "launch": 0, "attempt": 1, "role": "cell", "status": "ok", "reason": None,
                    "parts": cell_parts(cell), "validity": "valid", "validity_reasons": [], "seconds": 3.0,
                    "file": "000.f34cc703-l0-a1-cell.parquet",
                }
            )  # fmt: skip
        journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    begun = time.process_time()
    status = study_status(small_project(grid=grid))
    assert status.counts["done"] == status.cells
    assert time.process_time() - begun < 2.0


def test_a_plain_cell_marked_for_remeasuring_leaves_its_drafters_alone(study_folder: Path) -> None:
    """Its earlier attempt stays, and with it the pairs of the earlier segment."""
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    measure(project, block)
    plain = next(c for c in block.cells if c.drafter == "plain")
    journal_of(project, block).append(REMEASURE, cell_hash=plain.hash, path=plain.path)
    status = study_status(project)
    assert (status.counts["stale"], status.counts["done"]) == (1, 5)
    measure(project, block)
    assert study_status(project).counts["done"] == 6
