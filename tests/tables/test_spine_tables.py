from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from specjoule.errors import ConfigurationError
from specjoule.meters.base import PROVENANCE
from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import make_pairs
from specjoule.pairs.summary import summarise
from specjoule.tables.best_drafter import best_drafter
from specjoule.tables.registry import ITEMS, build, build_all
from specjoule.tables.render import exclusion_note, format_value, latex_escape, write_table
from tests.pairs.frames import cell, frame, study


def summary_of(rows: pd.DataFrame) -> pd.DataFrame:
    return summarise(make_pairs(sum_waves(rows), sum_waves(rows, "decode")).pairs)


def test_best_drafter_and_runner_up() -> None:
    out = best_drafter(summary_of(study()))
    assert list(out["concurrency"]) == [1, 4, 16, 64]
    assert list(out["best_drafter"]) == ["dspark-7"] * 4
    last = out.iloc[-1]
    assert last["saving_median"] == pytest.approx(1 - (1.4 + 0.15 * 6) / 2.8, abs=2e-3)
    assert last["runner_up"] == "ngram-4" and last["candidates"] == 3


def test_a_drafter_with_fewer_seeds_does_not_win() -> None:
    rows = study(drafters=["ngram-4"], concurrencies=[1])
    lucky = frame(cell("dspark-7", step_j=0.1, committed_per_round=2.8, concurrency=1, gpu_uuid="G-0"))
    out = best_drafter(summary_of(pd.concat([rows, lucky], ignore_index=True)))
    assert list(out["best_drafter"]) == ["ngram-4"] and list(out["candidates"]) == [1]


def test_baselines_do_not_compete() -> None:
    rows = frame(cell("plain") + cell("plain-matched", step_j=0.1))
    assert best_drafter(summary_of(rows)).empty


def test_tables_carry_provenance_and_exclusions(tmp_path: Path) -> None:
    excluded = pd.DataFrame({"reason": ["capacity", "meter_gap,cache_hit"]})
    for meter, words in PROVENANCE.items():
        frame_ = pd.DataFrame({"model": ["a_b|c"], "saving": [0.12345], "meter": [meter]})
        paths = write_table(frame_, tmp_path, "t", caption="Cap.", provenance=words, excluded=excluded)
        for path in paths:
            assert words.split(",")[0] in path.read_text()
        csv = pd.read_csv(paths[0])
        assert csv["saving"].iloc[0] == 0.12345 and set(csv["provenance"]) == {words}
        markdown, latex = paths[1].read_text(), paths[2].read_text()
        assert "1 cache_hit" in markdown and "1 capacity" in markdown and r"a\_b|c" in latex and r"a_b\|c" in markdown


def test_an_empty_table_says_so(tmp_path: Path) -> None:
    paths = write_table(pd.DataFrame({"a": []}), tmp_path, "t", caption="C.", provenance="p")
    assert "No cell" in paths[1].read_text() and "No cell" in paths[2].read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (float("inf"), "∞"), (True, "yes"), (0.123456, "0.1235"), (1234.5678, "1235"),
     (12.3456, "12.35"), (3.0, "3"), (1e-7, "1e-07"), ("x", "x"), (7, "7")],
)  # fmt: skip
def test_format(value: object, text: str) -> None:
    assert format_value(value) == text


def test_notes_and_escapes() -> None:
    assert exclusion_note({}) == "Excluded: none."
    assert "Out of memory" in exclusion_note({"oom_load": 2})
    assert latex_escape("50 % & a_b ≤ ρ") == r"50 \% \& a\_b $\leq$ $\rho$"


def test_every_item_builds_alone_and_empty(tmp_path: Path) -> None:
    rows = study(concurrencies=[1, 4])
    nothing = frame(cell("plain"))
    for name, item in ITEMS.items():
        for data in (rows, nothing):
            paths = build(name, data, tmp_path, "test")
            assert [p.name for p in paths] == list(item.files)
            assert all(p.stat().st_size > 0 for p in paths)


def test_unknown_item_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="figure_saving"):
        build("figure_savings", study(), tmp_path)


def test_manifest(tmp_path: Path) -> None:
    rows = pd.concat(
        [study(concurrencies=[1]), frame(cell("ngram-4", concurrency=64, status="partial", reason="capacity"))]
    )
    build_all(rows, tmp_path, "test", only=["table_cells"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["study"] == "test" and manifest["meters"] == ["simulated"]
    assert manifest["excluded_by_reason"] == {"capacity": 1}
    assert len(manifest["cells_used"]) == 12  # 3 drafters and plain, 3 seeds
    assert manifest["items"][0]["name"] == "table_cells" and manifest["items"][0]["question"]
    assert manifest["code"]["version"]
