"""The simulated server: waves of real shape on a virtual clock, all rounds of all requests at once.

What it returns obeys the same identities as a real engine's counts; what it costs comes from `physics`, what it
accepts from `acceptance`, what fits from `memory`.
"""

from __future__ import annotations

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
    FinishReason,
    LaunchSpec,
    RequestResult,
    WaveResult,
)
from specjoule.engines.simulated.acceptance import SAMPLES, Answer, Drafting, World, stable_seed
from specjoule.engines.simulated.board import SimulatedBoard
from specjoule.engines.simulated.costing import Wave, WaveCosts, make_schedule
from specjoule.engines.simulated.faults import FaultConfig, Faults
from specjoule.engines.simulated.memory import MemoryPlan, plan_memory, request_bytes
from specjoule.engines.simulated.parameters import Parameters
from specjoule.engines.simulated.workload import Network, draft_network, draft_weight_bytes, target_network
from specjoule.meters.base import I64
from specjoule.meters.simulated import SimulatedMeter
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason
from specjoule.version import __version__


@dataclass
class _Launch:
    """What one launch keeps."""

    spec: LaunchSpec
    costs: WaveCosts
    drafting: Drafting
    plan: MemoryPlan
    running_limit: int
    waves: int = 0
    steps: int = 0
    trie_tokens: float = 0.0
    busy_s: float = 0.0
    batch_s: float = 0.0


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
        self._prompt_tokens: dict[tuple[str, str], int] = {}

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
        memory = self.faults.active("start", **scope).get("out_of_memory")
        if memory is not None:
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
        board, faults = self.board, self.faults.active("board", **scope)
        if "other_board" in faults and self._launches == faults["other_board"].value + 1:
            board.identify((board.number + 1) % max(2, self.p.board.boards_per_kind))
        board.drift_per_hour = faults["drift"].value if "drift" in faults else 0.0
        self._pass(self.p.host.start_s, None)
        board.loaded = True
        board.relaunch()
        board.idle_mhz = float(spec.locked_mhz) if spec.locked_mhz else self.p.board.max_clock_mhz
        board.memory_used_bytes = (board.gpu.memory_bytes or 0.0) * self.p.memory.static_fraction
        self._launch = _Launch(
            spec,
            WaveCosts(board, spec, target, draft),
            Drafting(self.world, spec.model.name, spec.drafter),
            plan,
            limit,
        )
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
        priced = launch.costs.price(shape, context, context, launch.spec.capture, {})
        self._pass(launch.costs.warm_up_prefill(n * 60), self.board.physics.limit_w * 0.6)
        self.board.run(priced.seconds * steps, priced.joules * steps, priced.mhz, priced.capped, priced.bits)

    def flush(self) -> None:
        """Empty the n-gram matcher."""
        if self._launch is not None:
            self._launch.trie_tokens = 0.0

    def run(self, batch: Batch) -> WaveResult:
        """Run one wave."""
        launch = self._running()
        prompts, n = batch.prompts, len(batch.prompts)
        number = launch.waves
        launch.waves += 1
        spec = launch.spec
        faults = self.faults.active("batch", **self._scope(spec), corpus=prompts[0].corpus, concurrency=n, wave=number)
        self._refuse(faults, n, launch)
        answers, tokens, limit = self._texts(batch, spec, faults)
        capacity = self._at_once(launch, int((tokens + limit).max()) + spec.drafter.verify_width)
        if "partial_batch" in faults:
            capacity = min(capacity, faults["partial_batch"].value or max(1, n // 2))
        natural = np.array([0 if a.degenerate else a.natural_tokens for a in answers], dtype=np.int64)
        rounds = launch.drafting.draw(prompts, answers, limit - 1, natural, launch.trie_tokens)
        submit = self.clock.now_ns()
        self.board.idle_until(submit)
        capture = spec.capture and "capture_fallback" not in faults
        schedule = make_schedule(rounds, min(n, capacity))
        wave = Wave(batch, answers, tokens, _cached(tokens, faults), limit, rounds, schedule, capture, faults)
        first_ns, end_of_step = launch.costs.put_on_board(wave)
        end = int(end_of_step[-1]) if end_of_step.size else int(first_ns.max())
        self._fault_meter(faults, submit, end)
        launch.trie_tokens += float(limit.sum() + tokens.sum())
        launch.steps += schedule.steps
        requests = _results(wave, first_ns, end_of_step)
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
            client_lag_ms=faults["slow_client"].value if "slow_client" in faults else 0.1,
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

    def _scope(self, spec: LaunchSpec) -> dict[str, Any]:
        return {
            "model": spec.model.name, "drafter": spec.drafter.name, "capture": spec.capture, "launch": self._launches,
        }  # fmt: skip

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

    @staticmethod
    def _at_once(launch: _Launch, longest: int) -> int:
        """Return how many requests of up to `longest` tokens run at once: those that the launch planned for, or fewer.

        Raises EngineInfeasible where not even one does.
        """
        draft = launch.costs.draft
        each = request_bytes(launch.costs.target, draft.kv_bytes if draft is not None else 0.0, float(longest))
        if each > launch.plan.cache_bytes:
            raise EngineInfeasible(
                Reason.OOM_RUN, f"simulated: the caches hold no request of {longest} tokens", capacity_requests=0
            )
        return min(launch.plan.capacity, int(launch.plan.cache_bytes // each)) if each else launch.plan.capacity

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
        if "out_of_memory" in faults:
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
            drifted = _some(batch, fault)
            answers = [replace(a, language=fault.value) if d else a for a, d in zip(answers, drifted, strict=True)]
        if "degenerate" in faults:
            loops = _some(batch, faults["degenerate"])
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
            early = _some(batch, faults["early_eos"])
            limit = np.where(early, np.maximum(1, limit * 4 // 5), limit)
        return answers, tokens, limit

    def _count(self, prompt: Prompt) -> int:
        found = self._prompt_tokens.get((prompt.language, prompt.digest))
        if found is None:
            text = self.p.text
            ratio = text.characters_per_token.get(prompt.language, text.default_characters_per_token)
            found = text.template_tokens + max(1, round(sum(len(content) for _, content in prompt.messages) / ratio))
            self._prompt_tokens[(prompt.language, prompt.digest)] = found
        return found

    def _fault_meter(self, faults: Mapping[str, FaultConfig], submit: int, end: int) -> None:
        if self.meter is None:
            return
        if "counter_reset" in faults:
            self.meter.reset_ns = (submit + end) // 2
        middle = (submit + (end - submit) // 3, end - (end - submit) // 3)
        self.meter.frozen_ns = middle if "counter_frozen" in faults else None
        self.meter.gap_ns = middle if "meter_gap" in faults else None


def version_with(parameters: Parameters) -> str:
    """Return the version that stands in every row: this release and the digest of the parameters."""
    return f"simulated-{__version__}+{parameters.digest}"


def _busy_request_seconds(requests: Sequence[RequestResult], submit: int, n: int, capacity: int) -> float:
    """Return the integral of the running requests over the wave, requests x seconds."""
    queued = requests[capacity:] if capacity < n else ()
    total = sum(int(r.chunk_t_ns[-1]) - submit for r in requests[: n - len(queued)])
    total += sum(int(r.chunk_t_ns[-1] - r.chunk_t_ns[0]) for r in queued)
    return total / 1e9


def _loop(key: int, length: int) -> tuple[int, ...]:
    """Return token ids that repeat a phrase of eleven tokens."""
    phrase = [100 + (key >> (5 * i)) % 997 for i in range(11)]
    return tuple((phrase * (length // 11 + 1))[:length])


def _some(batch: Batch, fault: FaultConfig) -> list[bool]:
    """Choose `share` of the batch, at least one, the same ones each time."""
    order = sorted(range(len(batch.prompts)), key=lambda i: stable_seed(fault.kind, batch.prompts[i].digest))
    chosen = set(order[: max(1, round(fault.share * len(order)))])
    return [i in chosen for i in range(len(order))]


def _cached(tokens: I64, faults: Mapping[str, FaultConfig]) -> I64:
    """Return the prompt tokens that a prefix cache holds: none, unless asked for."""
    cached = np.zeros_like(tokens)
    if "cache_hit" in faults:
        some = max(1, round(faults["cache_hit"].share * tokens.size))
        cached[:some] = tokens[:some] // 2
    return cached


def _results(wave: Wave, first_ns: I64, end_of_step: I64) -> tuple[RequestResult, ...]:
    """Return what a client would have of each request."""
    batch, rounds = wave.batch, wave.rounds
    k = rounds.histograms.shape[1] - 1
    repeated = _some(batch, wave.faults["repeated_prompts"]) if "repeated_prompts" in wave.faults else None
    counts, starts = rounds.rounds.tolist(), wave.schedule.start.tolist()
    limits, tokens, cached = wave.limit.tolist(), wave.tokens.tolist(), wave.cached.tolist()
    cut, accepted, histograms = rounds.cut.tolist(), rounds.accepted.tolist(), rounds.histograms.tolist()
    out = []
    for i, prompt in enumerate(batch.prompts):
        r, committed, answer = counts[i], limits[i], wave.answers[i]
        times, chunks = np.empty(r + 1, dtype=np.int64), np.ones(r + 1, dtype=np.int64)
        times[0], times[1:] = first_ns[i], end_of_step[starts[i] : starts[i] + r]
        chunks[1:] += rounds.kept[i, :r]
        chunks[-1] -= cut[i]
        eos = answer.natural_tokens if answer.natural_tokens < committed else None
        finish: FinishReason = "length"
        if committed < batch.max_new_tokens or (not batch.ignore_eos and eos is not None):
            finish, eos = "eos", committed - 1
        shown = answer.language != prompt.language or prompt.language == "rm" or prompt.twin is not None
        out.append(
            RequestResult(
                prompt_id=batch.prompts[0].id if repeated is not None and repeated[i] else prompt.id,
                prompt_tokens=tokens[i],
                committed_tokens=committed,
                finish_reason=finish,
                first_eos_position=eos,
                rounds=r,
                proposed_tokens=r * k,
                accepted_draft_tokens=accepted[i],
                acceptance_histogram=tuple(histograms[i]),
                cut_tokens=cut[i],
                chunk_t_ns=times,
                chunk_tokens=chunks,
                cached_tokens=cached[i],
                output_token_ids=_loop(answer.key, committed) if answer.degenerate else (),
                text=SAMPLES.get(answer.language, "") if shown else "",
            )
        )
    return tuple(out)
