"""Where SpecJoule keeps what must outlive a process: calibrations and the marks of locked clocks."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def state_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$SPECJOULE_STATE_DIR`, else the user's XDG state directory."""
    env = os.environ if environment is None else environment
    chosen = env.get("SPECJOULE_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or "/tmp") / ".local" / "state")
    return Path(base) / "specjoule"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, and make sure that it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
        json.dump(content, handle, indent=2)
        handle.write("\n")
        handle.flush()
        os.fsync(handle.fileno())
    Path(handle.name).replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None where there is none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
