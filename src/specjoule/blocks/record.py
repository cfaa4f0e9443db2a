"""The record of a block: what is known only after it ran, beside its cells; a cell file is never changed.

Drift per segment and condition, launches with their capacities, and the settings in which a drafter's launch differs
from plain's. Derived from journal and store alone, so it can be made again at any time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.journal import CELL, ERROR, LAUNCH, PROOF, SEGMENT, SEGMENT_END
from specjoule.blocks.store import BlockStore
from specjoule.engines.settings_diff import beyond_speculation
from specjoule.reasons import Reason, Validity
from specjoule.study.model import MATCHED, PLAIN, ValidityConfig
from specjoule.windows.io import read_window_table
from specjoule.windows.schema import SCALARS
from specjoule.windows.validity import judge_rows

RECORD_VERSION = 2
_COLUMNS = (
    "segment_id", "launch", "role", "attempt", "window", "status", "capture", "locked_mhz", "concurrency", "corpus",
    "energy_j", "committed_tokens", "gpu_uuid",
)  # fmt: skip


def block_record(block: Block, store: BlockStore, rules: ValidityConfig | None = None) -> dict[str, Any]:
    """Return the block's record (JSON-ready); `rules` say which plain attempts count (default: the shipped ones).

    drift: for each plain cell that a segment's closing launch measured again, J/token there over J/token at the first
    launch on the same board, minus 1; `drift` of a segment and condition is their median, null with a reason where
    there is none.
    """
    events = store.journal.events()
    launches = _under_present_names([e for e in events if e["event"] == LAUNCH], events, block)
    plain = [
        row
        for cell in block.cells
        if cell.drafter == PLAIN and cell.instrumentation is None
        for row in _energies(store, cell.hash, rules or ValidityConfig())
    ]
    proofs = {(e["segment_id"], e["launch"]): e["graphs"] for e in events if e["event"] == PROOF}
    segments = []
    for event in events:
        if event["event"] != SEGMENT:
            continue
        segment_id = event["segment_id"]
        mine = [e for e in launches if e["segment_id"] == segment_id]
        end = next((e for e in events if e["event"] == SEGMENT_END and e["segment_id"] == segment_id), None)
        segments.append(
            {
                **{k: v for k, v in event.items() if k != "event"},
                "outcome": end["outcome"] if end else "killed",
                "ended": end["time"] if end else None,
                "drift": _drifts([row for row in plain if row["segment_id"] == segment_id]),
                "launches": [
                    {
                        **{k: v for k, v in e.items() if k not in ("event", "resolved", "segment_id")},
                        "graphs": proofs.get((segment_id, e["launch"])),
                    }
                    for e in mine
                ],
                "settings_compared": settings_compared(mine),
                "errors": [
                    {"reason": e.get("reason"), "message": e.get("message"), "drafter": e.get("drafter")}
                    for e in events
                    if e["event"] == ERROR and e.get("segment_id") == segment_id
                ],
            }
        )
    return {
        "record_version": RECORD_VERSION,
        "block_id": block.id,
        "study": block.study,
        "digest": block.digest,
        "cells": {cell.path: cell.hash for cell in block.cells},
        "segments": segments,
    }


def _under_present_names(
    launches: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]], block: Block
) -> list[dict[str, Any]]:
    """Return the launches with the names that their cells' drafters have now; names are no part of a cell's hash."""
    drafters = {cell.hash: cell.drafter for cell in block.cells}
    names = {
        (e.get("segment_id"), e.get("drafter")): drafters[e["cell_hash"]]
        for e in events
        if e["event"] == CELL and e["cell_hash"] in drafters
    }
    return [{**e, "drafter": names.get((e["segment_id"], e["drafter"]), e["drafter"])} for e in launches]


def settings_compared(launches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare what every launch of a drafter resolved with the plain sides of its pairs.

    One item for each drafter's launch and plain or plain-matched launch of the same condition: drafter,
    launch, against, and `differences`, each with setting, kind (scheduler, capacity, other), plain, value. What makes
    the launch the speculative one is no difference.
    """
    found = []
    for launch in launches:
        for against in (PLAIN, MATCHED):
            base = next((e for e in launches if e["drafter"] == against and _condition(e) == _condition(launch)), None)
            if base is None or launch["drafter"] in (PLAIN, against) or not launch.get("resolved"):
                continue
            differing = beyond_speculation(base.get("resolved") or {}, launch["resolved"])
            found.append(
                {
                    "drafter": launch["drafter"],
                    "launch": launch.get("launch"),
                    "against": against,
                    "differences": [
                        {"setting": d.field, "kind": d.kind, "plain": d.plain, "value": d.speculative}
                        for d in differing
                    ],
                }
            )
    return found


def _condition(launch: dict[str, Any]) -> tuple[Any, Any, Any]:
    return (launch["capture"], launch["locked_mhz"], launch.get("instrumentation"))


def _energies(store: BlockStore, cell_hash: str, rules: ValidityConfig) -> list[dict[str, Any]]:
    """One entry per stored valid attempt of a plain cell: where it was measured and its J/token.

    A disturbed attempt says nothing of the board's drift, and would invalidate everything measured between.
    """
    found = []
    for stored in store.attempts(cell_hash):
        every = read_window_table(stored.path, columns=[*SCALARS, "requests"]).to_pylist()
        verdicts = judge_rows(every, [r["requests"] for r in every], rules)
        judged = [(r, v) for r, v in zip(every, verdicts, strict=True) if r["window"] == "generation"]
        if any(v.validity != Validity.VALID for _, v in judged):
            continue
        rows = [r for r, _ in judged if r["status"] in ("ok", "partial")]
        energies = [r["energy_j"] for r in rows]
        tokens = sum(r["committed_tokens"] or 0 for r in rows)
        if rows and tokens and all(e is not None for e in energies):
            kept = {name: rows[0][name] for name in _COLUMNS}
            found.append({**kept, "cell_hash": cell_hash, "j_per_token": sum(energies) / tokens})
    return found


def _drifts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    conditions = sorted({(r["capture"], r["locked_mhz"]) for r in rows}, key=lambda c: (c[0], c[1] or 0))
    out = []
    for capture, mhz in conditions:
        here = [r for r in rows if (r["capture"], r["locked_mhz"]) == (capture, mhz)]
        references = []
        for closing in (r for r in here if r["role"] == "reference"):
            same = (closing["cell_hash"], closing["gpu_uuid"])
            first = next((r for r in here if r["role"] == "cell" and (r["cell_hash"], r["gpu_uuid"]) == same), None)
            if first is not None:
                references.append(
                    {
                        "corpus": closing["corpus"],
                        "concurrency": closing["concurrency"],
                        "ratio": closing["j_per_token"] / first["j_per_token"],
                    }
                )
        out.append(
            {
                "capture": capture,
                "locked_mhz": mhz,
                "drift": statistics.median(r["ratio"] for r in references) - 1 if references else None,
                "reason": None if references else str(Reason.NO_CLOSING_PLAIN),
                "references": references,
            }
        )
    return out
