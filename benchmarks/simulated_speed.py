"""Speed of the simulated boards: cells and waves per CPU second through the block runner to files, and memory.

    python benchmarks/simulated_speed.py [--blocks 6]

Measures blocks of the rehearsal, spread evenly over the study, in one process. Prints one JSON object: cells per CPU
second of all, CPU time of a cell by concurrency (a cell at concurrency 1 is many short waves, one at 64 a single long
one), the process's memory after the first and after the last block, and the size of a raw file.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from specjoule.blocks.block import Block, make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import BlockFailed, Event, Folders, measure_block
from specjoule.cells.expand import expand, load_pools
from specjoule.study.load import load_study
from specjoule.study.model import Study

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=6)
    args = parser.parse_args()
    study = load_study(ROOT / "config" / "rehearsal.yaml")
    every = make_blocks(expand(study, load_pools(study)))
    blocks = every[:: max(1, len(every) // args.blocks)][: args.blocks]
    spent: dict[int, list[tuple[float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        folders = Folders(base / "raw", base / "store", base / "cache", base / "logs")
        measure(study, blocks[0], folders, lambda event: None)  # imports, and what the process keeps for good
        held = [rss_mb()]
        begun = time.process_time()
        for number, block in enumerate(blocks):
            fresh = base / str(number)
            folders = Folders(fresh / "raw", fresh / "store", base / "cache", base / "logs")
            measure(study, block, folders, stopwatch(spent))
            held.append(rss_mb())
        cpu = time.process_time() - begun
        files = [p for number in range(len(blocks)) for p in (base / str(number) / "raw").rglob("*.parquet")]
        size = sum(p.stat().st_size for p in files)
    cells = sum(len(b.cells) for b in blocks)
    waves = sum(c.waves for b in blocks for c in b.cells)
    print(
        json.dumps(
            {
                "blocks": len(blocks),
                "cells": cells,
                "waves_per_cell": round(waves / cells, 2),
                "cells_per_cpu_s": round(cells / cpu, 1),
                "waves_per_cpu_s": round(waves / cpu, 1),
                "by_concurrency": {
                    str(n): {
                        "waves": round(sum(w for _, w in items) / len(items), 1),
                        "cpu_ms_per_cell": round(1e3 * sum(s for s, _ in items) / len(items), 1),
                    }
                    for n, items in sorted(spent.items())
                },
                "memory_mb_after_each_block": [round(m, 1) for m in held],
                "kb_per_cell": round(size / len(files) / 1e3, 1),
            },
            indent=1,
        )
    )


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
