"""The engine over the protocol double: speculation, accounting, and every fault that a server is known for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from specjoule.engines.base import Batch, Capacity, EngineBug, EngineInfeasible, EngineTransient
from specjoule.engines.sglang.engine import SglangEngine
from specjoule.engines.sglang.profile import passes_by_role
from specjoule.engines.sglang.server import wait_until
from specjoule.errors import ConfigurationError
from specjoule.prompts.filler import filler
from specjoule.reasons import Reason
from specjoule.study.catalogue import Checkpoint, Drafter
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import ROOT
from tests.engines.sglang.test_cpu_server import prompts
from tests.engines.sglang.tiny import write_checkpoint

DOUBLE = Path(__file__).with_name("double.py")
Start = Callable[..., tuple[SglangEngine, Capacity]]


def double_settings(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "entry": [sys.executable, str(DOUBLE)],
        "environment": {"SPECJOULE_DOUBLE": json.dumps(config)},
        "start_deadline_s": 30,
        "wave_deadline_s": 30,
        "stall_s": 10,
        "stop_grace_s": 2,
        "ready_poll_s": 0.05,
        **more,
    }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the engine over a double with faults; all engines are stopped at the end."""
    engines: list[SglangEngine] = []

    def begin(
        how: Drafter | None = None,
        faults: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> tuple[SglangEngine, Capacity]:
        config = {"faults": faults or {}, **more.pop("config", {})}
        draft = write_checkpoint(tmp_path / "draft")
        spec = specs.launch(
            specs.model(write_checkpoint(tmp_path / "tiny")),
            how or specs.drafter("eagle3", 4, draft),
            tmp_path,
            double_settings(config, **(settings or {})),
            concurrencies=more.pop("concurrencies", (1, 4)),
            **more,
        )
        engine = SglangEngine(board_processes=lambda _: ())
        engines.append(engine)
        return engine, engine.start(spec)

    yield begin
    for engine in engines:
        engine.stop()


def wave_of(count: int = 4, tokens: int = 40) -> Batch:
    return Batch(prompts(count), max_new_tokens=tokens, ignore_eos=True)


# -- what a good server gives


def test_speculative_wave_is_accounted_from_raw_counts(start: Start) -> None:
    engine, capacity = start()
    assert capacity.captured_batches == (1, 4)
    assert capacity.kv_tokens == 20000
    assert capacity.resolved["specjoule"]["captured"] == {"target": [1, 4], "draft": [1, 4], "draft_extend": [1, 4]}
    engine.warm_up(4, prompts(4, start=90), 4)
    engine.flush()
    before = engine.counters()
    wave = engine.run(wave_of())
    after = engine.counters()
    for request in wave.requests:
        assert request.committed_tokens == 40 == sum(request.chunk_tokens)
        assert request.committed_tokens == 1 + request.accepted_draft_tokens + request.rounds - request.cut_tokens
        assert 0 <= request.cut_tokens <= 3
        assert request.acceptance_histogram is not None and len(request.acceptance_histogram) == 4
        assert sum(request.acceptance_histogram) == request.rounds
        assert sum(i * n for i, n in enumerate(request.acceptance_histogram)) == request.accepted_draft_tokens
        assert request.proposed_tokens == 3 * request.rounds
        assert len(request.text) == 40
    assert wave.steps == max(r.rounds for r in wave.requests)
    assert wave.verify_widths == (4,)
    assert wave.capture_verified is True
    assert wave.peak_batch_engine == 4
    assert wave.realized_batch_engine == pytest.approx(wave.notes["realized_batch_client"], rel=0.15)
    assert after["decode_steps"] - before["decode_steps"] == wave.steps - 1
    assert wave.client_lag_ms is not None
    assert json.dumps(dict(wave.notes))


@pytest.mark.parametrize("transport", ["batched", "per-request"])
@pytest.mark.parametrize("count", [1, 4])
def test_both_transports_give_the_same_requests(start: Start, transport: str, count: int) -> None:
    engine, _ = start(settings={"transport": transport})
    wave = engine.run(wave_of(count))
    assert [r.prompt_id for r in wave.requests] == [f"p{i}" for i in range(count)]
    assert all(r.committed_tokens == 40 for r in wave.requests)
    again = engine.run(wave_of(count))
    assert [r.output_token_ids for r in again.requests] == [r.output_token_ids for r in wave.requests]


@pytest.mark.parametrize(
    ("scheme", "width", "roles"),
    [
        ("plain", 1, {"target"}),
        ("ngram", 8, {"target"}),
        ("mtp", 4, {"target", "draft", "draft_extend"}),
        ("mtp", 2, {"target", "draft_extend"}),
        ("dflash", 16, {"target", "draft"}),
        ("dspark", 7, {"target", "draft"}),
        ("draft-model", 4, {"target", "draft", "draft_extend"}),
    ],
)
def test_every_scheme(start: Start, tmp_path: Path, scheme: str, width: int, roles: set[str]) -> None:
    draft = None if scheme in ("plain", "ngram", "mtp") else tmp_path / "draft"
    engine, capacity = start(specs.drafter(scheme, width, draft))
    assert set(capacity.resolved["specjoule"]["captured"]) == roles
    wave = engine.run(wave_of())
    assert wave.capture_verified is True
    assert wave.verify_widths == (width,)
    assert all(r.committed_tokens == 1 + r.accepted_draft_tokens + r.rounds - r.cut_tokens for r in wave.requests)


def test_capture_off_is_verified_too(start: Start) -> None:
    engine, capacity = start(capture=False)
    assert capacity.captured_batches == ()
    assert engine.run(wave_of()).capture_verified is True


def test_minimal_flags_prove_no_capture(start: Start) -> None:
    engine, _ = start(settings={"instrumentation": "minimal"})
    wave = engine.run(wave_of())
    assert wave.capture_verified is None
    assert wave.steps == max(r.rounds for r in wave.requests)


def test_matched_baseline_follows_the_last_speculative_launch(tmp_path: Path) -> None:
    engine = SglangEngine(board_processes=lambda _: ())
    target = specs.model(write_checkpoint(tmp_path / "tiny"))
    settings = double_settings({"kv_tokens": 7777})
    matched = specs.launch(target, specs.drafter("plain-matched"), tmp_path, settings)
    with pytest.raises(ConfigurationError, match="start one before it"):
        engine.start(matched)
    try:
        engine.start(specs.launch(target, specs.drafter("ngram", 4), tmp_path, settings))
        capacity = engine.start(matched)
    finally:
        engine.stop()
    assert capacity.resolved["max_total_tokens"] == 7777
    assert capacity.resolved["speculative_algorithm"] is None


def test_warm_ngram_state_is_not_flushed(start: Start) -> None:
    engine, _ = start(specs.drafter("ngram", 4), ngram_state="warm")
    engine.run(wave_of())
    engine.flush()


@pytest.mark.parametrize("tokens", [260, 1024])
def test_prompts_are_brought_to_a_context_by_token_ids(start: Start, tokens: int) -> None:
    engine, _ = start(context_tokens=(tokens,))
    engine.warm_up(2, prompts(2, start=90), 4)
    pool = prompts(4)
    texts = tuple(filler(ROOT, p.digest, tokens) for p in pool)
    batch = Batch(pool, max_new_tokens=8, ignore_eos=True, context_tokens=tokens, filler=texts)
    assert [r.prompt_tokens for r in engine.run(batch).requests] == [tokens] * 4
    assert engine._launch is not None
    for prompt, text in zip(pool, texts, strict=True):
        sent = bytes(engine._launch.filled[prompt.digest, tokens]).decode(errors="replace")
        assert sent.startswith(f"<user>{text[:40]}") and sent.endswith(f"{prompt.messages[0][1]}\n")
    assert len({text[:12] for text in texts}) == 4, "no two prompts share a prefix"
    with pytest.raises(EngineInfeasible, match="more than a context of 8") as caught:
        engine.run(replace(batch, context_tokens=8))
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG
    assert [r.prompt_tokens for r in engine.run(wave_of()).requests] != [tokens] * 4


def test_a_profiled_wave_tells_the_graphs_of_target_draft_and_draft_extension_apart(start: Start) -> None:
    engine, _ = start()
    roles = engine.prove(4, prompts(4))["roles"]
    assert set(roles) == {"target", "draft", "draft_extend"}
    assert all(r["passes"] == r["with_graph"] == r["launches"] > 0 for r in roles.values())
    set_faults(engine, {"no_draft_graph": True})
    roles = engine.prove(4, prompts(4))["roles"]
    assert roles["target"]["with_graph"] > 0 == roles["draft"]["with_graph"] == roles["draft_extend"]["with_graph"]
    set_faults(engine, {"kill_after": 3})
    assert "problem" in engine.prove(4, prompts(4))


def test_spans_and_launches_are_matched_by_thread_and_time() -> None:
    def span(name: str, ts: float, dur: float, tid: int = 1, cat: str = "user_annotation") -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid}

    found = passes_by_role(
        [
            span("step[EXTEND bs=4 toks=90]", 0, 9), span("step[VERIFY bs=4]", 10, 9), span("draft", 20, 9),
            span("step[DRAFT bs=4]", 21, 3), span("step[DRAFT bs=4]", 40, 5), span("draft", 60, 9, cat="gpu"),
            *(span("cudaGraphLaunch", t, 1, cat="cuda_runtime") for t in (12, 22, 25, 90)),
            span("cudaGraphLaunch", 42, 1, tid=2), {"ph": "M", "name": "draft"},
        ]
    )  # fmt: skip
    assert found == {
        "target": {"passes": 1, "with_graph": 1, "launches": 1},
        "draft": {"passes": 2, "with_graph": 1, "launches": 2},
        "outside": {"passes": 0, "with_graph": 0, "launches": 2},
    }


