"""The words that say how the joules of a table or figure came about."""

from __future__ import annotations

from collections.abc import Iterable

from specjoule.meters.base import MEASURED, PROVENANCE


def known_meters(meters: Iterable[object]) -> tuple[str, ...]:
    """Return the distinct meter names, measured ones first, in the order of `PROVENANCE`; nulls are dropped."""
    seen = {m for m in meters if isinstance(m, str)}
    unknown = sorted(seen - set(PROVENANCE))
    return tuple(m for m in PROVENANCE if m in seen) + tuple(unknown)


def provenance_words(meters: Iterable[object], assumed_w_per_core: Iterable[float] = ()) -> str:
    """Say in words where the energy came from, e.g. 'simulated, not measured'; mixed sources are all named.

    `assumed_w_per_core`: the watts that estimates rest on (W per busy core); they are named too.
    """
    names = known_meters(meters)
    if not names:
        return "no energy recorded"
    words = {m: PROVENANCE.get(m, f"unknown meter {m!r}, not known to be measured") for m in names}
    if "estimate" in words and (watts := sorted({f"{w:g}" for w in assumed_w_per_core})):
        words["estimate"] += f" ({' and '.join(watts)} W per busy core assumed)"
    return "; ".join(words.values())


def all_measured(meters: Iterable[object]) -> bool:
    """Say whether every meter named is one that measures."""
    return set(known_meters(meters)) <= MEASURED
