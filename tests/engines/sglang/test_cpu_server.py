"""The real engine over the real SGLang HTTP server: plain decoding of a tiny dummy model on the CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specjoule.engines.base import Batch, Capacity, EngineInfeasible
from specjoule.engines.sglang.engine import SglangEngine
from specjoule.engines.sglang.settings import RELEASE
from specjoule.prompts.corpus import Prompt
from specjoule.prompts.filler import filler
from specjoule.reasons import Reason
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import ROOT, STUBS
from tests.engines.sglang.tiny import EOS_ID, SPECIALS, write_checkpoint

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


def prompts(count: int, start: int = 0) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            id=f"p{i}",
            corpus="test",
            language="en",
            messages=(("user", f"Question {i}: " + "word " * (i % 7)),),
            digest=f"d{i}",
            license="CC0-1.0",
        )
        for i in range(start, start + count)
    )


def cpu_settings(python: Path, **more: Any) -> dict[str, Any]:
    return {
        "interpreter": str(python),
        "device": "cpu",
        "attention_backend": "torch_native",
        "load_format": "dummy",
        "mem_fraction_static": None,
        "max_total_tokens": 20000,
        "environment": {"PYTHONPATH": str(STUBS), "OMP_NUM_THREADS": "1"},
        "start_deadline_s": 180,
        "stop_grace_s": 10,
        **more,
    }


@pytest.fixture(scope="module")
def running(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SglangEngine, Capacity]]:
    folder = tmp_path_factory.mktemp("cpu-server")
    spec = specs.launch(
        specs.model(write_checkpoint(folder / "tiny")),
        specs.drafter("plain"),
        folder,
        cpu_settings(sglang_python),
        gpu=specs.CPU,
        capture=False,
        concurrencies=(1, 4, 8),
        device_uuid=None,
        weight_dtype="float32",
        kv_dtype="float32",
    )
    engine = SglangEngine()
    try:
        yield engine, engine.start(spec)
    finally:
        engine.stop()


def test_capacity_is_read_back(running: tuple[SglangEngine, Capacity]) -> None:
    _, capacity = running
    assert capacity.engine_version == f"sglang-{RELEASE}"
    assert capacity.max_running_requests == 8
    assert capacity.kv_tokens == 20000
    assert capacity.captured_batches == ()
    assert re.fullmatch("local-[0-9a-f]{12}", capacity.model_revision)
    assert capacity.resolved["random_seed"] == 3
    assert EOS_ID in capacity.resolved["specjoule"]["eos_ids"]
    assert len(capacity.resolved) > 400
    assert capacity.measured_pid is not None and psutil.pid_exists(capacity.measured_pid)


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_waves(running: tuple[SglangEngine, Capacity], concurrency: int) -> None:
    engine, _ = running
    engine.warm_up(concurrency, prompts(concurrency, start=500), 4)
    engine.flush()
    before = engine.counters()
    wave = engine.run(Batch(prompts(concurrency), max_new_tokens=24, ignore_eos=True))
    after = engine.counters()
    assert [r.prompt_id for r in wave.requests] == [f"p{i}" for i in range(concurrency)]
    for request in wave.requests:
        assert request.committed_tokens == sum(request.chunk_tokens) == len(request.output_token_ids) == 24
        assert request.finish_reason == "length"
        assert request.rounds == 23 and request.accepted_draft_tokens == 0 and request.cut_tokens == 0
        assert request.cached_tokens == 0
        assert request.acceptance_histogram is None
        assert list(request.chunk_t_ns) == sorted(request.chunk_t_ns)
        assert wave.submit_ns < request.chunk_t_ns[0] <= request.chunk_t_ns[-1] <= wave.end_ns
        ends = [i for i, token in enumerate(request.output_token_ids) if token in (EOS_ID, 256)]
        assert request.first_eos_position == (ends[0] if ends else None)
    assert wave.steps in (23, 24)
    assert wave.peak_batch_engine == concurrency
    assert wave.realized_batch_engine == pytest.approx(concurrency, rel=0.05)
    assert wave.verify_widths == (1,)
    assert wave.capture_verified is True
    assert wave.notes["token_count_mismatches"] == []
    assert set(wave.notes["server_times"][0]) == {
        "request_received_ts", "forward_entry_time", "prefill_finished_time", "request_finished_ts"
    }  # fmt: skip
    assert after["decode_steps"] > before["decode_steps"]


def test_same_prompts_come_back_uncached_and_the_same(running: tuple[SglangEngine, Capacity]) -> None:
    engine, _ = running
    batch = Batch(prompts(4), max_new_tokens=8, ignore_eos=True)
    first, second = engine.run(batch), engine.run(batch)
    assert [r.output_token_ids for r in first.requests] == [r.output_token_ids for r in second.requests]
    assert all(r.cached_tokens == 0 for r in second.requests)


def test_prompts_are_brought_to_a_context_under_the_real_template(running: tuple[SglangEngine, Capacity]) -> None:
    engine, _ = running
    pool = prompts(4)
    texts = tuple(filler(ROOT, p.digest, 1024) for p in pool)
    wave = engine.run(Batch(pool, max_new_tokens=8, ignore_eos=True, context_tokens=1024, filler=texts))
    assert [r.prompt_tokens for r in wave.requests] == [1024] * 4
    assert all(r.cached_tokens == 0 and r.committed_tokens == 8 for r in wave.requests)
    assert engine._launch is not None
    sent = engine._launch.filled[pool[0].digest, 1024]
    own = engine._launch.token_ids[pool[0].digest]
    start = sent.index(SPECIALS.index("<|im_start|>") + 256)
    assert start == 0 and sent[-20:] == own[-20:] and sent.count(EOS_ID) == own.count(EOS_ID)


def test_a_profile_of_the_real_server_holds_the_spans_that_are_read(running: tuple[SglangEngine, Capacity]) -> None:
    engine, _ = running
    shown = engine.prove(4, prompts(4))
    assert "problem" not in shown, shown
    target = shown["roles"]["target"]
    assert 10 <= target["passes"] <= 13
    assert target["with_graph"] == target["launches"] == 0, "there are no graphs on a processor"
    assert set(shown["roles"]) == {"target"}


def test_the_pinned_source_opens_the_spans_that_are_read(sglang_python: Path) -> None:
    source = sglang_python.parent.parent / "lib" / "python3.11" / "site-packages" / "sglang" / "srt"
    worker = (source / "speculative" / "eagle_worker_v2.py").read_text()
    assert all(f'spec_stage_span("{stage}")' in worker for stage in ("draft", "draft_extend"))
    spans = (source / "utils" / "profile_utils.py").read_text()
    assert 'stage = "VERIFY"' in spans and 'stage = "DRAFT"' in spans and 'base = f"step[{stage} bs={bs}"' in spans


def test_more_requests_than_the_server_runs_at_once_show_in_peak_and_mean(
    running: tuple[SglangEngine, Capacity],
) -> None:
    engine, capacity = running
    wave = engine.run(Batch(prompts(12), max_new_tokens=24, ignore_eos=True))
    assert capacity.max_running_requests == 8
    assert wave.peak_batch_engine == 8
    assert wave.realized_batch_engine is not None and wave.realized_batch_engine < 8.01
    assert all(r.committed_tokens == 24 for r in wave.requests)


def test_what_the_model_cannot_hold_is_infeasible(running: tuple[SglangEngine, Capacity]) -> None:
    engine, _ = running
    with pytest.raises(EngineInfeasible, match="context length") as caught:
        engine.run(Batch(prompts(2), max_new_tokens=5000, ignore_eos=True))
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG
    assert len(engine.run(Batch(prompts(2), max_new_tokens=4, ignore_eos=True)).requests) == 2


def shape(value: Any) -> Any:
    """Return the keys of an answer, nested; lists by their first item, everything else by nothing."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return None


