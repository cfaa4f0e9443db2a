"""Rows of a wave: exact on a constant-power board, conform to the schema, and judged by the stated rules."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import make_project_folder

from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import Folders, measure_block
from specjoule.engines.scripted import BUSY_W
from specjoule.errors import StoreError
from specjoule.reasons import Reason, Status, Validity
from specjoule.study.model import ValidityConfig
from specjoule.windows.collect import collect_files
from specjoule.windows.io import read_window_table, table_from_rows
from specjoule.windows.schema import ARROW_SCHEMA, BY_NAME, NESTED
from specjoule.windows.validity import judge, judge_rows, worth_another_attempt
from specjoule.workflow import Project, open_project

RULES = ValidityConfig()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, list[dict[str, Any]]]]:
    """One measured block, and the rows of the first wave of one of its cells."""
    folder = tmp_path_factory.mktemp("measured")
    make_project_folder(folder)
    with contextlib.chdir(folder):
        project = open_project()
        block = project.blocks[0]
        folders = Folders(project.raw, project.store, project.cache, project.logs)
        measure_block(
            project.study, block, folders, lambda: open_devices(project.study, project.study.gpus["cpu"], "b", 1)
        )
        cell = next(c for c in block.cells if c.drafter == "ngram-4" and c.concurrency == 4)
        rows = pq.read_table(project.raw_file(cell)).to_pylist()
        yield project, [row for row in rows if row["wave"] == 0]


@pytest.fixture
def project(measured: tuple[Project, list[dict[str, Any]]]) -> Project:
    return measured[0]


@pytest.fixture
def rows(measured: tuple[Project, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return copy.deepcopy(measured[1])


def test_energy_on_a_constant_power_board_is_power_times_time(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["energy_j"] == pytest.approx(BUSY_W * row["duration_s"], rel=1e-6), row["window"]
        assert row["power_mean_w"] == pytest.approx(BUSY_W, rel=1e-6)
        assert row["energy_j"] / row["committed_tokens"] == pytest.approx(row["power_mean_w"] / row["throughput_tok_s"])


def test_the_decode_window_lies_inside_the_constant_batch(rows: list[dict[str, Any]]) -> None:
    generation, decode = rows
    first = max(r["chunk_t_ns"][0] for r in generation["requests"])
    end = min(r["chunk_t_ns"][-1] for r in generation["requests"])
    assert first <= decode["t_start_ns"] < decode["t_end_ns"] <= end
    assert decode["realized_batch"] == 4
    assert decode["rounds"] == decode["steps"] * 4
    assert decode["requests"] is None


def test_any_number_can_be_computed_again_from_the_file_alone(rows: list[dict[str, Any]]) -> None:
    from specjoule.meters.base import Calibration, Refreshes
    from specjoule.meters.energy import window_energy

    generation = rows[0]
    board = [r for r in generation["refreshes"] if r["channel"] == "board"]
    refreshes = Refreshes(
        np.array([r["read_start_ns"] for r in board]),
        np.array([r["read_end_ns"] for r in board]),
        np.array([r["counter_j"] for r in board]),
    )
    for row, edges in zip(rows, ("generation", "decode"), strict=True):
        again = window_energy(
            refreshes,
            row["t_start_ns"],
            row["t_end_ns"],
            edges=edges,
            calibration=Calibration(calibrated=True),  # type: ignore[arg-type]
        )
        assert again.energy_j == pytest.approx(row["energy_j"], rel=1e-9)
    assert sum(r["committed_tokens"] for r in generation["requests"]) == generation["committed_tokens"]


def test_rows_satisfy_the_schema_and_foreign_columns_are_refused(rows: list[dict[str, Any]]) -> None:
    table = table_from_rows(rows)
    assert table.schema.equals(ARROW_SCHEMA)
    with pytest.raises(ValueError, match="not in the schema: made_up"):
        table_from_rows([rows[0] | {"made_up": 1}])
    with pytest.raises(ValueError, match="'meter' must not be null"):
        table_from_rows([rows[0] | {"meter": None}])


def test_the_data_dictionary_names_every_column_once() -> None:
    assert len(BY_NAME) == len(ARROW_SCHEMA)
    assert set(BY_NAME) >= NESTED
    assert all(c.meaning and c.unit for c in BY_NAME.values())


def verdict(row: dict[str, Any], rules: ValidityConfig = RULES) -> set[Reason]:
    return set(judge(row, row.get("requests"), rules).reasons)


def spoiled(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(row) | changes


def test_a_clean_row_is_valid(rows: list[dict[str, Any]]) -> None:
    assert [judge(r, r["requests"], RULES).validity for r in rows] == [Validity.VALID, Validity.VALID]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"committed_tokens": 80}, Reason.DENOMINATOR_MISMATCH),
        ({"energy_j": 0.0}, Reason.ZERO_ENERGY),
        ({"energy_j": None}, Reason.NO_METER),
        ({"power_mean_w": 900.0}, Reason.POWER_ABOVE_LIMIT),
        ({"energy_uncertainty_j": 1e6}, Reason.WINDOW_TOO_SHORT),
        ({"power_integral_j": 1e6}, Reason.CROSS_CHECK),
        ({"foreign_processes": 1}, Reason.FOREIGN_PROCESSES),
        ({"throttle_reasons": ["hw_thermal_slowdown"]}, Reason.THERMAL_SLOWDOWN),
        ({"throttle_reasons": ["hw_power_brake"]}, Reason.HARDWARE_SLOWDOWN),
        ({"locked_mhz": 1500, "sm_clock_mean_mhz": 1700.0}, Reason.CLOCK_NOT_OBEYED),
        ({"capture": True, "capture_verified": False}, Reason.CAPTURE_FELL_BACK),
        ({"capture": True, "capture_verified": None}, Reason.CAPTURE_NOT_PROVEN),
        ({"draft_width_changed": True}, Reason.DRAFT_WIDTH_CHANGED),
        ({"client_lag_ms": 50.0}, Reason.CLIENT_BEHIND),
        ({"realized_batch_engine": 2.0}, Reason.ENGINE_BATCH_DISAGREES),
        ({"unique_prompts": 3}, Reason.REPEATED_PROMPTS),
        ({"cached_tokens": 16}, Reason.CACHE_HIT),
        ({"flags": ["counter_reset"]}, Reason.COUNTER_RESET),
        ({"max_new_tokens": 99}, Reason.SHORT_ANSWER),
    ],
)
def test_each_fault_has_its_reason(rows: list[dict[str, Any]], changes: dict[str, Any], reason: Reason) -> None:
    assert reason in verdict(spoiled(rows[0], **changes))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("rounds", 1, Reason.ROUNDS_INCONSISTENT),
        ("accepted_draft_tokens", 0, Reason.ROUNDS_INCONSISTENT),
        ("acceptance_histogram", [1, 1, 1, 1], Reason.HISTOGRAM_INCONSISTENT),
        ("chunk_tokens", [1], Reason.DENOMINATOR_MISMATCH),
        ("rounds", None, Reason.COUNTS_MISSING),
    ],
)
def test_a_requests_contradiction_rejects_its_row(
    rows: list[dict[str, Any]], field: str, value: Any, reason: Reason
) -> None:
    row = copy.deepcopy(rows[0])
    row["requests"][0][field] = value
    assert reason in verdict(row)


@pytest.mark.parametrize(("looping", "invalid"), [(1, False), (2, False), (3, True)])
def test_looping_answers_are_counted_over_the_whole_attempt(
    rows: list[dict[str, Any]], looping: int, invalid: bool
) -> None:
    waves = [copy.deepcopy(rows[0]) | {"wave": i} for i in range(4)]
    for i, wave in enumerate(waves):
        wave["requests"] = wave["requests"][:1]
        wave["requests"][0]["distinct_token_ratio"] = 0.05 if i < looping else 0.9
    verdicts = judge_rows(waves, [w["requests"] for w in waves], RULES)
    assert {Reason.DEGENERATE_OUTPUT in v.reasons for v in verdicts} == {invalid}


def test_a_prompt_that_comes_back_in_a_later_wave_is_a_repeated_prompt(rows: list[dict[str, Any]]) -> None:
    first = next(r for r in rows if r["concurrency"] == 4 and r["window"] == "generation")
    later = spoiled(first, wave=1)
    for request in later["requests"][1:]:
        request["prompt_id"] += "-other"
    for request, verdicts in ((later["requests"][0]["prompt_id"], {"repeated_prompts"}), ("another", set())):
        later["requests"][0]["prompt_id"] = request
        both = judge_rows([first, later], [first["requests"], later["requests"]], RULES)
        assert [{str(r) for r in v.reasons} for v in both] == [verdicts, verdicts]
    elsewhere = spoiled(first, wave=1, role="reference")
    assert all(
        not v.reasons for v in judge_rows([first, elsewhere], [r["requests"] for r in (first, elsewhere)], RULES)
    )


def test_software_power_capping_is_normal_and_never_excludes(rows: list[dict[str, Any]]) -> None:
    assert not verdict(spoiled(rows[0], throttle_reasons=["sw_power_cap"], power_capped_share=1.0))


def test_an_infeasible_row_is_not_measured_with_the_runs_reason(rows: list[dict[str, Any]]) -> None:
    judged = judge(spoiled(rows[0], status=str(Status.INFEASIBLE), reason="oom_capture"), None, RULES)
    assert (judged.validity, judged.reasons) == (Validity.NOT_MEASURED, (Reason.OOM_CAPTURE,))


def test_only_trouble_of_the_environment_is_worth_another_attempt(rows: list[dict[str, Any]]) -> None:
    gap = judge(spoiled(rows[0], flags=["meter_gap"]), rows[0]["requests"], RULES)
    loop = judge(spoiled(rows[0], cached_tokens=4), rows[0]["requests"], RULES)
    clean = judge(rows[0], rows[0]["requests"], RULES)
    assert worth_another_attempt([gap, clean])
    assert not worth_another_attempt([gap, loop])
    assert not worth_another_attempt([clean])


def test_an_energy_that_the_meter_voids_is_worth_another_attempt(rows: list[dict[str, Any]]) -> None:
    frozen = judge(spoiled(rows[0], energy_j=None, flags=["counter_frozen"]), rows[0]["requests"], RULES)
    assert frozen.reasons == (Reason.COUNTER_FROZEN,)
    assert worth_another_attempt([frozen])


def test_a_busy_host_is_invalid_only_where_a_limit_is_set(rows: list[dict[str, Any]]) -> None:
    busy = spoiled(rows[0], load_average=3.0)
    assert Reason.BUSY_HOST not in verdict(busy)
    assert Reason.BUSY_HOST in verdict(busy, RULES.model_copy(update={"max_load_average": 2.0}))


def test_collect_applies_changed_rules_without_a_new_measurement(project: Project, rows: list[dict[str, Any]]) -> None:
    cell = next(c for c in project.blocks[0].cells if c.drafter == "ngram-4" and c.concurrency == 4)
    files = [project.raw_file(cell)]
    valid = collect_files(files, project.raw, RULES, {})
    assert set(valid.column("validity").to_pylist()) == {"valid"}
    strict = collect_files(files, project.raw, RULES.model_copy(update={"power_limit_factor": 0.1}), {})
    assert set(strict.column("validity_reason").to_pylist()) == {"power_above_limit"}


def test_drift_beyond_its_limit_invalidates_the_segment(project: Project, rows: list[dict[str, Any]]) -> None:
    cell = next(c for c in project.blocks[0].cells if c.drafter == "ngram-4" and c.concurrency == 4)
    key = (rows[0]["segment_id"], rows[0]["capture"], rows[0]["locked_mhz"])
    table = collect_files([project.raw_file(cell)], project.raw, RULES, {key: 0.2})
    assert set(table.column("validity_reason").to_pylist()) == {"block_drift"}
    assert set(table.column("block_drift").to_pylist()) == {0.2}
    small = collect_files([project.raw_file(cell)], project.raw, RULES, {key: 0.01})
    assert set(small.column("validity").to_pylist()) == {"valid"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.write_bytes(b""), "not a whole Parquet file .*; if it is one of a study's raw files, delete it"),
        (lambda p: p.write_bytes(b"\x00binary" * 50), "not a whole Parquet file"),
        (lambda p: pq.write_table(pa.table({"a": [1]}), p), "not one of raw windows"),
        (
            lambda p: pq.write_table(
                pa.table({"a": [1]}).replace_schema_metadata({"specjoule_schema_version": "999"}), p
            ),
            "newer release",
        ),
    ],
)
def test_a_file_that_is_no_raw_window_is_refused_in_one_sentence(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "x.parquet"
    make(path)
    with pytest.raises(StoreError, match=message):
        read_window_table(path)


def test_reason_codes_in_rows_are_those_of_the_enumeration() -> None:
    assert len({r.value for r in Reason}) == len(list(Reason))
    assert all(r.text.endswith(".") and r.group for r in Reason)
