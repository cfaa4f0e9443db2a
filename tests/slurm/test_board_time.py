"""How the board's time is used, on the real Slurm, with the server's protocol double and its start delay."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import yaml

from specjoule.blocks.journal import LAUNCH
from specjoule.blocks.usage import segment_usages
from tests.engines.sglang.test_block import make_project

from .bench import Bench
from .daemons import Lane, LocalSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
START_S = 3.0


def test_a_server_starts_once_and_nine_tenths_of_its_time_are_measured(
    slurm: LocalSlurm, lane: Lane, tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    site = {"gpus": {"cpu": {"gres": f"gpu:{lane.gpu.lower()}:1"}}}
    bench = Bench.make(folder, slurm, site)
    here = Path.cwd()
    try:
        os.chdir(folder)
        make_project(folder, faults={"slow_start_s": START_S})
    finally:
        os.chdir(here)
    study = yaml.safe_load((folder / "config/config.yaml").read_text())
    study["study"] = "paper"
    # Windows as long as in a real study; what the machine's other work does to the client is not judged here.
    study["protocol"] |= {"max_new_tokens": 512, "min_prompts": 4}
    study["validity"] = {"max_client_lag_ms": 60_000}
    study["grids"]["base"]["drafters"] = ["plain", "ngram-4", "tiny-eagle"]
    (folder / "config/paper.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    assert bench.run("raw", seconds=280) == 0, bench.tail()
    (usage,) = segment_usages(bench.events()).values()
    print(json.dumps(usage.to_dict()))
    starts = Counter(e["drafter"] for e in bench.events() if e["event"] == LAUNCH)
    assert starts == {"plain": 2, "ngram-4": 1, "tiny-eagle": 1}
    assert usage.starts_s >= 4 * START_S
    assert usage.start_share is not None and 0 < usage.start_share < 1
    assert usage.busy_share is not None and usage.busy_share >= 0.9, usage.to_dict()
