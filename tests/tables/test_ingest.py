"""From raw files to tables: what is read, what is refused, and that columns give what rows give."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specjoule.blocks.devices import open_devices
from specjoule.blocks.record import block_record
from specjoule.blocks.runner import Folders, measure_block
from specjoule.blocks.store import BlockStore
from specjoule.errors import StoreError
from specjoule.pairs.tail import gaps_of_chunks
from specjoule.study.model import ValidityConfig
from specjoule.tables.ingest import find_raw_files, forget_others, group_by_block, ingest
from specjoule.windows.collect import StoredNested, collect, collect_files, frame_of, read_rows, write_collected
from specjoule.windows.drift import drifts_of
from specjoule.windows.io import read_window_table
from specjoule.windows.judging import judge_table
from specjoule.windows.nested import GAP_EDGES_MS, PARTS
from specjoule.windows.schema import ARROW_SCHEMA
from specjoule.windows.validity import judge_rows
from specjoule.workflow import PARTS as DECLARED
from specjoule.workflow import Project, open_project
from tests.conftest import make_project_folder

RULES = ValidityConfig()
KEYS = ["cell_hash", "segment_id", "attempt", "launch", "role"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The tiny study, measured, with its block records."""
    folder = tmp_path_factory.mktemp("study")
    make_project_folder(folder)
    with contextlib.chdir(folder):
        made = open_project()
        folders = Folders(made.raw, made.store, made.cache, made.logs)
        for block in made.blocks:
            measure_block(made.study, block, folders, lambda: open_devices(made.study, made.study.gpus["cpu"], "b", 1))
            made.record(block.id).parent.mkdir(parents=True, exist_ok=True)
            record = block_record(block, BlockStore(made.store, made.name, block.id))
            made.record(block.id).write_text(json.dumps(record))
        yield made


@pytest.fixture
def raw(project: Project, tmp_path: Path) -> Path:
    """A copy of the raw files to spoil."""
    shutil.copytree(project.raw, tmp_path / "raw")
    return tmp_path / "raw"


def first_file(raw: Path) -> Path:
    return sorted(raw.rglob("*.parquet"))[0]


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = read_window_table(file)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), file)


def spoil(file: Path, **columns: Any) -> None:
    """Give every row of a file these values."""
    rows = [row | columns for row in read_window_table(file).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), file)


# -- the same numbers as row by row


