"""Merging, comparing and bundling studies measured with the scripted engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from specjoule.blocks.record import block_record
from specjoule.blocks.store import BlockStore
from specjoule.errors import ConfigurationError, StoreError
from specjoule.files import write_json
from specjoule.sharing.bundle import open_bundle, reanalyse, write_bundle
from specjoule.sharing.commands import app
from specjoule.sharing.compare import compare, split_by
from specjoule.sharing.merge import Source, merge, merge_frames, parse_source
from specjoule.sharing.redact import Redaction
from specjoule.sharing.rows import collected_rows
from specjoule.windows.collect import collect_files, write_rows
from specjoule.windows.drift import drifts_of
from specjoule.workflow import Project
from tests.blocks.studies import GRID, SCRIPTED, copy_inputs, measure, small_project


def finish(project: Project) -> None:
    """Measure, record and collect every block."""
    for block in project.blocks:
        measure(project, block)
        record = block_record(block, BlockStore(project.store, project.name, block.id))
        write_json(project.record(block.id), record)
        files = [project.raw_file(c) for c in block.cells]
        table = collect_files(files, project.raw, project.study.file.validity, drifts_of(record))
        write_rows(table, project.rows(block.id))


def project_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Project:
    folder.mkdir()
    copy_inputs(folder)
    monkeypatch.chdir(folder)
    project = small_project(**changes)
    finish(project)
    return project


@pytest.fixture
def two_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The same study at two sites; the second with another engine setting (half the drafts accepted)."""
    project_in(tmp_path / "north", monkeypatch, site="north")
    changed = {"name": "scripted", "version": "2", "settings": {"accept": 0.9}}
    project_in(tmp_path / "south", monkeypatch, site="south", engine=changed)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "north", tmp_path / "south"


def test_merging_keeps_each_measurement_once(two_sites: tuple[Path, Path]) -> None:
    north, south = two_sites
    one = collected_rows(north)
    merged = merge([Source(north), Source(south), Source(north / "results/collected/default/blocks")])
    assert len(merged.rows) == len(one) + len(collected_rows(south))
    assert merged.same_measurements == len(one)
    assert sorted(merged.rows["site"].unique()) == ["north", "south"]
    assert merged.to_dict()["sources"][0]["sites"] == ["north"]


def test_the_same_cell_at_two_sites_stays_twice(two_sites: tuple[Path, Path]) -> None:
    rows = collected_rows(two_sites[0])
    elsewhere = rows.assign(site="west", segment_id="9")
    merged = merge_frames([("a", None, rows), ("b", None, elsewhere)])
    assert merged.cells_at_several_sites == rows["cell_hash"].nunique()
    assert len(merged.rows) == 2 * len(rows)


def test_an_altered_copy_is_refused(two_sites: tuple[Path, Path]) -> None:
    rows = collected_rows(two_sites[0])
    altered = rows.copy()
    altered.loc[3, "energy_j"] = altered.loc[3, "energy_j"] * 0.9
    with pytest.raises(ConfigurationError, match=r"energy_j.*altered"):
        merge_frames([("a", None, rows), ("b", None, altered)])


def test_a_source_without_a_site_must_be_given_one(two_sites: tuple[Path, Path]) -> None:
    rows = collected_rows(two_sites[0]).assign(site=None)
    with pytest.raises(ConfigurationError, match="SITE="):
        merge_frames([("a", None, rows)])
    assert set(merge_frames([("a", "east", rows)]).rows["site"]) == {"east"}
    assert parse_source("east=some/path") == Source(Path("some/path"), "east")
    assert parse_source("some/a=b") == Source(Path("some/a=b"))


def test_comparing_two_releases(two_sites: tuple[Path, Path]) -> None:
    found = compare(*(collected_rows(p) for p in two_sites))
    assert len(found.cells) == 2 * 2 * 2  # two drafters, two concurrencies, two seeds
    assert found.unmatched == (0, 0)
    # More drafts accepted: fewer joules a token, plain as it was.
    assert (found.summary["ratio_change"] < 1).all()
    assert found.summary["plain_change"].to_numpy() == pytest.approx(1.0, rel=0.02)
    assert (found.summary["n"] == 2).all() and found.summary["one_way"].all()
    settings = found.settings.set_index("setting")
    assert (settings.loc["site", "a"], settings.loc["site", "b"]) == ("north", "south")
    assert found.meters == ("simulated",)


def test_a_factor_within_one_table(two_sites: tuple[Path, Path]) -> None:
    rows = pd.concat([collected_rows(p) for p in two_sites], ignore_index=True)
    sides = split_by(rows, "site")
    assert list(sides) == ["north", "south"]
    assert len(compare(*sides.values()).cells) == 8
    with pytest.raises(ConfigurationError, match="1 values"):
        split_by(rows, "meter")
    with pytest.raises(ConfigurationError, match="no column"):
        split_by(rows, "weather")


