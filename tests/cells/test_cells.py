"""Cells: what is hashed and what is not, waves, and the draw of prompts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import SCRIPTED, write_study

from specjoule.cells.expand import expand
from specjoule.cells.forecast import n_waves
from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import Prompt, draw
from specjoule.workflow import Project, open_project


def hashes(project: Project, **keywords: Any) -> dict[str, str]:
    from specjoule.cells.expand import load_pools

    return {c.path: c.hash for c in expand(project.study, load_pools(project.study), **keywords)}


def test_one_pool_under_two_names_is_refused(project_folder: Any) -> None:
    with (project_folder / "config" / "corpora.yaml").open("a") as catalogue:
        catalogue.write("  again: {path: prompts/code.jsonl, language: en, license: CC0-1.0}\n")

    def both(study: dict[str, Any]) -> None:
        study["grids"]["base"]["corpora"] = ["code", "again"]

    with pytest.raises(ConfigurationError, match="corpora 'code' and 'again' hold the same prompts"):
        assert edited(project_folder, both).cells


def edited(folder: Any, edit: Any) -> Project:
    study = copy.deepcopy(SCRIPTED)
    edit(study)
    write_study(folder, study)
    return open_project()


def test_every_point_of_the_grid_is_one_cell(project: Project) -> None:
    assert len(project.cells) == 2 * 2 * 2
    assert len({c.path for c in project.cells}) == len({c.hash for c in project.cells}) == 8
    assert "tiny/smollm2-135m-instruct/cpu/ngram-4/code/c4/s2.parquet" in {c.path for c in project.cells}


@pytest.mark.parametrize(
    ("edit", "stale"),
    [
        (lambda s: s["protocol"].update(max_new_tokens=25), "all"),
        (lambda s: s["engine"].update(settings={"accept": 0.6}), "all"),
        (lambda s: s["engine"].update(version="2"), "all"),
        (lambda s: s["protocol"].update(ignore_eos=False), "all"),
        (lambda s: s["protocol"].update(reference_cells=2), "none"),
        (lambda s: s["protocol"].update(warm_up_tokens=3), "none"),
        (lambda s: s.update(analysis={"tie_margin": 0.02}), "none"),
        (lambda s: s.update(validity={"max_block_drift": 0.5}), "none"),
        (lambda s: s.update(title="other", site="elsewhere"), "none"),
        (lambda s: s["engine"].update(host_settings={"seconds_per_wave": 0}), "none"),
        (lambda s: s["grids"]["base"].update(question="why?"), "none"),
        (lambda s: s["grids"]["base"].update(concurrency=[1, 4, 8]), "none"),
    ],
)
def test_the_hash_covers_what_changes_the_number_and_nothing_else(project_folder: Any, edit: Any, stale: str) -> None:
    before = hashes(open_project())
    after = hashes(edited(project_folder, edit))
    same = [path for path in before if after.get(path) == before[path]]
    assert len(same) == (0 if stale == "all" else len(before))


def test_protocol_and_engine_version_are_hashed(project: Project) -> None:
    base = hashes(project)
    assert not set(base.values()) & set(hashes(project, protocol_version=99).values())
    assert not set(base.values()) & set(hashes(project, engine_version="next").values())


def test_a_changed_drafter_changes_its_own_cells_only(project_folder: Any) -> None:
    before = hashes(open_project())
    path = project_folder / "config" / "drafters.yaml"
    path.write_text(path.read_text().replace("{max_ngram: 3, min_ngram: 1}", "{max_ngram: 4, min_ngram: 1}", 1))
    after = hashes(open_project())
    changed = {p for p in before if before[p] != after[p]}
    assert changed == {p for p in before if "/ngram-4/" in p}


@pytest.mark.parametrize(
    ("catalogue", "old", "new", "stale"),
    [
        ("models", "hidden_size: 4096", "hidden_size: 4095", "Qwen3-8B/"),
        ("gpus", "bandwidth_byte_s: 4.3e+12", "bandwidth_byte_s: 4.4e+12", "/H200/"),
        ("drafters", "origin: third-party", "origin: co-trained", "/DSpark-7/"),
        ("gpus", "product: NVIDIA H200 SXM", "product: H200", None),
    ],
)
def test_a_simulated_number_is_stale_once_a_size_it_came_from_is_another(
    project_folder: Any, catalogue: str, old: str, new: str, stale: str | None
) -> None:
    grid = {
        "models": ["Qwen3-4B", "Qwen3-8B"], "gpus": ["H100", "H200"], "drafters": ["plain", "DSpark-7"],
        "concurrency": [1], "corpora": ["code"], "seeds": [1],
    }  # fmt: skip
    write_study(
        project_folder,
        {"study": "sizes", "engine": {"name": "simulated"}, "meter": {"name": "simulated"}, "grids": {"base": grid}},
    )
    before = hashes(open_project())
    path = project_folder / "config" / f"{catalogue}.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    after = hashes(open_project())
    changed = {p for p in before if before[p] != after[p]}
    assert changed == {p for p in before if stale is not None and stale in p}


def test_the_same_point_in_two_grids_is_measured_once(project_folder: Any) -> None:
    project = edited(project_folder, lambda s: s["grids"].update(again=copy.deepcopy(s["grids"]["base"])))
    assert len(project.cells) == 8
    assert {c.grids for c in project.cells} == {("base", "again")}


def test_two_grids_that_want_one_file_in_two_ways_are_refused(project_folder: Any) -> None:
    other = copy.deepcopy(SCRIPTED["grids"]["base"]) | {"max_new_tokens": 5}
    project = edited(project_folder, lambda s: s["grids"].update(again=other))
    with pytest.raises(ConfigurationError, match="'base' and 'again' both measure"):
        _ = project.cells


@given(
    concurrency=st.integers(1, 64),
    pool=st.integers(1, 200),
    min_prompts=st.integers(1, 64),
    min_window_s=st.floats(0, 100),
    itl=st.floats(0.1, 500),
)
def test_waves_are_enough_and_never_more_than_the_pool(
    concurrency: int, pool: int, min_prompts: int, min_window_s: float, itl: float
) -> None:
    waves = n_waves(
        concurrency=concurrency, pool=pool, min_prompts=min_prompts, min_window_s=min_window_s, max_new_tokens=100,
        itl_ms=itl, speedup=2.0,
    )  # fmt: skip
    assert waves >= 1
    if waves > 1:
        assert waves * concurrency <= pool
    enough = waves * concurrency >= min_prompts and waves * 100 * itl / 2000 >= min_window_s * (1 - 1e-9)
    assert enough or (waves + 1) * concurrency > pool


def prompts(n: int, documents: int = 0) -> list[Prompt]:
    return [
        Prompt(f"p{i}", "c", "en", (("user", str(i)),), str(i), "CC0-1.0", f"d{i % documents}" if documents else None)
        for i in range(n)
    ]


@given(st.integers(0, 10_000), st.integers(1, 60))
def test_a_draw_is_a_permutation_that_the_seed_alone_decides(seed: int, n: int) -> None:
    pool = prompts(n)
    drawn = draw(pool, seed)
    assert sorted(p.id for p in drawn) == sorted(p.id for p in pool)
    assert drawn == draw(pool, seed)


@given(st.integers(0, 1000))
def test_a_batch_no_larger_than_the_documents_holds_none_twice(seed: int) -> None:
    drawn = draw(prompts(96, documents=32), seed)
    for wave in range(3):
        batch = drawn[wave * 32 : (wave + 1) * 32]
        assert len({p.document_id for p in batch}) == 32


def test_twins_are_drawn_in_the_same_order() -> None:
    english = prompts(20)
    romansh = [dataclasses.replace(p, id=f"rm-{p.id}", language="rm") for p in english]
    assert [p.id for p in draw(romansh, 5)] == [f"rm-{p.id}" for p in draw(english, 5)]