def test_columns_give_the_verdicts_that_rows_give(project: Project) -> None:
    """Also where identities fail one by one: the quick check may pass on a row only what the rules pass."""
    table = pa.concat_tables([read_window_table(f) for f in sorted(project.raw.rglob("*.parquet"))])
    rows = [r for r in table.to_pylist() if r["window"] == "generation"]
    for name, value in (
        ("committed_tokens", 1), ("rounds", 10_000), ("rounds", None), ("accepted_draft_tokens", 3), ("cut_tokens", 2),
        ("output_token_ids", [1]), ("output_token_ids", []), ("chunk_tokens", [1]), ("acceptance_histogram", [1]),
        ("acceptance_histogram", None), ("distinct_token_ratio", 0.0), ("repeated_ngram_share", 1.0),
        ("distinct_token_ratio", None), ("chunk_tokens", None), ("chunk_tokens", [None]), ("committed_tokens", None),
        ("cut_tokens", None), ("acceptance_histogram", [None]),
    ):  # fmt: skip
        row = json.loads(json.dumps(rows[len(rows) // 2]))
        row["requests"][0][name] = value
        rows.append(row | {"cell_hash": f"{name}={value}"})
    rows.append(rows[0] | {"committed_tokens": 1, "cell_hash": "sum"})
    rows.append(rows[0] | {"max_new_tokens": 999, "cell_hash": "short"})
    for name, bad in (("energy_j", float("inf")), ("duration_s", None), ("duration_s", 0.0)):
        rows.append(rows[0] | {name: bad, "cell_hash": f"{name}={bad}"})
    rows.append(rows[0] | {"status": "failed", "reason": None, "cell_hash": "unexplained"})
    rows.append(rows[0] | {"requests": None, "cell_hash": "none"})
    rows.append(rows[0] | {"requests": [], "cell_hash": "empty"})
    rows += [rows[0] | {"cell_hash": "again", "wave": wave} for wave in (0, 1)]  # the same prompts in two waves
    rows += [r for r in table.to_pylist() if r["window"] == "decode"]
    by_rows = judge_rows(rows, [r["requests"] for r in rows], RULES)
    assert judge_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), RULES) == by_rows
    assert len({v.reasons for v in by_rows}) > 5


def test_nested_frames_hold_what_a_walk_over_requests_finds(project: Project) -> None:
    files = sorted(project.raw.rglob("*.parquet"))
    nested = collect(files, project.raw, RULES).nested
    rows = [r for f in files for r in read_window_table(f).to_pylist() if r["window"] == "generation"]
    assert len(nested.requests) == sum(len(r["requests"]) for r in rows)
    for row in rows[:12]:
        attempt = [r for r in rows if all(r[k] == row[k] for k in KEYS)]
        requests = [q for r in attempt for q in r["requests"]]
        bins = np.zeros(len(GAP_EDGES_MS) - 1)
        kept: dict[int, int] = {}
        for q in requests:
            gaps = gaps_of_chunks(q["chunk_t_ns"], q["chunk_tokens"])
            where = np.clip(np.searchsorted(GAP_EDGES_MS, gaps, side="right") - 1, 0, len(bins) - 1)
            np.add.at(bins, where, 1)
            for i, n in enumerate(q["acceptance_histogram"] or ()):
                kept[i] = kept.get(i, 0) + n
        assert of(nested.gaps, row).set_index("bin")["gaps"].to_dict() == {i: n for i, n in enumerate(bins) if n}
        found = of(nested.acceptance, row).set_index("kept")["rounds"].to_dict()
        assert found == {i: n for i, n in kept.items() if n}
        mine = of(nested.to_eos, row)
        check_to_eos(mine.loc[mine["wave"] == row["wave"]].iloc[0], row)


def of(frame: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    mask = pd.Series(True, index=frame.index)
    for key in KEYS:
        mask &= frame[key] == row[key]
    return frame.loc[mask]


def check_to_eos(found: pd.Series[Any], row: dict[str, Any]) -> None:
    stops = []
    for q in row["requests"]:
        total = np.cumsum(q["chunk_tokens"])
        if q["first_eos_position"] is not None and total[-1] > q["first_eos_position"]:
            stops.append(q["chunk_t_ns"][int(np.argmax(total > q["first_eos_position"]))])
    stop = min([*stops, row["t_end_ns"]])
    tokens = sum(
        n for q in row["requests"] for t, n in zip(q["chunk_t_ns"], q["chunk_tokens"], strict=True) if t <= stop
    )
    assert found["committed_tokens"] == tokens
    assert found["cut"] == (stop < row["t_end_ns"])
    board = [r for r in row["refreshes"] if r["channel"] == "board"]
    middle = [(r["read_start_ns"] + r["read_end_ns"]) / 2 for r in board]
    at = np.interp([row["t_start_ns"], stop, row["t_end_ns"]], middle, [r["counter_j"] for r in board])
    assert found["energy_j"] == pytest.approx(row["energy_j"] * (at[1] - at[0]) / (at[2] - at[0]), rel=1e-9)


def test_an_early_end_of_sequence_cuts_its_wave(raw: Path) -> None:
    def early(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        for row in rows:
            for request in row["requests"] or ():
                request["first_eos_position"] = 9
        return pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)

    rewrite(first_file(raw), early)
    nested = collect([first_file(raw)], raw, RULES).nested
    assert nested.to_eos["cut"].all()
    for row in read_window_table(first_file(raw)).to_pylist():
        if row["window"] == "generation":
            mine = of(nested.to_eos, row)
            check_to_eos(mine.loc[mine["wave"] == row["wave"]].iloc[0], row)


def test_with_and_without_a_block_record_the_rows_are_the_same(project: Project) -> None:
    """`analyse` on a stranger's folder knows no records; the drift it computes is the one a record holds."""
    own = ingest([project.raw]).rows.sort_values(["raw_file", "wave", "window", "role"], ignore_index=True)
    tables = []
    for block in project.blocks:
        record = json.loads(project.record(block.id).read_text())
        files = [project.raw_file(c) for c in block.cells]
        tables.append(collect_files(files, project.raw, RULES, drifts_of(record)))
    theirs = frame_of(pa.concat_tables(tables))
    theirs = theirs.sort_values(["raw_file", "wave", "window", "role"], ignore_index=True)
    assert own["block_drift"].notna().all()
    pd.testing.assert_frame_equal(own, theirs)


def test_the_tables_on_disk_are_those_in_memory(project: Project, tmp_path: Path) -> None:
    assert DECLARED == PARTS
    made = collect(sorted(project.raw.rglob("*.parquet")), project.raw, RULES)
    paths = {name: tmp_path / f"{name}.parquet" for name in PARTS}
    write_collected(made, tmp_path / "rows.parquet", paths)
    stored = StoredNested({name: [path] for name, path in paths.items()})
    for name in PARTS:
        pd.testing.assert_frame_equal(getattr(stored, name), getattr(made.nested, name))
    assert len(read_rows([tmp_path / "rows.parquet"])) == len(made.rows)


# -- what is refused, and what is borne


def test_an_earlier_release_may_lack_columns_that_may_be_null(raw: Path) -> None:
    rewrite(first_file(raw), lambda t: t.drop_columns(["load_average", "samples"]))
    data = ingest([raw])
    mine = data.rows["raw_file"] == str(first_file(raw).relative_to(raw))
    assert data.rows.loc[mine, "load_average"].isna().all() and data.rows.loc[~mine, "load_average"].notna().all()


def test_an_earlier_release_may_lack_fields_of_a_request(raw: Path) -> None:
    def without(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("requests")
        kind = pa.struct([f for f in table.schema.field(at).type.value_type if f.name != "document_id"])
        rows = [r and [{k: v for k, v in q.items() if k != "document_id"} for q in r]
                for r in table["requests"].to_pylist()]  # fmt: skip
        return table.set_column(at, "requests", pa.array(rows, pa.list_(kind)))

    before = ingest([raw])
    rewrite(first_file(raw), without)
    after = ingest([raw])
    pd.testing.assert_frame_equal(before.rows, after.rows)
    assert len(before.nested.requests) == len(after.nested.requests)


def test_a_file_without_a_column_that_must_be_there_is_named(raw: Path) -> None:
    rewrite(first_file(raw), lambda t: t.drop_columns(["segment_id"]))
    with pytest.raises(StoreError, match=rf"{first_file(raw).name}: lacks the column 'segment_id'"):
        ingest([raw])


def test_a_column_of_another_type_is_named(raw: Path) -> None:
    def words(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("energy_j")
        return table.set_column(at, "energy_j", pa.array(["much"] * len(table)))

    rewrite(first_file(raw), words)
    with pytest.raises(StoreError, match="column 'energy_j' is no double"):
        ingest([raw])


@pytest.mark.parametrize("cached", [False, True])
def test_a_damaged_file_is_named(raw: Path, tmp_path: Path, cached: bool) -> None:
    whole = first_file(raw).read_bytes()
    first_file(raw).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=f"{first_file(raw).name}.*not a whole Parquet file"):
        ingest([raw], cache=tmp_path / "cache" if cached else None)
    first_file(raw).write_bytes(whole)
    assert len(ingest([raw], cache=tmp_path / "cache" if cached else None).rows)


def test_another_parquet_file_is_refused(raw: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), raw / "notes.parquet")
    with pytest.raises(StoreError, match="not one of raw windows"):
        ingest([raw])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "weird"}, "status 'weird' is not known to this release"),
        ({"status": "infeasible", "reason": "no_such_code"}, "reason 'no_such_code' is not known to this release"),
        ({"flags": ["no_such_flag"]}, "flags 'no_such_flag' is not known to this release"),
        ({"flags": [None]}, "flags 'None' is not known to this release"),
        ({"role": "third"}, "role 'third' is not known to this release"),
    ],
)
def test_a_word_that_is_not_known_is_an_error_that_names_the_file(
    raw: Path, changes: dict[str, Any], words: str
) -> None:
    spoil(first_file(raw), **changes)
    with pytest.raises(StoreError, match=rf"{re.escape(first_file(raw).name)}: {re.escape(words)}"):
        ingest([raw])


