"""The block runner on the scripted engine: order, partners, resume, faults, and interruption anywhere."""

from __future__ import annotations

import contextlib
import copy
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from specjoule.blocks.block import plan_segment, with_partners
from specjoule.blocks.devices import Devices, open_devices
from specjoule.blocks.journal import CELL, ERROR, LAUNCH, REMEASURE, Journal
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import BlockFailed, Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.engines import scripted
from specjoule.engines.base import Batch, WaveResult
from specjoule.errors import ConfigurationError, MeterError
from specjoule.meters.base import Trace
from specjoule.workflow import Project, open_project
from tests.conftest import SCRIPTED, write_study


class Bench:
    """Measures blocks of a project and counts what the engine was asked for."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.folders = Folders(project.raw, project.store, project.cache, project.logs)
        self.opened = 0

    def measure(self, index: int = 0, **keywords: Any) -> list[dict[str, Any]]:
        """Measure one block; return the journal's new cell events."""
        block = self.project.blocks[index]
        before = len(self.cells(index))

        def devices() -> Devices:
            self.opened += 1
            return open_devices(self.project.study, self.project.study.gpus[block.gpu], block.id, block.replicate)

        try:
            measure_block(self.project.study, block, self.folders, devices, **keywords)
        finally:
            self.new = self.cells(index)[before:]
        return self.new

    def journal(self, index: int = 0) -> Journal:
        block = self.project.blocks[index]
        return BlockStore(self.project.store, self.project.name, block.id).journal

    def cells(self, index: int = 0) -> list[dict[str, Any]]:
        return [e for e in self.journal(index).events() if e["event"] == CELL]


