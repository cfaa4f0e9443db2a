"""Node-local copies of checkpoints, made once per node and shared by its jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specjoule.engines.base import LaunchSpec
from specjoule.engines.sglang.checkpoints import Located, folder_of, hub_cache, locate
from specjoule.engines.sglang.settings import parse_settings
from specjoule.study.catalogue import Checkpoint

COMPLETE = ".specjoule-complete"
_C = TypeVar("_C", bound=Checkpoint)


def stage(spec: LaunchSpec) -> tuple[LaunchSpec, Mapping[str, Any]]:
    """Return the launch with its checkpoints on the node's own disk, and where they came from.

    Without `engine.settings.staging` the launch is returned as it is. Revisions are kept, so that what is recorded is
    the checkpoint and not its copy.
    """
    settings = parse_settings(spec.settings)
    if settings.staging is None:
        return spec, {}
    root = Path(os.path.expandvars(settings.staging)).expanduser()
    staged: dict[str, Any] = {}

    def local(checkpoint: _C, what: str) -> _C:
        located = locate(checkpoint, settings.checkpoints, what)
        source = folder_of(located, hub_cache(os.environ))
        copy = copy_once(source, root / _copy_name(located, source))
        staged[checkpoint.path] = {"from": str(source), "to": str(copy)}
        return checkpoint.model_copy(update={"path": str(copy)})

    model = spec.model.model_copy(update={"checkpoint": local(spec.model.checkpoint, f"model '{spec.model.name}'")})
    drafter = spec.drafter
    own = drafter.checkpoints.get(spec.model.name)
    if own is not None:
        drafter = drafter.model_copy(
            update={"checkpoints": {**drafter.checkpoints, spec.model.name: local(own, f"drafter '{drafter.name}'")}}
        )
    return replace(spec, model=model, drafter=drafter), staged


def copy_once(source: Path, target: Path) -> Path:
    """Copy a folder (links followed) unless a complete copy is there; jobs of one node wait for each other."""
    if (target / COMPLETE).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not (target / COMPLETE).exists():
            shutil.rmtree(target, ignore_errors=True)
            partial = target.with_name(f"{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(source, partial, symlinks=False)
            (partial / COMPLETE).touch()
            partial.rename(target)
    return target


def _copy_name(located: Located, source: Path) -> str:
    if located.is_local:
        return str(source.absolute()).strip("/").replace("/", "--")
    return f"{located.path.replace('/', '--')}--{located.revision}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
