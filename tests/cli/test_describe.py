"""`describe`: one cell in words, and every wrong file in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specjoule.version import PROTOCOL_VERSION
from specjoule.windows.io import read_window_table, write_window_table
from specjoule.workflow import Project
from tests.cli.conftest import Run


def some_file(project: Project, drafter: str = "ngram-4") -> Path:
    return next(project.raw_file(c) for c in project.cells if c.drafter == drafter and c.concurrency == 4)


def test_in_words(measured: Project, run: Run) -> None:
    ran = run("describe", some_file(measured))
    assert ran.code == 0
    for words in ("drafter ngram-4", "4 requests at once", "simulated, not measured", "Counts Yes", "J per committed"):
        assert words in ran.out
    assert "plain decoding" in run("describe", some_file(measured, "plain")).out


def test_as_json_the_numbers_are_those_of_the_file(measured: Project, run: Run) -> None:
    path = some_file(measured)
    facts = json.loads(run("describe", path, "--json").out)
    rows = [r for r in read_window_table(path).to_pylist() if r["window"] == "generation"]
    (attempt,) = facts["attempts"]
    assert attempt["energy_j"] == sum(r["energy_j"] for r in rows)
    assert attempt["j_per_token"] == attempt["energy_j"] / sum(r["committed_tokens"] for r in rows)
    assert attempt["validity"] == "valid"
    assert facts["cell"]["drafter"] == "ngram-4"


def test_it_says_why_a_cell_does_not_count(measured: Project, run: Run) -> None:
    path = some_file(measured)
    table = read_window_table(path)
    index = table.schema.get_field_index("foreign_processes")
    table = table.set_column(index, table.schema.field(index), pa.array([2] * table.num_rows, pa.int64()))
    write_window_table(table, path)
    ran = run("describe", path)
    assert "Counts No: ok, invalid. foreign_processes: Another process computed on the board." in ran.out


def changed(path: Path, column: str, value: int) -> None:
    table = read_window_table(path)
    index = table.schema.get_field_index(column)
    table = table.set_column(index, table.schema.field(index), pa.array([value] * table.num_rows, pa.int64()))
    write_window_table(table, path)


def test_a_newer_protocol_is_refused(measured: Project, run: Run) -> None:
    path = some_file(measured)
    changed(path, "protocol_version", PROTOCOL_VERSION + 1)
    assert f"protocol version {PROTOCOL_VERSION + 1}" in run("describe", path).sentence


def test_a_newer_schema_is_refused(measured: Project, run: Run) -> None:
    path = some_file(measured)
    table = read_window_table(path)
    pq.write_table(table.replace_schema_metadata({"specjoule_schema_version": "99"}), path)
    assert "newer release (schema 99" in run("describe", path).sentence


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.touch(), "not a whole Parquet file"),
        (lambda p: p.write_bytes(bytes(range(256)) * 9), "not a whole Parquet file"),
        (lambda p: p.write_text("a,b\n1,2\n"), "not a whole Parquet file"),
        (lambda p: pq.write_table(pa.table({"a": [1]}), p), "not one of raw windows"),
    ],
)
def test_wrong_files(tmp_path: Path, run: Run, make: object, words: str) -> None:
    path = tmp_path / "x.parquet"
    make(path)  # type: ignore[operator]
    sentence = run("describe", path).sentence
    assert words in sentence
    assert str(path) in sentence


def test_half_a_file(measured: Project, run: Run) -> None:
    path = some_file(measured)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "not a whole Parquet file" in run("describe", path).sentence


def test_no_permission(measured: Project, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("specjoule.windows.io.pq.ParquetFile", refuse)
    assert "Permission denied" in run("describe", some_file(measured)).sentence