def edited(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Bench:
    study = copy.deepcopy(SCRIPTED)
    edit(study)
    write_study(folder, study)
    return Bench(open_project())


def roles(events: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((e["role"], e["drafter"]) for e in events)


def test_a_block_measures_every_cell_with_plain_at_both_ends(project: Project) -> None:
    bench = Bench(project)
    events = bench.measure()
    assert roles(events) == {("cell", "plain"): 2, ("cell", "ngram-4"): 2, ("reference", "plain"): 1}
    launches = [e for e in bench.journal().events() if e["event"] == LAUNCH]
    assert [(e["drafter"], e["role"]) for e in launches] == [
        ("plain", "cell"), ("ngram-4", "cell"), ("plain", "reference"),
    ]  # fmt: skip
    for cell in project.blocks[0].cells:
        assert project.raw_file(cell).exists()


def test_a_finished_block_opens_nothing_and_changes_no_file(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    times = {p: p.stat().st_mtime_ns for p in project.raw.rglob("*.parquet")}
    assert bench.measure() == []
    assert bench.opened == 1
    assert times == {p: p.stat().st_mtime_ns for p in project.raw.rglob("*.parquet")}


def test_the_order_is_drawn_from_the_block_and_the_segment(project: Project) -> None:
    block = project.blocks[0]
    first = plan_segment(block, block.cells, 0, 1)
    assert first == plan_segment(block, block.cells, 0, 1)
    orders = {tuple(c.path for la in plan_segment(block, block.cells, n, 1) for c in la.cells) for n in range(12)}
    assert len(orders) > 1


def test_a_changed_drafter_is_measured_again_with_its_partners_only(project_folder: Path) -> None:
    bench = Bench(open_project())
    bench.measure()
    path = project_folder / "config" / "drafters.yaml"
    path.write_text(path.read_text().replace("{max_ngram: 3, min_ngram: 1}", "{max_ngram: 4, min_ngram: 1}", 1))
    again = Bench(open_project())
    events = again.measure()
    assert roles(events) == {("cell", "ngram-4"): 2, ("cell", "plain"): 2, ("reference", "plain"): 1}
    assert len({e["segment_id"] for e in events}) == 1


def test_an_added_concurrency_measures_the_new_cells_only(project_folder: Path) -> None:
    Bench(open_project()).measure()
    bench = edited(project_folder, lambda s: s["grids"]["base"].update(concurrency=[1, 4, 8]))
    events = bench.measure()
    assert roles(events) == {("cell", "plain"): 1, ("cell", "ngram-4"): 1, ("reference", "plain"): 1}
    assert all("/c8/" in e["path"] for e in events)


def test_an_earlier_setting_that_returns_is_taken_from_the_store(project_folder: Path) -> None:
    Bench(open_project()).measure()
    edited(project_folder, lambda s: s["protocol"].update(max_new_tokens=12)).measure()
    back = edited(project_folder, lambda s: None)
    assert back.measure() == []
    cell = back.project.blocks[0].cells[0]
    assert set(pq.read_table(back.project.raw_file(cell)).column("max_new_tokens").to_pylist()) == {24}


def test_a_cell_marked_for_remeasuring_is_measured_with_its_partner(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    cell = next(c for c in project.blocks[0].cells if c.drafter == "ngram-4" and c.concurrency == 4)
    bench.journal().append(REMEASURE, cell_hash=cell.hash)
    events = bench.measure()
    assert roles(events) == {("cell", "ngram-4"): 1, ("cell", "plain"): 1, ("reference", "plain"): 1}
    attempts = pq.read_table(project.raw_file(cell)).column("attempt").to_pylist()
    assert set(attempts) == {1, 2}, "every attempt stays in the raw file"


def test_raw_files_deleted_by_the_workflow_come_back_from_the_store(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    for path in project.raw.rglob("*.parquet"):
        path.unlink()
    assert bench.measure() == []
    assert all(project.raw_file(c).exists() for c in project.blocks[0].cells)


@pytest.mark.parametrize("harm", ["deleted", "truncated", "changed", "changed, times kept"])
def test_a_raw_file_harmed_between_two_looks_of_one_run_is_mended(project: Project, harm: str) -> None:
    Bench(project).measure()
    cell = project.blocks[0].cells[0]
    store, raw = BlockStore(project.store, project.name, project.blocks[0].id), project.raw_file(cell)
    assert store.build_raw(cell, raw)
    whole, times = raw.read_bytes(), raw.stat()
    if harm == "deleted":
        raw.unlink()
    else:
        raw.write_bytes(whole[:-1] if harm == "truncated" else whole[:-1] + b"?")
        if harm == "changed, times kept":
            os.utime(raw, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.build_raw(cell, raw)
    assert raw.read_bytes() == whole


def test_a_damaged_store_file_is_set_aside_and_its_cell_measured_again(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    store = BlockStore(project.store, project.name, project.blocks[0].id)
    cell = next(c for c in project.blocks[0].cells if c.drafter == "ngram-4")
    victim = store.attempts(cell.hash)[0].path
    victim.write_bytes(victim.read_bytes()[:100])
    assert roles(bench.measure())[("cell", "ngram-4")] == 1
    assert victim.with_name(f"{victim.name}.damaged").exists()


def test_infeasible_is_a_result_and_is_not_tried_again(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["engine"].update(settings={"fail": {"ngram-4/c4": "infeasible"}}))
    bench.measure()
    row = pq.read_table(next(bench.project.raw.glob("tiny/*/cpu/ngram-4/code/c4/s1.parquet"))).to_pylist()[0]
    assert (row["status"], row["reason"], row["capacity_requests"], row["energy_j"]) == (
        "infeasible",
        "oom_run",
        2,
        None,
    )
    assert bench.measure() == []


def test_a_refused_drafter_makes_all_its_cells_infeasible(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["engine"].update(settings={"fail": {"ngram-4": "infeasible"}}))
    statuses = Counter((e["drafter"], e["status"]) for e in bench.measure())
    assert statuses == {("plain", "ok"): 3, ("ngram-4", "infeasible"): 2}


def test_a_transient_fault_is_tried_once_more_then_fails_its_cell_alone(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["engine"].update(settings={"fail": {"ngram-4/c4": "transient"}}))
    with pytest.raises(BlockFailed, match="ngram-4 at concurrency 4: scripted: ngram-4/c4 crashed"):
        bench.measure()
    statuses = Counter((e["drafter"], e["status"]) for e in bench.new)
    assert statuses == {("plain", "ok"): 3, ("ngram-4", "ok"): 1, ("ngram-4", "failed"): 1}
    starts = [e for e in bench.journal().events() if e["event"] == "cell_start" and "/ngram-4/code/c4/" in e["path"]]
    assert len(starts) == 2
    mended = edited(project_folder, lambda s: s["engine"].update(settings={"fail": {}}))
    assert mended.project.blocks[0].cells[0].hash != bench.project.blocks[0].cells[0].hash


def test_a_meter_that_died_is_started_again_and_its_cell_measured_anew(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = scripted.ScriptedMeter.trace
    calls = 0

    def dying(meter: scripted.ScriptedMeter, start_ns: int, end_ns: int) -> Trace:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MeterError("The energy sampler ended within a window (no message).")
        return traces(meter, start_ns, end_ns)

    monkeypatch.setattr(scripted.ScriptedMeter, "trace", dying)
    bench = Bench(project)
    events = bench.measure()
    assert {e["status"] for e in events} == {"ok"}
    assert {e["validity"] for e in events} == {"valid"}
    assert Counter(e["path"] for e in events if e["role"] == "cell").most_common(1)[0][1] == 1
    errors = [e for e in bench.journal().events() if e["event"] == ERROR]
    assert [e["message"] for e in errors] == ["The energy sampler ended within a window (no message)."]


def test_a_bug_fails_the_job_and_loses_no_other_cell(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["engine"].update(settings={"fail": {"ngram-4/c1": "bug"}}))
    with pytest.raises(BlockFailed, match="returned nonsense"):
        bench.measure()
    assert Counter(e["status"] for e in bench.new) == {"ok": 4, "failed": 1}


def test_a_smaller_capacity_is_kept_as_partial(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["engine"].update(settings={"capacity": 2}))
    statuses = {(e["path"].split("/c")[-1][0], e["status"]) for e in bench.measure()}
    assert statuses == {("1", "ok"), ("4", "partial")}


def test_a_pool_smaller_than_a_batch_is_infeasible_with_its_size(project_folder: Path) -> None:
    bench = edited(project_folder, lambda s: s["grids"]["base"].update(concurrency=[1, 97]))
    big = [e for e in bench.measure() if "/c97/" in e["path"] and e["role"] == "cell"]
    assert {(e["status"], e["reason"]) for e in big} == {("infeasible", "not_enough_prompts")}
    assert len(big) == 2
    assert roles(bench.new)["cell", "ngram-4"] == 2


def test_no_engine_is_started_or_warmed_for_a_batch_that_no_corpus_fills(
    project_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed = []
    monkeypatch.setattr(scripted.ScriptedEngine, "warm_up", lambda self, n, prompts, tokens: warmed.append(n))
    bench = edited(project_folder, lambda s: s["grids"]["base"].update(concurrency=[1, 97, 98]))
    bench.measure()
    launches = [e["drafter"] for e in bench.journal().events() if e["event"] == LAUNCH]
    assert launches == ["plain", "ngram-4", "plain"] and set(warmed) == {1}


def test_both_sides_of_a_pair_see_the_same_prompts(project: Project) -> None:
    Bench(project).measure()
    seen = {}
    for cell in project.blocks[0].cells:
        rows = pq.read_table(project.raw_file(cell)).to_pylist()
        waves = [tuple(r["prompt_id"] for r in row["requests"]) for row in rows
                 if row["window"] == "generation" and row["role"] == "cell"]  # fmt: skip
        seen.setdefault(cell.concurrency, set()).add(tuple(waves))
        flat = [p for wave in waves for p in wave]
        assert len(flat) == len(set(flat)) == cell.waves * cell.concurrency
    assert all(len(v) == 1 for v in seen.values())


def test_stopping_between_cells_ends_cleanly_and_the_next_run_goes_on(project: Project) -> None:
    bench = Bench(project)
    asked = iter([False, False, False, True] + [True] * 50)
    with pytest.raises(BlockFailed, match="stopped before the end"):
        bench.measure(should_stop=lambda: next(asked))
    done = len(bench.new)
    assert 0 < done < 5
    bench.measure()
    assert all(project.raw_file(c).exists() for c in project.blocks[0].cells)


def test_the_record_holds_drift_launches_and_outcome(project: Project) -> None:
    Bench(project).measure()
    block = project.blocks[0]
    record = block_record(block, BlockStore(project.store, project.name, block.id))
    (segment,) = record["segments"]
    assert segment["outcome"] == "finished"
    (drift,) = segment["drift"]
    assert drift["drift"] == pytest.approx(0.0, abs=1e-6), "the scripted board does not drift"
    assert [la["drafter"] for la in segment["launches"]] == ["plain", "ngram-4", "plain"]


class Killed(BaseException):
    """Ends the runner at one of its side effects, as kill -9 would: no handler of the runner may count on running."""


def count_side_effects(monkeypatch: pytest.MonkeyPatch, stop_at: int | None) -> Callable[[], int]:
    """Count fsyncs, renames and waves; raise at the `stop_at`-th and at every later one, since the dead do nothing."""
    seen = 0

    def tick() -> None:
        nonlocal seen
        seen += 1
        if stop_at is not None and seen >= stop_at:
            raise Killed

    real_fsync, real_replace, real_run = os.fsync, Path.replace, scripted.ScriptedEngine.run

    def fsync(fd: int) -> None:
        tick()
        real_fsync(fd)

    def replace(self: Path, target: Path) -> Path:
        tick()
        result = real_replace(self, target)
        tick()
        return result

    def run(self: scripted.ScriptedEngine, batch: Batch) -> WaveResult:
        tick()
        return real_run(self, batch)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(scripted.ScriptedEngine, "run", run)
    return lambda: seen


def test_killed_at_any_side_effect_the_next_run_goes_on_and_measures_nothing_twice(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every point between two writes is tried: 8 store writes, their journal lines, copies and waves."""
    block = project.blocks[0]
    with monkeypatch.context() as patch:
        total = count_side_effects(patch, None)
        Bench(project).measure()
        points = total()
    assert points > 40
    stride = 3
    for stop_at in [*range(1, points + 1, stride), points]:
        project_at = Project(project.study.model_copy(update={"file": project.study.file.model_copy(
            update={"study": f"kill{stop_at}"})}), project.source, project.overrides)  # fmt: skip
        bench = Bench(project_at)
        with monkeypatch.context() as patch:
            count_side_effects(patch, stop_at)
            with contextlib.suppress(Killed):
                bench.measure()
        stored = {
            c.hash: [
                a for a in BlockStore(project_at.store, project_at.name, block.id).attempts(c.hash) if a.role == "cell"
            ]
            for c in project_at.blocks[0].cells
        }
        _release(project_at)
        bench.measure()
        for cell in project_at.blocks[0].cells:
            store = BlockStore(project_at.store, project_at.name, block.id)
            attempts = [a for a in store.attempts(cell.hash) if a.role == "cell"]
            first_segments = {a.segment_id for a in stored[cell.hash]}
            again = [a for a in attempts if a.segment_id not in first_segments]
            if stored[cell.hash]:
                allowed = cell.drafter == "plain"  # a partner is measured again beside an unfinished drafter's cell
                assert not again or allowed, f"stopped at {stop_at}: {cell.path} was measured twice"
            else:
                assert len(again) == 1
            assert pq.read_table(project_at.raw_file(cell)).num_rows == sum(
                pq.read_metadata(a.path).num_rows for a in store.attempts(cell.hash)
            )
        assert not list(project_at.store.rglob("*.damaged"))


def _release(project: Project) -> None:
    """The killed process is this one, so its lock looks alive: take it away as its death would allow."""
    for lock in project.store.rglob("lock"):
        lock.unlink()


def test_partners_are_the_plain_cells_of_the_same_axes(project: Project) -> None:
    block = project.blocks[0]
    spec = next(c for c in block.cells if c.drafter == "ngram-4" and c.concurrency == 4)
    todo = with_partners(block, [spec])
    assert {(c.drafter, c.concurrency) for c in todo} == {("ngram-4", 4), ("plain", 4)}


def test_a_lost_plain_file_brings_its_drafters_back_with_it(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    store = BlockStore(project.store, project.name, project.blocks[0].id)
    plain = next(c for c in project.blocks[0].cells if c.drafter == "plain" and c.concurrency == 4)
    for stored in store.attempts(plain.hash):
        if stored.role == "cell":
            stored.path.write_bytes(b"torn")
    counted = roles(bench.measure())
    assert counted[("cell", "plain")] == 1
    assert counted[("cell", "ngram-4")] == 1
    assert bench.measure() == []


def test_an_attempt_stored_but_not_journalled_is_judged_when_it_is_kept(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    journal = bench.journal()
    lines = journal.path.read_bytes().splitlines(keepends=True)
    gone = next(i for i, line in enumerate(lines) if b'"event":"cell"' in line and b"ngram-4" in line)
    journal.path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
    (adopted,) = bench.measure()
    assert adopted["adopted"], "kept from the store, not measured again"
    assert bench.opened == 1
    assert adopted["validity"] == "valid"
    assert adopted["path"].endswith(".parquet")
    assert adopted["parts"]


def test_drift_is_that_of_valid_attempts_alone(project: Project) -> None:
    from specjoule.study.model import ValidityConfig

    Bench(project).measure()
    block = project.blocks[0]
    store = BlockStore(project.store, project.name, block.id)
    strict = ValidityConfig(power_limit_factor=1.0001, max_relative_uncertainty=1e-12)
    (drift,) = block_record(block, store, strict)["segments"][0]["drift"] or [{"drift": None}]
    assert drift["drift"] is None


def test_cells_of_a_pinned_release_are_not_measured_by_another(project_folder: Path) -> None:
    engine = {"name": "reference", "version": "torch-0+transformers-0"}
    project = open_project(overrides={"engine": engine, "meter": {"name": "auto"}})
    with pytest.raises(ConfigurationError, match=r"engine\.version: pins torch-0\+.*, but torch-.* is installed here"):
        open_devices(project.study, project.study.gpus["cpu"], "b", 1)


def test_a_renamed_drafter_and_corpus_go_by_their_new_names_and_are_not_measured_again(project_folder: Path) -> None:
    old = Bench(open_project())
    assert old.measure()
    for kind, before, after in (("drafters", "ngram-4", "lookup-4"), ("corpora", "code", "coding")):
        catalogue = project_folder / "config" / f"{kind}.yaml"
        catalogue.write_text(catalogue.read_text().replace(f"  {before}:", f"  {after}:"))
    study = copy.deepcopy(SCRIPTED)
    study["grids"]["base"] |= {"drafters": ["plain", "lookup-4"], "corpora": ["coding"]}
    write_study(project_folder, study)
    bench = Bench(open_project())
    for _ in range(2):
        assert bench.measure() == []
    for cell in bench.project.blocks[0].cells:
        rows = pq.read_table(bench.project.raw_file(cell)).to_pylist()
        assert {(row["drafter"], row["corpus"]) for row in rows} == {(cell.drafter, cell.corpus)}
    block = bench.project.blocks[0]
    record = block_record(block, BlockStore(bench.project.store, bench.project.name, block.id))
    assert {launch["drafter"] for launch in record["segments"][0]["launches"]} == {"plain", "lookup-4"}
    assert [c["drafter"] for c in record["segments"][0]["settings_compared"]] == ["lookup-4"]


def test_attempts_of_an_earlier_release_lie_beside_those_of_this_one(project: Project) -> None:
    bench = Bench(project)
    bench.measure()
    for file in bench.journal().path.parent.rglob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.drop_columns(["load_average", "instrumentation"]), file)
    cell = next(c for c in project.blocks[0].cells if c.drafter == "ngram-4")
    bench.journal().append(REMEASURE, cell_hash=cell.hash, path=cell.path)
    bench.measure()
    rows = pq.read_table(project.raw_file(cell)).to_pylist()
    assert {row["attempt"] for row in rows} == {1, 2}
    assert all(row["load_average"] is None for row in rows if row["attempt"] == 1)
