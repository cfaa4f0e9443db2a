"""Each fault on request, through the block runner to rows: it shows as in the field and is judged for that reason."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from specjoule.blocks.block import make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import BlockFailed, Event, Folders, measure_block
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.base import EngineInfeasible
from specjoule.engines.simulated.faults import KINDS, parse_faults
from specjoule.engines.simulated.synthetic import narrowed
from specjoule.errors import ConfigurationError
from specjoule.study.model import Study
from specjoule.windows.io import read_window_table
from specjoule.windows.validity import judge, judge_rows
from tests.engines.simulated.conftest import batch, launch, started, with_settings

QUICK = {"protocol": {"max_new_tokens": 400, "min_prompts": 4, "min_window_s": 0.0, "reference_cells": 0}}


def small(
    study: Study,
    faults: list[dict[str, Any]],
    drafters: tuple[str, ...] = ("plain", "DSpark-7"),
    corpus: str = "code",
    **grid: Any,
) -> Study:
    out = narrowed(
        study, grids=["base-h100"], models=["Qwen3-8B"], seeds=[1], concurrency=[4], settings={"faults": faults}
    )
    only = out.file.grids["base-h100"].model_copy(update={"drafters": drafters, "corpora": (corpus,), **grid})
    protocol = out.file.protocol.model_copy(update=QUICK["protocol"])
    file = out.file.model_copy(update={"grids": {"base-h100": only}, "protocol": protocol})
    return out.model_copy(update={"file": file, "corpora": {corpus: study.corpora[corpus]}})


def measured(study: Study, folder: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Measure the study's one block; return its rows and the runner's error, if it had one."""
    block = make_blocks(expand(study, load_pools(study)))[0]
    folders = Folders(folder / "raw", folder / "store", folder / "cache", folder / "logs")
    error = None
    try:
        measure_block(study, block, folders, lambda: open_devices(study, study.gpus[block.gpu], block.id, 1))
    except BlockFailed as failed:
        error = str(failed)
    rows = [r for path in sorted((folder / "raw").rglob("*.parquet")) for r in read_window_table(path).to_pylist()]
    return rows, error


def reasons(study: Study, rows: list[dict[str, Any]], drafter: str, window: str = "generation") -> set[str]:
    mine = [r for r in rows if r["drafter"] == drafter and r["window"] == window]
    assert mine
    verdicts = judge_rows(mine, [r["requests"] for r in mine], study.file.validity)
    return {str(reason) for verdict in verdicts for reason in verdict.reasons}


def test_without_faults_everything_is_valid_and_says_simulated(rehearsal: Study, tmp_path: Path) -> None:
    study = small(rehearsal, [])
    rows, error = measured(study, tmp_path)
    assert (
        error is None and {r["meter"] for r in rows} == {"simulated"} and {r["engine"] for r in rows} == {"simulated"}
    )
    assert reasons(study, rows, "plain") == set() == reasons(study, rows, "DSpark-7")
    assert all("simulated" in r["gpu_name"] and "simulated" in r["engine_version"] for r in rows)
    for r in rows:
        if r["window"] == "generation":
            assert r["energy_true_j"] == pytest.approx(r["energy_j"], rel=0.02)
            assert r["power_mean_w"] <= 1.2 * r["power_limit_w"]


