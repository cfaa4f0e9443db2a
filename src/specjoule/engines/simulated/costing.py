"""A wave on the board: which steps each request runs in, what each step costs, and where that lands in time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specjoule.engines.base import Batch, LaunchSpec
from specjoule.engines.simulated.acceptance import Answer, Rounds
from specjoule.engines.simulated.board import (
    HARDWARE_SLOWDOWN,
    HW_THERMAL,
    POWER_BRAKE,
    POWER_CAP,
    SW_THERMAL,
    SimulatedBoard,
)
from specjoule.engines.simulated.faults import FaultConfig
from specjoule.engines.simulated.workload import Cost, Network, pass_cost
from specjoule.meters.base import F64, I64


@dataclass(frozen=True)
class Wave:
    """One wave before it is put on the board: what is asked, what will be written, what strikes."""

    batch: Batch
    answers: list[Answer]
    tokens: I64
    """Prompt tokens of each request."""
    cached: I64
    """Of these, tokens that a prefix cache holds."""
    limit: I64
    """Tokens each request will deliver."""
    rounds: Rounds
    schedule: Schedule
    capture: bool
    faults: Mapping[str, FaultConfig]


@dataclass(frozen=True)
class Priced:
    """What steps cost; arrays over steps."""

    seconds: F64
    joules: F64
    """Beyond what the idle board draws."""
    mhz: F64
    capped: npt.NDArray[np.bool_]
    bits: I64
    draft_s: F64
    draft_j: F64
    """The draft's part of `seconds` and `joules`."""


@dataclass(frozen=True)
class Schedule:
    """Which steps each request runs in."""

    start: I64
    """First step of each request."""
    steps: int
    running: F64
    """Requests running, per step."""


