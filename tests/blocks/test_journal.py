"""The journal survives torn lines, and its summary is a pure fold."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specjoule.blocks.journal import CELL, REMEASURE, SEGMENT, Journal, read_events, summarise
from specjoule.errors import StoreError


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal.jsonl")
    for i in range(5):
        journal.append(CELL, cell_hash=f"h{i}", text="né ✓")
    assert [e["cell_hash"] for e in journal.events()] == [f"h{i}" for i in range(5)]


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none") == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), data=st.data())
def test_a_line_torn_anywhere_loses_itself_only(tmp_path: Path, cut: int, data: st.DataObject) -> None:
    path = tmp_path / f"j{os.urandom(4).hex()}.jsonl"
    journal = Journal(path)
    for i in range(4):
        journal.append(CELL, cell_hash=f"h{i}", payload="x" * 20)
    whole = path.read_bytes()
    torn = whole[: min(cut, len(whole))]
    path.write_bytes(torn)
    complete = [json.loads(line) for line in torn.split(b"\n")[:-1] if line]
    last = torn.split(b"\n")[-1]
    survivors = [e["cell_hash"] for e in complete]
    with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
        survivors.append(json.loads(last)["cell_hash"])  # a line that lacks nothing but its newline counts
    assert [e["cell_hash"] for e in journal.events()] == survivors
    journal.append(CELL, cell_hash="next")
    assert [e["cell_hash"] for e in journal.events()] == [*survivors, "next"]


def _append_many(path: str, name: str) -> None:
    journal = Journal(Path(path))
    for i in range(50):
        journal.append(CELL, cell_hash=f"{name}{i}", payload="y" * 200)


def test_two_writers_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(str(path), name)) for name in "ab"]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    found = [e["cell_hash"] for e in read_events(path)]
    assert sorted(found) == sorted([f"{n}{i}" for n in "ab" for i in range(50)])
    for name in "ab":
        assert [h for h in found if h.startswith(name)] == [f"{name}{i}" for i in range(50)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_plain_sentence() -> None:
    with pytest.raises(StoreError, match="the journal cannot be written"):
        Journal(Path("/dev/full")).append(CELL, cell_hash="h")


def test_summary_keeps_the_newest_and_honours_remeasure() -> None:
    def done(h: str, attempt: int, **more: object) -> dict[str, object]:
        return {
            "event": CELL,
            "cell_hash": h,
            "role": "cell",
            "attempt": attempt,
            "status": "ok",
            "seconds": 2.0,
            **more,
        }

    events = [
        {"event": SEGMENT},
        done("a", 1),
        done("b", 1),
        {"event": CELL, "cell_hash": "c", "role": "cell", "attempt": 0, "status": "failed", "reason": "engine_crash"},
        done("a", 2, role="reference"),
        {"event": REMEASURE, "cell_hash": "b"},
    ]
    state = summarise(events)
    assert set(state.finished) == {"a"}
    assert state.attempts == {"a": 2, "b": 1, "c": 0}
    assert set(state.failed) == {"c"}
    assert state.segments == 1
    assert set(summarise([*events, done("b", 2), done("c", 1)]).finished) == {"a", "b", "c"}
    assert not summarise([*events, done("c", 1)]).failed
