"""Read a study and its catalogues; every fault is refused with file, key, reason and the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specjoule.engines.host_settings import HOST_SETTINGS, doubled_keys, misplaced_keys
from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Corpus, Drafter, Entry, Gpu, Model
from specjoule.study.model import BASELINES, VIRTUAL_ENGINES, EngineConfig, Study, StudyFile

T = TypeVar("T", bound=Entry)

MOST_NAMES = 12
"""Names that one error sentence lists."""

PINNED_LIBRARIES = re.compile(r"torch-[^+\s]+\+transformers-[^+\s]+")
"""How a study pins the reference engine: as `engines.versions.installed_version` names it."""

CATALOGUES: dict[str, type[Entry]] = {"models": Model, "drafters": Drafter, "gpus": Gpu, "corpora": Corpus}


def load_study(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read the study file at `path` with its catalogues (default: `models.yaml` ... beside it) and check all of it.

    A study file may extend another (`extends: paper.yaml`, relative to it): its keys replace the other's, key by key.
    `overrides` does the same on top (as Snakemake's `--config` does). An engine or meter of another name replaces the
    whole section, since settings of one engine mean nothing to another. Raises ConfigurationError.
    """
    path = Path(path)
    raw = _extended(_read_yaml(path), path)
    return study_from_mapping(_merged(raw, overrides or {}), path)


def study_from_mapping(
    raw: Mapping[str, Any], path: Path, extra: Mapping[str, Mapping[str, Entry]] | None = None
) -> Study:
    """Check a study given as a mapping; `path` is where it came from, for messages and relative names.

    `extra` adds entries by kind (models, corpora ...) to those of the catalogues.
    """
    file = _validated(StudyFile, _extended(raw, path), path)
    root = _root_of(path)
    entries: dict[str, dict[str, Any]] = {}
    for kind, model in CATALOGUES.items():
        paths = {str(k): v for k, v in file.catalogues.items()}
        entries[kind] = _load_catalogue(path.parent / paths.get(kind, f"{kind}.yaml"), kind, model)
        entries[kind] |= (extra or {}).get(kind, {})
    used: dict[str, dict[str, Any]] = {kind: {} for kind in CATALOGUES}
    for grid_name, grid in file.grids.items():
        for kind in CATALOGUES:
            for name in getattr(grid, kind):
                if name not in entries[kind]:
                    close = nearest(name, entries[kind])
                    raise ConfigurationError(f"{path}: grids.{grid_name}.{kind}: no '{name}' in the catalogue; {close}")
                used[kind][name] = entries[kind][name]
    study = Study(file=file, root=str(root), **used)
    _refuse_impossible(study, path)
    _refuse_mixes(file, entries["corpora"], path)
    _refuse_twins(study, entries["corpora"], path)
    return study


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error sentence that names the closest valid names."""
    names = sorted(valid)
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    if not names:
        return "none is defined"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"valid: {', '.join(names[:MOST_NAMES])}{more}"


def _root_of(path: Path) -> Path:
    """The folder above `config/`, or the file's own folder."""
    folder = path.resolve().parent
    return folder.parent if folder.name == "config" else folder


def _read_yaml(path: Path, remedy: str = "name a study file such as config/config.yaml") -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file; {remedy}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder; {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as text ({error}); check the file and its permissions"
        ) from error
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', error)})") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: holds no keys; a study or catalogue is a YAML mapping")
    return data


