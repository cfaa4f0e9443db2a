"""A whole block of the paper's study on simulated boards: its board's hours, and its joules against the truth."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specjoule.blocks.devices import open_devices
from specjoule.blocks.journal import CELL, LAUNCH, read_events
from specjoule.blocks.runner import Folders, measure_block
from specjoule.blocks.usage import segment_usages
from specjoule.windows.io import read_window_table
from specjoule.workflow import open_project
from tests.conftest import REPO

pytestmark = pytest.mark.slow
COLUMNS = ("window", "duration_s", "energy_j", "energy_true_j", "energy_uncertainty_j")


@dataclass(frozen=True)
class WholeBlock:
    """What one block left behind."""

    cells: int
    events: list[dict[str, Any]]
    rows: pd.DataFrame


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WholeBlock:
    """Qwen3-8B on one simulated H100, every cell."""
    folder = tmp_path_factory.mktemp("rehearsal")
    for name in ("config", "prompts"):
        (folder / name).symlink_to(REPO / name)
    with contextlib.chdir(folder):
        project = open_project(Path("config/rehearsal.yaml"))
        block = next(b for b in project.blocks if b.model == "Qwen3-8B" and b.gpu == "H100")
        folders = Folders(project.raw, project.store, project.cache, project.logs)
        gpu = project.study.gpus[block.gpu]
        measure_block(
            project.study, block, folders, lambda: open_devices(project.study, gpu, block.id, block.replicate)
        )
        events = list(read_events(project.store / project.name / block.id / "journal.jsonl"))
        tables = [read_window_table(f, COLUMNS).to_pandas() for f in sorted(project.raw.rglob("*.parquet"))]
    return WholeBlock(len(block.cells), events, pd.concat(tables, ignore_index=True))


def test_nine_tenths_of_its_servers_time_are_measured(whole: WholeBlock) -> None:
    measured = {e["path"] for e in whole.events if e["event"] == CELL and e["role"] == "cell"}
    assert len(measured) == whole.cells == 189
    (usage,) = segment_usages(whole.events).values()
    starts = Counter((e["drafter"], e["capture"], e["locked_mhz"]) for e in whole.events if e["event"] == LAUNCH)
    # Plain once more at the end of each condition; every other launch once.
    assert all(n == (2 if key[0] == "plain" else 1) for key, n in starts.items()), starts
    print(usage.to_dict())
    assert usage.busy_share is not None and usage.busy_share >= 0.9
    assert usage.start_share is not None and 0 < usage.start_share < 0.5


@pytest.mark.parametrize("window", ["generation", "decode"])
def test_stated_uncertainties_cover_the_truth(whole: WholeBlock, window: str) -> None:
    rows = whole.rows.loc[(whole.rows["window"] == window) & whole.rows["energy_j"].notna()]
    error = 100 * (rows["energy_j"] / rows["energy_true_j"] - 1)
    covered = (rows["energy_j"] - rows["energy_true_j"]).abs() <= rows["energy_uncertainty_j"]
    lengths = pd.cut(rows["duration_s"], [0, 1, 5, np.inf])
    found = pd.DataFrame({"error": error, "size": error.abs(), "covered": covered}).groupby(lengths, observed=True)
    table = found.agg(windows=("error", "size"), bias=("error", "mean"), covered=("covered", "mean"))
    table["p95"] = found["size"].quantile(0.95)
    print(table)
    many = table.loc[table["windows"] >= 50]
    assert len(many) >= 2 and (many["covered"] >= 0.95).all(), table
    assert (many["bias"].abs() <= 0.1).all(), table
