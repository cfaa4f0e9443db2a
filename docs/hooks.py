"""MkDocs hook: leaves pages that do not exist out of the navigation, and puts those that nobody listed at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Prune and complete `nav` by what is in the docs folder."""
    folder = Path(config["docs_dir"])
    nav = _present(config["nav"], folder)
    listed = set(_files(nav))
    others = sorted(p.name for p in folder.glob("*.md") if p.name not in listed and p.name != "README.md")
    config["nav"] = [*nav, {"More": others}] if others else nav
    return config


def _present(items: list[Any], folder: Path) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if isinstance(item, str):
            if (folder / item).exists():
                kept.append(item)
            continue
        ((title, value),) = item.items()
        if isinstance(value, list):
            inner = _present(value, folder)
            if inner:
                kept.append({title: inner})
        elif (folder / value).exists():
            kept.append(item)
    return kept


def _files(items: list[Any]) -> list[str]:
    found: list[str] = []
    for item in items:
        if isinstance(item, str):
            found.append(item)
            continue
        for value in item.values():
            found += _files(value) if isinstance(value, list) else [value]
    return found
