"""Which captured graphs exist and ran: the target's, the draft's and the draft extension's, told apart.

Existence is read from the lines the server writes while it captures. Use is read from the step lines, which speak of
the target's pass alone; a draft graph that exists runs for every batch it covers, and its batches are the target's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specjoule.engines.sglang.log import DecodeStep
from specjoule.study.catalogue import Drafter

_END = re.compile(r"Capture (?P<name>[A-Za-z -]+?) (?:CUDA|cuda|CPU|cpu) graph end\.(?: bs=\[(?P<bs>[\d, ]*)\])?")
_BEGIN = re.compile(
    r"Capture (?P<name>[A-Za-z -]+?) (?:CUDA|cuda|CPU|cpu) graph begin\.(?:.*?\bbs=\[(?P<bs>[\d, ]*)\])?"
)
_FALLBACK = re.compile(
    r"draft cuda graph unavailable|falling back to eager|running the draft loop eagerly", re.IGNORECASE
)

TARGET, DRAFT, DRAFT_EXTEND = "target", "draft", "draft_extend"
_ROLES: Mapping[str, str] = {
    "target decode": TARGET,
    "target verify": TARGET,
    "draft verify": DRAFT,
    "draft decode": DRAFT,
    "Frozen-KV MTP draft": DRAFT,
    "draft extend": DRAFT_EXTEND,
}


@dataclass(frozen=True)
class Captured:
    """The graphs a server captured: batches by role (empty where the log names none), and what it said of fallbacks."""

    batches: Mapping[str, tuple[int, ...]]
    fallbacks: tuple[str, ...] = ()


def captured(log: str) -> Captured:
    """Read what was captured from the log of a start."""
    found: dict[str, tuple[int, ...]] = {}
    announced: dict[str, tuple[int, ...]] = {}
    fallbacks: list[str] = []
    for line in log.splitlines():
        if (begin := _BEGIN.search(line)) and begin["name"] in _ROLES and begin["bs"]:
            announced[_ROLES[begin["name"]]] = _numbers(begin["bs"])
        elif (end := _END.search(line)) and end["name"] in _ROLES:
            role = _ROLES[end["name"]]
            found[role] = _numbers(end["bs"]) if end["bs"] else announced.get(role, ())
        elif _FALLBACK.search(line):
            fallbacks.append(line.strip())
    return Captured(found, tuple(fallbacks))


def needed_roles(drafter: Drafter) -> frozenset[str]:
    """Return the graphs that a drafter's every round runs through.

    An n-gram drafter has no draft pass. A chain of one serial step has no separate draft graph, since the step is the
    draft extension. A block drafter's one pass is its draft graph.
    """
    scheme, steps = drafter.scheme, drafter.verify_width - 1
    if drafter.is_plain or scheme == "ngram":
        return frozenset({TARGET})
    if scheme in ("dflash", "dspark"):
        return frozenset({TARGET, DRAFT})
    if scheme == "assistant":
        return frozenset({TARGET, DRAFT})
    return frozenset({TARGET, DRAFT_EXTEND} | ({DRAFT} if steps > 1 else set()))


def verify(
    asked: bool, drafter: Drafter, batches: Collection[int], found: Captured, steps: Iterable[DecodeStep]
) -> bool | None:
    """Say whether captured graphs ran as the study asks.

    True: every needed graph was captured for every batch and every step of the target ran one. False: a graph is
    missing, a step ran without one, or, where capture is off, one ran. None: the server wrote no step lines.
    """
    ran = [step.graph for step in steps]
    if not asked:
        return None if not ran else not any(ran) and not found.batches
    if found.fallbacks or not needed_roles(drafter) <= set(found.batches):
        return False
    if any(found.batches[role] and not set(batches) <= set(found.batches[role]) for role in needed_roles(drafter)):
        return False
    return all(ran) if ran else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.replace(",", " ").split())