def test_nothing_in_common_is_said(two_sites: tuple[Path, Path]) -> None:
    rows = collected_rows(two_sites[0])
    with pytest.raises(ConfigurationError, match="no paired cell in common"):
        compare(rows, rows.assign(corpus="other"))


def test_a_bundle_opens_and_reanalyses_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_in(tmp_path / "here", monkeypatch, grid={"seeds": [1]})
    done = write_bundle(project, tmp_path / "study.zip")
    assert done.missing_cells == 0
    again = write_bundle(project, tmp_path / "again.zip")
    assert (tmp_path / "study.zip").read_bytes() == (tmp_path / "again.zip").read_bytes() and again.files == done.files
    shutil.rmtree(tmp_path / "here" / "results")
    monkeypatch.chdir(tmp_path)
    assert open_bundle(tmp_path / "study.zip", tmp_path / "there") == done.files
    crate = json.loads((tmp_path / "there/ro-crate-metadata.json").read_text())
    kinds = {item["@id"]: item for item in crate["@graph"]}
    assert kinds["ro-crate-metadata.json"]["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    for part in kinds["./"]["hasPart"]:
        item, path = kinds[part["@id"]], tmp_path / "there" / part["@id"]
        assert item["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    files = reanalyse(tmp_path / "there", tmp_path / "figures")
    manifest = json.loads((tmp_path / "figures/manifest.json").read_text())
    assert manifest["cells"]["pairs"] == 4 and len(files) > 3
    licenses = json.loads((tmp_path / "there/licenses.json").read_text())
    assert licenses["corpora"] == {"code": "CC0-1.0"}


def test_redacted_bundles_keep_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_in(tmp_path / "here", monkeypatch, grid={"seeds": [1]})
    host = json.loads(project.record(project.blocks[0].id).read_text())["segments"][0]["host"]
    write_bundle(project, tmp_path / "study.zip", Redaction(texts=True, hosts=True, uuids=True))
    folder = tmp_path / "there"
    open_bundle(tmp_path / "study.zip", folder)
    for path in folder.rglob("*"):
        if path.is_file():
            assert f'"{host}"' not in path.read_text(errors="replace"), path
            assert "SCRIPTED-0" not in path.read_text(errors="replace"), path
    raw = pq.read_table(next((folder / "results/raw").rglob("c4/*.parquet")))
    assert all(v.startswith("host-") for v in raw.column("host").to_pylist())
    assert all(v.startswith("board-") for v in raw.column("gpu_uuid").to_pylist())
    requests = next(r for r in raw.column("requests").to_pylist() if r)
    assert requests[0]["text"] is None and requests[0]["output_token_ids"] == []
    assert requests[0]["output_digest"] and requests[0]["acceptance_histogram"]
    reanalyse(folder, tmp_path / "figures")
    assert json.loads((tmp_path / "figures/manifest.json").read_text())["cells"]["pairs"] == 4


def test_a_changed_file_in_a_bundle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_in(tmp_path / "here", monkeypatch, grid={"seeds": [1]})
    write_bundle(project, tmp_path / "study.zip")
    with zipfile.ZipFile(tmp_path / "study.zip") as good, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            bad.writestr(name, data.replace(b"ngram-4", b"ngram-5") if name == "config/study.yaml" else data)
    with pytest.raises(StoreError, match=r"config/study\.yaml.*checksum"):
        open_bundle(tmp_path / "bad.zip", tmp_path / "there")
    with pytest.raises(StoreError, match="not empty"):
        open_bundle(tmp_path / "study.zip", tmp_path / "here")
    (tmp_path / "torn.zip").write_bytes((tmp_path / "study.zip").read_bytes()[:500])
    with pytest.raises(StoreError, match="not a whole bundle"):
        open_bundle(tmp_path / "torn.zip", tmp_path / "other")


def test_commands(two_sites: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    north, south = map(str, two_sites)
    run = CliRunner().invoke
    merged = run(app, ["merge", north, south, "-o", "merged.parquet"])
    assert merged.exit_code == 0 and "0 arrived twice" in merged.output, merged.output
    text = run(app, ["compare", north, south, "-o", "out"])
    assert text.exit_code == 0 and "simulated, not measured" in text.output and "north" in text.output
    assert (tmp_path / "out/compare_summary.csv").is_file()
    document = json.loads(run(app, ["compare", "merged.parquet", "--by", "site", "--json"]).output)
    assert document["unmatched"] == [0, 0] and len(document["summary"]) == 4
    assert isinstance(run(app, ["compare", north]).exception, ConfigurationError)
    monkeypatch.chdir(two_sites[0])
    overrides = json.dumps({**SCRIPTED, "grids": {"base": GRID}})
    packed = run(app, ["compact", "--overrides", overrides, "--raw"])
    assert packed.exit_code == 0 and packed.output.startswith("2 blocks"), packed.output
    restored = run(app, ["restore", "--overrides", overrides])
    assert restored.exit_code == 0 and restored.output.startswith("12 raw files"), restored.output
