"""How a whole block of the paper's study uses its board, on simulated boards: hours of virtual time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specjoule.blocks.devices import open_devices
from specjoule.blocks.journal import CELL, LAUNCH, read_events
from specjoule.blocks.runner import Folders, measure_block
from specjoule.blocks.usage import segment_usages
from specjoule.workflow import open_project
from tests.conftest import REPO


@pytest.mark.slow
def test_nine_tenths_of_a_whole_blocks_time_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config", "prompts"):
        (tmp_path / name).symlink_to(REPO / name)
    monkeypatch.chdir(tmp_path)
    project = open_project(Path("config/rehearsal.yaml"))
    block = next(b for b in project.blocks if b.model == "Qwen3-8B" and b.gpu == "H100")
    folders = Folders(project.raw, project.store, project.cache, project.logs)
    gpu = project.study.gpus[block.gpu]
    measure_block(project.study, block, folders, lambda: open_devices(project.study, gpu, block.id, block.replicate))
    events = list(read_events(project.store / project.name / block.id / "journal.jsonl"))
    assert len({e["path"] for e in events if e["event"] == CELL and e["role"] == "cell"}) == len(block.cells) == 189
    (usage,) = segment_usages(events).values()
    starts = Counter((e["drafter"], e["capture"], e["locked_mhz"]) for e in events if e["event"] == LAUNCH)
    # Plain once more at the end of each condition; every other launch once.
    assert all(n == (2 if key[0] == "plain" else 1) for key, n in starts.items()), starts
    print(usage.to_dict())
    assert usage.busy_share is not None and usage.busy_share >= 0.9
    assert usage.start_share is not None and 0 < usage.start_share < 0.5
