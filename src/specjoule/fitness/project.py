"""Probes of the installation and the study: versions, the engine's libraries, the model's files."""

from __future__ import annotations

import math
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from specjoule.blocks.record_file import read_record
from specjoule.engines.checkpoint_names import why_not_found
from specjoule.engines.sglang.checkpoints import is_hub_name
from specjoule.engines.versions import LIBRARIES
from specjoule.errors import SpecJouleError, StoreError
from specjoule.files import RUN_AGAIN
from specjoule.fitness.finding import Finding
from specjoule.study.catalogue import Checkpoint
from specjoule.study.model import Study
from specjoule.version import PROTOCOL_VERSION, __version__

WATCHED = ("numpy", "pandas", "pyarrow", "snakemake", "torch", "transformers", "nvidia-ml-py")
"""Libraries whose release the results depend on most."""


def software() -> Finding:
    """Which release runs, on which Python and system."""
    found = (
        f"SpecJoule {__version__} (protocol {PROTOCOL_VERSION}), Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}"
    )
    if sys.platform != "linux":
        return Finding("software", "fail", found, "measure on Linux: meters and sampler need its clocks and files")
    return Finding("software", "ok", found)


def versions(lock: Path = Path("requirements/lock.txt")) -> Finding:
    """Whether the installed libraries are the ones of the lock file."""
    installed = {name: v for name in WATCHED if (v := _installed(name)) is not None}
    found = ", ".join(f"{name} {version}" for name, version in installed.items())
    pinned = pins(lock)
    if not pinned:
        return Finding("versions", "ok", f"{found} (no {lock} here to compare with)")
    other = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in installed.items()
        if name in pinned and version.split("+")[0] != pinned[name]
    ]
    if other:
        return Finding(
            "versions",
            "warn",
            f"not the tested releases: {', '.join(other)}",
            f"pip install -c {lock} -e . (or make run)",
        )
    return Finding("versions", "ok", f"{found}: as in {lock}")


def pins(lock: Path) -> dict[str, str]:
    """Return the releases that a lock file pins, by name; markers are ignored. Empty where there is no file."""
    try:
        text = lock.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {
        m.group(1).lower(): m.group(2) for m in re.finditer(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", text, re.M)
    }


def study_file(path: Path) -> tuple[Finding, Study | None]:
    """Whether the study can be read, and the study."""
    from specjoule.workflow import open_project

    try:
        project = open_project(path)
        found = f"{path}: {len(project.cells)} cells in {len(project.blocks)} blocks"
    except SpecJouleError as error:
        return Finding(
            "study", "fail", str(error).replace("\n", " "), "mend the file, or name another with --study"
        ), None
    return Finding("study", "ok", found), project.study


def engine(study: Study) -> Finding:
    """Whether the engine's libraries are there."""
    name = study.file.engine.name
    missing = [lib for lib in LIBRARIES.get(name, ()) if _installed(lib) is None]
    if missing:
        return Finding(
            "engine", "fail", f"{name}: {', '.join(missing)} missing", "pip install -e '.[reference]' (or make run)"
        )
    interpreter = study.file.engine.host_settings.get("interpreter")
    if interpreter and not Path(str(interpreter)).exists():
        return Finding(
            "engine", "fail", f"{name}: no interpreter at {interpreter}", "correct engine.host_settings.interpreter"
        )
    return Finding("engine", "ok", name)


def models(study: Study) -> Finding:
    """Whether local checkpoints are there."""
    if study.file.engine.name in ("simulated", "scripted"):
        return Finding("models", "ok", "none needed by a simulated engine")
    troubles = {model.name: _checkpoint_trouble(study, model.checkpoint) for model in study.models.values()}
    coming = [name for name, why in troubles.items() if why and study.models[name].checkpoint.prepare]
    absent = [f"{name}: {why}" for name, why in troubles.items() if why and name not in coming]
    if absent:
        return Finding(
            "models", "fail", f"no files for {'; '.join(absent)}", "correct checkpoint.path in config/models.yaml"
        )
    if coming:
        return Finding("models", "ok", f"{', '.join(coming)} will be fetched and converted by the first run (93 MB)")
    return Finding("models", "ok", f"{len(study.models)} described; local files are there")


def _checkpoint_trouble(study: Study, checkpoint: Checkpoint) -> str | None:
    """Return why the study's engine would not find a model's checkpoint; None where it would, or would ask the hub."""
    at_home = Path(study.root) / checkpoint.path
    name = str(at_home) if at_home.exists() else checkpoint.path
    if study.file.engine.name == "sglang":
        if not is_hub_name(name):
            return None if Path(name).expanduser().is_dir() else f"there is no folder {name}"
        return (
            None if checkpoint.revision else f"there is no folder {name}, and as a name on the hub it needs a revision"
        )
    settings = {**study.file.engine.settings, **study.file.engine.host_settings}
    return why_not_found(str(settings.get("model_path") or name), checkpoint.revision)


def noise(study: Study, records: Path = Path("results/blocks")) -> Finding:
    """What plain relaunched has differed from plain by in this study's finished blocks."""
    from specjoule.statistics.floor import detection_floor, smallest_seen

    ratios: dict[str, list[float]] = {}
    for path in sorted((records / study.name).glob("*.json")):
        try:
            record = read_record(path, RUN_AGAIN)
        except StoreError:
            return Finding("noise", "warn", f"{path}: cannot be read as a block's record", "delete it and run again")
        ratios[path.stem] = [
            1.0 + float(condition["drift"])
            for segment in record["segments"]
            for condition in segment["drift"]
            if condition["drift"] is not None
        ]
    floor = detection_floor(ratios)
    if floor is None:
        return Finding("noise", "ok", "not known yet: no finished block of this study lies here")
    seeds = max((len(grid.seeds) * len(grid.replicates) for grid in study.file.grids.values()), default=1)
    seen = 100 * math.expm1(smallest_seen(floor, seeds))
    found = (
        f"plain relaunched differs from plain by {100 * floor.sd_log:.2g} % (one standard deviation, "
        f"{floor.n_blocks} blocks, {floor.dof:.0f} degrees of freedom); {seeds} seeds tell {seen:.2g} % from nothing"
    )
    # Two standard deviations: of quiet blocks one in twenty is beyond the limit and lost.
    if 2 * floor.sd_log > study.file.validity.max_block_drift:
        return Finding(
            "noise", "warn", found, "quieten the machine (other load, clocks, cooling), or measure more seeds"
        )
    return Finding("noise", "ok", found)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