# -- starts that fail

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CAPTURE_OOM = (
    "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 896.00 MiB.\n"
    "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
)


@pytest.mark.parametrize(
    ("phase", "message", "reason"),
    [
        ("load", OOM, Reason.OOM_LOAD),
        (
            "load",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.85",
            Reason.OOM_LOAD,
        ),
        ("capture", CAPTURE_OOM, Reason.OOM_CAPTURE),
        ("capture", OOM, Reason.OOM_CAPTURE),
        (
            "arguments",
            "ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported architectures: x",
            Reason.UNSUPPORTED_MODEL,
        ),
        (
            "arguments",
            "sglang serve: error: argument --quantization: invalid choice: 'df11' (choose from 'awq', 'fp8')",
            Reason.UNSUPPORTED_MODEL,
        ),
        (
            "arguments",
            "ValueError: DSpark dense speculative decoding requires setting --speculative-draft-model-path.",
            Reason.DRAFTER_REFUSED,
        ),
        (
            "arguments",
            "ValueError: Gemma4AssistantForCausalLM draft requires --speculative-algorithm NEXTN or EAGLE; EAGLE3 is"
            " not supported for this draft architecture.",
            Reason.DRAFTER_REFUSED,
        ),
    ],
)
def test_infeasible_start_is_a_result(start: Start, phase: str, message: str, reason: Reason) -> None:
    with pytest.raises(EngineInfeasible) as caught:
        start(faults={"die": {"phase": phase, "message": message}})
    assert caught.value.reason is reason
    assert message.splitlines()[0] in str(caught.value)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", Reason.ENGINE_HANG),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Reason.NODE_TROUBLE),
        ("OSError: [Errno 98] error while attempting to bind on address: address already in use", Reason.PORT_TAKEN),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Reason.ENGINE_CRASH),
        ("", Reason.ENGINE_CRASH),
    ],
)
def test_transient_start(start: Start, message: str, reason: Reason) -> None:
    with pytest.raises(EngineTransient) as caught:
        start(faults={"die": {"phase": "load", "message": message}})
    assert caught.value.reason is reason


