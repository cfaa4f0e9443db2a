"""`study_plan`: what is left, why, and what it takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specjoule.blocks.planning import study_plan
from specjoule.blocks.todo import Why, cell_parts, changed
from specjoule.prompts.corpus import canonical_digest

from .studies import GRID, measure, small_project


def test_before_anything_is_measured(study_folder: Path) -> None:
    plan = study_plan(small_project())
    assert (plan.cells, plan.finished, plan.to_measure, plan.stale) == (12, 0, 12, 0)
    assert plan.why == {"never measured": 12}
    assert [b.to_measure for b in plan.blocks] == [6, 6]
    assert [b.launches for b in plan.blocks] == [4, 4]  # plain, two drafters, the closing plain
    assert plan.times_from == "forecast"
    assert plan.left_h == plan.whole_h > 0
    assert [(h.gpu, h.model, h.blocks) for h in plan.gpu_hours] == [("cpu", "smollm2-135m-instruct", 2)]
    assert plan.disk_bytes > 12 * 2 * 40_000
    assert plan.expected_infeasible == {} and plan.expected_partial is None  # no memory is known of this processor
    assert json.loads(json.dumps(plan.to_dict()))["to_measure"] == 12


def test_after_a_part(study_folder: Path) -> None:
    project = small_project()
    measure(project, project.blocks[0])
    plan = study_plan(project)
    assert (plan.finished, plan.to_measure) == (6, 6)
    assert plan.times_from == "6 measured cells"
    assert [b.block_id for b in plan.blocks] == [project.blocks[1].id]
    assert 0 < plan.left_h < plan.whole_h


def test_files_are_forecast_about_as_they_are(study_folder: Path) -> None:
    project = small_project()
    forecast = study_plan(project)
    for block in project.blocks:
        measure(project, block)
    real = sum(1 for _ in Path("results").rglob("*"))
    assert 0.7 * real <= forecast.files <= 1.5 * real


def test_a_drafter_edit_and_its_partners(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    measure(project, project.blocks[0])
    drafters = Path("config/drafters.yaml")
    drafters.write_text(drafters.read_text().replace("{kept_layers: 26}", "{kept_layers: 25}"))
    plan = study_plan(small_project(grid={"seeds": [1]}))
    assert plan.why == {"drafter settings changed": 2}
    assert (plan.to_measure, plan.partners, plan.stale) == (2, 2, 2)


def test_an_edited_prompt(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    measure(project, project.blocks[0])
    corpus = Path("prompts/code.jsonl")
    lines = corpus.read_text().splitlines()
    Path("prompts/code.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    plan = study_plan(small_project(grid={"seeds": [1]}))
    assert plan.why == {"prompts changed": 6}


def test_a_lost_file(study_folder: Path) -> None:
    project = small_project(grid={"seeds": [1]})
    (block,) = project.blocks
    measure(project, block)
    drafted = next(c for c in block.cells if c.drafter == "ngram-4")
    shutil.rmtree(project.store / project.name / block.id / "cells" / drafted.hash)
    assert study_plan(project).why == {"stored file lost": 1}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (("protocol_version",), Why.PROTOCOL_VERSION),
        (("engine", "version"), Why.ENGINE_VERSION),
        (("engine", "settings"), Why.ENGINE_SETTINGS),
        (("model",), Why.MODEL),
        (("drafter",), Why.DRAFTER),
        (("protocol", "ignore_eos"), Why.PROTOCOL_SETTINGS),
    ],
)
def test_what_changed_is_named(study_folder: Path, path: tuple[str, ...], why: Why) -> None:
    from dataclasses import replace

    cell = small_project().cells[0]
    content = json.loads(cell.fingerprint)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "something else"
    other = replace(cell, fingerprint=json.dumps(content))
    assert changed(other, cell_parts(cell)) is why
    assert changed(cell, None) is Why.OTHER
    assert canonical_digest(cell_parts(cell)) == canonical_digest(cell_parts(replace(cell, seed=9)))


def test_expected_infeasible_cells_of_a_large_model(study_folder: Path) -> None:
    gpus, models = Path("config/gpus.yaml"), Path("config/models.yaml")
    small = (
        "  tiny:\n    device: cuda\n    product: tiny board\n    memory_bytes: 9.0e+8\n    bandwidth_byte_s: 1.0e+12\n"
    )
    if "  tiny:" not in gpus.read_text():
        gpus.write_text(gpus.read_text().rstrip() + "\n" + small)
    assert models.exists()
    plan = study_plan(small_project(grid={**GRID, "gpus": ["tiny"], "capture": [False]}))
    assert plan.expected_infeasible is not None and plan.expected_infeasible.get("oom_load") == 12


def test_a_batch_larger_than_the_corpus_is_forecast(study_folder: Path) -> None:
    plan = study_plan(small_project(grid={**GRID, "concurrency": [1, 97]}))
    assert plan.expected_infeasible == {"not_enough_prompts": plan.cells // 2}
    assert plan.expected_partial is None  # nothing is known of this processor's memory
