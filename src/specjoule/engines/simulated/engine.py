"""The simulated server: waves of real shape on a virtual clock, all rounds of all requests at once.

What it returns obeys the same identities as a real engine's counts; what it costs comes from `physics`, what it
accepts from `acceptance`, what fits from `memory`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specjoule.clock import VirtualClock
from specjoule.engines.base import (
    Batch,
    Capacity,
    EngineBug,
    EngineInfeasible,
    EngineTransient,
    LaunchSpec,
    RequestResult,
    WaveResult,
)
from specjoule.engines.simulated.acceptance import Answer, Drafting, Rounds, World, stable_seed
from specjoule.engines.simulated.board import (
    HARDWARE_SLOWDOWN,
    HW_THERMAL,
    POWER_BRAKE,
    POWER_CAP,
    SW_THERMAL,
    SimulatedBoard,
)
from specjoule.engines.simulated.faults import FaultConfig, Faults
from specjoule.engines.simulated.memory import MemoryPlan, plan_memory
from specjoule.engines.simulated.parameters import Parameters
from specjoule.engines.simulated.workload import (
    Cost,
    Network,
    draft_network,
    draft_weight_bytes,
    pass_cost,
    target_network,
)
from specjoule.meters.base import F64, I64
from specjoule.meters.simulated import SimulatedMeter
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason
from specjoule.version import __version__

_RUN_FAULTS = (
    "early_eos", "repeated_prompts", "cache_hit", "language_drift", "degenerate", "thermal_slowdown",
    "hardware_slowdown", "capture_fallback", "partial_batch", "counter_reset", "counter_frozen", "meter_gap", "hang",
    "crash", "out_of_memory", "width_change", "foreign_process", "clock_not_obeyed", "slow_client",
)  # fmt: skip

_SAMPLES: Mapping[str, str] = {
    "rm": "Quai è ina resposta simulada, betg in text: las infurmaziuns vegnan dals parameters, sco tut ils auters quants.",
    "it": "Questa è una risposta simulata e non un testo: i valori sono più o meno quelli del modello, come anche il resto.",
    "en": "This is a simulated answer and not a text: the values are those of the model, as is the rest of it.",
    "de": "Das ist eine simulierte Antwort und nicht ein Text: die Werte sind auch die des Modells und das mit dem Rest.",
    "fr": "Ceci est une réponse simulée et pas un texte: les valeurs sont dans le modèle, et le reste est sur la ligne.",
}
"""Stands where an answer would; only enough for the language test, and only for prompts that ask for another language
than English or answers that drift."""


@dataclass
class _Launch:
    """What one launch keeps."""

    spec: LaunchSpec
    target: Network
    draft: Network | None
    drafting: Drafting
    plan: MemoryPlan
    running_limit: int
    waves: int = 0
    steps: int = 0
    trie_tokens: float = 0.0
    busy_s: float = 0.0
    batch_s: float = 0.0


@dataclass(frozen=True)
class _Schedule:
    """Which steps each request runs in."""

    start: I64
    """First step of each request."""
    steps: int
    running: F64
    """Requests running, per step."""
    positions: I64 | None
    """Cached tokens summed over the running requests at each step; None until asked for."""


class SimulatedEngine:
    """Behind the engine contract: one simulated server at a time on one simulated board."""

    def __init__(
        self,
        clock: VirtualClock,
        board: SimulatedBoard,
        *,
        world: World,
        faults: Faults,
        meter: SimulatedMeter | None = None,
    ) -> None:
        self.clock = clock
        self.board, self.world, self.faults, self.meter = board, world, faults, meter
        self.p: Parameters = board.p
        self._launch: _Launch | None = None
        self._launches = 0
        self._prompt_tokens: dict[str, int] = {}

    # -- the contract

    def start(self, spec: LaunchSpec) -> Capacity:
        """Load the model; what does not fit is infeasible with the largest batch that would."""
        self.stop()
        self._launches += 1
        kernels = self.p.kernels
        target = target_network(spec.model, kernels)
        draft = draft_network(spec.drafter, spec.model, target, kernels, self.p.draft)
        limit = max(spec.concurrencies)
        plan = self._plan(spec, target, draft, limit)
        scope = self._scope(spec)
        memory = self.faults.active(["out_of_memory"], **scope, corpus=None, concurrency=None, wave=None).get(
            "out_of_memory"
        )
        if memory is not None and memory.value in ("load", "capture"):
            reason = Reason.OOM_LOAD if memory.value == "load" else Reason.OOM_CAPTURE
            raise EngineInfeasible(reason, f"simulated: out of memory at {memory.value}", capacity_requests=0)
        if plan.reason is not None:
            self._pass(self.p.host.start_s / 2, None)
            raise EngineInfeasible(
                plan.reason,
                f"simulated: a running limit of {limit} does not fit on {spec.gpu.name} "
                f"(weights {target.bytes_loaded / 1e9:.1f} GB, rollback buffers {plan.rollback_bytes / 1e9:.1f} GB)",
                capacity_requests=plan.capacity,
            )
        board, fault = self.board, self.faults.first("other_board")
        if fault is not None and self._launches == int(fault.value or 1) + 1:
            board.identify((board.number + 1) % max(2, self.p.board.boards_per_kind))
        drift = self.faults.first("drift")
        board.drift_per_hour = float(drift.value or 0.10) if drift is not None else 0.0
        self._pass(self.p.host.start_s, None)
        board.loaded = True
        board.relaunch()
        board.idle_mhz = float(spec.locked_mhz) if spec.locked_mhz else self.p.board.max_clock_mhz
        board.memory_used_bytes = (board.gpu.memory_bytes or 0.0) * self.p.memory.static_fraction
        self._launch = _Launch(spec, target, draft, Drafting(self.world, spec.model.name, spec.drafter), plan, limit)
        own = spec.drafter.checkpoints.get(spec.model.name)
        return Capacity(
            engine_version=spec.settings.get("version") or version_with(self.p),
            model_revision=spec.model.checkpoint.revision or "simulated",
            drafter_revision=(own.revision or "simulated") if own else None,
            max_running_requests=plan.capacity if plan.capacity < limit else limit,
            kv_tokens=plan.kv_tokens or None,
            captured_batches=tuple(sorted(spec.concurrencies)) if spec.capture else (),
            resolved={
                "simulated": True,
                "parameters": self.p.digest,
                "world_seed": self.world.seed,
                "rollback_bytes": plan.rollback_bytes,
                "verify_width": spec.drafter.verify_width,
                "board_number": board.number,
            },
        )

    def warm_up(self, concurrency: int, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        """Load the board as a batch of this shape would; nothing is drawn or returned."""
        launch = self._running()
        n = min(concurrency, launch.plan.capacity)
        steps = max(1, max_new_tokens - 1)
        shape = np.full(1, float(n))
        context = shape * (60.0 + max_new_tokens / 2)
        seconds, joules, mhz, capped, bits, _, _ = self._price(
            launch, shape, shape, context, context, launch.spec.capture, {}
        )
        self._forget_prefill_of(n * 60, launch)
        self.board.run(seconds * steps, joules * steps, mhz, capped, bits)

    def flush(self) -> None:
        """Empty the n-gram matcher."""
        if self._launch is not None:
            self._launch.trie_tokens = 0.0

    def run(self, batch: Batch) -> WaveResult:
        """Run one wave."""
        launch = self._running()
        prompts, n = batch.prompts, len(batch.prompts)
        wave = launch.waves
        launch.waves += 1
        spec = launch.spec
        faults = self.faults.active(
            _RUN_FAULTS, **self._scope(spec), corpus=prompts[0].corpus, concurrency=n, wave=wave
        )
        self._refuse(faults, n, launch)
        answers, tokens, limit = self._texts(batch, spec, faults)
        capacity = launch.plan.capacity
        if "partial_batch" in faults:
            capacity = max(1, int(faults["partial_batch"].value or n // 2))
        natural = np.array([0 if a.degenerate else a.natural_tokens for a in answers], dtype=np.int64)
        rounds = launch.drafting.draw(prompts, answers, limit - 1, natural, launch.trie_tokens)
        schedule = _schedule(rounds, min(n, capacity))
        submit = self.clock.now_ns()
        self.board.idle_until(submit)
        cached = self._cached(tokens, faults)
        capture = spec.capture and "capture_fallback" not in faults
        first_ns, end_of_step = self._timeline(
            launch, rounds, schedule, tokens - cached, tokens, capture, faults, min(n, capacity)
        )
        end = int(end_of_step[-1]) if end_of_step.size else int(first_ns.max())
        self._fault_meter(faults, submit, end)
        launch.trie_tokens += float(limit.sum() + tokens.sum())
        launch.steps += schedule.steps
        requests = self._results(batch, answers, tokens, cached, limit, rounds, schedule, first_ns, end_of_step, faults)
        busy = _busy_request_seconds(requests, submit, n, capacity)
        launch.busy_s += (end - submit) / 1e9
        launch.batch_s += busy
        width = spec.drafter.verify_width
        return WaveResult(
            submit_ns=submit,
            end_ns=end,
            steps=schedule.steps,
            requests=requests,
            verify_widths=(max(1, width // 2), width) if "width_change" in faults else (width,),
            realized_batch_engine=busy / ((end - submit) / 1e9),
            peak_batch_engine=min(n, capacity),
            capture_verified=None if not spec.capture else capture,
            client_lag_ms=float(faults["slow_client"].value or 20.0) if "slow_client" in faults else 0.1,
            notes={"simulated": True, "faults": sorted(faults), "natural_tokens": [a.natural_tokens for a in answers]},
        )

    def counters(self) -> Mapping[str, float]:
        """Return the launch's cumulative counters."""
        launch = self._launch
        if launch is None:
            return {}
        return {"waves": launch.waves, "steps": launch.steps, "busy_s": launch.busy_s, "batch_s": launch.batch_s}

    def stop(self) -> None:
        """Unload the board."""
        self._launch = None
        self.board.idle_until(self.clock.now_ns())
        self.board.loaded = False
        self.board.memory_used_bytes = 0.0

    # -- preparation of a wave

    def _running(self) -> _Launch:
        if self._launch is None:
            raise EngineBug("the simulated engine is asked to work before start() or after stop()")
        return self._launch

    @staticmethod
    def _scope(spec: LaunchSpec) -> dict[str, Any]:
        return {"model": spec.model.name, "drafter": spec.drafter.name, "capture": spec.capture}

    def _plan(self, spec: LaunchSpec, target: Network, draft: Network | None, limit: int) -> MemoryPlan:
        prompt = spec.max_prompt_tokens or 512
        return plan_memory(
            memory_bytes=spec.gpu.memory_bytes or 0.0,
            target=target,
            draft_weight_bytes=draft_weight_bytes(spec.drafter, spec.model, draft),
            draft_kv_bytes=draft.kv_bytes if draft is not None else 0.0,
            verify_width=spec.drafter.verify_width,
            running_limit=limit,
            captured_batches=len(spec.concurrencies) if spec.capture else 0,
            tokens_per_request=prompt + spec.max_new_tokens + spec.drafter.verify_width,
            p=self.p.memory,
        )

    def _pass(self, seconds: float, watts: float | None) -> None:
        """Let time pass, idling or at a constant power."""
        if watts is None:
            self.clock.sleep_s(seconds)
            self.board.idle_until(self.clock.now_ns())
            return
        extra = max(0.0, watts - self.board.idle_w(self.board.idle_mhz)) * seconds
        self.board.run(
            np.array([seconds]), np.array([extra]), np.array([self.board.idle_mhz]), None, np.zeros(1, dtype=np.int64)
        )

    def _refuse(self, faults: Mapping[str, FaultConfig], n: int, launch: _Launch) -> None:
        if "out_of_memory" in faults and faults["out_of_memory"].value not in ("load", "capture"):
            self._pass(0.5, 300.0)
            raise EngineInfeasible(
                Reason.OOM_RUN, f"simulated: out of memory with {n} requests", capacity_requests=max(1, n // 2)
            )
        if "hang" in faults:
            self._pass(self.p.host.watchdog_s, self.p.host.hung_w)
            raise EngineTransient(
                Reason.ENGINE_HANG, f"simulated: the server hung with {n} requests; the watchdog gave up"
            )
        if "crash" in faults:
            self._pass(1.0, 350.0)
            raise EngineTransient(Reason.ENGINE_CRASH, f"simulated: the server ended with {n} requests running")

    def _texts(
        self, batch: Batch, spec: LaunchSpec, faults: Mapping[str, FaultConfig]
    ) -> tuple[list[Answer], I64, I64]:
        """Return answers, prompt tokens and the tokens each request will deliver."""
        answers = [self.world.answer(spec.model.name, q) for q in batch.prompts]
        if "language_drift" in faults:
            fault = faults["language_drift"]
            drifted = self._some(batch, fault)
            answers = [
                replace(a, language=str(fault.value or "it")) if d else a for a, d in zip(answers, drifted, strict=True)
            ]
        if "degenerate" in faults:
            loops = self._some(batch, faults["degenerate"])
            answers = [replace(a, degenerate=True) if d else a for a, d in zip(answers, loops, strict=True)]
        if batch.context_tokens is not None:
            tokens = np.full(len(batch.prompts), batch.context_tokens, dtype=np.int64)
        else:
            tokens = np.array([self._count(q) for q in batch.prompts], dtype=np.int64)
        if spec.max_prompt_tokens is not None:
            tokens = np.minimum(tokens, spec.max_prompt_tokens)
        limit = np.full(len(answers), batch.max_new_tokens, dtype=np.int64)
        natural = np.array([a.natural_tokens for a in answers], dtype=np.int64)
        if not batch.ignore_eos:
            limit = np.minimum(limit, natural + 1)
        elif "early_eos" in faults:
            early = self._some(batch, faults["early_eos"])
            limit = np.where(early, np.minimum(limit, np.maximum(8, limit * 4 // 5)), limit)
        return answers, tokens, limit

    def _some(self, batch: Batch, fault: FaultConfig) -> list[bool]:
        """Choose `share` of the batch, at least one, the same ones each time."""
        order = sorted(range(len(batch.prompts)), key=lambda i: stable_seed(fault.kind, batch.prompts[i].digest))
        chosen = set(order[: max(1, round(fault.share * len(order)))])
        return [i in chosen for i in range(len(order))]

    def _count(self, prompt: Prompt) -> int:
        found = self._prompt_tokens.get(prompt.digest)
        if found is None:
            text = self.p.text
            ratio = text.characters_per_token.get(prompt.language, text.default_characters_per_token)
            found = text.template_tokens + max(1, round(sum(len(content) for _, content in prompt.messages) / ratio))
            self._prompt_tokens[prompt.digest] = found
        return found

    def _cached(self, tokens: I64, faults: Mapping[str, FaultConfig]) -> I64:
        cached = np.zeros_like(tokens)
        if "cache_hit" in faults:
            some = max(1, round(faults["cache_hit"].share * tokens.size))
            cached[:some] = tokens[:some] // 2
        return cached

    def _fault_meter(self, faults: Mapping[str, FaultConfig], submit: int, end: int) -> None:
        if self.meter is None:
            return
        if "counter_reset" in faults:
            self.meter.reset_ns = (submit + end) // 2
        middle = (submit + (end - submit) // 3, end - (end - submit) // 3)
        self.meter.frozen_ns = middle if "counter_frozen" in faults else None
        self.meter.gap_ns = middle if "meter_gap" in faults else None

    # -- time and power of a wave

    def _timeline(
        self, launch: _Launch, rounds: Rounds, schedule: _Schedule, prefill: I64, tokens: I64, capture: bool,
        faults: Mapping[str, FaultConfig], at_once: int,
    ) -> tuple[I64, I64]:  # fmt: skip
        """Put the wave on the board; return first-token times per request and the end of every step, ns."""
        n, steps = tokens.size, schedule.steps
        pre_s, pre_j, pre_mhz, owner = self._prefill(launch, prefill, schedule, at_once)
        foreign = 1 if "foreign_process" in faults else 0
        watts = float(faults["foreign_process"].value or 60.0) if foreign else 0.0
        bits = np.zeros(pre_s.size, dtype=np.int64)
        if steps == 0:
            edges = self.board.run(pre_s, pre_j + watts * pre_s, pre_mhz, None, bits, foreign)
            return edges[1:][owner], np.zeros(0, dtype=np.int64)
        full, windowed = self._cached_tokens(launch, rounds, schedule, tokens)
        running = schedule.running
        executed = running
        if capture:
            ladder = np.array(sorted(launch.spec.concurrencies), dtype=np.float64)
            executed = ladder[np.minimum(np.searchsorted(ladder, running), ladder.size - 1)]
            executed = np.maximum(executed, running)
        seconds, joules, mhz, capped, step_bits, draft_s, draft_j = self._price(
            launch, running, executed, full, windowed, capture, faults
        )
        noise = self.board.rng.standard_normal(steps) * self.p.board.step_time_spread
        seconds = seconds * np.exp(noise)
        stalls = self.board.rng.random(steps) < self.p.board.stall_probability
        seconds = seconds + stalls * (self.p.board.stall_ms / 1e3)
        late = np.nonzero(schedule.start > 0)[0]
        first_chunks = pre_s.size - late.size
        # Later admissions prefill between two steps.
        between_s, between_j = np.zeros(steps), np.zeros(steps)
        if late.size:
            np.add.at(between_s, schedule.start[late], pre_s[first_chunks:])
            np.add.at(between_j, schedule.start[late], pre_j[first_chunks:])
        # Per step: draft (with whatever was admitted before it), then verification.
        head_s, head_j = draft_s + between_s, draft_j + between_j
        if head_s.any():
            all_s = np.empty(2 * steps)
            all_s[0::2], all_s[1::2] = np.maximum(head_s, 1e-9), np.maximum(seconds - draft_s, 1e-9)
            all_j = np.empty(2 * steps)
            all_j[0::2], all_j[1::2] = head_j, joules - draft_j
            all_mhz, all_capped, all_bits = np.repeat(mhz, 2), np.repeat(capped, 2), np.repeat(step_bits, 2)
        else:
            all_s, all_j, all_mhz, all_capped, all_bits = seconds, joules, mhz, capped, step_bits
        lead = first_chunks
        edges = self.board.run(
            np.concatenate([pre_s[:lead], all_s]),
            np.concatenate([pre_j[:lead], all_j]) + watts * np.concatenate([pre_s[:lead], all_s]),
            np.concatenate([pre_mhz[:lead], all_mhz]),
            np.concatenate([np.zeros(lead, dtype=bool), all_capped]),
            np.concatenate([bits[:lead], all_bits]),
            foreign,
        )
        after = edges[lead + 1 :]
        if head_s.any():
            ends, heads = after[1::2], after[0::2]
        else:
            ends, heads = after, after
        first = np.empty(n, dtype=np.int64)
        early = schedule.start == 0
        first[early] = edges[1 : lead + 1][owner[early]]
        if late.size:
            first[late] = heads[schedule.start[late]]
        return first, ends

    def _prefill(self, launch: _Launch, prefill: I64, schedule: _Schedule, at_once: int) -> tuple[F64, F64, F64, I64]:
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
            launch.target, sizes, 1.0, sizes, np.minimum(sizes, launch.target.window), p.kernels, snapshots=0.0
        )
        flop = cost.flop + launch.target.attention_flop * sizes * (sizes / max(1, early.size) / 2 - 1.0)
        whole = replace(cost, other_bytes=cost.other_bytes * 0.25, flop=flop / p.kernels.prefill_efficiency)
        gap = np.full(sizes.size, 1e-3)
        gap[0] += p.host.prefill_ms / 1e3
        idle = self.board.idle_w(self.board.idle_mhz)
        top = self._wanted(launch)
        mhz = physics.limited_clock(
            whole, None, gap, gap, capture=True, wanted_mhz=top, idle_w=idle, spread=self.board.spread
        )
        step = physics.evaluate(whole, None, gap, gap, capture=True, mhz=mhz, spread=self.board.spread)
        # The power of wasted issue slots is not that of useful operations.
        wasted = (whole.flop - flop) * physics.flop_pj * 1e-12 * physics.voltage2(mhz) * self.board.spread.power
        return step.verify_s, step.verify_j - wasted, mhz, owner

    def _forget_prefill_of(self, tokens: int, launch: _Launch) -> None:
        """Load the board for a warm-up's prefill."""
        seconds = (
            tokens * launch.target.flop_per_position / (self.board.physics.peak * self.p.kernels.prefill_efficiency)
            + 0.02
        )
        self._pass(seconds, self.board.physics.limit_w * 0.6)

    def _wanted(self, launch: _Launch, faults: Mapping[str, FaultConfig] | None = None) -> float:
        top = self.p.board.max_clock_mhz
        locked = launch.spec.locked_mhz
        if locked is not None and not (faults and "clock_not_obeyed" in faults):
            top = min(top, float(locked))
        if faults and "thermal_slowdown" in faults:
            top = min(top, float(faults["thermal_slowdown"].value or 1200.0))
        if faults and "hardware_slowdown" in faults:
            top = min(top, float(faults["hardware_slowdown"].value or 1000.0))
        return top

    def _price(
        self,
        launch: _Launch,
        running: F64,
        executed: F64,
        full: F64,
        windowed: F64,
        capture: bool,
        faults: Mapping[str, FaultConfig],
    ) -> tuple[F64, F64, F64, Any, I64, F64, F64]:
        """Return per step: seconds, joules beyond idling, clock, capped, throttle bits, the draft's seconds and joules."""
        p, spec = self.p, launch.spec
        width = float(spec.drafter.verify_width)
        snapshots = width if width > 1 else 1.0
        verify = pass_cost(launch.target, executed, width, full, windowed, p.kernels, snapshots=snapshots)
        draft = self._draft_cost(launch, executed, full, windowed)
        gap, draft_gap = self._gaps(spec, running)
        board = self.board
        wanted = self._wanted(launch, faults)
        idle = board.idle_w(wanted)
        spread = board.spread
        mhz = board.physics.limited_clock(
            verify, draft, gap, draft_gap, capture=capture, wanted_mhz=wanted, idle_w=idle, spread=spread
        )
        step = board.physics.evaluate(verify, draft, gap, draft_gap, capture=capture, mhz=mhz, spread=spread)
        capped = mhz < wanted - 1.0
        bits = np.where(capped, POWER_CAP, 0).astype(np.int64)
        if "thermal_slowdown" in faults:
            bits |= SW_THERMAL | HW_THERMAL
        if "hardware_slowdown" in faults:
            bits |= HARDWARE_SLOWDOWN | POWER_BRAKE
        return step.verify_s + step.draft_s, step.verify_j + step.draft_j, mhz, capped, bits, step.draft_s, step.draft_j

    def _draft_cost(self, launch: _Launch, executed: F64, full: F64, windowed: F64) -> Cost | None:
        network, drafter = launch.draft, launch.spec.drafter
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

    def _gaps(self, spec: LaunchSpec, running: F64) -> tuple[F64, F64]:
        h, drafter = self.p.host, spec.drafter
        if drafter.is_plain:
            return np.full_like(running, h.step_ms / 1e3), np.zeros_like(running)
        own = np.full_like(running, h.speculative_step_ms / 1e3)
        if drafter.scheme == "ngram":
            return own + (h.ngram_round_ms + h.ngram_request_ms * running) / 1e3, np.zeros_like(running)
        serial = 1 if drafter.scheme in ("dflash", "dspark") else max(1, drafter.serial_steps or drafter.draft_tokens)
        return own, np.full_like(running, serial * h.draft_step_ms / 1e3)

    @staticmethod
    def _cached_tokens(launch: _Launch, rounds: Rounds, schedule: _Schedule, tokens: I64) -> tuple[F64, F64]:
        """Return the cached tokens (all, and inside the window of windowed layers) summed over running requests."""
        steps, columns = schedule.steps, rounds.before.shape[1]
        held = rounds.before + (tokens[:, None] + 1)
        held = np.where(np.arange(columns)[None, :] < rounds.rounds[:, None], held, 0)
        window = launch.target.window
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

    # -- what comes back

    def _results(
        self, batch: Batch, answers: list[Answer], tokens: I64, cached: I64, limit: I64, rounds: Rounds, schedule: _Schedule,
        first_ns: I64, end_of_step: I64, faults: Mapping[str, FaultConfig],
    ) -> tuple[RequestResult, ...]:  # fmt: skip
        ends: list[int] = end_of_step.tolist()
        plain = rounds.histograms.shape[1] == 1
        repeated = self._some(batch, faults["repeated_prompts"]) if "repeated_prompts" in faults else None
        counts = rounds.rounds.tolist()
        starts = schedule.start.tolist()
        cut, accepted, hist = rounds.cut.tolist(), rounds.accepted.tolist(), rounds.histograms.tolist()
        k = rounds.histograms.shape[1] - 1
        new = (rounds.kept + 1) if not plain else None
        out = []
        for i, prompt in enumerate(batch.prompts):
            r, committed = counts[i], int(limit[i])
            if new is None:
                chunks: list[int] = [1] * (r + 1)
            else:
                chunks = [1, *new[i, :r].tolist()]
                if cut[i]:
                    chunks[-1] -= cut[i]
            answer = answers[i]
            eos = answer.natural_tokens if answer.natural_tokens < committed else None
            finish: Any = "length"
            if committed < batch.max_new_tokens or (not batch.ignore_eos and eos is not None):
                finish, eos = "eos", committed - 1
            drifted = answer.language != prompt.language
            out.append(
                RequestResult(
                    prompt_id=batch.prompts[0].id if repeated is not None and repeated[i] else prompt.id,
                    prompt_tokens=int(tokens[i]),
                    committed_tokens=committed,
                    finish_reason=finish,
                    first_eos_position=eos,
                    rounds=r,
                    proposed_tokens=r * k,
                    accepted_draft_tokens=accepted[i],
                    acceptance_histogram=tuple(hist[i]),
                    cut_tokens=cut[i],
                    chunk_t_ns=(int(first_ns[i]), *ends[starts[i] : starts[i] + r]),
                    chunk_tokens=tuple(chunks),
                    cached_tokens=int(cached[i]),
                    output_token_ids=_loop(answer.key, committed) if answer.degenerate else (),
                    text=_SAMPLES.get(answer.language, "") if drifted or prompt.language == "rm" else "",
                )
            )
        return tuple(out)


def version_with(parameters: Parameters) -> str:
    """Return the version that stands in every row: this release and the digest of the parameters."""
    return f"simulated-{__version__}+{parameters.digest}"


def _schedule(rounds: Rounds, at_once: int) -> _Schedule:
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
    return _Schedule(start, steps, np.cumsum(change[:steps]).astype(np.float64), None)


def _busy_request_seconds(requests: Sequence[RequestResult], submit: int, n: int, capacity: int) -> float:
    """Return the integral of the running requests over the wave, requests x seconds."""
    queued = requests[capacity:] if capacity < n else ()
    total = sum(r.chunk_t_ns[-1] - submit for r in requests[: n - len(queued)])
    total += sum(r.chunk_t_ns[-1] - r.chunk_t_ns[0] for r in queued)
    return total / 1e9


def _loop(key: int, length: int) -> tuple[int, ...]:
    """Return token ids that repeat a phrase of eleven tokens."""
    phrase = [100 + (key >> (5 * i)) % 997 for i in range(11)]
    return tuple((phrase * (length // 11 + 1))[:length])
