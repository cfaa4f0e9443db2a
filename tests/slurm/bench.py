"""A copy of the project that measures with the scripted engine through the test's own Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specjoule.blocks.journal import CELL, SEGMENT, SEGMENT_END, read_events
from specjoule.workflow import Project, open_project

from .daemons import LocalSlurm, wait_until

REPO = Path(__file__).resolve().parents[2]
RUN_S = 200.0
STUDY: dict[str, Any] = {
    "study": "paper",
    "engine": {"name": "scripted", "settings": {"accept": 0.5}, "host_settings": {"seconds_per_wave": 0.1}},
    "meter": {"name": "simulated"},
    "protocol": {"max_new_tokens": 24, "min_prompts": 4, "min_window_s": 0, "reference_cells": 1},
    "blocks": {"overhead_s": 1},
    "grids": {
        "base": {
            "models": ["smollm2-135m-instruct"], "gpus": ["H100", "H200"], "drafters": ["plain", "ngram-4", "ngram-16"],
            "concurrency": [1, 4], "corpora": ["code"], "seeds": [1], "capture": [False],
        }
    },
}  # fmt: skip
SITE: dict[str, Any] = {
    "site": "hut",
    "partition": "gpu",
    "cpus": 2,
    "memory_gb": 1,
    "gpus": {"H100": {"gres": "gpu:h100:1", "constraint": "h100"}, "H200": {"gres": "gpu:h200:1"}},
    "hooks": {"before": "export MARK=set\necho before >> hooks.txt", "after": 'echo "after $MARK" >> hooks.txt'},
    "limits": {"hours": 0.5, "spare_minutes": 5, "stop_minutes": 1, "submitted": 4},
}


@dataclass
class Bench:
    """A project folder and the Slurm it runs on."""

    folder: Path
    slurm: LocalSlurm

    @classmethod
    def make(cls, folder: Path, slurm: LocalSlurm, site: dict[str, Any] | None = None, **changes: Any) -> Bench:
        """Copy the project; `changes` replace keys of the study, of its grid, or of the engine's host settings."""
        for name in ("config", "workflow", "profiles", "prompts", "slurm"):
            shutil.copytree(REPO / name, folder / name)
        shutil.copy(REPO / "Snakefile", folder / "Snakefile")
        profile = folder / "slurm" / "config.yaml"
        quick = {"slurm-init-seconds-before-status-checks: 20": "slurm-init-seconds-before-status-checks: 1",
                 "seconds-between-status-checks: 20": "seconds-between-status-checks: 1",
                 "latency-wait: 60": "latency-wait: 5"}  # fmt: skip
        text = profile.read_text()
        for slow, fast in quick.items():
            assert slow in text
            text = text.replace(slow, fast)
        profile.write_text(text)
        bench = cls(folder, slurm)
        (folder / "config" / "site.yaml").write_text(yaml.safe_dump({**SITE, **(site or {})}))
        bench.write_study(**changes)
        return bench

    def write_study(self, **changes: Any) -> None:
        study = json.loads(json.dumps(STUDY))
        for key, value in changes.items():
            if key in study["grids"]["base"]:
                study["grids"]["base"][key] = value
            elif key in study:
                study[key] = value
            else:
                study["engine"]["host_settings"][key] = value
        (self.folder / "config" / "paper.yaml").write_text(yaml.safe_dump(study, sort_keys=False))

    @property
    def project(self) -> Project:
        project = open_project(self.folder / "config" / "paper.yaml")
        assert project.store == Path("results/store")
        return project

    def main(self, *words: str, eager: bool = True) -> subprocess.Popen[str]:
        """Start a main process: `snakemake --profile slurm`, as a user does."""
        log = (self.folder / f"main-{time.monotonic_ns()}.log").open("w")
        program = [str(Path(sys.executable).parent / "snakemake")]
        if eager:
            program = [sys.executable, str(Path(__file__).with_name("eager_snakemake.py"))]
        return subprocess.Popen(
            [*program, "--profile", "slurm", *words],
            cwd=self.folder, env=self.slurm.environment, stdout=log, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str, seconds: float = RUN_S, eager: bool = True) -> int:
        """Run to the end; returns the exit code. Raises TimeoutExpired."""
        process = self.main(*words, eager=eager)
        try:
            return process.wait(seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def tail(self) -> str:
        """Ends of the logs, for a failing test."""
        logs = sorted(self.folder.glob("main-*.log")) + sorted((self.folder / "results/logs").rglob("*.log"))
        return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in logs[-6:])

    def events(self) -> list[dict[str, Any]]:
        journals = sorted((self.folder / "results/store/paper").glob("*/journal.jsonl"))
        return [e for j in journals for e in read_events(j)]

    def finished(self, role: str = "cell") -> Counter[str]:
        """How often each cell was finished, by path."""
        return Counter(
            e["path"] for e in self.events() if e["event"] == CELL and e["role"] == role and e["status"] == "ok"
        )

    def outcomes(self) -> list[str]:
        return [e["outcome"] for e in self.events() if e["event"] == SEGMENT_END]

    def segments(self) -> int:
        return sum(e["event"] == SEGMENT for e in self.events())

    def wait_for_cells(self, count: int, seconds: float = 60) -> None:
        wait_until(lambda: sum(self.finished().values()) >= count, seconds, f"{count} finished cells\n{self.tail()}")

    def submissions(self) -> int:
        """How many jobs main processes have submitted."""
        logs = self.folder.glob("main-*.log")
        return sum(log.read_text(errors="replace").count("has been submitted with SLURM jobid") for log in logs)

    def raw_files(self) -> int:
        return sum(1 for _ in (self.folder / "results/raw").rglob("*.parquet"))
