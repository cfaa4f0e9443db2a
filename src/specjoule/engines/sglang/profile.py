"""Which passes ran captured graphs, read from a torch profile of one wave: target, draft and draft extension apart.

The pinned server opens a span for each forward pass (`step[DECODE bs=4]`, `step[VERIFY bs=4]`, `step[DRAFT bs=4]`) and
for each stage of speculation (`draft`, `draft_extend`); a replayed graph is a `cudaGraphLaunch` inside. A draft's graph
runner opens no span of its own pass, so the stage's span tells; block drafters open none at all, and their launches are
those outside every span.
"""

from __future__ import annotations

import bisect
import gzip
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specjoule.engines.sglang.capture import DRAFT, DRAFT_EXTEND, TARGET

STAGES: Mapping[str, str] = {"draft": DRAFT, "draft_extend": DRAFT_EXTEND}
TARGET_STEPS: tuple[str, ...] = ("step[DECODE", "step[VERIFY", "step[TARGET_VERIFY")
DRAFT_STEP = "step[DRAFT"
OUTSIDE = "outside"
LAUNCHES = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})


def passes_by_role(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return, per role, how many passes the trace holds, how many of them launched a graph, and the launches.

    `outside`: launches within no span of a pass or stage (a block drafter's graph, for one). Prefill is left out.
    """
    complete = [e for e in events if e.get("ph") == "X" and "ts" in e and "dur" in e]
    launches: dict[Any, list[float]] = {}
    for event in complete:
        if event.get("name") in LAUNCHES:
            launches.setdefault(event.get("tid"), []).append(float(event["ts"]))
    for times in launches.values():
        times.sort()
    stages = [(e, STAGES[e["name"]]) for e in complete if e.get("name") in STAGES and e.get("cat") == "user_annotation"]
    steps = [e for e in complete if str(e.get("name", "")).startswith((*TARGET_STEPS, DRAFT_STEP))]
    spans = [*stages]
    for step in (s for s in steps if s.get("cat") == "user_annotation"):
        if not str(step["name"]).startswith(DRAFT_STEP):
            spans.append((step, TARGET))
        elif not any(_within(step, stage) for stage, _ in stages):
            spans.append((step, DRAFT))
    found: dict[str, dict[str, int]] = {}
    inside = 0
    for span, role in spans:
        times = launches.get(span.get("tid"), [])
        begin, end = float(span["ts"]), float(span["ts"]) + float(span["dur"])
        count = bisect.bisect_right(times, end) - bisect.bisect_left(times, begin)
        entry = found.setdefault(role, {"passes": 0, "with_graph": 0, "launches": 0})
        entry["passes"] += 1
        entry["with_graph"] += count > 0
        entry["launches"] += count
        inside += count
    outside = sum(map(len, launches.values())) - inside
    if outside > 0:
        found[OUTSIDE] = {"passes": 0, "with_graph": 0, "launches": outside}
    return found


def _within(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> bool:
    begin, end = float(outer["ts"]), float(outer["ts"]) + float(outer["dur"])
    return inner.get("tid") == outer.get("tid") and begin <= float(inner["ts"]) <= end


def read_trace(folder: Path, timeout_s: float) -> list[Mapping[str, Any]]:
    """Return the events of the one trace in a folder, once the server has written it. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for file in folder.glob("*.trace.json.gz"):
            try:
                with gzip.open(file, "rt", encoding="utf-8") as trace:
                    return list(json.load(trace)["traceEvents"])
            except (EOFError, OSError, ValueError):
                pass  # still being written
        time.sleep(0.2)
    raise TimeoutError(f"the server wrote no profile within {timeout_s:g} s")