def test_the_same_study_gives_the_same_rows_and_a_restart_the_same_texts(rehearsal: Study, tmp_path: Path) -> None:
    study = small(rehearsal, [{"kind": "meter_gap", "times": 1}], drafters=("plain", "DSpark-7", "ngram-4"))
    block = make_blocks(expand(study, load_pools(study)))[0]

    def rows(name: str, stops: bool = False) -> list[dict[str, Any]]:
        done: list[Event] = []
        folders = Folders(*(tmp_path / name / part for part in ("raw", "store", "cache", "logs")))
        for stop in ((lambda: len(done) >= 4), lambda: False) if stops else (lambda: False,):
            with contextlib.suppress(BlockFailed):
                measure_block(
                    study, block, folders, lambda: open_devices(study, study.gpus[block.gpu], block.id, 1),
                    watch=done.append, should_stop=stop,
                )  # fmt: skip
        found = [r for f in sorted(folders.raw.rglob("*.parquet")) for r in read_window_table(f).to_pylist()]
        assert len({r["segment_id"] for r in found}) == (2 if stops else 1)
        return found

    once = rows("once")
    host = {"segment_id", "started_at", "wall_offset_ns", "load_average", "git_commit"}
    assert [{k: v for k, v in r.items() if k not in host} for r in once] == [
        {k: v for k, v in r.items() if k not in host} for r in rows("again")
    ]
    assert len(once) > 2 * len(block.cells), "the struck cell was tried once more"

    def texts(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
        kept = ("drafter", "wave", "gpu_uuid", "rounds", "steps", "accepted_draft_tokens", "cut_tokens", "eos_requests")
        return {tuple(r[k] for k in kept) for r in found if r["window"] == "generation"}

    assert texts(rows("restarted", stops=True)) == texts(once)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "early_eos"}, "short_answer"),
        ({"kind": "repeated_prompts"}, "repeated_prompts"),
        ({"kind": "cache_hit"}, "cache_hit"),
        ({"kind": "degenerate", "share": 1.0}, "degenerate_output"),
        ({"kind": "thermal_slowdown"}, "thermal_slowdown"),
        ({"kind": "hardware_slowdown"}, "hardware_slowdown"),
        ({"kind": "capture_fallback"}, "capture_fell_back"),
        ({"kind": "width_change"}, "draft_width_changed"),
        ({"kind": "foreign_process"}, "foreign_processes"),
        ({"kind": "slow_client"}, "client_behind"),
    ],
)
def test_a_fault_is_excluded_for_its_reason(
    rehearsal: Study, tmp_path: Path, fault: dict[str, Any], reason: str
) -> None:
    study = small(rehearsal, [{**fault, "drafters": ["DSpark-7"]}])
    rows, _ = measured(study, tmp_path)
    assert reason in reasons(study, rows, "DSpark-7")
    assert reasons(study, rows, "plain") == set()


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("counter_reset", {"counter_reset", "counter_decrease"}),
        ("counter_frozen", {"counter_frozen"}),
        ("meter_gap", {"meter_gap"}),
    ],
)
def test_a_broken_counter_yields_no_energy_from_thin_air(
    rehearsal: Study, tmp_path: Path, kind: str, wanted: set[str]
) -> None:
    study = small(rehearsal, [{"kind": kind, "drafters": ["plain"], "times": 1}], drafters=("plain", "ngram-4"))
    rows, _ = measured(study, tmp_path)
    first = [r for r in rows if r["drafter"] == "plain" and r["window"] == "generation"]
    found = reasons(study, rows, "plain")
    # Trouble of the environment is tried once more; the raw file holds both attempts, and the second is clean.
    assert found & wanted
    assert any(not judge(r, r["requests"], study.file.validity).reasons for r in first) or kind != "meter_gap"


def test_drift_shows_between_the_first_plain_and_the_last(rehearsal: Study, tmp_path: Path) -> None:
    study = small(rehearsal, [{"kind": "drift", "value": 3.0}])
    protocol = study.file.protocol.model_copy(update={"reference_cells": 1})
    study = study.model_copy(update={"file": study.file.model_copy(update={"protocol": protocol})})
    rows, _ = measured(study, tmp_path)
    plain = sorted(
        (r for r in rows if r["scheme"] == "plain" and r["window"] == "generation"), key=lambda r: r["t_start_ns"]
    )
    assert [r["role"] for r in plain] == ["cell", "reference"]
    ratio = plain[1]["energy_j"] / plain[0]["energy_j"]
    hours = (plain[1]["t_start_ns"] - plain[0]["t_start_ns"]) / 3.6e12
    assert ratio - 1 > 0.5 * 3.0 * hours and ratio > 1.05