class WaveCosts:
    """What one launch's waves cost on its board."""

    def __init__(self, board: SimulatedBoard, spec: LaunchSpec, target: Network, draft: Network | None) -> None:
        self.board, self.p, self.spec, self.target, self.draft = board, board.p, spec, target, draft

    def put_on_board(self, wave: Wave) -> tuple[I64, I64]:
        """Put the wave on the board; return first-token times per request and the end of every step, ns."""
        schedule, rng = wave.schedule, self.board.rng
        n, steps = wave.tokens.size, schedule.steps
        pre_s, pre_j, pre_mhz, owner = self._prefill(wave.tokens - wave.cached, schedule)
        foreign = 1 if "foreign_process" in wave.faults else 0
        watts = wave.faults["foreign_process"].value if foreign else 0.0
        bits = np.zeros(pre_s.size, dtype=np.int64)
        if steps == 0:
            edges = self.board.run(pre_s, pre_j + watts * pre_s, pre_mhz, None, bits, foreign)
            return edges[1:][owner], np.zeros(0, dtype=np.int64)
        full, windowed = self._cached_tokens(wave)
        priced = self.price(schedule.running, full, windowed, wave.capture, wave.faults)
        seconds = priced.seconds * np.exp(rng.standard_normal(steps) * self.p.board.step_time_spread)
        stalls = rng.random(steps) < self.p.board.stall_probability
        verify_s = np.maximum(seconds + stalls * (self.p.board.stall_ms / 1e3) - priced.draft_s, 1e-9)
        # Later admissions prefill between two steps.
        late = np.flatnonzero(schedule.start > 0)
        lead = pre_s.size - late.size
        head_s, head_j = priced.draft_s.copy(), priced.draft_j.copy()
        np.add.at(head_s, schedule.start[late], pre_s[lead:])
        np.add.at(head_j, schedule.start[late], pre_j[lead:])
        # Per step: draft (with whatever was admitted before it), then verification; plain steps are one segment.
        parts = 2 if head_s.any() else 1
        all_s, all_j = np.empty(parts * steps), np.empty(parts * steps)
        all_s[parts - 1 :: parts], all_j[parts - 1 :: parts] = verify_s, priced.joules - priced.draft_j
        if parts == 2:
            all_s[0::2], all_j[0::2] = np.maximum(head_s, 1e-9), head_j
        all_s = np.concatenate([pre_s[:lead], all_s])
        edges = self.board.run(
            all_s,
            np.concatenate([pre_j[:lead], all_j]) + watts * all_s,
            np.concatenate([pre_mhz[:lead], np.repeat(priced.mhz, parts)]),
            np.concatenate([np.zeros(lead, dtype=bool), np.repeat(priced.capped, parts)]),
            np.concatenate([bits[:lead], np.repeat(priced.bits, parts)]),
            foreign,
        )
        after = edges[lead + 1 :]
        first = np.empty(n, dtype=np.int64)
        early = schedule.start == 0
        first[early] = edges[1 : lead + 1][owner[early]]
        first[late] = after[0::parts][schedule.start[late]]
        return first, after[parts - 1 :: parts]

    def price(self, running: F64, full: F64, windowed: F64, capture: bool, faults: Mapping[str, FaultConfig]) -> Priced:
        """Return what steps cost that run so many requests with so many cached tokens (all, inside the window)."""
        board, kernels = self.board, self.p.kernels
        executed = self._executed(running, capture)
        width = float(self.spec.drafter.verify_width)
        snapshots = width if width > 1 else 1.0
        verify = pass_cost(self.target, executed, width, full, windowed, kernels, snapshots=snapshots)
        draft = self._draft_cost(executed, full, windowed)
        gap, draft_gap = self._gaps(running)
        wanted = self._wanted(faults)
        spread = board.spread
        step, mhz = board.physics.run(
            verify,
            draft,
            gap,
            draft_gap,
            capture=capture,
            wanted_mhz=wanted,
            idle_w=board.idle_w(wanted),
            spread=spread,
        )
        capped = mhz < wanted - 1.0
        bits = np.where(capped, POWER_CAP, 0).astype(np.int64)
        if "thermal_slowdown" in faults:
            bits |= SW_THERMAL | HW_THERMAL
        if "hardware_slowdown" in faults:
            bits |= HARDWARE_SLOWDOWN | POWER_BRAKE
        return Priced(
            seconds=step.verify_s + step.draft_s,
            joules=step.verify_j + step.draft_j,
            mhz=mhz,
            capped=capped,
            bits=bits,
            draft_s=step.draft_s,
            draft_j=step.draft_j,
        )

    def _executed(self, running: F64, capture: bool) -> F64:
        """Return the batch that runs: captured graphs exist for the study's batches only, others are padded up."""
        if not capture:
            return running
        ladder = np.array(sorted(self.spec.concurrencies), dtype=np.float64)
        return np.maximum(running, ladder[np.minimum(np.searchsorted(ladder, running), ladder.size - 1)])

    def _prefill(self, prefill: I64, schedule: Schedule) -> tuple[F64, F64, F64, I64]:
        """Return seconds, joules and clocks of the prefill passes and, per request, which pass holds its prompt.

        First the chunks of the batch admitted at once, then one pass for each later admission, in their order.
        """
        p, physics = self.p, self.board.physics
        early, late = np.nonzero(schedule.start == 0)[0], np.nonzero(schedule.start > 0)[0]
        passed = np.cumsum(np.maximum(prefill[early], 1))
        chunk = p.kernels.prefill_chunk_tokens
        owner = np.zeros(prefill.size, dtype=np.int64)
        owner[early] = (passed - 1) // chunk
        chunks = int(owner[early].max(initial=0)) + 1
        sizes = np.full(chunks, float(chunk))
        sizes[-1] = float(passed[-1] - (chunks - 1) * chunk)
        sizes = np.concatenate([sizes, np.maximum(prefill[late], 1).astype(np.float64)])
        owner[late] = chunks + np.arange(late.size)
        # One pass over all positions; their activations stay on the chip for the most part.
        cost = pass_cost(
            self.target, sizes, 1.0, sizes, np.minimum(sizes, self.target.window), p.kernels, snapshots=0.0
        )
        flop = cost.flop + self.target.attention_flop * sizes * (sizes / max(1, early.size) / 2 - 1.0)
        whole = replace(cost, other_bytes=cost.other_bytes * 0.25, flop=flop / p.kernels.prefill_efficiency)
        gap = np.full(sizes.size, 1e-3)
        gap[0] += p.host.prefill_ms / 1e3
        idle = self.board.idle_w(self.board.idle_mhz)
        top = self._wanted({})
        spread = self.board.spread
        step, mhz = physics.run(whole, None, gap, gap, capture=True, wanted_mhz=top, idle_w=idle, spread=spread)
        # The power of wasted issue slots is not that of useful operations.
        wasted = (whole.flop - flop) * physics.flop_pj * 1e-12 * physics.voltage2(mhz) * spread.power
        return step.verify_s, step.verify_j - wasted, mhz, owner

    def warm_up_prefill(self, tokens: int) -> float:
        """Return roughly how long a warm-up's prefill takes, s."""
        rate = self.board.physics.peak * self.p.kernels.prefill_efficiency
        return tokens * self.target.flop_per_position / rate + 0.02

    def _wanted(self, faults: Mapping[str, FaultConfig]) -> float:
        top = self.p.board.max_clock_mhz
        locked = self.spec.locked_mhz
        if locked is not None and "clock_not_obeyed" not in faults:
            top = min(top, float(locked))
        if "thermal_slowdown" in faults:
            top = min(top, faults["thermal_slowdown"].value)
        if "hardware_slowdown" in faults:
            top = min(top, faults["hardware_slowdown"].value)
        return top

    def _draft_cost(self, executed: F64, full: F64, windowed: F64) -> Cost | None:
        network, drafter = self.draft, self.spec.drafter
        if network is None:
            return None
        width = float(drafter.verify_width)
        if drafter.scheme in ("dflash", "dspark"):
            return pass_cost(network, executed, width, full, windowed, self.p.kernels, snapshots=0.0)
        serial = max(1, drafter.serial_steps or drafter.draft_tokens)
        one = pass_cost(network, executed, 1.0, full, windowed, self.p.kernels, snapshots=0.0).times(serial)
        if not self.p.draft.extend_pass or drafter.scheme in ("assistant", "layer-skip"):
            return one
        return one + pass_cost(network, executed, width, full, windowed, self.p.kernels, snapshots=0.0)

    def _gaps(self, running: F64) -> tuple[F64, F64]:
        h, drafter = self.p.host, self.spec.drafter
        if drafter.is_plain:
            return np.full_like(running, h.step_ms / 1e3), np.zeros_like(running)
        own = np.full_like(running, h.speculative_step_ms / 1e3)
        if drafter.scheme == "ngram":
            return own + (h.ngram_round_ms + h.ngram_request_ms * running) / 1e3, np.zeros_like(running)
        serial = 1 if drafter.scheme in ("dflash", "dspark") else max(1, drafter.serial_steps or drafter.draft_tokens)
        return own, np.full_like(running, serial * h.draft_step_ms / 1e3)

    def _cached_tokens(self, wave: Wave) -> tuple[F64, F64]:
        """Return the cached tokens (all, and inside the window of windowed layers) summed over running requests."""
        rounds, schedule = wave.rounds, wave.schedule
        steps, columns = schedule.steps, rounds.before.shape[1]
        held = rounds.before + (wave.tokens[:, None] + 1)
        held = np.where(np.arange(columns)[None, :] < rounds.rounds[:, None], held, 0)
        window = self.target.window
        if not (schedule.start > 0).any():
            full = held.sum(axis=0, dtype=np.float64)[:steps]
            inside = np.minimum(held, window).sum(axis=0, dtype=np.float64)[:steps] if window else np.zeros(steps)
            return full, inside
        full, inside = np.zeros(steps), np.zeros(steps)
        for i, (start, count) in enumerate(zip(schedule.start.tolist(), rounds.rounds.tolist(), strict=True)):
            full[start : start + count] += held[i, :count]
            if window:
                inside[start : start + count] += np.minimum(held[i, :count], window)
        return full, inside


def make_schedule(rounds: Rounds, at_once: int) -> Schedule:
    """Admit `at_once` requests, then one more whenever one ends."""
    counts = rounds.rounds
    start = np.zeros(counts.size, dtype=np.int64)
    if at_once < counts.size:
        ends = [int(c) for c in counts[:at_once]]
        heapq.heapify(ends)
        for i in range(at_once, counts.size):
            start[i] = heapq.heappop(ends)
            heapq.heappush(ends, int(start[i] + counts[i]))
    steps = int((start + counts).max(initial=0))
    change = np.bincount(start, minlength=steps + 1) - np.bincount(start + counts, minlength=steps + 1)
    return Schedule(start, steps, np.cumsum(change[:steps]).astype(np.float64))
