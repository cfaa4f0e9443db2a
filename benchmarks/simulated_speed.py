"""Speed of the simulated boards: cells and waves per CPU second through the block runner to files, and memory.

    python benchmarks/simulated_speed.py [--synthetic 14000] [--blocks 6]

First the synthetic cells of the scale tests (one wave each), then blocks of the rehearsal, spread evenly over the
study (a cell at concurrency 1 is twenty short waves, one at 64 a single long one). One process, one JSON object: cells
per CPU second, CPU time of a rehearsal cell by concurrency, the process's memory on the way, the size of a raw file.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block, make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import BlockFailed, Event, Folders, measure_block
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.simulated.synthetic import write_synthetic_study
from specjoule.study.load import load_study
from specjoule.study.model import Study

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synthetic", type=int, default=14_000, help="synthetic cells, at least (0: none)")
    parser.add_argument("--blocks", type=int, default=6, help="blocks of the rehearsal (0: none)")
    args = parser.parse_args()
    out: dict[str, Any] = {}
    if args.synthetic:
        out["synthetic"] = synthetic(args.synthetic)
    if args.blocks:
        out["rehearsal"] = rehearsal(args.blocks)
    print(json.dumps(out, indent=1))


def synthetic(cells: int) -> dict[str, Any]:
    """Measure the scale tests' study of `cells` cells and more."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config", "prompts"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        study = load_study(write_synthetic_study(Path(folder) / "config" / "synthetic.yaml", cells))
        blocks = make_blocks(expand(study, load_pools(study)))
        return timed(study, blocks, marks=4)


def rehearsal(count: int) -> dict[str, Any]:
    """Measure `count` blocks of the rehearsal."""
    study = load_study(ROOT / "config" / "rehearsal.yaml")
    every = make_blocks(expand(study, load_pools(study)))
    spent: dict[int, list[tuple[float, int]]] = defaultdict(list)
    found = timed(study, every[:: max(1, len(every) // count)][:count], stopwatch(spent), marks=count)
    found["by_concurrency"] = {
        str(n): {
            "waves": round(sum(w for _, w in items) / len(items), 1),
            "cpu_ms_per_cell": round(1e3 * sum(s for s, _ in items) / len(items), 1),
        }
        for n, items in sorted(spent.items())
    }
    return found


def timed(
    study: Study, blocks: Sequence[Block], watch: Callable[[Event], None] = lambda event: None, *, marks: int
) -> dict[str, Any]:
    """Measure blocks into a folder of their own; `marks`: how often memory is looked at."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)

        def folders(name: str) -> Folders:
            return Folders(base / name / "raw", base / name / "store", base / "cache", base / "logs")

        measure(study, blocks[0], folders("first"), lambda event: None)  # imports, and what a process keeps for good
        held = [rss_mb()]
        begun = time.process_time()
        for number, block in enumerate(blocks, start=1):
            measure(study, block, folders("timed"), watch)
            if number * marks % len(blocks) < marks:
                held.append(rss_mb())
        cpu = time.process_time() - begun
        files = list((base / "timed" / "raw").rglob("*.parquet"))
        size = sum(p.stat().st_size for p in files)
    cells = sum(len(b.cells) for b in blocks)
    waves = sum(c.waves for b in blocks for c in b.cells)
    return {
        "blocks": len(blocks),
        "cells": cells,
        "waves_per_cell": round(waves / cells, 2),
        "cells_per_cpu_s": round(cells / cpu, 1),
        "waves_per_cpu_s": round(waves / cpu, 1),
        "memory_mb": [round(m, 1) for m in held],
        "kb_per_cell": round(size / len(files) / 1e3, 1),
    }


def measure(study: Study, block: Block, folders: Folders, watch: Callable[[Event], None]) -> None:
    """Measure one block on simulated boards; cells that cannot run are results like others."""
    try:
        measure_block(
            study, block, folders, lambda: open_devices(study, study.gpus[block.gpu], block.id, 1), watch=watch
        )
    except BlockFailed as error:
        print(str(error)[:200])


def stopwatch(spent: dict[int, list[tuple[float, int]]]) -> Callable[[Event], None]:
    """Return a watcher that adds each measured cell's (CPU seconds, waves) to `spent`, by concurrency."""
    started = 0.0

    def watch(event: Event) -> None:
        nonlocal started
        if event.status is None:
            started = time.process_time()
        elif event.status in ("ok", "partial"):
            spent[event.cell.concurrency].append((time.process_time() - started, event.cell.waves))

    return watch


def rss_mb() -> float:
    """Return the resident memory of this process, MB."""
    with Path("/proc/self/statm").open() as handle:
        return int(handle.read().split()[1]) * resource.getpagesize() / 1e6


if __name__ == "__main__":
    main()