def test_refused_flags_are_our_own_mistake(start: Start) -> None:
    with pytest.raises(EngineBug, match="unrecognized arguments: --nonsense"):
        start(
            faults={
                "die": {
                    "phase": "arguments",
                    "message": "sglang serve: error: unrecognized arguments: --nonsense",
                    "code": 2,
                }
            }
        )


def test_server_that_is_never_ready_is_a_hang_with_its_log(start: Start) -> None:
    with pytest.raises(EngineTransient, match="fired up and ready") as caught:
        start(faults={"never_ready": True}, settings={"start_deadline_s": 3})
    assert caught.value.reason is Reason.ENGINE_HANG


def test_slow_start_is_waited_for(start: Start) -> None:
    begun = time.monotonic()
    engine, _ = start(faults={"slow_start_s": 2})
    assert time.monotonic() - begun > 2
    engine.run(wave_of(1))


def test_another_release_is_refused(start: Start) -> None:
    with pytest.raises(ConfigurationError, match=r"release 0\.5\.23, the study pins 0\.5\.99"):
        start(settings={"release": "0.5.99"})


def test_server_that_resolved_another_width_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(EngineBug, match="speculative_num_draft_tokens to 8, the study asks for 4"):
        start(settings={"models": {"tiny": {"speculative_flags": ["--speculative-num-draft-tokens", "8"]}}})


