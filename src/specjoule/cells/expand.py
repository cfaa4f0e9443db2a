"""From a study to its cells: the union of its grids, each cell once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from specjoule.cells.cell import Cell
from specjoule.cells.forecast import n_waves, plain_itl_ms
from specjoule.engines.versions import declared_version
from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import canonical_digest, corpus_digest, load_corpus
from specjoule.prompts.filler import documents_digest
from specjoule.study.model import VIRTUAL_ENGINES, Study
from specjoule.version import PROTOCOL_VERSION


@dataclass(frozen=True)
class Pool:
    """What cells need to know of a corpus: its digest and how many distinct prompts it holds."""

    digest: str
    size: int


def load_pools(study: Study) -> dict[str, Pool]:
    """Read every corpus of the study once; returns digest and size by name.

    Raises ConfigurationError, also where two corpora hold the same prompts: their cells would be one and the same.
    """
    pools: dict[str, Pool] = {}
    names: dict[str, str] = {}
    for name, corpus in study.corpora.items():
        prompts = load_corpus(Path(study.root) / corpus.path, name)
        pools[name] = pool = Pool(corpus_digest(prompts), len(prompts))
        if (same := names.setdefault(pool.digest, name)) != name:
            raise ConfigurationError(f"corpora '{same}' and '{name}' hold the same prompts ({corpus.path}); drop one")
    return pools


def expand(
    study: Study,
    pools: Mapping[str, Pool],
    *,
    engine_version: str | None = None,
    protocol_version: int = PROTOCOL_VERSION,
) -> list[Cell]:
    """Return the study's cells in the order of its grids, each point once with the names of all grids that hold it.

    A drafter is left out for models it does not apply to; plain is in every grid. Raises ConfigurationError where two
    grids want the same file measured in two ways.
    """
    file = study.file
    version = engine_version if engine_version is not None else declared_version(study)
    fingerprints: dict[tuple[str, str, str], str] = {}
    itl: dict[tuple[str, str, int], float] = {}
    cells: dict[str, Cell] = {}
    for grid_name, grid in file.grids.items():
        max_new = grid.max_new_tokens or file.protocol.max_new_tokens
        for model_name, drafter_name in product(grid.models, grid.drafters):
            model, drafter = study.models[model_name], study.drafters[drafter_name]
            if not drafter.applies_to(model_name):
                continue
            for gpu_name, concurrency in product(grid.gpus, grid.concurrency):
                key = (model_name, drafter_name, gpu_name)
                if key not in fingerprints:
                    fingerprints[key] = _fingerprint(study, *key, version, protocol_version)
                where = (model_name, gpu_name, concurrency)
                if where not in itl:
                    itl[where] = plain_itl_ms(model, study.gpus[gpu_name], concurrency)
                for corpus in grid.corpora:
                    pool = pools[corpus]
                    waves = n_waves(
                        concurrency=concurrency,
                        pool=pool.size,
                        min_prompts=file.protocol.min_prompts,
                        min_window_s=file.protocol.min_window_s,
                        max_new_tokens=max_new,
                        itl_ms=itl[where],
                        speedup=file.protocol.forecast_speedup,
                    )
                    for capture, mhz, context, flags, seed, replicate in product(
                        grid.capture, grid.locked_mhz, grid.context_tokens, grid.instrumentation, grid.seeds,
                        grid.replicates,
                    ):  # fmt: skip
                        cell = Cell(
                            study=file.study, model=model_name, gpu=gpu_name, drafter=drafter_name, corpus=corpus,
                            concurrency=concurrency, seed=seed, replicate=replicate, capture=capture, locked_mhz=mhz,
                            context_tokens=context, max_new_tokens=max_new, waves=waves,
                            pool_digest=_text_digest(study, pool, context), fingerprint=fingerprints[key],
                            grids=(grid_name,), instrumentation=flags,
                        )  # fmt: skip
                        _add(cells, cell)
    return list(cells.values())


def _text_digest(study: Study, pool: Pool, context: int | None) -> str:
    """Digest of all text that a cell's prompts are made of; simulated boards look at lengths alone."""
    if context is None or study.file.engine.name in VIRTUAL_ENGINES:
        return pool.digest
    return canonical_digest([pool.digest, documents_digest(Path(study.root))])


def _add(cells: dict[str, Cell], cell: Cell) -> None:
    known = cells.get(cell.path)
    if known is None:
        cells[cell.path] = cell
    elif known.hash == cell.hash:
        cells[cell.path] = replace(known, grids=known.grids + cell.grids)
    else:
        raise ConfigurationError(
            f"grids '{known.grids[0]}' and '{cell.grids[0]}' both measure {cell.path} but in different ways "
            "(answer length); give one of them another seed, or make it a study of its own"
        )


def _fingerprint(
    study: Study, model_name: str, drafter_name: str, gpu_name: str, engine_version: str, protocol_version: int
) -> str:
    """Canonical JSON of what a model, drafter, board, engine and protocol contribute to a cell's hash."""
    file, model, drafter = study.file, study.models[model_name], study.drafters[drafter_name]
    checkpoint = drafter.checkpoints.get(model_name)
    protocol = file.protocol
    content = {
        "protocol_version": protocol_version,
        "model": [model.checkpoint.path, model.checkpoint.revision, model.weight_dtype, model.kv_dtype],
        "drafter": {
            "scheme": drafter.scheme,
            "draft_tokens": drafter.draft_tokens,
            "verify_width": drafter.verify_width,
            "serial_steps": drafter.serial_steps,
            "checkpoint": [checkpoint.path, checkpoint.revision] if checkpoint else None,
            "settings": drafter.settings,
        },
        "engine": {"name": file.engine.name, "version": engine_version, "settings": file.engine.settings},
        "protocol": {
            "ignore_eos": protocol.ignore_eos,
            "sampling": protocol.sampling,
            "max_prompt_tokens": protocol.max_prompt_tokens,
            "ngram_state": protocol.ngram_state,
        },
    }
    if file.engine.name not in VIRTUAL_ENGINES and file.meter.name in ("auto", "estimate"):
        # An estimate is in proportion to the watts assumed: changed watts are another number.
        content["assumed_watts_per_core"] = file.meter.watts_per_core
    if file.engine.name == "simulated":
        # A simulated number follows from the catalogues' sizes, a measured one from the things they describe.
        checkpoint_labels = {"path", "revision", "license", "prepare", "inferred"}
        content["described"] = {
            "model": [model.attention, model.architecture.model_dump(exclude={"source", "assumed"})],
            "drafter": [drafter.origin, checkpoint.model_dump(exclude=checkpoint_labels) if checkpoint else None],
            "gpu": study.gpus[gpu_name].model_dump(exclude={"product", "source", "balance_flop_per_byte"}),
        }
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
