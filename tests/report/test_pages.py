"""The report's pages say what they must, and fetch nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specjoule.report.pages import drift, energy, exclusions, frame_table
from specjoule.tables.items import ITEMS
from specjoule.workflow import Project
from tests.cli.conftest import measured  # noqa: F401  (a fixture)

REPO = Path(__file__).resolve().parents[2]
CAPTIONS = REPO / "workflow" / "report"


@pytest.fixture
def drawn(measured: Project) -> Project:  # noqa: F811
    """The tiny study, measured, collected and drawn."""
    from specjoule.blocks.record import block_record
    from specjoule.blocks.store import BlockStore
    from specjoule.cli.jobs import collect_main, figures_main
    from specjoule.files import write_json

    for block in measured.blocks:
        record = block_record(block, BlockStore(measured.store, measured.name, block.id))
        write_json(measured.record(block.id), record)
        assert collect_main(["--block", block.id, "--output", str(measured.rows(block.id))]) == 0
    assert figures_main(["--output", str(measured.figures)]) == 0
    return measured


def test_pages(drawn: Project, tmp_path: Path) -> None:
    from specjoule.report.build import pages_main

    assert pages_main(["--output", str(tmp_path / "pages")]) == 0
    pages = {p.stem: p.read_text(encoding="utf-8") for p in (tmp_path / "pages").iterdir()}
    assert {"about", "exclusions", "drift", "versions", "table_cells", "table_best_drafter"} <= set(pages)
    assert "simulated, not measured" in pages["about"]
    assert "no joule of it may be quoted" in pages["about"]
    assert "scripted-" in pages["versions"]
    assert re.search(r"[+-]0\.0\d %", pages["drift"])
    for name, text in pages.items():
        assert not re.search(r"(src|href)=", text), f"{name} fetches something"


def test_without_figures_the_remedy_is_named(measured: Project, tmp_path: Path, capsys: Any) -> None:  # noqa: F811
    from specjoule.report.build import pages_main

    assert pages_main(["--output", str(tmp_path / "pages")]) == 1
    assert "manifest.json: no such file; run snakemake" in capsys.readouterr().err


def test_exclusions_are_listed_with_their_meaning() -> None:
    manifest = {
        "excluded_by_reason": {"capacity": 1},
        "excluded_cells": [{"drafter": "<b>x</b>", "concurrency": 8, "reason": "capacity", "cell_hash": "1"}],
    }
    text = exclusions(manifest)
    assert "fewer requests at once" in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "nothing was left out" in exclusions({"excluded_by_reason": {}, "excluded_cells": []})


def test_drift_beyond_the_limit_and_unknown_drift_are_said() -> None:
    item = {"capture": False, "locked_mhz": None, "references": [], "drift": 0.09}
    segment = {"segment_id": "s", "outcome": "finished", "gpu_name": None, "drift": [item, {**item, "drift": None}]}
    difference = {"setting": "page_size", "kind": "scheduler", "plain": 1, "value": 16}
    compared = {"drafter": "ngram-4", "launch": 1, "against": "plain", "differences": [difference]}
    text = drift([{"block_id": "b", "segments": [{**segment, "settings_compared": [compared]}]}], 0.05)
    assert "page_size" in text and "scheduler" in text
    assert "page_size" not in drift([{"block_id": "b", "segments": [segment]}], 0.05)
    assert "+9.00 % (beyond the limit)" in text
    assert "unknown: no closing plain" in text


def test_energy_is_a_warning_unless_every_joule_was_measured() -> None:
    assert 'class="ok"' in energy({"meters": ["nvml"], "energy": "measured on the GPU board"})
    for meters in (["simulated"], ["nvml", "estimate"], []):
        assert 'class="note"' in energy({"meters": meters, "energy": "words"})


def test_missing_values_are_never_zero() -> None:
    assert "–" in frame_table(pd.DataFrame({"energy_j": [None, 1.5]}))


def test_the_shipped_figures_have_captions_that_say_what_not_to_conclude() -> None:
    for name in ("figure_saving", "figure_break_even", "table_best_drafter", "table_cells"):
        assert name in ITEMS
        text = (CAPTIONS / f"{name}.rst").read_text(encoding="utf-8")
        assert "**What to see.**" in text
        assert "**What not to conclude.**" in text


@pytest.mark.slow
def test_one_self_contained_file(project_folder: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [scripts / "snakemake", "--quiet", "rules", "--cores", "2", "--", "paper_figures/tiny/report.html"],
        cwd=project_folder, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = Path("paper_figures/tiny/report.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="https?://', text)
    for words in ("What not to conclude", "figure_saving.png", "table_best_drafter.html", "about.html", "drift.html"):
        assert words in text
    assert json.loads(Path("paper_figures/tiny/manifest.json").read_text())["study"] == "tiny"
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no browser here; everything else of the report was checked")
    shown = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={project_folder / 'browser'}",
         "--virtual-time-budget=5000", "--dump-dom", f"file://{project_folder}/paper_figures/tiny/report.html"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "energy per committed token of speculative decoding" in shown.stdout
