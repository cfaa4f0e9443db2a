"""Speed of the simulated boards: waves and cells per second, first alone, then through the block runner to files.

    python benchmarks/simulated_speed.py [--model Qwen3-4B] [--seconds 20]

Prints one JSON object: engine and meter alone (waves/s), whole blocks (cells/s, waves/s), and the growth of the
process's memory over the second half of the run.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from specjoule.blocks.block import make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.launching import launch_spec
from specjoule.blocks.runner import BlockFailed, Folders, measure_block
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.base import Batch, EngineInfeasible
from specjoule.engines.simulated.synthetic import narrowed
from specjoule.prompts.corpus import draw, load_corpus
from specjoule.study.load import load_study

ROOT = Path(__file__).resolve().parents[1]


def rss_mb() -> float:
    with Path("/proc/self/statm").open() as handle:
        return int(handle.read().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen3-4B")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    study = narrowed(load_study(ROOT / "config" / "rehearsal.yaml"), grids=["base-h100"], models=[args.model])
    cells = expand(study, load_pools(study))
    block = make_blocks(cells)[0]
    out: dict[str, float | str] = {
        "model": args.model,
        "cells": len(block.cells),
        "waves": sum(c.waves for c in block.cells),
    }

    devices = open_devices(study, study.gpus[block.gpu], block.id, 1)
    devices.meter.start()
    pool = draw(load_corpus(ROOT / study.corpora["code"].path, "code"), 1)
    waves, begun, half = 0, time.process_time(), None
    from specjoule.blocks.block import Launch

    while time.process_time() - begun < args.seconds / 2:
        for drafter in sorted({c.drafter for c in block.cells}):
            mine = [c for c in block.cells if c.drafter == drafter]
            launch = Launch(drafter, True, None, "cell", tuple(mine))
            sizes = tuple(sorted({c.concurrency for c in mine}))
            spec = launch_spec(study, block, launch, sizes, board_uuid=None, log_path=Path("x"), cache_dir=Path("x"))
            try:
                devices.engine.start(spec)
            except EngineInfeasible:
                continue
            for cell in mine:
                for i in range(cell.waves):
                    batch = Batch(tuple(pool[i * cell.concurrency : (i + 1) * cell.concurrency]), 512, True)
                    if batch.prompts:
                        result = devices.engine.run(batch)
                        devices.meter.trace(result.submit_ns, result.end_ns)
                        waves += 1
        half = half or rss_mb()
    used = time.process_time() - begun
    out["engine_and_meter_ms_per_wave"] = round(used / waves * 1e3, 3)
    out["engine_and_meter_cells_per_s"] = round(waves / used / (out["waves"] / out["cells"]), 1)  # type: ignore[operator]
    out["memory_growth_mb"] = round(rss_mb() - (half or 0.0), 1)

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        folders = Folders(base / "raw", base / "store", base / "cache", base / "logs")
        begun_cpu, begun = time.process_time(), time.perf_counter()
        try:
            measure_block(study, block, folders, lambda: open_devices(study, study.gpus[block.gpu], block.id, 1))
        except BlockFailed as error:
            out["note"] = str(error)[:200]
        cpu, wall = time.process_time() - begun_cpu, time.perf_counter() - begun
        size = sum(p.stat().st_size for p in (base / "raw").rglob("*.parquet"))
    out["runner_cpu_ms_per_wave"] = round(cpu / float(out["waves"]) * 1e3, 2)
    out["runner_cells_per_cpu_s"] = round(len(block.cells) / cpu, 1)
    out["runner_cells_per_wall_s"] = round(len(block.cells) / wall, 1)
    out["kb_per_cell"] = round(size / len(block.cells) / 1e3, 1)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
