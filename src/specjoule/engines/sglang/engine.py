"""The engine contract over one SGLang server: start, warm, flush, run, count, stop."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specjoule.client import Limits, StreamEnded, Wave, run_wave
from specjoule.clock import Clock, MonotonicClock
from specjoule.engines.base import (
    Batch,
    Capacity,
    EngineBug,
    EngineInfeasible,
    EngineTransient,
    LaunchSpec,
    WaveResult,
)
from specjoule.engines.sglang import board, capture
from specjoule.engines.sglang.api import ControlApi, Unanswered
from specjoule.engines.sglang.checkpoints import (
    chat_template_digest,
    eos_token_ids,
    folder_of,
    hub_cache,
    local_revision,
    refuse_unpinned,
)
from specjoule.engines.sglang.context import fill_up, frame
from specjoule.engines.sglang.environment import child_environment, dropped_variables, refuse_simulation
from specjoule.engines.sglang.fields import DecodeMoments, Loads, ServerInfo
from specjoule.engines.sglang.launch import LaunchCommand, build, captured_batches
from specjoule.engines.sglang.log import LogReader, decode_steps
from specjoule.engines.sglang.matching import matched_settings
from specjoule.engines.sglang.outcomes import Phase, judge
from specjoule.engines.sglang.ports import HeldPorts
from specjoule.engines.sglang.profile import passes_by_role, read_trace
from specjoule.engines.sglang.results import Answers, Asked, client_mean_batch, read_answers, refusal
from specjoule.engines.sglang.server import ServerProcess, wait_until
from specjoule.engines.sglang.settings import Settings, parse_settings
from specjoule.engines.sglang.staging import stage
from specjoule.errors import ConfigurationError, SpecJouleError
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason

PROFILED_TOKENS = 12
"""Tokens of the profiled wave: a few rounds of any drafter."""

PROFILE_S = 60.0
"""How long the server may take to write its profile."""

FLUSH_S = 10.0
"""How long a flush may be refused because a request is still being retired."""


@dataclass
class _Launch:
    """What lives from `start` to `stop`."""

    spec: LaunchSpec
    settings: Settings
    command: LaunchCommand
    server: ServerProcess
    api: ControlApi
    log: LogReader
    log_start: int
    eos_ids: frozenset[int] = frozenset()
    captured: capture.Captured = field(default_factory=lambda: capture.Captured({}))
    info: ServerInfo | None = None
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    filled: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Prompts brought to a context length, by digest and length."""

    @property
    def own_log(self) -> str:
        """What this server alone has written."""
        return self.log.since(self.log_start)

    @property
    def limit(self) -> int | None:
        """How many requests the server runs at once, by its own word."""
        return self.info.running_limit if self.info is not None else None


