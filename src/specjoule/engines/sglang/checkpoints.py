"""Where a checkpoint lies, and the few facts of it that the engine reads from its files (no model is loaded)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specjoule.errors import ConfigurationError
from specjoule.study.catalogue import Checkpoint

PLACEHOLDER = "to-be-pinned"
"""Stands in the catalogue where a revision has still to be looked up: good for planning, refused at a start."""


@dataclass(frozen=True)
class Located:
    """A checkpoint as the server is told of it: a path, or a hub name with its revision."""

    path: str
    revision: str | None

    @property
    def is_local(self) -> bool:
        """True where `path` is a folder rather than a hub name."""
        return self.revision is None


def folder_name(hub_name: str, revision: str) -> str:
    """Return the folder below `engine.settings.checkpoints` that prefetch gives a pinned checkpoint."""
    return f"{hub_name.replace('/', '--')}/{revision}"


def is_hub_name(path: str) -> bool:
    """Say whether a path is `owner/name` on the hub rather than a folder."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).exists()


def locate(checkpoint: Checkpoint, checkpoints: str | None, what: str) -> Located:
    """Return how the server is told of a checkpoint.

    A local path stays; a hub name becomes the folder that prefetch made, where `checkpoints` names their root, and
    otherwise stays with its revision. Raises ConfigurationError for a hub name without a pinned revision.
    """
    if not is_hub_name(checkpoint.path):
        return Located(checkpoint.path, None)
    if checkpoint.revision is None:
        raise ConfigurationError(f"{what}: '{checkpoint.path}' is a hub name; pin its 'revision' (a commit)")
    if checkpoints is None:
        return Located(checkpoint.path, checkpoint.revision)
    return Located(str(Path(checkpoints) / folder_name(checkpoint.path, checkpoint.revision)), None)


def refuse_unpinned(checkpoint: Checkpoint, what: str) -> None:
    """Raise ConfigurationError for a hub name whose revision is still a placeholder."""
    if is_hub_name(checkpoint.path) and checkpoint.revision == PLACEHOLDER:
        raise ConfigurationError(
            f"{what}: the revision of '{checkpoint.path}' is still '{PLACEHOLDER}'; pin its commit"
        )


def folder_of(located: Located, hub_cache: Path) -> Path:
    """Return the folder of a located checkpoint's files; a hub name is looked up in the hub's cache."""
    if located.is_local:
        return Path(located.path)
    return hub_cache / f"models--{located.path.replace('/', '--')}" / "snapshots" / str(located.revision)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Return the hub's cache folder under an environment, as the hub's own client finds it."""
    if "HF_HUB_CACHE" in environment:
        return Path(environment["HF_HUB_CACHE"])
    if "HF_HOME" in environment:
        return Path(environment["HF_HOME"]) / "hub"
    return Path.home() / ".cache" / "huggingface" / "hub"


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Return every token id that ends an answer, as the server takes them: configuration, generation, tokenizer.

    Raises ConfigurationError if the files name none: an engine that cannot see an end must not guess.
    """
    found: set[int] = set()
    config = _json(folder / "config.json")
    for source in (config, config.get("text_config") or {}, _json(folder / "generation_config.json")):
        value = source.get("eos_token_id")
        found.update(_ids(value))
    tokenizer = _json(folder / "tokenizer_config.json")
    token = tokenizer.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str):
        found.update(_token_id(folder, tokenizer, text))
    if not found:
        raise ConfigurationError(f"{folder}: none of its files names an end-of-sequence token")
    return frozenset(found)


def chat_template_digest(folder: Path) -> str | None:
    """Return the sha256 of the checkpoint's chat template; None where it ships none."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return hashlib.sha256(jinja.read_bytes()).hexdigest()
    template = _json(folder / "tokenizer_config.json").get("chat_template")
    if template is None:
        template = _json(folder / "chat_template.json").get("chat_template")
    if template is None:
        return None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def local_revision(folder: Path) -> str:
    """Return a revision for a checkpoint that has none: a digest of its small files and of all names and sizes."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        if size < 32_000_000 and path.suffix in (".json", ".jinja", ".txt", ".model"):
            digest.update(path.read_bytes())
    return f"local-{digest.hexdigest()[:12]}"


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as JSON ({error})") from error
    return value if isinstance(value, dict) else {}


def _ids(value: Any) -> Iterable[int]:
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, list) else ()


def _token_id(folder: Path, tokenizer: Mapping[str, Any], text: str) -> Iterable[int]:
    decoder = tokenizer.get("added_tokens_decoder") or {}
    ids = [int(i) for i, token in decoder.items() if isinstance(token, dict) and token.get("content") == text]
    if not ids:
        added = _json(folder / "tokenizer.json").get("added_tokens") or []
        ids = [t["id"] for t in added if isinstance(t, dict) and t.get("content") == text]
    return ids
