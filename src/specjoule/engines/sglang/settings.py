"""The `engine.settings` that the sglang engine understands, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from specjoule.errors import ConfigurationError

RELEASE = "0.5.23"
"""The release every fact of this package was read in or tried with."""

Instrumentation = Literal["study", "minimal"]
Transport = Literal["batched", "per-request"]


@dataclass(frozen=True)
class Container:
    """A server inside Apptainer; the image is named by digest so that it cannot change under the study."""

    image: str
    """`docker://registry/name` without a tag, or the path of a `.sif` file."""
    digest: str
    """`sha256:...` of the image, or of the `.sif` file."""
    runtime: str = "apptainer"
    binds: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("--nv", "--cleanenv", "--containall")
    entry: tuple[str, ...] = ("sglang", "serve")


@dataclass(frozen=True)
class ModelSettings:
    """What differs for one target model; None keeps the study's value."""

    attention_backend: str | None = None
    mem_fraction_static: float | None = None
    context_length: int | None = None
    trust_remote_code: bool | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()
    speculative_flags: tuple[str, ...] = ()
    """Added under speculation only (a draft's attention backend, say)."""


@dataclass(frozen=True)
class Settings:
    """All settings of the engine; `docs/sglang.md` lists them with their meaning."""

    release: str = RELEASE
    interpreter: str = "python3"
    entry: tuple[str, ...] | None = None
    device: str = "cuda"
    attention_backend: str | None = None
    """None: `default_backend` of the model's family."""
    mem_fraction_static: float | None = 0.85
    load_format: str | None = None
    context_length: int | None = None
    chunked_prefill_size: int | None = None
    max_total_tokens: int | None = None
    trust_remote_code: bool = False
    flags: tuple[str, ...] = ()
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    instrumentation: Instrumentation = "study"
    transport: Transport = "batched"
    profiled_wave: bool = True
    """After its last cell each server runs one profiled wave, which shows which passes ran captured graphs."""
    matched: Mapping[str, Any] | None = None
    simulated_acceptance: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    weight_formats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checkpoints: str | None = None
    staging: str | None = None
    container: Container | None = None
    offline: bool = True
    watchdog_s: float = 300.0
    start_deadline_s: float = 1800.0
    wave_deadline_s: float = 1800.0
    stall_s: float = 180.0
    stop_grace_s: float = 20.0
    ready_poll_s: float = 0.25
    board_free_s: float = 60.0

    def for_model(self, name: str) -> Settings:
        """Return the settings with the overrides of one model applied."""
        own = self.models.get(name)
        if own is None:
            return self
        changes: dict[str, Any] = {
            key: getattr(own, key)
            for key in ("attention_backend", "mem_fraction_static", "context_length", "trust_remote_code")
            if getattr(own, key) is not None
        }
        if own.chat_template_kwargs is not None:
            changes["chat_template_kwargs"] = own.chat_template_kwargs
        return replace(self, flags=(*self.flags, *own.flags), **changes)

    def speculative_flags(self, name: str) -> tuple[str, ...]:
        """Return the flags that a model needs under speculation only."""
        own = self.models.get(name)
        return own.speculative_flags if own is not None else ()


def default_backend(family: str) -> str:
    """Return the attention backend of a model family on Hopper boards: the resolver refuses Gemma 4 under fa3."""
    return "triton" if family.lower().startswith("gemma") else "fa3"


def parse_settings(mapping: Mapping[str, Any]) -> Settings:
    """Read `engine.settings` (with `engine.host_settings` merged in). Raises ConfigurationError naming the key."""
    values = _known("engine.settings", mapping, Settings)
    for key in ("entry", "flags"):
        if values.get(key) is not None:
            values[key] = _strings(f"engine.settings.{key}", values[key])
    if values.get("environment") is not None:
        values["environment"] = {str(k): str(v) for k, v in _mapping("environment", values["environment"]).items()}
    if values.get("weight_formats") is not None:
        values["weight_formats"] = {
            name: _strings(f"engine.settings.weight_formats.{name}", flags)
            for name, flags in _mapping("weight_formats", values["weight_formats"]).items()
        }
    if values.get("models") is not None:
        values["models"] = {
            name: _model(f"engine.settings.models.{name}", own)
            for name, own in _mapping("models", values["models"]).items()
        }
    if values.get("container") is not None:
        values["container"] = _container(values["container"])
    _choice("instrumentation", values, ("study", "minimal"))
    _choice("transport", values, ("batched", "per-request"))
    return Settings(**values)


def _model(where: str, mapping: Any) -> ModelSettings:
    values = _known(where, _mapping(where, mapping), ModelSettings)
    for key in ("flags", "speculative_flags"):
        if key in values:
            values[key] = _strings(f"{where}.{key}", values[key])
    return ModelSettings(**values)


def _container(mapping: Any) -> Container:
    where = "engine.settings.container"
    values = _known(where, _mapping(where, mapping), Container)
    for key in ("image", "digest"):
        if key not in values:
            raise ConfigurationError(f"{where}: '{key}' is missing; name the image and its sha256 digest")
    digest = str(values["digest"])
    if not digest.startswith("sha256:") or len(digest) != len("sha256:") + 64:
        raise ConfigurationError(f"{where}.digest: '{digest}' is not of the form sha256:<64 hexadecimal digits>")
    for key in ("binds", "flags", "entry"):
        if key in values:
            values[key] = _strings(f"{where}.{key}", values[key])
    return Container(**values)


def _known(where: str, mapping: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    unknown = sorted(set(mapping) - names)
    if unknown:
        raise ConfigurationError(f"{where}: unknown key '{unknown[0]}'; known: {', '.join(sorted(names))}")
    return dict(mapping)


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: a mapping is expected, not {value!r}")
    return value


def _strings(where: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ConfigurationError(f"{where}: a list of words is expected, not {value!r}")
    return tuple(str(v) for v in value)


def _choice(key: str, values: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if key in values and values[key] not in allowed:
        raise ConfigurationError(f"engine.settings.{key}: '{values[key]}' is none of {', '.join(allowed)}")


def server_program(settings: Settings) -> tuple[str, ...]:
    """Return the words before the flags: the `sglang` command beside the interpreter, unless `entry` names another."""
    if settings.entry is not None:
        return settings.entry
    interpreter = Path(settings.interpreter)
    if interpreter.parent == Path():
        return ("sglang", "serve", "--model-type", "llm")
    return (str(interpreter.with_name("sglang")), "serve", "--model-type", "llm")