class SglangEngine:
    """One server at a time, on one board. See `docs/sglang.md` for the settings."""

    def __init__(
        self, clock: Clock | None = None, board_processes: board.BoardProcesses = board.compute_processes
    ) -> None:
        """Take the clock of the stamps (CLOCK_MONOTONIC, the meter's) and what tells which processes a board runs."""
        self.clock: Clock = clock or MonotonicClock()
        self._board_processes = board_processes
        self._launch: _Launch | None = None
        self._last_speculative: Mapping[str, Any] | None = None

    def start(self, spec: LaunchSpec) -> Capacity:
        """Start a server, wait until it takes requests, read back what it resolved and holds."""
        self.stop()
        refuse_simulation(os.environ, parse_settings(spec.settings).simulated_acceptance, "the caller's environment")
        refuse_unpinned(spec.model.checkpoint, f"model '{spec.model.name}'")
        if (draft := spec.drafter.checkpoints.get(spec.model.name)) is not None:
            refuse_unpinned(draft, f"drafter '{spec.drafter.name}' for '{spec.model.name}'")
        spec, staged = stage(spec)
        settings = parse_settings(spec.settings).for_model(spec.model.name)
        self._await_free_board(spec, settings)
        held = HeldPorts()
        try:
            command = build(spec, held.ports, self._matched(spec, settings))
        finally:
            held.release()
        log = LogReader(spec.log_path)
        launch = _Launch(
            spec=spec,
            settings=settings,
            command=command,
            server=ServerProcess(settings.stop_grace_s),
            api=ControlApi(held.ports.http),
            log=log,
            log_start=log.mark(),
        )
        self._launch = launch
        try:
            return self._begin(launch, staged)
        except BaseException:
            self.stop()
            raise

    def warm_up(self, concurrency: int, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        """Run one batch of this shape, so that every kernel of it is compiled; fewer prompts are repeated."""
        if not prompts:
            raise EngineBug("warm_up was given no prompt")
        batch = tuple(prompts[i % len(prompts)] for i in range(concurrency))
        shape = Batch(prompts=batch, max_new_tokens=max(2, max_new_tokens), ignore_eos=True)
        self.run(shape)
        for tokens in self._running().spec.context_tokens:
            text = tuple(f"{prompt.messages[-1][1]} " * tokens for prompt in batch)
            self.run(replace(shape, context_tokens=tokens, filler=text))

    def flush(self) -> None:
        """Empty prefix cache and n-gram trie; with `ngram_state: warm` an n-gram drafter keeps its trie."""
        launch = self._running()
        if launch.spec.drafter.scheme == "ngram" and launch.spec.ngram_state == "warm":
            return
        with _Judged(launch, "wave"):
            if not wait_until(launch.api.flush, FLUSH_S, 0.05):
                raise EngineTransient(
                    Reason.ENGINE_HANG, f"the server refused to flush for {FLUSH_S:g} s: requests run on"
                )

    def run(self, batch: Batch) -> WaveResult:
        """Submit one wave, read it to its end, and account for it from raw counts."""
        launch = self._running()
        if not batch.prompts or batch.max_new_tokens < 1:
            raise EngineBug("a wave needs at least one prompt and one token to generate")
        with _Judged(launch, "wave"):
            ids = [self._token_ids(launch, prompt) for prompt in batch.prompts]
            if batch.context_tokens is not None:
                ids = self._brought_to(launch, batch, ids, batch.context_tokens)
            before, mark = launch.api.loads(), launch.log.mark()
            wave = self._submit(launch, batch, ids)
            answers = self._answers(launch, batch, ids, wave)
            after = self._settled_loads(launch, before)
        return _wave_result(launch, wave, answers, before, after, launch.log.since(mark))

    def counters(self) -> Mapping[str, float]:
        """Return the server's cumulative counters."""
        launch = self._running()
        with _Judged(launch, "wave"):
            return launch.api.loads().counters()

    def prove(self, concurrency: int, prompts: Sequence[Prompt]) -> Mapping[str, Any]:
        """Profile one short wave and return which passes ran captured graphs, by role.

        Done last, since a profiler may leave something behind in the process. Nothing that goes wrong here concerns
        what was measured: it is returned as `problem`.
        """
        launch = self._running()
        if not launch.settings.profiled_wave or launch.settings.instrumentation != "study":
            return {}
        try:
            with tempfile.TemporaryDirectory(prefix="specjoule-profile-") as folder:
                launch.api.start_profile(folder)
                self.run(Batch(tuple(prompts[:concurrency]), max_new_tokens=PROFILED_TOKENS, ignore_eos=True))
                launch.api.stop_profile()
                return {"concurrency": concurrency, "roles": passes_by_role(read_trace(Path(folder), PROFILE_S))}
        except (SpecJouleError, Unanswered, OSError) as error:
            return {"problem": str(error)[:500]}

    def stop(self) -> None:
        """End the server and everything it started."""
        launch, self._launch = self._launch, None
        if launch is not None:
            launch.server.stop()

    # -- start

    def _begin(self, launch: _Launch, staged: Mapping[str, Any]) -> Capacity:
        environment = child_environment(os.environ, launch.command.environment)
        try:
            launch.server.start(launch.command.argv, environment, launch.spec.log_path)
        except OSError as error:
            raise ConfigurationError(
                f"the server cannot be started ({error}); check engine.settings.interpreter, which should lie in an "
                "environment made by requirements/install_sglang.sh or envs/sglang.yaml"
            ) from error
        self._await_ready(launch)
        with _Judged(launch, "start"):
            info = launch.info = launch.api.server_info()
        folder = folder_of(launch.command.target, hub_cache(environment))
        launch.eos_ids = eos_token_ids(folder)
        launch.captured = capture.captured(launch.own_log)
        _check_resolved(launch, info)
        if not launch.spec.drafter.is_plain:
            self._last_speculative = info.resolved
        return _capacity(launch, info, folder, staged, hub_cache(environment))

    def _await_ready(self, launch: _Launch) -> None:
        deadline = time.monotonic() + launch.settings.start_deadline_s
        while not launch.api.ready():
            ended = launch.server.ended()
            if ended is not None:
                raise judge(launch.own_log, "start", ended)
            if time.monotonic() > deadline:
                raise judge(launch.own_log, "start", None)
            launch.server.processes()
            time.sleep(launch.settings.ready_poll_s)
        launch.server.processes()

    def _await_free_board(self, spec: LaunchSpec, settings: Settings) -> None:
        if spec.device_uuid is None or settings.device != "cuda":
            return
        left = board.wait_until_free(spec.device_uuid, settings.board_free_s, self._board_processes)
        if left:
            raise EngineTransient(
                Reason.NODE_TROUBLE,
                f"board {spec.device_uuid} is not free after {settings.board_free_s:g} s: processes {left} use it",
            )

    def _matched(self, spec: LaunchSpec, settings: Settings) -> Mapping[str, Any] | None:
        if spec.drafter.scheme != "plain-matched":
            return None
        if settings.matched or spec.drafter.settings.get("matched"):
            return None
        if self._last_speculative is None:
            raise ConfigurationError(
                "plain-matched takes the scheduler settings of a speculative launch: start one before it with the same "
                "engine, or write them into engine.settings.matched"
            )
        return matched_settings(self._last_speculative)

    # -- waves

    def _token_ids(self, launch: _Launch, prompt: Prompt) -> list[int]:
        known = launch.token_ids.get(prompt.digest)
        if known is None:
            known = launch.api.chat_ids(prompt.chat(), launch.settings.chat_template_kwargs)
            longest = launch.spec.max_prompt_tokens
            if longest is not None and len(known) > longest:
                raise EngineInfeasible(
                    Reason.CONTEXT_TOO_LONG, f"prompt '{prompt.id}' has {len(known)} tokens, more than {longest}"
                )
            launch.token_ids[prompt.digest] = known
        return known

    def _brought_to(self, launch: _Launch, batch: Batch, ids: list[list[int]], tokens: int) -> list[list[int]]:
        """Return the prompts filled up to `tokens` tokens, right after the words that open the user's turn."""
        if len(batch.filler) != len(ids):
            raise EngineBug("a wave with context_tokens needs one text to fill up with for each prompt")

        def chat(text: str) -> list[int]:
            return launch.api.chat_ids([{"role": "user", "content": text}], launch.settings.chat_template_kwargs)

        opening, closing = frame(chat("A"), chat("B"))
        filled = []
        for prompt, own, text in zip(batch.prompts, ids, batch.filler, strict=True):
            where = (prompt.digest, tokens)
            if where not in launch.filled:
                spare = chat(text)[len(opening) : -len(closing) or None] if len(own) < tokens else []
                launch.filled[where] = fill_up(prompt.id, own, opening, spare, tokens)
            filled.append(launch.filled[where])
        return filled

    def _submit(self, launch: _Launch, batch: Batch, ids: list[list[int]]) -> Wave:
        sampling = {"temperature": 0, "max_new_tokens": batch.max_new_tokens, "ignore_eos": batch.ignore_eos}
        common = {"sampling_params": sampling, "stream": True}
        if launch.settings.transport == "batched":
            bodies: list[dict[str, Any]] = [{"input_ids": ids, **common}]
        else:
            bodies = [{"input_ids": one, **common} for one in ids]
        limits = Limits(wave_s=launch.settings.wave_deadline_s, stall_s=launch.settings.stall_s)
        try:
            return run_wave(launch.api.generate_url, bodies, limits)
        except StreamEnded as error:
            if error.kind == "rejected":
                raise refusal(str(error)) from error
            if error.kind in ("stalled", "deadline"):
                raise EngineTransient(Reason.ENGINE_HANG, f"{Reason.ENGINE_HANG.text} {error}.") from error
            raise EngineTransient(Reason.STREAM_BROKEN, f"{Reason.STREAM_BROKEN.text} {error}.") from error

    def _answers(self, launch: _Launch, batch: Batch, ids: list[list[int]], wave: Wave) -> Answers:
        try:
            parsed = wave.parsed()
        except ValueError as error:
            raise EngineBug(f"the stream cannot be read: {error}") from error
        return read_answers(
            parsed,
            Asked(
                prompt_ids=tuple(p.id for p in batch.prompts),
                prompt_tokens=tuple(len(i) for i in ids),
                speculative=not launch.spec.drafter.is_plain,
                draft_tokens=launch.spec.drafter.draft_tokens,
                eos_ids=launch.eos_ids,
                batched=launch.settings.transport == "batched",
            ),
        )

    def _settled_loads(self, launch: _Launch, before: Loads) -> Loads:
        """Return the counters once the server has published its idle state after the wave."""
        found = [before]

        def idle() -> bool:
            found[0] = launch.api.loads()
            return found[0].running == 0 and found[0].waiting == 0

        if not wait_until(idle, FLUSH_S, 0.02):
            raise EngineTransient(Reason.ENGINE_HANG, "requests run on after their streams ended")
        return found[0]

    def _running(self) -> _Launch:
        if self._launch is None:
            raise EngineBug("no server is started")
        return self._launch


class _Judged:
    """Turns a failure into what the server's own end says about it: a broken stream is only the symptom."""

    def __init__(self, launch: _Launch, phase: Phase) -> None:
        self._launch = launch
        self._phase = phase

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, EngineTransient | Unanswered):
            return
        server = self._launch.server
        died = error if isinstance(error, Unanswered) or error.reason is Reason.STREAM_BROKEN else None
        if died is not None:
            wait_until(lambda: server.ended() is not None, 5.0, 0.05)
        ended = server.ended()
        if ended is not None:
            raise judge(self._launch.own_log, self._phase, ended, self._launch.limit) from error
        if isinstance(error, Unanswered):
            raise judge(self._launch.own_log, self._phase, None, self._launch.limit) from error
        judged = judge(self._launch.own_log, self._phase, None, self._launch.limit)
        if isinstance(judged, EngineInfeasible):
            raise judged from error


