"""The version string that an engine's cells are hashed with, known before the engine is started."""

from __future__ import annotations

from importlib import metadata

from specjoule.study.model import Study
from specjoule.version import __version__

LIBRARIES: dict[str, tuple[str, ...]] = {
    "reference": ("torch", "transformers"),
}
"""Libraries whose release can change an engine's numbers, for engines that run in this environment."""


def declared_version(study: Study) -> str:
    """Return the version the study's cells are measured with.

    A pinned `engine.version` wins; else the installed libraries that compute, read from package metadata so that
    nothing heavy is imported. A library that is missing is named as such: the engine will say how to install it. The
    version of simulated boards holds a digest of their parameters.
    """
    engine = study.file.engine
    if engine.version is not None:
        return engine.version
    if engine.name in LIBRARIES:
        return installed_version(engine.name)
    if engine.name == "simulated":
        from specjoule.engines.simulated import study_parameters, version_with

        return version_with(study_parameters(study))
    return f"{engine.name}-{__version__}"


def installed_version(engine: str) -> str:
    """Return the releases of an engine's libraries in this environment, as its cells are hashed with."""
    return "+".join(f"{name}-{_installed(name)}" for name in LIBRARIES[engine])


def _installed(name: str) -> str:
    try:
        return metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        return "missing"
