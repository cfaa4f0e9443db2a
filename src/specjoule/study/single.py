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

HIDDEN, LAYERS, HEADS = ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")
KV_HEADS, HEAD_DIM, VOCABULARY = ("num_key_value_heads",), ("head_dim",), ("vocab_size",)
INNER = ("intermediate_size", "n_inner")
"""Names under which a configuration holds a size: today's first, then that of GPT-2 and its kind."""


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
    text = _text_part(config, file)
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "float32")
    hidden, heads = _size(text, HIDDEN, file), _size(text, HEADS, file)
    if heads > hidden and _given(text, HEAD_DIM) is None:
        raise ConfigurationError(
            f"{file}: has more attention heads ({heads}) than its width ({hidden}) can be cut into"
        )
    return Model(
        name=slug(folder.resolve().name),
        family=str(config.get("model_type", "unknown")),
        checkpoint=Checkpoint(path=str(folder.absolute())),
        architecture=Architecture(
            parameters=_parameters(folder, text, dtype, file),
            hidden_size=hidden,
            layers=_size(text, LAYERS, file),
            query_heads=heads,
            kv_heads=_size(text, KV_HEADS, file, heads),
            head_dim=_size(text, HEAD_DIM, file, hidden // heads),
            vocabulary=_size(text, VOCABULARY, file),
            source="the checkpoint's configuration",
        ),
        weight_dtype=dtype,
        kv_dtype=dtype,
    )


def _text_part(config: Any, file: Path) -> Mapping[str, Any]:
    """Return the sizes of the language model: those under `text_config` go before those beside it."""
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file}: holds no mapping of keys; it is not a transformers configuration")
    if config.get("is_encoder_decoder"):
        raise ConfigurationError(f"{file}: is of an encoder with a decoder; only causal language models are known")
    nested = config.get("text_config") or {}
    if not isinstance(nested, dict):
        raise ConfigurationError(f"{file}: text_config: must be a mapping of keys (found {nested!r:.80})")
    return {**config, **nested}


def _given(config: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any] | None:
    """Return the first of `names` that the configuration gives, with its value; null is not given."""
    return next(((name, config[name]) for name in names if config.get(name) is not None), None)


def _size(config: Mapping[str, Any], names: tuple[str, ...], file: Path, default: int | None = None) -> int:
    """Return a size by any of its names. Raises ConfigurationError where it is missing or no positive whole number."""
    found = _given(config, names)
    if found is None and default is not None:
        return default
    if found is None:
        words = " or ".join(f"'{name}'" for name in names)
        raise ConfigurationError(f"{file}: lacks {words}; only causal language models are known")
    name, value = found
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{file}: {name}: must be a whole number of at least 1 (found {value!r:.80})")
    return value


def _parameters(folder: Path, config: Mapping[str, Any], dtype: str, file: Path) -> float:
    """Count from the weights' size on disk; from the configuration's sizes where there are no safetensors."""
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    if size:
        return float(size) / {"float32": 4, "float64": 8}.get(dtype, 2)
    d, layers = _size(config, HIDDEN, file), _size(config, LAYERS, file)
    inner = _size(config, INNER, file, 4 * d)
    return float(_size(config, VOCABULARY, file) * d + layers * (4 * d * d + 3 * d * inner))
