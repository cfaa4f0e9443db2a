"""From a checkpoint's name to weights on a device, with a revision that says which weights they were."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from specjoule.engines.base import EngineInfeasible, LaunchSpec
from specjoule.engines.checkpoint_names import COMMIT, HUB_NAME
from specjoule.engines.embedded import SOURCE_FILE
from specjoule.engines.reference import attention as packed_attention
from specjoule.engines.reference.projection import speed_up_projection
from specjoule.engines.reference.soundness import deviation, is_sound
from specjoule.errors import ConfigurationError
from specjoule.reasons import Reason
from specjoule.study.catalogue import Checkpoint

ATTENTION = {"packed": (packed_attention.PACKED, "eager"), "sdpa": ("sdpa",), "eager": ("eager",)}
"""Implementations to try for each setting, in order."""
UNSUPPORTED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
"""What models raise where an attention or a mask is not what they expect."""
ATTENTION_TYPES = {"full_attention", "sliding_attention"}
WINDOWS = (("sliding_window", "layer_types", "sliding_attention"), ("window_size", "attention_layers", "local"))
"""Names under which a configuration tells of attention windows: the width, the layers' kinds, the windowed kind."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    model: Any
    tokenizer: Any
    revision: str
    layers: int
    context: int
    """Tokens for which every layer sees everything: the model's context, or its attention window where shorter."""
    eos_ids: frozenset[int]


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is and how it is known."""

    path: str
    hub_revision: str | None
    """Commit to ask the hub for; None for a local directory."""
    revision: str


def locate(checkpoint: Checkpoint, override: str | None, where: str) -> Place:
    """Find a checkpoint without loading it; ConfigurationError if it is missing or an unpinned hub name."""
    name = override or checkpoint.path
    directory = Path(name).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise ConfigurationError(f"{where}: {directory} holds no config.json; it is no transformers checkpoint")
        return Place(str(directory), None, _local_revision(directory, checkpoint.revision))
    if not HUB_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where}: no checkpoint at {directory} (looked in {Path.cwd()}); the embedded model is made by "
            "python -m specjoule.engines.embedded --output DIR"
        )
    if checkpoint.revision is None or not COMMIT.fullmatch(checkpoint.revision):
        raise ConfigurationError(
            f"{where}: {name} is no local directory, and as a name on the hub it needs `revision` to be a full commit "
            f"(40 hex digits), not {checkpoint.revision!r}: a branch or tag can change between two rows"
        )
    return Place(name, checkpoint.revision, checkpoint.revision)


def load(place: Place, device: str, dtype: str, attention: str, where: str) -> Loaded:
    """Load weights and tokenizer onto `device`, and see that the model decodes through the ragged cache as by itself.

    A model whose attention the packed kernel cannot express gets transformers' eager one. Raises ConfigurationError
    where the checkpoint or its surroundings are at fault, EngineInfeasible where the architecture or the memory is.
    """
    options: dict[str, Any] = {"revision": place.hub_revision} if place.hub_revision else {}
    transformers_logging.disable_progress_bar()
    packed_attention.register()
    with out_of_memory(Reason.OOM_LOAD, f"{where}: the weights of {place.path} do not fit into the memory of {device}"):
        config = _config(place, options, where)
        tokenizer = _readable(place, where, lambda: AutoTokenizer.from_pretrained(place.path, **options))
        text = config.get_text_config()
        layers, context = int(text.num_hidden_layers), _context(text)
        failures = []
        for implementation in ATTENTION[attention]:
            try:
                model = _weights(place, config, getattr(torch, dtype), implementation, options, where)
                model = model.eval().to(device)
                speed_up_projection(model)
                found = deviation(model, layers, context)
            except UNSUPPORTED as error:
                if is_out_of_memory(error):
                    raise
                failures.append(f"{implementation}: {_first_line(error)}")
                continue
            if is_sound(found, model.dtype):
                return Loaded(model, tokenizer, place.revision, layers, context, _eos_ids(model, tokenizer))
            failures.append(f"{implementation}: logits off by {found:.1g} of their size")
    raise EngineInfeasible(
        Reason.UNSUPPORTED_MODEL,
        f"{where}: {place.path} ({config.model_type}) does not decode through the reference engine's cache as it does "
        f"by itself, with attention {'; '.join(failures)}",
    )


def _config(place: Place, options: dict[str, Any], where: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(place.path, **options)
    except (ValueError, KeyError) as error:
        if "model type" not in str(error) and "model_type" not in str(error):
            raise _unreadable(place, where, error) from error
        raise _unsupported(place, where, error) from error
    except Exception as error:
        raise _unreadable(place, where, error) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _unsupported(place, where, ValueError(f"{config.model_type} is no causal language model"))
    _refuse_other_caches(config, where)
    return config


def _weights(place: Place, config: Any, dtype: Any, implementation: str, options: dict[str, Any], where: str) -> Any:
    """Load every tensor; ConfigurationError where one is missing, because transformers would draw it at random."""
    model, info = _readable(
        place,
        where,
        lambda: AutoModelForCausalLM.from_pretrained(
            place.path,
            config=config,
            dtype=dtype,
            attn_implementation=implementation,
            output_loading_info=True,
            **options,
        ),
    )
    lacking = sorted({*info["missing_keys"], *map(str, info["mismatched_keys"])})
    if lacking:
        raise ConfigurationError(
            f"{where}: {place.path} lacks {len(lacking)} of the model's tensors, or has them in another shape "
            f"({', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}); fetch or save the checkpoint again"
        )
    return model


def _readable(place: Place, where: str, read: Callable[[], Any]) -> Any:
    """Run one of transformers' readers. What it says of an attention it lacks passes; all else becomes a sentence."""
    try:
        return read()
    except Exception as error:
        lacks_attention = isinstance(error, UNSUPPORTED) and "attention" in str(error)
        if lacks_attention or packed_attention.PACKED in str(error) or is_out_of_memory(error):
            raise
        raise _unreadable(place, where, error) from error


