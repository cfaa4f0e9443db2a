"""Journals, locks and records that hold what nobody wrote: left out, treated as nobody's, or one clear sentence."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, read_events, summarise
from specjoule.blocks.lock import BlockBusy, block_lock, held_by
from specjoule.blocks.planning import study_plan
from specjoule.blocks.record import block_record
from specjoule.blocks.record_file import read_record
from specjoule.blocks.status import study_status
from specjoule.blocks.store import BlockStore
from specjoule.errors import StoreError
from specjoule.processes import boot_id
from specjoule.workflow import Project

from .studies import measure, small_project

HASH = "0" * 32
CELL_LINE: dict[str, Any] = {
    "event": "cell", "time": 1.0, "segment_id": "000.a", "cell_hash": HASH, "role": "cell", "attempt": 1,
    "status": "ok", "path": "a/b.parquet",
}  # fmt: skip


def line(event: str, **fields: Any) -> bytes:
    return json.dumps({**CELL_LINE, "event": event, **fields}).encode()


def without(name: str, event: str = "cell") -> bytes:
    return json.dumps({k: v for k, v in {**CELL_LINE, "event": event}.items() if k != name}).encode()


ODD = {
    "cell without hash": without("cell_hash"),
    "hash a list": line("cell", cell_hash=["a"]),
    "hash null": line("cell", cell_hash=None),
    "attempt null": line("cell", attempt=None),
    "attempt text": line("cell", attempt="x"),
    "attempt true": line("cell", attempt=True),
    "seconds text": line("cell", seconds="soon"),
    "seconds not finite": line("cell", seconds=float("nan")),
    "seconds beyond floats": line("cell").replace(b'"attempt": 1', b'"seconds": 1' + b"0" * 400),
    "windows_s text": line("cell", windows_s="2 s"),
    "start_s text": line("launch", launch=0, drafter="plain", capture=False, locked_mhz=None, start_s="1 s"),
    "launch without drafter": line("launch", launch=0, capture=False, locked_mhz=None),
    "clock_s text": line("segment_end", outcome="finished", clock_s="long"),
    "end without outcome": line("segment_end"),
    "path a list": line("cell", path=["a"]),
    "path of a start a list": line("cell_start", path=["a"]),
    "segment time null": line("segment", time=None),
    "segment without id": without("segment_id", "segment"),
    "remeasure without hash": without("cell_hash", "remeasure"),
    "error time null": line("error", time=None, message="m"),
    "parts text": line("cell", parts="abc"),
    "reasons a number": line("cell", validity="invalid", validity_reasons=3),
    "deep": b'{"event": "cell", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "long number": b'{"event": "cell", "time": ' + b"1" * 5000 + b"}",
    "half a character": line("error", message="m").replace(b'"m"', b'"\\ud800"'),
    "no object": b"[1, 2]",
    "bytes": b"\xff\xfe",
}


def journal_path(project: Project, block: Block) -> Path:
    return project.store / project.name / block.id / "journal.jsonl"


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_line_that_is_no_event_is_left_out_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line("cell") + b"\n" + odd + b"\n" + line("cell", attempt=2) + b"\n")
    with caplog.at_level(logging.WARNING):
        events = read_events(path)
        assert read_events(path) == events
    assert [e["attempt"] for e in events] == [1, 2]
    assert summarise(events).attempts == {HASH: 2}
    (said,) = caplog.messages
    assert said.startswith(f"{path}: line 2 ")


def test_a_line_that_a_writer_is_at_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line("cell") + b"\n" + line("cell")[:30])
    assert len(read_events(path)) == 1
    assert not caplog.messages


def test_a_study_with_odd_journals_is_shown_planned_and_measured(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1], "drafters": ["plain", "ngram-4"]})
    (block,) = project.blocks
    path = journal_path(project, block)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join(ODD.values()) + b"\n")
    assert study_status(project).counts["missing"] == study_plan(project).to_measure == 4
    measure(project, block)
    with path.open("ab") as handle:
        handle.write(b"\n".join(ODD.values()) + b"\n")
    assert study_status(project).counts["done"] == 4
    assert study_plan(project).to_measure == 0
    record = block_record(block, BlockStore(project.store, project.name, block.id))
    assert [s["outcome"] for s in record["segments"]] == ["finished"]
    measure(project, block)
    assert sum(e["event"] == CELL for e in read_events(path)) == 6  # four cells, and plain twice more


LOCKS = {
    "no pid": json.dumps({"host": os.uname().nodename, "start": "1", "boot": boot_id()}).encode(),
    "pid text": json.dumps({"host": os.uname().nodename, "pid": "x", "start": "1", "boot": boot_id()}).encode(),
    "host a list": b'{"host": [], "pid": 1}',
    "bytes": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "long number": b"1" * 5000,
    "no object": b"3",
}


@pytest.mark.parametrize("content", LOCKS.values(), ids=LOCKS)
def test_a_lock_that_names_nobody_is_waited_for_and_then_broken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(content)
    assert held_by(path) == {}
    with pytest.raises(BlockBusy), block_lock(path):
        pass
    os.utime(path, (time.time() - 10,) * 2)
    assert held_by(path) is None
    with block_lock(path):
        pass


def test_a_folder_in_a_locks_place_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.mkdir()
    os.utime(path, (time.time() - 10,) * 2)
    with pytest.raises(StoreError, match="the block cannot be locked"), block_lock(path):
        pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "(block_id: Field required)"),
        ("[]", "(it is no JSON object)"),
        ('{"block_id": "b", "cells": {}, "segments": [{}]}', "(segments.0.segment_id: Field required)"),
        ('{"block_id": "b", "cells": {}, "segments": 3}', "(segments: "),
        ("[" * 200_000, "cannot be read"),
        ("1" * 5000, "cannot be read"),
    ],
)
def test_a_record_that_is_none_says_what_is_wrong_and_what_to_do(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "block.json"
    path.write_text(content)
    with pytest.raises(StoreError) as caught:
        read_record(path, "delete it")
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and words in said and said.endswith("; delete it") and "\n" not in said