def test_a_null_that_must_not_be_is_an_error_that_names_the_file(raw: Path) -> None:
    table = read_window_table(first_file(raw))
    at = table.schema.get_field_index("verify_width")
    holes = table.set_column(at, pa.field("verify_width", pa.int64()), pa.nulls(len(table), pa.int64()))
    pq.write_table(holes, first_file(raw))
    with pytest.raises(StoreError, match=rf"{first_file(raw).name}: column 'verify_width' is null in a row"):
        ingest([raw])


def test_a_file_without_a_row_is_named(raw: Path) -> None:
    rewrite(first_file(raw), lambda table: table.slice(0, 0))
    with pytest.raises(StoreError, match=rf"{first_file(raw).name}: holds no row; delete it"):
        ingest([raw])


def test_a_run_without_its_reason_is_not_measured_and_says_so(raw: Path) -> None:
    spoil(first_file(raw), status="infeasible", reason=None)
    rows = ingest([raw]).rows
    mine = rows.loc[rows["raw_file"].str.endswith(first_file(raw).name)]
    assert "not_reported" in set(rows.loc[mine.index, "validity_reason"])


@pytest.mark.parametrize(
    ("field", "reasons"),
    [
        ("chunk_tokens", {"counts_missing"}),
        ("committed_tokens", {"denominator_mismatch,counts_missing"}),
        ("chunk_t_ns", set()),
    ],
)
def test_counts_that_are_missing_exclude_their_row_and_touch_no_other(raw: Path, field: str, reasons: set[str]) -> None:
    before = ingest([raw])
    file = first_file(raw)
    rows = read_window_table(file).to_pylist()
    hurt = next(r for r in rows if r["window"] == "generation")
    hurt["requests"][0][field] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), file)
    after = ingest([raw])
    changed = after.rows["validity_reason"].fillna("") != before.rows["validity_reason"].fillna("")
    assert set(after.rows.loc[changed, "validity_reason"]) == reasons
    gaps = [frame.loc[frame["cell_hash"] != hurt["cell_hash"]] for frame in (before.nested.gaps, after.nested.gaps)]
    pd.testing.assert_frame_equal(*(frame.reset_index(drop=True) for frame in gaps))


