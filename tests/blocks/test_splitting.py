"""Splitting, submission order, taking over cells from stores with other names, compaction, use of the board's time."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from specjoule.blocks.block import make_blocks
from specjoule.blocks.compact import compact_block, read_cell, restore_block
from specjoule.blocks.estimate import block_seconds
from specjoule.blocks.journal import LAUNCH, read_events
from specjoule.blocks.planning import study_plan
from specjoule.blocks.split import split_long, submission_ranks
from specjoule.blocks.status import study_status
from specjoule.blocks.usage import segment_usages
from specjoule.errors import StoreError

from .studies import measure, small_project

TWO = {"corpora": ["code", "conversation"], "seeds": [1]}


def test_only_long_blocks_are_split_and_pairs_stay_together(study_folder: Path) -> None:
    project = small_project(grid=TWO)
    (block,) = project.blocks
    half = block_seconds(project.study, block.cells) / 60 * 0.75
    parts = split_long(project.study, [block], half)
    assert [p.id for p in parts] == [f"{block.id}-code", f"{block.id}-conversation"]
    assert sorted(c.path for p in parts for c in p.cells) == sorted(c.path for c in block.cells)
    for part in parts:
        keys = {c.partner_key for c in part.cells if c.drafter == "plain"}
        assert {c.partner_key for c in part.cells} == keys
    assert split_long(project.study, [block], 1e9) == [block]
    assert split_long(project.study, [block], None) == [block]
    (rest,) = split_long(project.study, [parts[0]], 1e-6)  # nothing left to split by
    assert rest.id == parts[0].id


def test_every_model_first_then_the_next_seed(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1, 2, 3]})
    cells = project.cells
    from dataclasses import replace

    blocks = make_blocks([replace(c, model=m) for m in ("B", "A") for c in cells])
    ranks = submission_ranks(blocks)
    order = sorted(ranks, key=lambda b: ranks[b])
    assert order == [f"{m}-cpu-s{s}-r1" for s in (1, 2, 3) for m in ("B", "A")]


def test_a_study_split_otherwise_measures_nothing_again(study_folder: Path) -> None:
    whole = small_project(grid=TWO)
    measure(whole, whole.blocks[0])
    split = small_project(grid=TWO, blocks={"split_by": ["corpus"]})
    assert study_status(split).counts["done"] == 12
    assert study_plan(split).to_measure == 0
    for block in split.blocks:
        measure(split, block)
        events = read_events(split.store / split.name / block.id / "journal.jsonl")
        assert all(e.get("inherited_from") for e in events)
    measure(whole, whole.blocks[0])
    journal = whole.store / whole.name / whole.blocks[0].id / "journal.jsonl"
    assert sum(e["event"] == LAUNCH for e in read_events(journal)) == 4


@pytest.mark.parametrize("raw", [False, True])
def test_compacting_keeps_every_single_cell(study_folder: Path, raw: bool) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    with pytest.raises(StoreError, match="nothing is stored"):
        compact_block(project, block)
    measure(project, block)
    before = {c.path: read_cell(project, block, c) for c in block.cells}
    folder = project.store / project.name / block.id
    done = compact_block(project, block, raw=raw)
    assert done.packed == 6 + 2  # two cells were measured again by the closing plain
    assert sorted(p.name for p in folder.iterdir()) == ["cells.zip", "journal.jsonl"]
    assert all(project.raw_file(c).exists() is not raw for c in block.cells)
    for cell in block.cells:
        assert read_cell(project, block, cell).equals(before[cell.path])
    assert study_plan(project).to_measure == 0
    assert compact_block(project, block, raw=raw).packed == 8  # again: nothing changes
    assert restore_block(project, block) == 6
    assert not (folder / "cells.zip").exists()
    for cell in block.cells:
        assert read_cell(project, block, cell).equals(before[cell.path])


def test_a_compacted_block_goes_on_where_it_was(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1], "drafters": ["plain", "ngram-4"]})
    measure(project, project.blocks[0])
    compact_block(project, project.blocks[0], raw=True)
    wider = small_project(grid={"seeds": [1]})
    with pytest.raises(StoreError, match="2 cells are still to be measured"):
        compact_block(wider, wider.blocks[0])
    measure(wider, wider.blocks[0])
    assert all(wider.raw_file(c).exists() for c in wider.cells)
    assert study_status(wider).counts["done"] == 6


def test_a_damaged_archive_is_named(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    measure(project, block)
    compact_block(project, block)
    pack = project.store / project.name / block.id / "cells.zip"
    pack.write_bytes(pack.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"cells\.zip"):
        measure(project, block)
    assert not zipfile.is_zipfile(pack)


def test_the_share_of_time_that_measures(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    measure(project, block)
    (usage,) = segment_usages(read_events(project.store / project.name / block.id / "journal.jsonl")).values()
    assert usage.starts == 4  # plain, two drafters, plain once more
    assert usage.starts_s == pytest.approx(4.0)  # the scripted server takes a second to start
    assert usage.start_share is not None and 0 < usage.start_share < 0.5
    assert usage.busy_share is not None and 0 < usage.busy_share <= 1
