"""What a block still has to measure and why: the one rule that the runner, `status` and `plan` share.

Pure functions on a block and its journal's state. A cell is done when it was finished under its present hash and, for a
drafter, when some segment holds both sides of its pair: pairs are made within a segment only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.journal import BlockState
from specjoule.cells.cell import Cell
from specjoule.prompts.corpus import canonical_digest
from specjoule.study.model import PLAIN


class Why(StrEnum):
    """Why a cell is to be measured."""

    NEVER_MEASURED = "never measured"
    FAILED = "failed before"
    PROTOCOL_VERSION = "protocol version changed"
    ENGINE_VERSION = "engine version changed"
    ENGINE_SETTINGS = "engine settings changed"
    MODEL = "model checkpoint changed"
    DRAFTER = "drafter settings changed"
    PROMPTS = "prompts changed"
    PROTOCOL_SETTINGS = "protocol settings changed"
    OTHER = "settings changed"
    REMEASURE = "marked for remeasuring"
    PAIR_INCOMPLETE = "plain side not in the same segment"
    FILE_LOST = "stored file lost"


STALE = frozenset(Why) - {Why.NEVER_MEASURED, Why.FAILED}
"""A result exists but is no longer, or not yet again, the one asked for."""

_ORDER = (
    ("protocol", Why.PROTOCOL_VERSION), ("engine", Why.ENGINE_VERSION), ("settings", Why.ENGINE_SETTINGS),
    ("model", Why.MODEL), ("drafter", Why.DRAFTER), ("prompts", Why.PROMPTS), ("shape", Why.PROTOCOL_SETTINGS),
)  # fmt: skip


def cell_parts(cell: Cell) -> dict[str, str]:
    """Return short digests of what the cell's hash is made of, so that a journal can tell later what changed."""
    return {
        **_fingerprint_parts(cell.fingerprint),
        "prompts": cell.pool_digest[:12],
        "shape": _short([_protocol_settings(cell.fingerprint), cell.max_new_tokens, cell.waves]),
    }


def todo(block: Block, state: BlockState, stored: frozenset[str] | None = None) -> dict[str, Why]:
    """Return why each unfinished cell (by path, in the block's order) has to be measured.

    `stored`: cell hashes whose files are there; None where that was not looked up.
    """
    plain = {c.partner_key: c for c in block.cells if c.drafter == PLAIN}
    found = {}
    for cell in block.cells:
        why = _why(cell, state)
        if why is None and stored is not None and cell.hash not in stored:
            why = Why.FILE_LOST
        if why is None and cell.drafter != PLAIN:
            partner = plain.get(cell.partner_key)
            shared = partner is None or state.segments_of.get(cell.hash, set()) & state.segments_of.get(
                partner.hash, set()
            )
            why = None if shared else Why.PAIR_INCOMPLETE
        if why is not None:
            found[cell.path] = why
    return found


def _why(cell: Cell, state: BlockState) -> Why | None:
    if cell.hash in state.finished:
        return None
    if cell.hash in state.marked:
        return Why.REMEASURE
    if cell.hash in state.failed:
        return Why.FAILED
    before = state.by_path.get(cell.path)
    return Why.NEVER_MEASURED if before is None else changed(cell, before.get("parts"))


def changed(cell: Cell, before: Mapping[str, str] | None) -> Why:
    """Return which part of the cell's hash differs from the parts of an earlier attempt: the widest-reaching one."""
    now = cell_parts(cell)
    for key, why in _ORDER:
        if before and before.get(key) is not None and before[key] != now[key]:
            return why
    return Why.OTHER


@lru_cache(maxsize=4096)
def _fingerprint_parts(fingerprint: str) -> dict[str, str]:
    content = json.loads(fingerprint)
    return {
        "protocol": str(content["protocol_version"]),
        "engine": str(content["engine"]["version"]),
        "settings": _short([content["engine"]["name"], content["engine"]["settings"]]),
        "model": _short(content["model"]),
        "drafter": _short(content["drafter"]),
    }


@lru_cache(maxsize=4096)
def _protocol_settings(fingerprint: str) -> str:
    return json.dumps(json.loads(fingerprint)["protocol"], sort_keys=True)


def _short(value: Any) -> str:
    return canonical_digest(value)[:12]