def test_a_folder_without_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no raw window file"):
        ingest([tmp_path])


def test_protocol_versions_are_not_mixed(raw: Path) -> None:
    spoil(first_file(raw), protocol_version=999)
    with pytest.raises(StoreError, match="protocol versions 1, 999"):
        ingest([raw])


def test_two_folders_are_one_study(project: Project, tmp_path: Path) -> None:
    """The seeds in two places, as two sites would hold them, give what one folder gives."""
    for number in (1, 2):
        for file in project.raw.rglob(f"s{number}.parquet"):
            target = tmp_path / f"site{number}" / file.relative_to(project.raw)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    order = ["cell_hash", "segment_id", "launch", "attempt", "wave", "window"]
    apart = ingest([tmp_path / "site1", tmp_path / "site2"]).rows.sort_values(order, ignore_index=True)
    whole = ingest([project.raw]).rows.sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(apart, whole)


def test_a_copy_of_the_same_windows_is_refused(project: Project, raw: Path) -> None:
    with pytest.raises(StoreError, match="leave one of the copies out"):
        ingest([project.raw, raw])


# -- what is remembered


def test_only_a_changed_block_is_read_again(raw: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    files = [str(f) for _, f in find_raw_files([raw])]
    fresh = ingest([raw], cache=cache)
    assert sorted(fresh.read) == files
    assert ingest([raw], cache=cache).read == ()
    os.utime(files[0])  # a new time, the same content
    assert ingest([raw], cache=cache).read == ()
    spoil(Path(files[0]), foreign_processes=1)
    again = ingest([raw], cache=cache)
    block = next(g for g in group_by_block(find_raw_files([raw])) if files[0] in {str(f) for _, f in g})
    assert sorted(again.read) == [str(f) for _, f in block] and len(again.read) < len(files)
    pd.testing.assert_frame_equal(again.rows, ingest([raw]).rows)
    assert again.rows["validity_reason"].eq("foreign_processes").any()


def test_other_rules_are_other_verdicts(raw: Path, tmp_path: Path) -> None:
    ingest([raw], cache=tmp_path)
    strict = ingest([raw], RULES.model_copy(update={"power_limit_factor": 0.1}), cache=tmp_path)
    assert strict.read and strict.rows["validity_reason"].eq("power_above_limit").any()


def test_an_output_forgets_blocks_that_are_gone(raw: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ingest([raw], cache=cache)
    for file in raw.rglob("s2.parquet"):
        file.unlink()
    forget_others(cache, ingest([raw], cache=cache).nested)
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 1


def test_a_block_in_which_nothing_ran_stands_beside_others(raw: Path, tmp_path: Path) -> None:
    for file in raw.rglob("s2.parquet"):
        rows = read_window_table(file).to_pylist()[:1]
        gone = dict.fromkeys(("requests", "refreshes", "samples", "t_start_ns", "t_end_ns", "energy_j"))
        rows[0] |= {**gone, "status": "infeasible", "reason": "oom_load"}
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), file)
    data = ingest([raw], cache=tmp_path / "cache")
    assert set(data.rows.loc[data.rows["seed"] == 2, "validity"]) == {"not_measured"}
    assert len(data.nested.requests) and data.nested.timeline.empty  # this engine samples no power
    assert data.nested.requests["segment_id"].dtype == "str"
