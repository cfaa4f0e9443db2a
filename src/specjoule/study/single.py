"""A study made on the spot: one model, its drafters against plain, some prompts, within a time budget."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specjoule.blocks.block import make_blocks
from specjoule.blocks.estimate import study_seconds
from specjoule.cells.expand import expand, load_pools
from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import load_corpus
from specjoule.study.catalogue import Architecture, Checkpoint, Corpus, Entry, Model
from specjoule.study.load import load_study, study_from_mapping
from specjoule.study.model import PLAIN, VIRTUAL_ENGINES, Study

SCALES: tuple[tuple[int, float], ...] = (
    (16, 10.0),
    (16, 5.0),
    (8, 5.0),
    (8, 2.0),
    (4, 2.0),
    (4, 1.0),
    (1, 1.0),
    (1, 0.0),
)
"""(min_prompts, min_window_s) tried in turn until the forecast fits the budget."""


@dataclass(frozen=True)
class Wish:
    """What is to be measured."""

    name: str
    model: str
    """A name in config/models.yaml, or the folder of a checkpoint."""
    drafters: tuple[str, ...]
    prompts: str
    """A name in config/corpora.yaml, or a prompt file."""
    concurrency: tuple[int, ...]
    gpu: str
    seed: int = 1
    max_new_tokens: int = 40
    budget_s: float = 300.0
    engine: str | None = None
    """Replaces the base study's engine; its settings are kept only for the engine they were written for."""
    meter: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


def single_study(base: Path, wish: Wish) -> tuple[Study, float]:
    """Return the study that measures `wish` and its forecast in seconds.

    Engine, meter and protocol come from the study file at `base`; waves are cut down until the forecast fits the
    budget. Raises ConfigurationError where nothing fits, or where a name, folder or file is not what it should be.
    """
    raw = _read(base)
    extra: dict[str, dict[str, Entry]] = {}
    model = _model(wish, base, extra)
    corpus = _corpus(wish, base, extra)
    if wish.engine is not None and wish.engine != raw.get("engine", {}).get("name"):
        raw["engine"] = {"name": wish.engine, "settings": {}}
    if wish.meter is not None:
        raw["meter"] = {**raw.get("meter", {}), "name": wish.meter}
    elif raw.get("engine", {}).get("name") in VIRTUAL_ENGINES:
        raw["meter"] = {"name": "simulated"}
    raw.update({"study": wish.name, "title": "One paired measurement", **wish.overrides})
    drafters = [PLAIN, *(d for d in wish.drafters if d != PLAIN)]
    grid = {
        "models": [model], "gpus": [wish.gpu], "drafters": drafters, "concurrency": list(wish.concurrency),
        "corpora": [corpus], "seeds": [wish.seed], "capture": [wish.gpu != "cpu"],
    }  # fmt: skip
    raw["grids"] = {"measure": grid}
    forecast = 0.0
    for prompts, window in SCALES:
        protocol = {
            **raw.get("protocol", {}), "max_new_tokens": wish.max_new_tokens, "min_prompts": prompts,
            "min_window_s": window,
        }  # fmt: skip
        study = study_from_mapping({**raw, "protocol": protocol}, base, extra)
        forecast = study_seconds(study, make_blocks(expand(study, load_pools(study))))
        if forecast <= wish.budget_s:
            return study, forecast
    raise ConfigurationError(
        f"the smallest such measurement is forecast at {forecast / 60:.1f} minutes and the budget is "
        f"{wish.budget_s / 60:g}; raise --minutes, or lower --max-new-tokens, --concurrency or the number of drafters"
    )


def _read(base: Path) -> dict[str, Any]:
    raw: dict[str, Any] = load_study(base).file.model_dump(mode="json")
    return raw


def _catalogue_names(base: Path, kind: str) -> list[str]:
    try:
        found = yaml.safe_load((base.parent / f"{kind}.yaml").read_text(encoding="utf-8"))
        return list(found[kind])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return []


def _model(wish: Wish, base: Path, extra: dict[str, dict[str, Entry]]) -> str:
    if wish.model in _catalogue_names(base, "models") or not ("/" in wish.model or Path(wish.model).is_dir()):
        return wish.model
    model = model_from_folder(Path(wish.model))
    extra["models"] = {model.name: model}
    return model.name


def _corpus(wish: Wish, base: Path, extra: dict[str, dict[str, Entry]]) -> str:
    if wish.prompts in _catalogue_names(base, "corpora") or not (
        "/" in wish.prompts or wish.prompts.endswith(".jsonl")
    ):
        return wish.prompts
    path = Path(wish.prompts).absolute()
    prompts = load_corpus(Path(wish.prompts))
    name = slug(path.stem)
    extra["corpora"] = {
        name: Corpus(name=name, path=str(path), language=prompts[0].language, license=prompts[0].license)
    }
    return name


def slug(text: str) -> str:
    """Return `text` as a name that is also a path part."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+") or "unnamed"


def model_from_folder(folder: Path) -> Model:
    """Describe the checkpoint in a local folder from its config.json. Raises ConfigurationError."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{folder}: holds no config.json; name a transformers checkpoint's folder, or a model of config/models.yaml"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read as JSON ({error})") from error
    try:
        heads = config["num_attention_heads"]
        architecture = Architecture(
            parameters=_parameters(folder, config),
            hidden_size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            query_heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            source="the checkpoint's configuration",
        )
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"{file}: lacks {error}; only causal language models are known") from error
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return Model(
        name=slug(folder.resolve().name),
        family=str(config.get("model_type", "unknown")),
        checkpoint=Checkpoint(path=str(folder.absolute())),
        architecture=architecture,
        weight_dtype=dtype,
        kv_dtype=dtype,
    )


def _parameters(folder: Path, config: Mapping[str, Any]) -> float:
    """Count from the weights' size on disk; from the configuration's sizes where there are no safetensors."""
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    if size:
        return float(size) / {"float32": 4, "float64": 8}.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    d, layers, inner = config["hidden_size"], config["num_hidden_layers"], config.get("intermediate_size")
    return float(config["vocab_size"] * d + layers * (4 * d * d + 3 * d * (inner or 4 * d)))
