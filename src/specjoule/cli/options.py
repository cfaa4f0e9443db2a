"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specjoule.errors import ConfigurationError
from specjoule.workflow import DEFAULT_STUDY, Project, open_project

StudyOption = Annotated[Path, typer.Option("--study", "-s", help="Study file.", show_default=True)]
OverridesOption = Annotated[str, typer.Option("--overrides", help="JSON object of keys that replace the study file's.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

STUDY_DEFAULT = DEFAULT_STUDY


def project_from(study: Path, overrides: str = "{}") -> Project:
    """Open the project that a command's options name. Raises ConfigurationError."""
    try:
        changed: Any = json.loads(overrides)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"--overrides: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(changed, dict):
        raise ConfigurationError('--overrides: must be a JSON object such as \'{"meter": {"name": "estimate"}}\'')
    return open_project(study, changed)