def _unreadable(place: Place, where: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{where}: {place.path} cannot be read ({_first_line(error)})")


def _unsupported(place: Place, where: str, error: Exception) -> EngineInfeasible:
    return EngineInfeasible(
        Reason.UNSUPPORTED_MODEL, f"{where}: transformers cannot load {place.path} ({_first_line(error)})"
    )


def resolve_device(spec: LaunchSpec, wanted: str | None) -> str:
    """Return the device to compute on; on a GPU the very board that the meter reads."""
    device = wanted or spec.gpu.device
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigurationError(f"engine.settings.device: {device!r} is no device ({_first_line(error)})") from error
    if kind != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"engine.settings.device: {device} was asked for, but this PyTorch ({torch.__version__}) sees no GPU"
        )
    if spec.device_uuid is None:
        return device
    boards = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
    if spec.device_uuid not in boards:
        raise ConfigurationError(f"board {spec.device_uuid} is not among those PyTorch sees ({', '.join(boards)})")
    found = f"cuda:{boards.index(spec.device_uuid)}"
    if ":" in device and device != found:
        raise ConfigurationError(
            f"engine.settings.device: {device} is not the board that is measured ({spec.device_uuid} is {found})"
        )
    return found


@contextlib.contextmanager
def out_of_memory(reason: Reason, message: str, capacity_requests: int | None = None) -> Iterator[None]:
    """Turn an allocation that fails, on the host or on a GPU, into EngineInfeasible with `message`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise EngineInfeasible(reason, message, capacity_requests) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an allocation failed; the CPU allocator has no exception class of its own."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in str(error) or "not enough memory" in str(error)
    )


def _refuse_other_caches(config: Any, where: str) -> None:
    types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if types - ATTENTION_TYPES:
        raise EngineInfeasible(
            Reason.UNSUPPORTED_MODEL,
            f"{where}: the reference engine rolls back a standard key-value cache only, and this model has layers of "
            f"type {', '.join(sorted(types - ATTENTION_TYPES))}",
        )


def _context(text_config: Any) -> int:
    """Return the tokens up to which an attention window changes nothing, because the cache keeps all of them."""
    context = int(getattr(text_config, "max_position_embeddings", None) or 1 << 30)
    for window_name, types_name, kind in WINDOWS:
        window, types = getattr(text_config, window_name, None), getattr(text_config, types_name, None)
        if window and (types is None or kind in types):
            context = min(context, int(window))
    return context


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    for found in (
        getattr(generation, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def _local_revision(directory: Path, stated: str | None) -> str:
    """Return SOURCE.json's revision, else the stated one, else a digest of the files' names, sizes and headers."""
    source = directory / SOURCE_FILE
    if source.is_file():
        try:
            return str(json.loads(source.read_text(encoding="utf-8"))["revision"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{source}: holds no revision ({error}); make the model again") from error
    if stated is not None:
        return stated
    digest = hashlib.sha256()
    for file in sorted(f for f in directory.iterdir() if f.suffix in (".json", ".safetensors", ".bin")):
        digest.update(f"{file.name}:{file.stat().st_size};".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(1 << 20))
    return f"files-{digest.hexdigest()[:12]}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