def test_a_partial_batch_is_kept_at_what_ran(rehearsal: Study, tmp_path: Path) -> None:
    rows, _ = measured(small(rehearsal, [{"kind": "partial_batch", "value": 3, "drafters": ["DSpark-7"]}]), tmp_path)
    mine = [r for r in rows if r["drafter"] == "DSpark-7" and r["window"] == "generation"]
    assert {(r["status"], r["reason"], r["realized_batch_peak"]) for r in mine} == {("partial", "capacity", 3)}


@pytest.mark.parametrize(("where", "reason"), [("load", "oom_load"), ("capture", "oom_capture"), ("run", "oom_run")])
def test_out_of_memory_is_a_result(rehearsal: Study, tmp_path: Path, where: str, reason: str) -> None:
    rows, error = measured(
        small(rehearsal, [{"kind": "out_of_memory", "value": where, "drafters": ["DSpark-7"]}]), tmp_path
    )
    assert error is None
    assert [(r["status"], r["reason"]) for r in rows if r["drafter"] == "DSpark-7"] == [("infeasible", reason)]


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_transient_trouble_once_is_survived_and_twice_fails(rehearsal: Study, tmp_path: Path, kind: str) -> None:
    once = small(rehearsal, [{"kind": kind, "drafters": ["DSpark-7"], "times": 1}])
    rows, error = measured(once, tmp_path / "once")
    assert error is None and reasons(once, rows, "DSpark-7") == set()
    always = small(rehearsal, [{"kind": kind, "drafters": ["DSpark-7"]}])
    rows, error = measured(always, tmp_path / "always")
    assert error is not None and f"engine_{kind}" not in {r["reason"] for r in rows if r["drafter"] == "plain"}
    assert reasons(always, rows, "plain") == set()


def test_drifted_language_shows_in_the_answers(rehearsal: Study, tmp_path: Path) -> None:
    study = small(rehearsal, [{"kind": "language_drift", "share": 1.0, "drafters": ["DSpark-7"]}], corpus="news_rm")
    rows, _ = measured(study, tmp_path)
    for drafter, everyone in (("plain", False), ("DSpark-7", True)):
        answers = [q for r in rows if r["drafter"] == drafter and r["window"] == "generation" for q in r["requests"]]
        drifted = [q["answer_language"] == "it" for q in answers]
        assert all(drifted) if everyone else not all(drifted)
        assert all(q["answer_language"] in ("rm", "it") for q in answers)


def test_another_board_and_an_ignored_clock(rehearsal: Study, tmp_path: Path) -> None:
    study = with_settings(rehearsal, faults=[{"kind": "other_board", "value": 1}])
    engine, meter = started(study, "Qwen3-8B", "H100", "plain")
    before = meter.start().uuid
    engine.start(launch(study, "Qwen3-8B", "H100", "plain"))
    assert meter.start().uuid != before
    study = small(rehearsal, [{"kind": "clock_not_obeyed", "drafters": ["DSpark-7"]}], locked_mhz=(1200,))
    rows, _ = measured(study, tmp_path)
    assert "clock_not_obeyed" in reasons(study, rows, "DSpark-7")
    assert reasons(study, rows, "plain") == set()


def test_probability_draws_the_same_batches_each_time() -> None:
    raw = [{"kind": "crash", "probability": 0.3}]

    def strikes(seed: str, launch: int = 1) -> list[int]:
        faults = parse_faults(raw, seed)
        here = {"model": "m", "drafter": "d", "capture": True, "corpus": "code", "concurrency": 4}
        return [w for w in range(200) if faults.active("batch", **here, launch=launch, wave=w)]  # type: ignore[arg-type]

    assert strikes("a") == strikes("a") != strikes("b")
    assert 35 < len(strikes("a")) < 85
    assert strikes("a", launch=2) != strikes("a"), "a fresh launch is not bound to fail where the last one did"