def _check_resolved(launch: _Launch, info: ServerInfo) -> None:
    """Hold the started server to the launch: release, and every resolved field that makes it the one asked for."""
    if info.version != launch.settings.release:
        raise ConfigurationError(
            f"the server is release {info.version}, the study pins {launch.settings.release}: "
            "install that one or change engine.settings.release (it is part of every cell's hash)"
        )
    for key, value in launch.command.expected.items():
        if key not in info.resolved:
            raise EngineBug(f"/server_info lacks '{key}'")
        if info.resolved[key] != value:
            raise EngineBug(f"the server resolved {key} to {info.resolved[key]!r}, the study asks for {value!r}")


def _capacity(launch: _Launch, info: ServerInfo, folder: Path, staged: Mapping[str, Any], cache: Path) -> Capacity:
    spec, draft = launch.spec, launch.command.draft
    own = spec.drafter.checkpoints.get(spec.model.name)
    drafter_revision = None
    if draft is not None:
        pinned = own.revision if own is not None else spec.model.checkpoint.revision
        drafter_revision = pinned or local_revision(folder_of(draft, cache))
    return Capacity(
        engine_version=f"sglang-{info.version}",
        model_revision=spec.model.checkpoint.revision or local_revision(folder),
        drafter_revision=drafter_revision,
        max_running_requests=info.running_limit,
        kv_tokens=info.kv_tokens,
        captured_batches=info.captured_batches,
        resolved={
            **info.resolved,
            "specjoule": {
                **launch.command.record(),
                "chat_template": chat_template_digest(folder),
                "eos_ids": sorted(launch.eos_ids),
                "captured": {role: list(b) for role, b in launch.captured.batches.items()},
                "capture_fallbacks": list(launch.captured.fallbacks),
                "dropped_variables": list(dropped_variables(os.environ)),
                "staged": dict(staged),
            },
        },
        measured_pid=launch.server.pid,
    )


