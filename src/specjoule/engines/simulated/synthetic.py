"""Studies made for tests: a study narrowed to some of its grids or models, and synthetic cells for scale tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from specjoule.study.model import Study


def narrowed(
    study: Study,
    *,
    grids: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    concurrency: Sequence[int] | None = None,
    corpora: Sequence[str] | None = None,
    settings: dict[str, Any] | None = None,
) -> Study:
    """Return the study with some of its grids, models, seeds ... only; drafters that then apply to nothing are dropped.

    `settings` replaces `engine.settings`. A grid left without models or corpora is left out.
    """
    kept = {}
    for name, grid in study.file.grids.items():
        if grids is not None and name not in grids:
            continue
        chosen = tuple(m for m in grid.models if models is None or m in models)
        texts = tuple(c for c in grid.corpora if corpora is None or c in corpora)
        batches = tuple(n for n in grid.concurrency if concurrency is None or n in concurrency)
        if not chosen or not texts or not batches:
            continue
        drafters = tuple(d for d in grid.drafters if any(study.drafters[d].applies_to(m) for m in chosen))
        change: dict[str, Any] = {"models": chosen, "corpora": texts, "concurrency": batches, "drafters": drafters}
        if seeds is not None:
            change["seeds"] = tuple(seeds)
        kept[name] = grid.model_copy(update=change)
    if not kept:
        raise ValueError("nothing of the study is left")
    change = {"grids": kept}
    if settings is not None:
        change["engine"] = study.file.engine.model_copy(update={"settings": settings})
    used = {c for g in kept.values() for c in g.corpora}
    return study.model_copy(
        update={
            "file": study.file.model_copy(update=change),
            "corpora": {name: corpus for name, corpus in study.corpora.items() if name in used},
        }
    )


def synthetic_study(cells: int, name: str = "synthetic") -> dict[str, Any]:
    """Return a study file (as a mapping) of at least `cells` cells, for tests of scale.

    Eight models x 7 concurrencies x (plain and two n-gram drafters) x one corpus are 168 cells a seed; seeds make up
    the number, so that blocks keep the size they have in a real study. `expand` gives the exact count.
    """
    models = [
        "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Gemma-4-12B", "Gemma-4-26B-A4B", "GLM-4.7-Flash", "Qwen3-Coder-30B-A3B",
        "JoyAI-LLM-Flash",
    ]  # fmt: skip
    drafters = ["plain", "ngram-4", "ngram-16"]
    concurrency = [1, 2, 4, 8, 16, 32, 64]
    per_seed = len(models) * len(drafters) * len(concurrency)
    return {
        "study": name,
        "title": f"synthetic cells for scale tests (at least {cells})",
        "engine": {"name": "simulated"},
        "meter": {"name": "simulated"},
        "protocol": {
            "max_new_tokens": 32,
            "min_prompts": 1,
            "min_window_s": 0,
            "settle": {"min_s": 0, "max_s": 0, "idle_s": 0.5},
        },
        "grids": {
            "scale": {
                "models": models,
                "gpus": ["H200"],
                "drafters": drafters,
                "concurrency": concurrency,
                "corpora": ["code"],
                "seeds": list(range(1, math.ceil(cells / per_seed) + 1)),
            }
        },
    }


def write_synthetic_study(path: Path, cells: int = 14_000) -> Path:
    """Write such a study beside the catalogues that `path`'s folder holds; returns the path."""
    path.write_text(yaml.safe_dump(synthetic_study(cells, path.stem), sort_keys=False), encoding="utf-8")
    return path
