"""Growth of the analysis with the cells, by counting reads; the full size is `benchmarks/analysis_scale.py`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from analysis_scale import STUDY, change_one_block, copies, measure_originals

from specjoule.engines.simulated.synthetic import narrowed
from specjoule.study.load import load_study
from specjoule.tables.context import Context
from specjoule.tables.ingest import find_raw_files, group_by_block, ingest
from specjoule.tables.registry import build_all
from specjoule.windows import collect


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("originals")
    study = narrowed(
        load_study(STUDY), grids=["base-h100"], models=["Qwen3-4B"], seeds=(1,), concurrency=(4, 16), corpora=("code",)
    )
    return folder / "raw", measure_originals(study, folder, 100)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each raw file is read."""
    counted: Counter[str] = Counter()
    real = collect.read_window_table

    def counting(path: Path, *rest: Any) -> Any:
        counted[str(path)] += 1
        return real(path, *rest)

    monkeypatch.setattr(collect, "read_window_table", counting)
    return counted


def test_every_raw_file_is_read_once_and_then_only_those_of_a_changed_block(
    originals: tuple[Path, list[Path]], tmp_path: Path, read: Counter[str]
) -> None:
    root, files = originals
    for seeds in (2, 6):
        raw = tmp_path / f"raw-{seeds}"
        assert copies(files, root, raw, seeds * len(files)) == seeds * len(files)
        groups = group_by_block(find_raw_files([raw]))
        assert len(groups) == seeds
        read.clear()
        data = ingest([raw], cache=tmp_path / f"cache-{seeds}", workers=1)
        build_all(Context(data.rows, "scale", nested=data.nested), tmp_path / "tables", only=SOME)
        assert set(read.values()) == {1} and len(read) == seeds * len(files)
        read.clear()
        change_one_block(raw)
        again = ingest([raw], cache=tmp_path / f"cache-{seeds}", workers=1)
        build_all(Context(again.rows, "scale", nested=again.nested), tmp_path / "tables", only=SOME)
        assert set(read.values()) == {1} and len(read) == len(files)


SOME = ["table_verdicts", "table_agreement", "table_to_first_eos", "figure_gaps", "figure_survival", "figure_timeline"]


def test_several_processes_make_the_same_files(originals: tuple[Path, list[Path]], tmp_path: Path) -> None:
    root, files = originals
    copies(files, root, tmp_path / "raw", 3 * len(files))
    data = ingest([tmp_path / "raw"], cache=tmp_path / "cache", workers=2)
    made = {}
    for workers in (1, 2):
        output = tmp_path / f"tables-{workers}"
        paths = build_all(Context(data.rows, "scale", nested=data.nested), output, only=SOME, workers=workers)
        made[workers] = {p.name: p.read_bytes() for p in paths if p.name != "manifest.json"}
    assert made[1] == made[2] and len(made[1]) == 18