def test_out_of_memory_strikes_where_it_is_asked_to(rehearsal: Study) -> None:
    def refused(*faults: dict[str, Any]) -> str | None:
        try:
            engine, _ = started(with_settings(rehearsal, faults=list(faults)), "Qwen3-8B", "H100", "plain")
            engine.run(batch(4, 16))
        except EngineInfeasible as error:
            return str(error.reason)
        return None

    run = {"kind": "out_of_memory", "value": "run"}
    assert refused({**run, "times": 1}) == "oom_run", "the start that went well is no strike"
    assert refused(run, {"kind": "out_of_memory", "value": "load"}) == "oom_load", "neither hides the other"


def test_a_partial_batch_never_exceeds_what_fits(rehearsal: Study) -> None:
    study = with_settings(rehearsal, faults=[{"kind": "partial_batch", "value": 60}])
    engine, _ = started(study, "Gemma-4-31B", "H200", "plain", sizes=(64,), max_new=20_000)
    fits = engine._launch.plan.capacity  # type: ignore[union-attr]
    assert 1 < fits < 60
    assert engine.run(batch(64, 16)).peak_batch_engine == fits


def test_short_answers_end_early_too(rehearsal: Study) -> None:
    engine, _ = started(with_settings(rehearsal, faults=[{"kind": "early_eos"}]), "Qwen3-8B", "H100", "DSpark-7")
    assert sorted(r.committed_tokens for r in engine.run(batch(4, 6)).requests) == [4, 4, 6, 6]


def test_drift_keeps_to_the_models_it_names(rehearsal: Study) -> None:
    for model, grows in (("Qwen3-8B", True), ("Qwen3-4B", False)):
        study = with_settings(rehearsal, faults=[{"kind": "drift", "models": ["Qwen3-8B"]}])
        engine, _ = started(study, model, "H100", "plain")
        assert (engine.board.drift_per_hour > 0) is grows


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([{"kind": "earthquake"}], "no 'earthquake'; valid:"),
        ([{"kind": "hang", "often": 2}], "faults[0].often"),
        ([{"kind": "hang", "share": 2}], "faults[0].share"),
        ("hang", "must be a list"),
        (["hang"], "faults[0]: "),
        ([{"kind": "out_of_memory", "value": "laod"}], "faults[0].value: must be one of load, capture, run"),
        ([{"kind": "thermal_slowdown", "value": "hot"}], "faults[0].value: must be a positive number"),
        ([{"kind": "drift", "value": 0}], "faults[0].value: must be a positive number"),
        ([{"kind": "slow_client", "value": float("nan")}], "faults[0].value: must be a positive number"),
        ([{"kind": "partial_batch", "value": 2.5}], "faults[0].value: must be a whole number"),
        ([{"kind": "language_drift", "value": "xx"}], "faults[0].value: must be one of"),
        ([{"kind": "hang", "value": 5}], "faults[0].value: 'hang' takes none"),
        ([{"kind": "hang", "concurrency": []}], "faults[0].concurrency"),
        ([{"kind": "hang", "waves": [-1]}], "faults[0].waves.0"),
        ([{"kind": "hang", "captures": ["no"]}], "faults[0].captures.0"),
        ([{"kind": "hang", "share": 0.2}], "faults[0].share: 'hang' strikes whole batches"),
        ([{"kind": "drift", "drafters": ["plain"]}], "faults[0].drafters: 'drift' strikes a whole block"),
        ([{"kind": "out_of_memory", "value": "load", "concurrency": [4]}], "faults[0].concurrency"),
    ],
)
def test_a_wrong_fault_is_refused_by_name(raw: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match="faults") as error:
        parse_faults(raw, "x")
    assert words in str(error.value)


def test_every_kind_is_described() -> None:
    assert len(KINDS) >= 14 and all(kind.text.strip() for kind in KINDS.values())