def test_board_that_is_not_free(tmp_path: Path) -> None:
    engine = SglangEngine(board_processes=lambda _: (4711,))
    spec = specs.launch(
        specs.model(write_checkpoint(tmp_path / "tiny")),
        specs.drafter("plain"),
        tmp_path,
        double_settings({}, board_free_s=0),
    )
    with pytest.raises(EngineTransient, match="4711") as caught:
        engine.start(spec)
    assert caught.value.reason is Reason.NODE_TROUBLE


def test_program_that_is_missing_names_the_remedy(start: Start) -> None:
    with pytest.raises(ConfigurationError, match=r"install_sglang\.sh"):
        start(settings={"entry": ["/no/such/sglang"]})


# -- waves that fail


def test_hang_in_a_wave(start: Start) -> None:
    engine, _ = start(faults={"hang_after": 20}, settings={"stall_s": 1.5})
    with pytest.raises(EngineTransient) as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.ENGINE_HANG


def test_dropped_stream_of_a_living_server(start: Start) -> None:
    engine, _ = start(faults={"drop_after": 20})
    with pytest.raises(EngineTransient) as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.STREAM_BROKEN


def test_sudden_kill(start: Start) -> None:
    engine, _ = start(faults={"kill_after": 20})
    with pytest.raises(EngineTransient, match="SIGKILL") as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.ENGINE_CRASH


def test_out_of_memory_in_a_wave_is_infeasible_with_the_capacity(start: Start) -> None:
    engine, _ = start(faults={"die_after": [20, OOM]})
    with pytest.raises(EngineInfeasible) as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.OOM_RUN
    assert caught.value.capacity_requests == 4


def test_watchdog_in_a_wave(start: Start) -> None:
    engine, _ = start(
        faults={"die_after": [20, "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"]}
    )
    with pytest.raises(EngineTransient) as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.ENGINE_HANG


WAVE_FIELDS = (
    "spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram",
    "cached_tokens", "completion_tokens", "prompt_tokens", "finish_reason", "num_retractions", "index", "output_ids",
    "meta_info", "decode_moments", "num_running_reqs", "total_prefill_busy_us", "text", "type", "loads",
)  # fmt: skip


def set_faults(engine: SglangEngine, faults: dict[str, Any]) -> None:
    """Change the faults of a running double."""
    assert engine._launch is not None
    assert engine._launch.api._call("POST", "/double/faults", faults)[0] == 200


def test_missing_field_is_an_error_and_never_a_zero(start: Start) -> None:
    engine, _ = start()
    for name in WAVE_FIELDS:
        set_faults(engine, {"omit": name})
        with pytest.raises(EngineBug, match=f"lacks '{name}'"):
            engine.run(wave_of())
    set_faults(engine, {})
    assert len(engine.run(wave_of()).requests) == 4


@pytest.mark.parametrize(
    "name",
    ["version", "max_total_num_tokens", "effective_max_running_requests_per_dp", "decode_cuda_graph_bs", "random_seed"],
)
def test_missing_field_at_start(start: Start, name: str) -> None:
    with pytest.raises(EngineBug, match=f"lacks '{name}'"):
        start(faults={"omit": name})


def test_fewer_tokens_than_asked_stay_as_they_came(start: Start) -> None:
    engine, _ = start(faults={"short": 10})
    wave = engine.run(wave_of())
    assert [r.committed_tokens for r in wave.requests] == [30] * 4
    assert wave.notes["token_count_mismatches"] == []


