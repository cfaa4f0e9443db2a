"""Growth of the analysis with the number of cells: raw files to all tables and figures, then again after one change.

    python benchmarks/analysis_scale.py --cells 500 2000 14000 [--folder DIR] [--workers 2]

One seed of every block of `config/rehearsal.yaml` is measured on simulated boards; further seeds are copies of it under
their own keys, their energies moved by a few tenths of a percent, so that the analysis has something to average. For
each size: wall and CPU seconds and the peak memory of all its processes together, of `specjoule analyse` with an empty
cache, with nothing changed, and after one block changed. Give `--folder` to keep the raw files for another run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specjoule.blocks.block import Block, make_blocks
from specjoule.blocks.devices import open_devices
from specjoule.blocks.runner import BlockFailed, Folders, measure_block
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.simulated.synthetic import narrowed
from specjoule.study.load import load_study
from specjoule.study.model import Study
from specjoule.windows.io import read_window_table, write_window_table

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "config" / "rehearsal.yaml"


@dataclass(frozen=True)
class Measured:
    """What one run of the analysis took."""

    state: str
    cells: int
    wall_s: float
    cpu_s: float
    peak_mb: float


def one_seed(study: Study) -> list[Block]:
    """Return the blocks of the study's first seed."""
    return make_blocks(expand(study, load_pools(study)), study.file.blocks.split_by)


def measure_originals(study: Study, folder: Path, cells: int) -> list[Path]:
    """Measure blocks of one seed on simulated boards until they hold `cells` cells; return their raw files."""
    folders = Folders(folder / "raw", folder / "store", folder / "cache", folder / "logs")
    found: list[Path] = []
    for block in one_seed(study):
        if len(found) >= cells:
            break
        done = folder / "logs" / f"{block.id}.done"
        if not done.exists():
            try:
                measure_block(
                    study, block, folders,
                    lambda block=block: open_devices(study, study.gpus[block.gpu], block.id, 1),  # type: ignore[misc]
                )  # fmt: skip
            except BlockFailed as error:
                print(error, file=sys.stderr)
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
        found += [folders.raw / c.path for c in block.cells if (folders.raw / c.path).exists()]
    return found


def copies(originals: Sequence[Path], root: Path, target: Path, cells: int) -> int:
    """Fill `target` with at least `cells` raw files: whole seeds of the originals under other keys. Returns how many.

    The last seed is cut short at the wanted number.
    """
    made = 0
    for seed in range(1, 10_000):
        for original in originals:
            if made == cells:
                return made
            relative = original.relative_to(root)
            name = "-".join([f"s{seed}", *relative.stem.split("-")[1:]])
            copy = target / relative.with_name(f"{name}.parquet")
            if not copy.exists():
                _copy(original, copy, seed)
            made += 1
    return made


def _copy(original: Path, copy: Path, seed: int) -> None:
    if seed == 1:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original, copy)
        return
    table = read_window_table(original)
    rng = np.random.default_rng([seed, len(table), hash_of(str(original))])
    factor = float(np.exp(0.003 * rng.standard_normal()))
    energy = pc.multiply(table["energy_j"], factor)
    changed = {
        "seed": pa.array([seed] * len(table), pa.int64()),
        "cell_hash": pa.array([f"{seed:04x}{h[4:]}" for h in table["cell_hash"].to_pylist()]),
        "segment_id": pa.array([f"{s}.{seed}" for s in table["segment_id"].to_pylist()]),
        "block_id": pa.array([b.replace("-s1-", f"-s{seed}-") for b in table["block_id"].to_pylist()]),
        "energy_j": energy,
    }
    for column, values in changed.items():
        at = table.schema.get_field_index(column)
        table = table.set_column(at, table.schema.field(at), values)
    write_window_table(table, copy)


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(text.encode()[-8:], "little")


def analyse(raw: Path, output: Path, state: str, workers: int) -> Measured:
    """Run `specjoule analyse` on a folder and measure it with all its processes."""
    cells = sum(1 for _ in raw.rglob("*.parquet"))
    command = [sys.executable, "-m", "specjoule.cli.app", "analyse", str(raw), "--study", str(STUDY), "--output",
               str(output), "--workers", str(workers)]  # fmt: skip
    begun, peak = time.monotonic(), 0.0
    before = os.times()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(_memory_mb(pid) for pid in _family(process.pid)))
            time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Measured(state, cells, time.monotonic() - begun, cpu, peak)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))
    except OSError:
        return


def _memory_mb(pid: int) -> float:
    """Memory of a process, what it shares with others counted in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return 0.0


def change_one_block(raw: Path) -> None:
    """Give one raw file another content, as a cell measured again has."""
    file = sorted(raw.rglob("*.parquet"))[0]
    table = read_window_table(file)
    at = table.schema.get_field_index("load_average")
    values = pa.array([time.time()] * len(table), pa.float64())
    write_window_table(table.set_column(at, table.schema.field(at), values), file)


def measure(folder: Path, sizes: Sequence[int], workers: int = 2) -> Iterator[Measured]:
    """Measure each size in `folder`, which may hold originals of an earlier run."""
    study = narrowed(load_study(STUDY), seeds=(1,))
    whole = sum(len(b.cells) for b in one_seed(study))
    for size in sizes:
        originals = measure_originals(study, folder / "originals", min(size, whole))
        raw, output = folder / f"raw-{size}", folder / f"tables-{size}"
        copies(originals, folder / "originals" / "raw", raw, size)
        shutil.rmtree(output, ignore_errors=True)
        yield analyse(raw, output, "fresh", workers)
        yield analyse(raw, output, "unchanged", workers)
        change_one_block(raw)
        yield analyse(raw, output, "one block", workers)


def main() -> None:
    """Print one line a size and state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[500, 2000, 14_000])
    parser.add_argument("--folder", type=Path, help="where raw files and tables stay (default: a temporary folder)")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{'state':<10}{'cells':>8}{'wall s':>9}{'CPU s':>8}{'peak MB':>9}")
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        for m in measure(arguments.folder or Path(temporary), arguments.cells, arguments.workers):
            print(f"{m.state:<10}{m.cells:>8}{m.wall_s:>9.1f}{m.cpu_s:>8.1f}{m.peak_mb:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