def _wave_result(launch: _Launch, wave: Wave, answers: Answers, before: Loads, after: Loads, log: str) -> WaveResult:
    spec, requests = launch.spec, answers.requests
    steps = decode_steps(log) if launch.settings.instrumentation == "study" else ()
    moments = after.moments - before.moments
    most_rounds = max(r.rounds for r in requests)
    return WaveResult(
        submit_ns=wave.submit_ns,
        end_ns=answers.end_ns,
        steps=max(len(steps), most_rounds),
        requests=requests,
        verify_widths=(spec.drafter.verify_width,) if most_rounds else (),
        realized_batch_engine=_engine_mean_batch(
            launch, moments, after.prefill_busy_us - before.prefill_busy_us, requests
        ),
        peak_batch_engine=max((s.running for s in steps), default=None),
        capture_verified=capture.verify(spec.capture, spec.drafter, captured_batches(spec), launch.captured, steps),
        client_lag_ms=wave.lag_ms,
        # Speculation's cut would absorb a token lost on the way: what was counted and what came have to agree.
        faults=(Reason.DENOMINATOR_MISMATCH,) if answers.token_count_mismatches else (),
        notes={
            "realized_batch_client": client_mean_batch(requests),
            "steps_logged": len(steps),
            "steps_counted": moments.steps,
            "rounds_longest": most_rounds,
            "graph_steps": sum(s.graph for s in steps),
            "captured_roles": sorted(launch.captured.batches),
            "cap_length_histogram": list(answers.cap_lengths),
            "token_count_mismatches": list(answers.token_count_mismatches),
            "retractions": answers.retractions,
            "server_times": [dict(t) for t in answers.server_times],
            "client_cpu_share": wave.cpu_share,
            "transport": launch.settings.transport,
        },
    )


def _engine_mean_batch(
    launch: _Launch, moments: DecodeMoments, prefill_us: int, requests: Sequence[Any]
) -> float | None:
    """Return the server's time-weighted mean batch over prefill and decode.

    Decode steps by the server's moments; while it prefills, what was submitted counts, up to what it can hold.
    """
    if moments.step_us <= 0:
        return None
    submitted = min(len(requests), launch.limit or len(requests))
    return (moments.batch_us + prefill_us * submitted) / (moments.step_us + prefill_us)