@pytest.mark.parametrize("scheme", ["plain", "ngram"])
def test_tokens_lost_on_the_way_contradict_the_counts(start: Start, scheme: str) -> None:
    engine, _ = start(specs.drafter(scheme, 1 if scheme == "plain" else 2), faults={"lose": 1})
    wave = engine.run(wave_of())
    assert wave.notes["token_count_mismatches"] == ["p0", "p1", "p2", "p3"]
    assert wave.faults == (Reason.DENOMINATOR_MISMATCH,)
    assert all(r.committed_tokens < 40 and r.cut_tokens >= 1 for r in wave.requests)


def test_cache_hits_are_reported(start: Start) -> None:
    engine, _ = start(faults={"cached": 16})
    assert all(r.cached_tokens == 16 for r in engine.run(wave_of()).requests)


def test_capacity_below_the_batch_is_partial(start: Start) -> None:
    engine, capacity = start(config={"running_limit": 3}, concurrencies=(4,))
    assert capacity.max_running_requests == 3
    wave = engine.run(wave_of())
    assert wave.peak_batch_engine == 3
    assert wave.realized_batch_engine is not None and wave.realized_batch_engine < 3.01
    assert all(r.committed_tokens == 40 for r in wave.requests)


def test_steps_without_graphs_are_a_fallback(start: Start) -> None:
    engine, _ = start(faults={"eager": True})
    assert engine.run(wave_of()).capture_verified is False


def test_a_draft_without_graphs_is_a_fallback_although_the_target_has_them(start: Start) -> None:
    engine, _ = start(faults={"no_draft_graph": True})
    wave = engine.run(wave_of())
    assert wave.notes["graph_steps"] == wave.notes["steps_logged"] > 0
    assert wave.capture_verified is False


# -- ends


def test_orphan_and_ignored_term_do_not_outlive_stop(start: Start, tmp_path: Path) -> None:
    engine, capacity = start(faults={"orphan": True, "ignore_term": True})
    log = (tmp_path / "server.log").read_text()
    orphan = int(log.split("orphan ")[1].split()[0])
    assert capacity.measured_pid is not None and psutil.pid_exists(orphan)
    engine.stop()
    gone = (capacity.measured_pid, orphan)
    assert wait_until(lambda: not any(psutil.pid_exists(p) for p in gone), 10, 0.05)


def test_engine_starts_afresh_after_a_crash_and_logs_stay_apart(tmp_path: Path) -> None:
    engine = SglangEngine(board_processes=lambda _: ())
    target = specs.model(write_checkpoint(tmp_path / "tiny"))
    plain = specs.drafter("plain")
    broken = double_settings({"faults": {"die": {"phase": "load", "message": OOM}}})
    with pytest.raises(EngineInfeasible):
        engine.start(specs.launch(target, plain, tmp_path, broken))
    killed = double_settings({"faults": {"kill_after": 3}})
    try:
        engine.start(specs.launch(target, plain, tmp_path, killed))
        with pytest.raises(EngineTransient):
            engine.run(wave_of())
        engine.start(specs.launch(target, plain, tmp_path, double_settings({})))
        assert len(engine.run(wave_of()).requests) == 4
    finally:
        engine.stop()
    engine.stop()
    with pytest.raises(EngineBug, match="no server is started"):
        engine.counters()


def test_prompts_longer_than_allowed(start: Start) -> None:
    engine, _ = start(max_prompt_tokens=5)
    with pytest.raises(EngineInfeasible) as caught:
        engine.run(wave_of())
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG


def test_checkpoints_are_staged_once_and_keep_their_identity(start: Start, tmp_path: Path) -> None:
    settings = {"staging": str(tmp_path / "node")}
    engine, capacity = start(settings=settings)
    assert capacity.resolved["model_path"].startswith(str(tmp_path / "node"))
    staged = capacity.resolved["specjoule"]["staged"]
    assert str(tmp_path / "tiny") in staged
    assert len(engine.run(wave_of(1)).requests) == 1


def test_unpinned_revisions_are_refused_at_a_start(tmp_path: Path) -> None:
    target = specs.model("/x").model_copy(update={"checkpoint": Checkpoint(path="org/m", revision="to-be-pinned")})
    with pytest.raises(ConfigurationError, match="still 'to-be-pinned'; pin its commit"):
        SglangEngine().start(specs.launch(target, specs.drafter("plain"), tmp_path))


def test_callers_environment_with_simulated_acceptance_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    with pytest.raises(ConfigurationError, match="SGLANG_SIMULATE_ACC_LEN"):
        start()