def base_url(engine: SglangEngine) -> str:
    assert engine._launch is not None
    return engine._launch.api.generate_url.removesuffix("/generate")


def test_answers_of_the_double_have_the_shape_of_the_real_servers(running: tuple[SglangEngine, Capacity]) -> None:
    """What the double copies is what the server of today says, key by key; record anew with `record_answers`."""
    from tests.engines.sglang.record_answers import ANSWERS, record

    real, copied = record(base_url(running[0])), json.loads(ANSWERS.read_text())
    for name in ("server_info", "loads", "tokenize", "chunk", "last_chunk"):
        assert shape(copied[name]) == shape(real[name]), name
    assert copied["flush"] == real["flush"]


def test_speculation_fields_are_those_of_the_pinned_source(sglang_python: Path) -> None:
    """The double's fields, and those the engine reads, are set by the pinned source under these very names."""
    from tests.engines.sglang.double import Arguments, Double
    from tests.engines.sglang.plans import Plan

    packages = next((sglang_python.parent.parent / "lib").glob("python3*")) / "site-packages"
    source = (packages / "sglang/srt/managers/tokenizer_manager.py").read_text()
    fields = set(re.findall(r'meta_info\["(spec_\w+)"\]', source))
    double = Double(Arguments.of(["--speculative-algorithm", "EAGLE3", "--speculative-num-draft-tokens", "4"]), {})
    given = set(double._speculation(Plan(((1,), (2, 3)), ("a", "bc"), 1, (0, 1, 0, 0))))
    assert given <= fields
    assert fields - given == {
        "spec_cap_length", "spec_block_accept_length", "spec_cap_lens_histogram"
    }, "what only DSpark adds"  # fmt: skip
    log = (packages / "sglang/srt/managers/scheduler_components/metrics_reporter.py").read_text()
    for piece in ("Decode batch{iter_msg}, #running-req: ", "accept len: ", "{self._graph_backend_label}: "):
        assert piece in log
    capture = (packages / "sglang/srt/model_executor/model_runner_components/cuda_graph_setup.py").read_text()
    eagle = (packages / "sglang/srt/speculative/eagle_worker_v2.py").read_text()
    frozen = (packages / "sglang/srt/speculative/frozen_kv_mtp_worker_v2.py").read_text()
    for piece, text in (
        ('f"Capture {capture_name} {graph_backend[model_runner.device]} end. "', capture),
        ('f"bs={runner.capture_bs}, "', capture),
        ("Capture draft decode CUDA graph begin.", eagle),
        ("Capture draft decode CUDA graph end. ", eagle),
        ("Capture draft extend CUDA graph end. ", eagle),
        ("Capture Frozen-KV MTP draft cuda graph end.", frozen),
    ):
        assert piece in text, piece


def test_messages_of_outcomes_are_those_of_the_pinned_source(sglang_python: Path) -> None:
    packages = next((sglang_python.parent.parent / "lib").glob("python3*")) / "site-packages/sglang/srt"
    for file, piece in (
        ("model_executor/pool_configurator.py", "Not enough memory. Please try to increase --mem-fraction-static."),
        ("model_executor/runner/decode_cuda_graph_runner.py", "Capture cuda graph failed: "),
        ("models/registry.py", "are not supported for now. "),
        ("utils/watchdog.py", "watchdog timeout "),
        ("mem_cache/allocation.py", "Prefill out of memory. Try to lower your batch size."),
        ("mem_cache/allocation.py", "Decode out of memory. Try to lower your batch size."),
        ("mem_cache/allocation.py", "alloc_req_slots runs out of memory. "),
        ("server_args.py", "Port is already in use. "),
        (
            "arg_groups/speculative_hook.py",
            "DFLASH speculative decoding requires setting --speculative-draft-model-path.",
        ),
    ):
        assert piece in (packages / file).read_text(), piece
