"""How long `snakemake -n` takes, and how much memory, on a large synthetic study: fresh, half done, done, one edit.

    python benchmarks/scale_dag.py [--cells 14000] [--states fresh done]

Nothing is measured: the block's script is replaced by one that creates its files, so that Snakemake's own records
(one digest a block) are as they are after a real study.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parent.parent
STATES = ("fresh", "half", "done", "edit")
FAKE = '''"""Create a block's files instead of measuring them."""
import json, pathlib, sys
files = json.loads(pathlib.Path("files.json").read_text())[sys.argv[sys.argv.index("--block") + 1]]
for name in files:
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
'''
FAKE_OTHER = '''"""Create what the rule wants instead of computing it."""
import json, pathlib, sys
path = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
if path.suffix:
    wanted = [path, *json.loads(pathlib.Path("parts.json").read_text())[str(path)]]
else:
    wanted = [path / name for name in pathlib.Path("figures.txt").read_text().split()]
for one in map(pathlib.Path, wanted):
    one.parent.mkdir(parents=True, exist_ok=True)
    one.touch()
'''


@dataclass(frozen=True)
class Measured:
    """One dry run."""

    state: str
    cells: int
    blocks: int
    wall_s: float
    cpu_s: float
    peak_mb: float


def write_study(folder: Path, cells: int, blocks: int = 72) -> None:
    """Write a synthetic study of about `cells` cells in `blocks` blocks into a copy of the project."""
    for name in ("config", "workflow", "profiles", "prompts"):
        shutil.copytree(REPO / name, folder / name)
    shutil.copy(REPO / "Snakefile", folder / "Snakefile")
    models = yaml.safe_load((REPO / "config/models.yaml").read_text())["models"]
    pattern = models["smollm2-135m-instruct"]
    count = max(1, blocks // 6)
    per_block = cells / (count * 6)
    drafters, corpora = 10, ["code", "conversation", "long_document", "news_en", "news_rm"]
    concurrency = max(1, round(per_block / (drafters * len(corpora))))
    names = ["plain", *(f"ngram-proposals-x{k}" for k in range(1, drafters))]
    drafting = {
        "plain": {"scheme": "plain", "draft_tokens": 0, "verify_width": 1},
        **{
            name: {"scheme": "ngram", "draft_tokens": k, "verify_width": k + 1, "settings": {"max_ngram": 3}}
            for k, name in enumerate(names[1:], start=1)
        },
    }
    study = {
        "study": "scale",
        "engine": {"name": "scripted"},
        "meter": {"name": "simulated"},
        "grids": {
            "base": {
                "models": [f"M{i}" for i in range(count)], "gpus": ["H100", "H200"], "drafters": names,
                "concurrency": list(range(1, concurrency + 1)), "corpora": corpora, "seeds": [1, 2, 3],
            }
        },
    }  # fmt: skip
    (folder / "config/models.yaml").write_text(yaml.safe_dump({"models": {f"M{i}": pattern for i in range(count)}}))
    (folder / "config/drafters.yaml").write_text(yaml.safe_dump({"drafters": drafting}))
    (folder / "config/config.yaml").write_text(yaml.safe_dump(study))
    (folder / "workflow/scripts/measure_block.py").write_text(FAKE)
    for name in ("collect_block", "build_figures"):
        (folder / f"workflow/scripts/{name}.py").write_text(FAKE_OTHER)
    (folder / "workflow/scripts/say_what_was_made.py").write_text("")


def finish(folder: Path) -> int:
    """Run the workflow with the replaced scripts; returns the number of cells."""
    from specjoule.tables.items import ITEMS
    from specjoule.workflow import open_project

    project = open_project(folder / "config/config.yaml")
    files = {b.id: [str(project.raw_file(c)) for c in b.cells] + [str(project.record(b.id))] for b in project.blocks}
    (folder / "files.json").write_text(json.dumps(files))
    parts = {str(project.rows(b.id)): [str(p) for p in project.parts(b.id).values()] for b in project.blocks}
    (folder / "parts.json").write_text(json.dumps(parts))
    (folder / "figures.txt").write_text("\n".join([*(f for i in ITEMS.values() for f in i.files), "manifest.json"]))
    if snakemake(folder, "--cores", "2", "--quiet", "progress", "rules")[0]:
        raise RuntimeError((folder / "snakemake.log").read_text()[-2000:])
    return len(project.cells)


def snakemake(folder: Path, *words: str) -> tuple[int, float, float, float]:
    """Run Snakemake; returns exit code, wall s, CPU s, peak memory MB."""
    program = str(Path(sys.executable).parent / "snakemake")
    begun = time.monotonic()
    with (folder / "snakemake.log").open("w") as log:
        pid = os.posix_spawn(
            program,
            [program, "--directory", str(folder), "--snakefile", str(folder / "Snakefile"), "--rerun-triggers",
             "params", "input", "mtime", *words],
            {**os.environ, "PATH": f"{Path(program).parent}:{os.environ['PATH']}"},
            file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)],
        )  # fmt: skip
        _, status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - begun
    return os.waitstatus_to_exitcode(status), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def dry_run(folder: Path, state: str, cells: int, blocks: int) -> Measured:
    """Run `snakemake -n` once."""
    code, wall, cpu, peak = snakemake(folder, "--cores", "2", "-n", "--quiet", "all")
    if code:
        raise RuntimeError((folder / "snakemake.log").read_text()[-2000:])
    return Measured(state, cells, blocks, wall, cpu, peak)


def measure(cells: int, states: tuple[str, ...] = STATES, blocks: int = 72) -> list[Measured]:
    """Measure the dry run of a synthetic study in each of `states`."""
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        here = Path.cwd()
        os.chdir(folder)
        try:
            return _measure(folder, cells, states, blocks)
        finally:
            os.chdir(here)


def _measure(folder: Path, cells: int, states: tuple[str, ...], blocks: int) -> list[Measured]:
    from specjoule.workflow import open_project

    write_study(folder, cells, blocks)
    project = open_project(folder / "config/config.yaml")
    real, jobs = len(project.cells), len(project.blocks)
    found = []
    if "fresh" in states:
        found.append(dry_run(folder, "fresh", real, jobs))
    if set(states) - {"fresh"}:
        finish(folder)
    if "done" in states:
        found.append(dry_run(folder, "done", real, jobs))
    if "edit" in states:
        drafters = folder / "config/drafters.yaml"
        before = drafters.read_text()
        drafters.write_text(before.replace("max_ngram: 3", "max_ngram: 2", 1))
        found.append(dry_run(folder, "edit", real, jobs))
        drafters.write_text(before)
    if "half" in states:
        for block in project.blocks[::2]:
            for cell in block.cells:
                project.raw_file(cell).unlink()
        found.append(dry_run(folder, "half", real, jobs))
    return found


def main() -> None:
    """Print one line a state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=14_000)
    parser.add_argument("--blocks", type=int, default=72)
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    arguments = parser.parse_args()
    print(f"{'state':<8}{'cells':>8}{'blocks':>8}{'wall s':>9}{'CPU s':>8}{'peak MB':>9}")
    for m in measure(arguments.cells, tuple(arguments.states), arguments.blocks):
        print(f"{m.state:<8}{m.cells:>8}{m.blocks:>8}{m.wall_s:>9.1f}{m.cpu_s:>8.1f}{m.peak_mb:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
