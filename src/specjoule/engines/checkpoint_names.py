"""Whether a checkpoint's name leads to weights, without loading anything: what can be said before an engine starts."""

from __future__ import annotations

import re
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def why_not_found(name: str, revision: str | None) -> str | None:
    """Return why the reference engine would find no checkpoint under `name`; None where it will look further.

    A folder has to hold a transformers checkpoint. What is no folder can be a name on the hub, and there it needs a
    full commit: a local path without its folder looks just like one (`models/tiny`).
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return None if (folder / "config.json").is_file() else f"{folder} holds no config.json"
    if not HUB_NAME.fullmatch(name):
        return f"there is no folder {folder}"
    if revision is None or not COMMIT.fullmatch(revision):
        return f"there is no folder {folder}, and as a name on the hub it needs a full commit as its revision"
    return None
