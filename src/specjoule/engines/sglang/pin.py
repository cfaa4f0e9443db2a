"""Replaces placeholders of revisions in the catalogues by the commits that the hub shows today; comments stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from specjoule.engines.sglang.checkpoints import PLACEHOLDER
from specjoule.errors import SpecJouleError
from specjoule.files import write_text

_ENTRY = re.compile(rf"(path:\s*(?P<path>[^\s,}}]+)\s*[,\n]\s*revision:\s*){re.escape(PLACEHOLDER)}\b")
_LOOSE = re.compile(rf"revision:\s*{re.escape(PLACEHOLDER)}\b")
_COMMIT = re.compile(r"[0-9a-f]{40}")

Head = Callable[[str], str]
"""From a hub name to the commit of its default branch."""


def hub_head(path: str) -> str:
    """Ask the hub for the newest commit of a checkpoint. Needs `huggingface_hub`; raises its errors."""
    from huggingface_hub import HfApi

    return str(HfApi().model_info(path).sha)


def pin_catalogue(catalogue: Path, head: Head) -> dict[str, str]:
    """Write the commit of every placeholder into a catalogue; return commits by hub name.

    Nothing is written unless all could be looked up. A placeholder that does not follow its `path` is refused, since
    it would be overlooked. Raises SpecJouleError.
    """
    text = catalogue.read_text(encoding="utf-8")
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    names = [match["path"].strip("'\"") for match in _ENTRY.finditer(code)]
    if len(names) != len(_LOOSE.findall(code)):
        raise SpecJouleError(f"{catalogue}: a `revision: {PLACEHOLDER}` does not follow its `path`; write it there")
    commits = {name: _asked(name, head) for name in dict.fromkeys(names)}
    if commits:
        write_text(catalogue, _ENTRY.sub(lambda match: match[1] + commits[match["path"].strip("'\"")], text))
    return commits


def _asked(name: str, head: Head) -> str:
    try:
        commit = head(name)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SpecJouleError(
            f"the hub does not say the commit of {name} ({first}); is the name right, this node online, access granted?"
        ) from error
    if not _COMMIT.fullmatch(commit):
        raise SpecJouleError(f"the hub's answer for {name} is no commit: {commit!r}")
    return commit
