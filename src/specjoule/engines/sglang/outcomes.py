"""What an end means: infeasible (a result), transient (try once more on a fresh server) or our own mistake.

Recognised from how the process ended, when it ended, and what it wrote last. The messages are those of the pinned
release and of the libraries below it; a newer release needs this table read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from specjoule.engines.base import EngineBug, EngineInfeasible, EngineTransient
from specjoule.engines.sglang.log import relevant_lines
from specjoule.engines.sglang.server import Ended
from specjoule.reasons import Reason

Phase = Literal["start", "wave"]
Kind = Literal["infeasible", "transient", "bug"]


@dataclass(frozen=True)
class Rule:
    """A message and what it means."""

    pattern: re.Pattern[str]
    kind: Kind
    reason: Reason | None


def _rule(pattern: str, kind: Kind, reason: Reason | None) -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), kind, reason)


NODE = (
    r"uncorrectable ECC|GPU is lost|has fallen off the bus|\bXid\b|no CUDA-capable device"
    r"|driver version is insufficient|driver/library version mismatch|CUDA unknown error"
    r"|No space left on device|Stale file handle|Read-only file system|system not yet initialized"
)

MEMORY = re.compile(
    r"out of memory|Not enough memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|alloc_req_slots runs out of memory|memory pool is exhausted",
    re.IGNORECASE,
)
"""Memory has no reason of its own: the phase in which it ran out decides."""

RULES: tuple[Rule, ...] = (
    _rule(NODE, "transient", Reason.NODE_TROUBLE),
    _rule(r"address already in use|port is already in use|EADDRINUSE", "transient", Reason.PORT_TAKEN),
    _rule(r"watchdog timeout", "transient", Reason.ENGINE_HANG),
    _rule(r"Model architectures .* are not supported for now", "infeasible", Reason.UNSUPPORTED_MODEL),
    _rule(r"does not recognize this architecture", "infeasible", Reason.UNSUPPORTED_MODEL),
    _rule(r"quantization: invalid choice|Unknown quantization method", "infeasible", Reason.UNSUPPORTED_MODEL),
    _rule(r"is not supported for the current GPU", "infeasible", Reason.UNSUPPORTED_MODEL),
    _rule(
        r"(speculative|draft|DFLASH|DSpark|EAGLE3?|STANDALONE|NGRAM|MTP)[^\n]*"
        r"(is not supported|not supported (by|for)|does not support|only supports?|requires|incompatible|must match"
        r"|must equal|is unstable)",
        "infeasible",
        Reason.DRAFTER_REFUSED,
    ),
    _rule(r"Unknown speculative algorithm|size mismatch for .*draft", "infeasible", Reason.DRAFTER_REFUSED),
    _rule(r"sglang serve: error:|unrecognized arguments|ambiguous option", "bug", None),
)
"""In order; the first that an error line matches decides."""

ERROR_LINE = re.compile(
    r"Error\b|Exception\b|error:|raise |Traceback|watchdog timeout|crashed with exit code|failed|out of memory|in use",
    re.IGNORECASE,
)

ARGUMENTS = "ServerArgs("
"""The line in which the server prints its arguments: any word may stand in it."""

STAGE = re.compile(
    r"(?P<capture>Capture [A-Za-z -]+ (?:CUDA|cuda) graph (?:begin|end))|(?P<load>Load weight (?:begin|end))"
    r"|(?P<serve>Uvicorn running)"
)
"""What a starting server says it is doing: each line ends the stage before it."""


def memory_phase(log: str, phase: Phase) -> Reason:
    """Return in which phase memory ran out, from the last thing the server said it was doing."""
    if phase == "wave":
        return Reason.OOM_RUN
    if re.search(r"Capture (prefill )?cuda graph failed", log, re.IGNORECASE):
        return Reason.OOM_CAPTURE
    stages = list(STAGE.finditer(log))
    last = stages[-1].lastgroup if stages else "load"
    return {"capture": Reason.OOM_CAPTURE, "serve": Reason.OOM_RUN}.get(str(last), Reason.OOM_LOAD)


def judge(log: str, phase: Phase, ended: Ended | None, capacity: int | None = None) -> Exception:
    """Return the error that a server's end (or silence) in `phase` stands for; `log` is that server's own.

    `capacity` is what the server said it can hold, where it got so far.
    """
    detail = relevant_lines(log)
    how = "does not answer" if ended is None else f"ended {ended.words}"
    told = f"the server {how}"
    suspects = "\n".join(line for line in log.splitlines() if ERROR_LINE.search(line) and ARGUMENTS not in line)
    if MEMORY.search(suspects):
        reason = memory_phase(log, phase)
        return EngineInfeasible(reason, f"{reason.text} {told}:\n{detail}", capacity)
    for rule in RULES:
        if not rule.pattern.search(suspects):
            continue
        if rule.kind == "infeasible" and rule.reason is not None and phase == "start":
            return EngineInfeasible(rule.reason, f"{rule.reason.text} {told}:\n{detail}", capacity)
        if rule.kind == "transient" and rule.reason is not None:
            return EngineTransient(rule.reason, f"{rule.reason.text} {told}:\n{detail}")
        if rule.kind == "bug":
            return EngineBug(f"the server refused our command:\n{detail}")
    reason = Reason.ENGINE_HANG if ended is None else Reason.ENGINE_CRASH
    return EngineTransient(reason, f"{reason.text} {told}; its log ends:\n{detail}")
