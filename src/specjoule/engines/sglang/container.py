"""A server inside Apptainer, by image digest: the words that go before the server's own command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from specjoule.engines.sglang.settings import Container


def image_reference(container: Container) -> str:
    """Return the image as Apptainer takes it: a file, or a registry name pinned by digest."""
    if container.image.endswith(".sif"):
        return container.image
    name = container.image if "://" in container.image else f"docker://{container.image}"
    return f"{name}@{container.digest}"


def wrap(
    container: Container, flags: Iterable[str], environment: Mapping[str, str], folders: Iterable[str]
) -> list[str]:
    """Return the command that runs the server with these flags inside the image.

    The environment is passed word by word because the container starts from a clean one; `folders` (checkpoints,
    caches) are bound at their own paths.
    """
    words = [container.runtime, "exec", *container.flags]
    for name in sorted(environment):
        words += ["--env", f"{name}={environment[name]}"]
    for folder in dict.fromkeys((*folders, *container.binds)):
        words += ["--bind", folder]
    return [*words, image_reference(container), *container.entry, *flags]


def bound_folders(*paths: str | Path | None) -> list[str]:
    """Return the folders to bind for local checkpoints and caches; hub names are none."""
    return [str(Path(p).absolute()) for p in paths if p is not None and str(p).startswith(("/", ".", "~"))]