def _extended(raw: Mapping[str, Any], path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the study with what it extends filled in; the key `extends` is gone."""
    own = {key: value for key, value in raw.items() if key != "extends"}
    base = raw.get("extends")
    if base is None:
        return own
    if not isinstance(base, str):
        raise ConfigurationError(f"{path}: extends: must name one study file (found {base!r:.80})")
    base_path = path.parent / base
    chain = (*seen, path.resolve())
    if base_path.resolve() in chain:
        raise ConfigurationError(f"{path}: extends: '{base}' extends this file in turn; drop one of the two")
    return _merged(_extended(_read_yaml(base_path), base_path, chain), own)


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML libraries otherwise drop in silence."""


def _construct_unique(loader: _UniqueKeyLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a list or mapping is no key", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_unique)


def _load_catalogue(path: Path, kind: str, model: type[T]) -> dict[str, T]:
    raw = _read_yaml(path, f"put the catalogue of {kind} there, or name its file in the study under catalogues.{kind}")
    if set(raw) != {kind}:
        raise ConfigurationError(f"{path}: must hold the one key '{kind}', found {', '.join(map(str, raw)) or 'none'}")
    entries = raw[kind]
    if not isinstance(entries, dict):
        raise ConfigurationError(f"{path}: '{kind}' must map names to entries")
    found = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{path}: {kind}.{name}: must be a mapping of keys (found {entry!r:.80})")
        if "name" in entry:
            raise ConfigurationError(f"{path}: {kind}.{name}.name: an entry is named by its key; drop it")
        found[str(name)] = _validated(model, {"name": name, **entry}, path, f"{kind}.{name}")
    return found


def _validated(model: type[T], raw: Mapping[str, Any], path: Path, prefix: str = "") -> T:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(_message(error, model, path, prefix)) from error


def _message(error: ValidationError, model: type[BaseModel], path: Path, prefix: str) -> str:
    lines = []
    for item in _own_faults(error):
        location = [str(part) for part in item["loc"]]
        key = ".".join([prefix, *location] if prefix else location) or "(file)"
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key; {nearest(location[-1], _keys_at(model, location[:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{key}: missing; add it")
        elif item["type"] == "literal_error":
            allowed = str(item.get("ctx", {}).get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
            lines.append(f"{key}: '{item['input']}' is not allowed; {nearest(str(item['input']), allowed)}")
        else:
            words = _WORDS.get(item["type"], item["msg"].removeprefix("Value error, "))
            found = "" if isinstance(item["input"], Mapping) else f" (found {item['input']!r:.80})"
            lines.append(f"{key}: {words}{found}")
    return f"{path}: " + "\n  ".join(lines)


_WORDS = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
    "string_pattern_mismatch": "a name begins with a letter or digit and holds only letters, digits and . _ + -",
}
"""What pydantic says about Python's types, in words about the file."""


def _own_faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the faults; a list that is short only because its items are refused is none of its own."""
    faults = error.errors()
    parents = {item["loc"][:-1] for item in faults}
    return [item for item in faults if not (item["type"] == "too_short" and item["loc"] in parents)]


def _keys_at(model: type[BaseModel], location: list[str]) -> list[str]:
    """Field names of the nested model that `location` leads to."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = _model_inside(current.model_fields[part].annotation)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _model_inside(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_inside(inner)
        if found is not None:
            return found
    return None


def _merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in overrides.items():
        known = out.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping) and not _another(known, value):
            out[key] = _merged(known, value)
        else:
            out[key] = value
    return out


def _another(known: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Say whether a section names another engine or meter than the one it would be merged into."""
    return "name" in value and "name" in known and value["name"] != known["name"]


def _refuse_impossible(study: Study, path: Path) -> None:
    """Refuse what could never run, before any job starts."""
    for name, drafter in study.drafters.items():
        if drafter.verify_width != drafter.draft_tokens + 1:
            raise ConfigurationError(
                f"{path}: drafter '{name}' proposes {drafter.draft_tokens} and verifies {drafter.verify_width}; "
                "verify_width must be draft_tokens + 1"
            )
        if drafter.is_plain and drafter.draft_tokens:
            raise ConfigurationError(
                f"{path}: drafter '{name}' is plain and cannot propose tokens; set draft_tokens to 0"
            )
        if not drafter.is_plain and not drafter.draft_tokens:
            raise ConfigurationError(f"{path}: drafter '{name}' proposes nothing; set draft_tokens to at least 1")
        if (drafter.is_plain or name in BASELINES) and drafter.scheme != name:
            raise ConfigurationError(
                f"{path}: drafter '{name}' has scheme '{drafter.scheme}'; the baselines {' and '.join(BASELINES)} are "
                "found by these names, which stand for the schemes of the same name and for nothing else"
            )
    _refuse_same_drafters(study, path)
    _refuse_host_settings(study.file.engine, path)
    _refuse_version(study.file.engine, path)
    _refuse_drafters(study, path)
    _refuse_devices(study, path)
    for grid_name, grid in study.file.grids.items():
        for drafter_name in grid.drafters:
            if not any(study.drafters[drafter_name].applies_to(m) for m in grid.models):
                raise ConfigurationError(
                    f"{path}: grids.{grid_name}.drafters: '{drafter_name}' applies to none of the grid's models "
                    f"({', '.join(grid.models)}); add a checkpoint for one of them in the drafter catalogue or drop it"
                )
        for gpu_name in grid.gpus:
            gpu = study.gpus[gpu_name]
            if gpu.device == "cpu" and any(grid.capture) and study.file.engine.name == "reference":
                raise ConfigurationError(
                    f"{path}: grids.{grid_name}.capture: there are no graphs to capture on '{gpu_name}'; "
                    "set capture: [false]"
                )
            if any(grid.instrumentation) and study.file.engine.name == "reference":
                raise ConfigurationError(
                    f"{path}: grids.{grid_name}.instrumentation: engine 'reference' has no flags to leave out; drop it"
                )
            if gpu.device == "cpu" and any(mhz is not None for mhz in grid.locked_mhz):
                raise ConfigurationError(
                    f"{path}: grids.{grid_name}.locked_mhz: clocks of '{gpu_name}' cannot be locked"
                )


def _refuse_host_settings(engine: EngineConfig, path: Path) -> None:
    """Refuse a host setting that changes numbers (nothing would become stale by it) or that is given twice."""
    for key in misplaced_keys(engine.name, engine.host_settings):
        allowed = HOST_SETTINGS[engine.name]
        close = nearest(str(key), allowed) if allowed else f"engine '{engine.name}' has no setting of the host"
        raise ConfigurationError(
            f"{path}: engine.host_settings.{key}: it changes what is measured; put it under settings ({close})"
        )
    for key in doubled_keys(engine.settings, engine.host_settings):
        raise ConfigurationError(
            f"{path}: engine.host_settings.{key}: it is given under settings too; drop one of the two"
        )


def _refuse_version(engine: EngineConfig, path: Path) -> None:
    """Refuse a pinned release that nothing could be: cells would keep its name whatever computed them."""
    if engine.version is None:
        return
    if engine.name == "reference" and not PINNED_LIBRARIES.fullmatch(engine.version):
        raise ConfigurationError(
            f"{path}: engine.version: '{engine.version}' is no release of engine 'reference', which is named by its "
            "libraries, as in torch-2.9.1+transformers-4.57.3; leave the key out to take the installed ones"
        )
    if engine.name == "simulated":
        raise ConfigurationError(
            f"{path}: engine.version: simulated boards have no release to pin, their version follows from their "
            "parameters; leave the key out"
        )


def _refuse_devices(study: Study, path: Path) -> None:
    """Refuse an engine, board and meter that do not belong together: joules of a device that does not compute."""
    engine, meter = study.file.engine, study.file.meter.name
    if engine.name in VIRTUAL_ENGINES:
        if meter not in ("auto", "simulated"):
            raise ConfigurationError(
                f"{path}: meter.name: engine '{engine.name}' brings its own meter and cannot be read by '{meter}'; "
                "set meter: {name: simulated}"
            )
        _refuse_virtual(study, path)
        return
    if meter == "simulated":
        raise ConfigurationError(
            f"{path}: meter.name: 'simulated' goes with a simulated engine only; choose auto, nvml, rapl or estimate"
        )
    for name, gpu in study.gpus.items():
        if gpu.device == "cuda" and meter in ("rapl", "estimate"):
            raise ConfigurationError(
                f"{path}: meter.name: '{meter}' counts the processor, but '{name}' computes on a GPU; "
                "choose auto or nvml"
            )
        if gpu.device == "cpu" and meter == "nvml":
            raise ConfigurationError(
                f"{path}: meter.name: 'nvml' counts a GPU, but '{name}' is the processor; choose auto, rapl or estimate"
            )
    if engine.name == "reference":
        _refuse_reference(study, path)


def _refuse_virtual(study: Study, path: Path) -> None:
    """Refuse what an engine on a virtual clock would refuse inside a job."""
    engine = study.file.engine
    try:
        if engine.name == "simulated":
            from specjoule.engines.simulated import check_study

            check_study(study)
        else:
            from specjoule.engines.checking import checked
            from specjoule.engines.scripted import ScriptedSettings

            checked(ScriptedSettings, {**engine.settings, **engine.host_settings}, "engine.settings.")
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _refuse_reference(study: Study, path: Path) -> None:
    """Refuse what the reference engine would refuse inside a job."""
    from specjoule.engines.reference.settings import ReferenceSettings

    engine = study.file.engine
    try:
        settings = ReferenceSettings.of({**engine.settings, **engine.host_settings})
        for model in study.models.values():
            settings.resolve_dtype(model.name, model.weight_dtype, model.kv_dtype)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for name, gpu in study.gpus.items():
        device = str(engine.settings.get("device", gpu.device))
        if device.partition(":")[0] != gpu.device:
            raise ConfigurationError(
                f"{path}: engine.settings.device: '{device}' is not what '{name}' stands for ({gpu.device}); the meter "
                "would count another device than the one that computes"
            )
    if study.file.protocol.ngram_state == "warm":
        raise ConfigurationError(f"{path}: protocol.ngram_state: the reference engine keeps no state; set it to cold")
    for grid_name, grid in study.file.grids.items():
        if any(context is not None for context in grid.context_tokens):
            raise ConfigurationError(
                f"{path}: grids.{grid_name}.context_tokens: the reference engine runs prompts as they are; leave it out"
            )


def _refuse_drafters(study: Study, path: Path) -> None:
    """Refuse a drafter that the engine would refuse inside a job."""
    from specjoule.engines.reference.drafters.entries import check_entry as check_for_reference
    from specjoule.engines.sglang.speculation import check_entry as check_for_sglang

    for grid_name, grid in study.file.grids.items():
        for model_name, drafter_name in product(grid.models, grid.drafters):
            model, drafter = study.models[model_name], study.drafters[drafter_name]
            if not drafter.applies_to(model_name):
                continue
            if drafter.scheme == "mtp" and not model.draft_heads and model_name not in drafter.checkpoints:
                raise ConfigurationError(
                    f"{path}: grids.{grid_name}.drafters: '{drafter_name}' drafts with heads in the target's "
                    f"checkpoint, and '{model_name}' has none; if it does, set draft_heads: true in the model catalogue"
                )
            try:
                if study.file.engine.name == "reference":
                    check_for_reference(drafter, model.architecture.layers)
                elif study.file.engine.name == "sglang":
                    check_for_sglang(drafter)
            except ConfigurationError as error:
                raise ConfigurationError(f"{path}: grids.{grid_name}.drafters: {error}") from error


def _refuse_mixes(file: StudyFile, corpora: Mapping[str, Entry], path: Path) -> None:
    """Refuse a workload mix that nothing could ever answer; one of a corpus this study leaves out is no error."""
    for mix, weights in file.analysis.mixes.items():
        if not weights or any(w < 0 for w in weights.values()) or sum(weights.values()) <= 0:
            raise ConfigurationError(f"{path}: analysis.mixes.{mix}: weights must be non-negative and not all zero")
        for corpus in weights:
            if corpus not in corpora:
                raise ConfigurationError(
                    f"{path}: analysis.mixes.{mix}: no corpus '{corpus}' in the catalogue; {nearest(corpus, corpora)}"
                )


def _refuse_twins(study: Study, corpora: Mapping[str, Entry], path: Path) -> None:
    for name, corpus in study.corpora.items():
        if corpus.twin is not None and corpus.twin not in corpora:
            raise ConfigurationError(
                f"{path}: corpus '{name}' has a twin '{corpus.twin}' that is not in the catalogue; "
                f"{nearest(corpus.twin, corpora)}"
            )


def _refuse_same_drafters(study: Study, path: Path) -> None:
    seen: dict[str, str] = {}
    for name, drafter in study.drafters.items():
        key = drafter.model_dump_json(exclude={"name", "label", "inferred", "origin"})
        if key in seen:
            raise ConfigurationError(
                f"{path}: drafters '{seen[key]}' and '{name}' are the same thing under two names; drop one"
            )
        seen[key] = name
