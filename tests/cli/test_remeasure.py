"""`remeasure`: the next run measures just those cells and their partners."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specjoule.blocks.journal import read_events
from specjoule.workflow import Project
from tests.cli.conftest import Run, measure_all


def journal(project: Project, block: int = 0) -> list[dict[str, object]]:
    return read_events(project.store / project.name / project.blocks[block].id / "journal.jsonl")


def started(project: Project) -> list[tuple[str, str]]:
    """(path, role) of what was measured, over all blocks."""
    return [
        (str(e["path"]), str(e["role"]))
        for i in range(len(project.blocks))
        for e in journal(project, i)
        if e["event"] == "cell_start"
    ]


def cell(project: Project, drafter: str, concurrency: int = 4, seed: int = 1) -> str:
    return next(c.path for c in project.cells if (c.drafter, c.concurrency, c.seed) == (drafter, concurrency, seed))


def test_just_the_cell_and_its_partner_are_measured(measured: Project, run: Run) -> None:
    before = started(measured)
    target = cell(measured, "ngram-4")
    ran = run("remeasure", Path("results/raw") / target)
    assert ran.code == 0
    assert "1 cell(s) marked" in ran.out
    assert not (Path("results/raw") / target).exists()
    measure_all(measured)
    new = started(measured)
    for item in before:
        new.remove(item)
    assert sorted(p for p, role in new if role == "cell") == sorted([target, cell(measured, "plain")])
    assert {p for p, role in new if role == "reference"} == {cell(measured, "plain")}
    assert "Attempt 2 (2 of 2" in run("describe", Path("results/raw") / target).out


def test_a_plain_cell_can_take_its_drafters_along(measured: Project, run: Run) -> None:
    ran = run("remeasure", cell(measured, "plain"))
    assert "--with-drafters" in ran.out
    marked = json.loads(run("remeasure", "--json", "--with-drafters", cell(measured, "plain", 1)).out)
    assert {m["path"] for m in marked} == {cell(measured, "plain", 1), cell(measured, "ngram-4", 1)}


def test_hashes_and_patterns_name_cells(measured: Project, run: Run) -> None:
    digest = next(c.hash for c in measured.cells if c.path == cell(measured, "ngram-4"))
    assert cell(measured, "ngram-4") in run("remeasure", "-n", digest[:8]).out
    assert len(run("remeasure", "-n", "*/ngram-4/*").out.splitlines()) == 4
    assert not [e for e in journal(measured) if e["event"] == "remeasure"]


def test_a_cell_that_was_never_measured(project: Project, run: Run) -> None:
    assert "not measured yet" in run("remeasure", cell(project, "ngram-4")).out


def test_a_wrong_name_is_answered_with_the_nearest(measured: Project, run: Run) -> None:
    wrong = cell(measured, "ngram-4").replace("ngram-4", "ngram4")
    assert f"did you mean '{cell(measured, 'ngram-4')}'" in run("remeasure", wrong).sentence


def test_nothing_is_marked_while_the_block_is_measured(measured: Project, run: Run) -> None:
    from specjoule.blocks.lock import block_lock

    folder = measured.store / measured.name / measured.blocks[0].id
    with block_lock(folder / "lock"):
        assert "being measured by process" in run("remeasure", cell(measured, "ngram-4")).sentence
    assert (Path("results/raw") / cell(measured, "ngram-4")).exists()


def test_a_full_disk_loses_nothing(measured: Project, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if b"remeasure" in data:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    assert "No space left" in run("remeasure", cell(measured, "ngram-4")).sentence
    assert (Path("results/raw") / cell(measured, "ngram-4")).exists()
