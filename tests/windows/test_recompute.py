"""Stored windows computed again from their traces: the same without a change, other with another lag, raw untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from specjoule.blocks.devices import open_devices
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.cli import app as command
from specjoule.files import write_json
from specjoule.meters.base import Calibration
from specjoule.windows.collect import collect_files, collect_recomputed, read_rows
from specjoule.windows.drift import drifts_of
from specjoule.workflow import Project


@pytest.fixture
def measured(project: Project) -> Project:
    folders = Folders(project.raw, project.store, project.cache, project.logs)
    for block in project.blocks:
        measure_block(
            project.study, block, folders, lambda: open_devices(project.study, project.study.gpus["cpu"], "b", 1)
        )
        record = block_record(block, BlockStore(project.store, project.name, block.id))
        write_json(project.record(block.id), record)
    return project


def collected(project: Project, calibration: Calibration | None) -> tuple[Any, list[float], Any]:
    block = project.blocks[0]
    drifts = drifts_of(json.loads(project.record(block.id).read_text()))
    files = [project.raw_file(c) for c in block.cells]
    rules = project.study.file.validity
    again, changes = collect_recomputed(files, project.raw, rules, drifts, lambda uuid: calibration)
    return again.rows.to_pandas(), changes, collect_files(files, project.raw, rules, drifts).to_pandas()


def test_without_a_new_calibration_every_energy_comes_out_as_stored(measured: Project) -> None:
    again, changes, stored = collected(measured, None)
    assert len(changes) == len(stored)
    assert max(abs(c) for c in changes) < 1e-9
    assert again["validity"].tolist() == stored["validity"].tolist()


def test_another_lag_moves_the_energy_and_no_raw_file(measured: Project) -> None:
    before = {p: p.read_bytes() for p in measured.raw.rglob("*.parquet")}
    again, changes, _ = collected(measured, Calibration(lag_ns=15_000_000, calibrated=True))
    assert max(abs(c) for c in changes) > 1e-3
    assert set(again["meter_lag_ms"].dropna()) == {15.0}
    assert before == {p: p.read_bytes() for p in measured.raw.rglob("*.parquet")}


def test_the_command_writes_the_collected_tables(measured: Project) -> None:
    command._mount("recompute")
    done = CliRunner().invoke(command.app, ["recompute", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["blocks"] == 2
    assert said["largest_change"] < 1e-9
    rows = read_rows([measured.rows(b.id) for b in measured.blocks])
    assert len(rows) == said["windows"]
