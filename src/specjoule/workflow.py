"""A study as files: which cells and blocks it has and where everything lies.

This is what the Snakefile and the commands stand on. Nothing heavy is imported: Snakemake parses it in every job.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block, make_blocks
from specjoule.blocks.split import split_long
from specjoule.cells.cell import Cell
from specjoule.cells.expand import Pool, expand, load_pools
from specjoule.cluster.site import SiteFile, load_site, site_path
from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import canonical_digest
from specjoule.study.load import load_study, nearest
from specjoule.study.model import Study
from specjoule.version import __version__

PARTS = ("requests", "acceptance", "gaps", "to_eos", "timeline")
"""Flat tables that collect makes of a block's nested columns (`windows.nested.PARTS`, which imports too much here)."""
DEFAULT_STUDY = Path("config/config.yaml")


@dataclass(frozen=True)
class Project:
    """A study with its cells, blocks and paths; all paths are relative to the folder it is run in."""

    study: Study
    source: Path
    overrides: Mapping[str, Any]

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell of the study."""
        return expand(self.study, self.pools)

    @cached_property
    def pools(self) -> dict[str, Pool]:
        """Every corpus of the study: digest and number of prompts."""
        return load_pools(self.study)

    @cached_property
    def blocks(self) -> list[Block]:
        """Every block of the study."""
        config = self.study.file.blocks
        return split_long(self.study, make_blocks(self.cells, config.split_by), config.max_minutes)

    def block(self, block_id: str) -> Block:
        """Return the block of that name. Raises ConfigurationError with the nearest name."""
        for block in self.blocks:
            if block.id == block_id:
                return block
        raise ConfigurationError(
            f"study '{self.name}' has no block '{block_id}'; {nearest(block_id, [b.id for b in self.blocks])}"
        )

    @property
    def name(self) -> str:
        """The study's name."""
        return self.study.name

    raw = Path("results/raw")
    collected = Path("results/collected")
    logs = Path("results/logs")
    cache = Path(".cache")

    @cached_property
    def site(self) -> SiteFile:
        """The site file that holds here: queue, boards, scratch."""
        return load_site(site_path(Path(self.study.root)))

    @property
    def store(self) -> Path:
        """Root of the stores of finished cells."""
        return self.site.store or Path(self.study.file.blocks.store)

    @property
    def figures(self) -> Path:
        """Folder of the study's tables and figures."""
        return Path("paper_figures") / self.name

    def raw_file(self, cell: Cell) -> Path:
        """Raw window file of a cell."""
        return self.raw / cell.path

    def record(self, block_id: str) -> Path:
        """Record of a block."""
        return Path("results/blocks") / self.name / f"{block_id}.json"

    def rows(self, block_id: str) -> Path:
        """Collected rows of a block."""
        return self.collected / self.name / "blocks" / f"{block_id}.parquet"

    def parts(self, block_id: str) -> dict[str, Path]:
        """Flat tables of a block's nested columns, by name: requests, acceptance, gaps, ..."""
        return {name: self.collected / self.name / name / f"{block_id}.parquet" for name in PARTS}

    def prefetched(self, model: str) -> Path:
        """What was fetched from a hub for a model's blocks."""
        return Path("results/prefetch") / self.name / f"{model}.json"

    @cached_property
    def prefetch_arguments(self) -> str:
        """As `arguments`, for the command that fetches checkpoints."""
        return self.arguments.removeprefix("--study ")

    @cached_property
    def validity_digest(self) -> str:
        """Digest of what verdicts depend on beside the raw files: the validity rules, and the release that applies
        them."""
        return canonical_digest([__version__, self.study.file.validity.model_dump(mode="json")])[:16]

    @cached_property
    def analysis_digest(self) -> str:
        """Digest of what tables and figures depend on beside the collected rows: the analysis constants, the catalogue
        entries that they look up, and the release that computes them."""
        study = self.study
        used = [*study.models.values(), *study.drafters.values(), *study.gpus.values()]
        entries = [entry.model_dump(mode="json", exclude={"label"}) for entry in used]
        return canonical_digest([__version__, study.file.analysis.model_dump(mode="json"), entries])[:16]

    @cached_property
    def arguments(self) -> str:
        """Command-line arguments that name this very study to a script, shell-quoted."""
        words = f"--study {shlex.quote(str(self.source))}"
        if self.overrides:
            words += f" --overrides {shlex.quote(json.dumps(dict(self.overrides), separators=(',', ':')))}"
        return words

    @cached_property
    def snakemake_arguments(self) -> str:
        """Command-line arguments that name this very study to Snakemake, shell-quoted."""
        words = f"--configfile {shlex.quote(str(self.source))}"
        given = [f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in self.overrides.items()]
        return words + (f" --config {' '.join(map(shlex.quote, given))}" if given else "")


def open_project(source: Path = DEFAULT_STUDY, overrides: Mapping[str, Any] | None = None) -> Project:
    """Read the study at `source`, with `overrides` on top. Raises ConfigurationError."""
    changed = dict(overrides or {})
    study = load_study(source, changed)
    site = load_site(site_path(Path(study.root))).site
    if site is not None and study.file.site is None:
        study = study.model_copy(update={"file": study.file.model_copy(update={"site": site})})
    return Project(study, source, changed)


def overrides_over(source: Path, effective: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `effective` (Snakemake's merged config) that differ from the study file's own.

    So a plain run carries no overrides, and one with `--config` carries just what was given.
    """
    import yaml

    try:
        own = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}  # load_study reports what is wrong with the file
    if not isinstance(own, Mapping):
        return {}
    return {key: value for key, value in effective.items() if key not in own or own[key] != value}
