"""`specjoule analyse`: any folders of raw windows, merged where they were measured alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from specjoule.workflow import Project
from tests.cli.conftest import Run


def halves(project: Project) -> tuple[Path, Path]:
    """The measured windows as two people's folders: one block (seed) each."""
    raw = Path(project.raw)
    folders = (Path("one"), Path("two"))
    for folder, seed in zip(folders, ("s1", "s2"), strict=True):
        for file in raw.rglob(f"{seed}*.parquet"):
            target = folder / file.relative_to(raw)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        assert list(folder.rglob("*.parquet"))
    return folders


def test_two_folders_are_one_study(run: Run, measured: Project) -> None:
    one, two = halves(measured)
    for name, folders in (("both", (one, two)), ("whole", (Path(measured.raw),)), ("alone", (one,))):
        ran = run("analyse", *folders, "--output", name, "--only", "table_verdicts,table_cells")
        assert ran.code == 0 and f"files in {name}" in ran.out, ran
    tables = {n: pd.read_csv(Path(n) / "table_verdicts.csv") for n in ("both", "whole", "alone")}
    assert set(tables["both"]["n_pairs"]) == {2} and set(tables["alone"]["n_pairs"]) == {1}
    shared = ["drafter", "concurrency", "n_seeds", "ratio_median", "saving_low", "saving_high", "verdict"]
    pd.testing.assert_frame_equal(tables["both"][shared], tables["whole"][shared])
    manifest = json.loads(Path("both/manifest.json").read_text(encoding="utf-8"))
    assert [i["name"] for i in manifest["items"]] == ["table_verdicts", "table_cells"]
    assert manifest["cells"]["pairs"] == 4 and len(pd.read_csv("both/table_cells.csv")) >= 8


def test_protocol_versions_that_differ_are_refused_in_one_sentence(run: Run, measured: Project) -> None:
    one, two = halves(measured)
    for file in two.rglob("*.parquet"):
        table = pq.read_table(file)
        at = table.schema.get_field_index("protocol_version")
        older = pa.array([7] * len(table), table.schema.field(at).type)
        pq.write_table(table.set_column(at, table.schema.field(at), older), file)
    ran = run("analyse", one, two, "--output", "out", "--only", "table_verdicts")
    assert "protocol versions 1, 7" in ran.sentence and "analyse them apart" in ran.sentence
    assert not list(Path("out").glob("table_*"))
    assert run("analyse", two, "--output", "out", "--only", "table_verdicts").code == 0


def test_what_is_no_study_is_refused_in_one_sentence(run: Run, measured: Project) -> None:
    Path("empty").mkdir()
    assert "no raw window file" in run("analyse", "empty", "--output", "out").sentence
    assert (
        "did you mean 'table_verdicts'"
        in run("analyse", measured.raw, "--output", "out", "--only", "table_verdict").sentence
    )
    other = Path("other")
    other.mkdir()
    pq.write_table(pa.table({"a": [1]}), other / "a.parquet")
    assert "a.parquet" in run("analyse", other, "--output", "out").sentence
