"""The engine over a tiny random model: equality with plain greedy decoding, cuts, ragged batches, refusals."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specjoule.clock import VirtualClock
from specjoule.engines.base import Batch, EngineBug, EngineInfeasible, WaveResult
from specjoule.engines.reference import ReferenceEngine
from specjoule.errors import ConfigurationError
from specjoule.reasons import Reason
from specjoule.study.catalogue import Checkpoint

from .conftest import build_tiny, launch, prompts_of_lengths

pytestmark = pytest.mark.reference
LENGTHS = (5, 17, 1, 9, 30, 9, 12, 3)


@pytest.fixture
def engine() -> Iterator[ReferenceEngine]:
    engine = ReferenceEngine()
    yield engine
    engine.stop()


def drafting(scheme: str, draft: Path) -> dict[str, Any]:
    """Arguments of `launch` for one scheme."""
    return {
        "plain": {},
        "ngram": {},
        "layer-skip": {"draft_settings": {"kept_layers": 3}},
        "draft-model": {"draft": draft},
    }[scheme]


def outputs(wave: WaveResult) -> list[tuple[int, ...]]:
    return [request.output_token_ids for request in wave.requests]


def check_identities(wave: WaveResult, width: int) -> None:
    assert wave.verify_widths == ((width,) if wave.steps else ())
    assert wave.steps == max(r.rounds for r in wave.requests)
    for r in wave.requests:
        assert r.acceptance_histogram is not None
        assert r.committed_tokens == 1 + r.accepted_draft_tokens + r.rounds - r.cut_tokens
        assert sum(r.acceptance_histogram) == r.rounds
        assert sum(i * count for i, count in enumerate(r.acceptance_histogram)) == r.accepted_draft_tokens
        assert r.proposed_tokens == r.rounds * (width - 1)
        assert wave.submit_ns < r.chunk_t_ns[0] and r.chunk_t_ns[-1] <= wave.end_ns
        assert sorted(r.chunk_t_ns) == list(r.chunk_t_ns) and r.cached_tokens == 0


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    ("scheme", "width"),
    [("plain", 1), *((s, w) for s in ("ngram", "layer-skip", "draft-model") for w in (2, 4, 8, 16))],
)
def test_commits_plain_greedy_text(
    engine: ReferenceEngine,
    tiny: Path,
    tiny_draft: Path,
    greedy: Callable[..., list[tuple[int, ...]]],
    scheme: str,
    width: int,
    batch: int,
) -> None:
    prompts = prompts_of_lengths(LENGTHS[:batch])
    engine.start(launch(tiny, scheme, width, **drafting(scheme, tiny_draft)))
    wave = engine.run(Batch(prompts, 40, ignore_eos=True))
    assert outputs(wave) == greedy(tiny, prompts, 40)
    assert [r.prompt_tokens for r in wave.requests] == list(LENGTHS[:batch])
    assert all(r.finish_reason == "length" for r in wave.requests)
    check_identities(wave, width)
    again = engine.run(Batch(prompts, 40, ignore_eos=True))
    assert outputs(again) == outputs(wave)
    assert [r.rounds for r in again.requests] == [r.rounds for r in wave.requests], "the second wave starts cold"


def test_all_layers_kept_accept_everything(engine: ReferenceEngine, tiny: Path) -> None:
    engine.start(launch(tiny, "layer-skip", 4, draft_settings={"kept_layers": 4}))
    wave = engine.run(Batch(prompts_of_lengths(LENGTHS), 41, ignore_eos=True))
    for request in wave.requests:
        assert request.acceptance_histogram == (0, 0, 0, 10)
        assert request.cut_tokens == 0
    assert wave.steps == 10


@pytest.mark.parametrize(("scheme", "width"), [("plain", 1), ("ngram", 8), ("layer-skip", 4), ("draft-model", 4)])
@pytest.mark.parametrize("several", [False, True])
def test_eos_ends_requests_and_the_others_go_on(
    engine: ReferenceEngine,
    tmp_path: Path,
    tiny: Path,
    tiny_draft: Path,
    greedy: Callable[..., list[tuple[int, ...]]],
    scheme: str,
    width: int,
    several: bool,
) -> None:
    prompts = prompts_of_lengths(LENGTHS)
    texts = greedy(tiny, prompts, 40)
    # Tokens of the texts themselves as EOS: one that ends a request inside, one that is a first token.
    eos = [texts[0][6], texts[3][0]] if several else [texts[0][6]]
    path = build_tiny(tmp_path / "eos", seed=0, eos=eos if several else eos[0])
    expected = []
    for text in texts:
        end = next((i for i, token in enumerate(text) if token in eos), None)
        expected.append((text if end is None else text[: end + 1], end))
    assert len({len(text) for text, _ in expected}) > 1, "the batch must become ragged"

    engine.start(launch(path, scheme, width, **drafting(scheme, tiny_draft)))
    wave = engine.run(Batch(prompts, 40, ignore_eos=False))
    assert outputs(wave) == [text for text, _ in expected]
    assert [r.first_eos_position for r in wave.requests] == [end for _, end in expected]
    assert [r.finish_reason for r in wave.requests] == ["length" if end is None else "eos" for _, end in expected]
    check_identities(wave, width)

    ignoring = engine.run(Batch(prompts, 40, ignore_eos=True))
    assert outputs(ignoring) == texts
    assert [r.first_eos_position for r in ignoring.requests] == [end for _, end in expected]


def test_eos_cuts_a_round(engine: ReferenceEngine, tmp_path: Path, tiny: Path, greedy: Callable[..., Any]) -> None:
    prompts = prompts_of_lengths((5,))
    text = greedy(tiny, prompts, 40)[0]
    place = next(i for i in range(2, 40) if text[i] not in text[:i] and (i - 1) % 8 != 7)
    path = build_tiny(tmp_path / "eos", seed=0, eos=text[place])
    engine.start(launch(path, "layer-skip", 8, draft_settings={"kept_layers": 4}))
    request = engine.run(Batch(prompts, 40, ignore_eos=False)).requests[0]
    assert request.committed_tokens == place + 1
    assert request.cut_tokens == 8 * request.rounds - place > 0
    assert request.accepted_draft_tokens == 7 * request.rounds, "the histogram is before the cut"


def test_the_limit_cuts_a_round(engine: ReferenceEngine, tiny: Path) -> None:
    engine.start(launch(tiny, "layer-skip", 8, draft_settings={"kept_layers": 4}))
    for limit, rounds, cut in ((1, 0, 0), (2, 1, 7), (9, 1, 0), (10, 2, 7)):
        wave = engine.run(Batch(prompts_of_lengths((5, 9)), limit, ignore_eos=True))
        for request in wave.requests:
            assert (request.committed_tokens, request.rounds, request.cut_tokens) == (limit, rounds, cut)
        assert wave.steps == rounds
        check_identities(wave, 8)


def test_prefill_in_passes_changes_nothing(
    engine: ReferenceEngine, tiny: Path, greedy: Callable[..., list[tuple[int, ...]]]
) -> None:
    prompts = prompts_of_lengths(LENGTHS)
    for prefill_tokens in (1, 20, 4096):
        engine.start(launch(tiny, "ngram", 4, settings={"prefill_tokens": prefill_tokens}))
        wave = engine.run(Batch(prompts, 24, ignore_eos=True))
        assert outputs(wave) == greedy(tiny, prompts, 24)
        arrivals = [r.chunk_t_ns[0] for r in wave.requests]
        assert arrivals[2] <= arrivals[4], "the shortest prompt is not behind the longest"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_of_transformers(
    engine: ReferenceEngine, tiny: Path, greedy: Callable[..., Any], attention: str
) -> None:
    prompts = prompts_of_lengths(LENGTHS)
    capacity = engine.start(launch(tiny, "ngram", 4, settings={"attention": attention}))
    assert capacity.resolved["attention"] == attention
    assert outputs(engine.run(Batch(prompts, 24, ignore_eos=True))) == greedy(tiny, prompts, 24)


def test_up_to_the_last_position_of_the_context(
    engine: ReferenceEngine, tiny: Path, greedy: Callable[..., list[tuple[int, ...]]]
) -> None:
    prompts = prompts_of_lengths((200,))
    engine.start(launch(tiny, "ngram", 16))
    assert outputs(engine.run(Batch(prompts, 56, ignore_eos=True))) == greedy(tiny, prompts, 56)
    with pytest.raises(EngineInfeasible, match="exceeds the 256") as caught:
        engine.run(Batch(prompts, 57, ignore_eos=True))
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG


def test_max_prompt_tokens(engine: ReferenceEngine, tiny: Path) -> None:
    engine.start(launch(tiny, max_prompt_tokens=8))
    engine.run(Batch(prompts_of_lengths((8,)), 2, ignore_eos=True))
    with pytest.raises(EngineInfeasible, match="9 tokens, more than max_prompt_tokens 8") as caught:
        engine.run(Batch(prompts_of_lengths((3, 9)), 2, ignore_eos=True))
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG


def test_capacity_and_counters(engine: ReferenceEngine, tiny: Path, tiny_draft: Path) -> None:
    capacity = engine.start(launch(tiny, "draft-model", 4, draft=tiny_draft, settings={"threads": 1}, capture=True))
    assert capacity.engine_version.startswith("reference-") and "+torch" in capacity.engine_version
    assert capacity.model_revision.startswith("files-") and capacity.drafter_revision != capacity.model_revision
    assert capacity.max_running_requests is None and capacity.captured_batches == ()
    assert capacity.resolved["threads"] == 1 and capacity.resolved["device"] == "cpu"
    engine.warm_up(4, prompts_of_lengths((3,)), 4)
    engine.flush()
    before = engine.counters()
    wave = engine.run(Batch(prompts_of_lengths(LENGTHS), 20, ignore_eos=True))
    gained = {key: value - before[key] for key, value in engine.counters().items()}
    assert gained["steps"] == wave.steps
    assert gained["draft_steps"] == 3 * wave.steps == wave.notes["draft_steps"]
    assert gained["committed_tokens"] == 8 * 20
    assert gained["rounds"] == sum(r.rounds for r in wave.requests)
    assert wave.capture_verified is None, "there is nothing to capture on a CPU"
    assert wave.peak_batch_engine == 8
    assert wave.realized_batch_engine is not None and 1 <= wave.realized_batch_engine <= 8


def test_stamps_are_of_the_given_clock(tiny: Path) -> None:
    class Ticking(VirtualClock):
        def now_ns(self) -> int:
            self.advance_ns(1)
            return super().now_ns()

    engine = ReferenceEngine(Ticking(start_ns=0))
    engine.start(launch(tiny))
    request = engine.run(Batch(prompts_of_lengths((4,)), 3, ignore_eos=True)).requests[0]
    assert request.chunk_t_ns == (2, 3, 4) and request.chunk_tokens == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"settings": {"colour": 1}}, ConfigurationError, "does not know 'colour'"),
        ({"settings": {"threads": 0}}, ConfigurationError, "engine.settings.threads"),
        ({"settings": {"device": 3}}, ConfigurationError, "engine.settings.device"),
        ({"settings": {"device": "toaster"}}, ConfigurationError, "is no device"),
        (
            {"settings": {"dtype": "bfloat16"}},
            ConfigurationError,
            "weight_dtype of tiny, .* set the model's weight_dtype",
        ),
        ({"kv_dtype": "bfloat16"}, ConfigurationError, "kv_dtype is bfloat16"),
        ({"weight_dtype": "int4", "kv_dtype": "int4"}, ConfigurationError, "not int4"),
        ({"scheme": "layer-skip", "width": 4}, ConfigurationError, "needs `kept_layers`"),
        ({"scheme": "ngram", "width": 4, "ngram_state": "warm"}, EngineInfeasible, "always cold"),
        ({"scheme": "ngram", "width": 4, "draft_settings": {"max_ngram": 0}}, ConfigurationError, "min_ngram"),
        ({"scheme": "ngram", "width": 4, "draft_settings": {"depth": 0}}, ConfigurationError, "'depth'"),
        ({"scheme": "plain", "width": 2}, ConfigurationError, "cannot propose 1"),
        ({"scheme": "eagle3", "width": 4}, EngineInfeasible, "does not run scheme eagle3"),
        ({"scheme": "draft-model", "width": 4}, EngineInfeasible, "no draft checkpoint"),
    ],
)
def test_refusals(
    engine: ReferenceEngine, tiny: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.start(launch(tiny, **changes))


@pytest.mark.parametrize("kept", [0, 5, True, [0, 9], [2, 1], [], "all"])
def test_impossible_layers(engine: ReferenceEngine, tiny: Path, kept: Any) -> None:
    with pytest.raises(ConfigurationError, match="kept_layers"):
        engine.start(launch(tiny, "layer-skip", 4, draft_settings={"kept_layers": kept}))


def test_a_count_of_layers() -> None:
    from specjoule.engines.reference.drafters.entries import choose_layers

    assert sorted(set(range(30)) - set(choose_layers(26, 30, "d"))) == [4, 5, 25, 26]
    for layers in range(1, 40):
        for kept in range(1, layers + 1):
            chosen = choose_layers(kept, layers, "d")
            assert len(chosen) == kept and chosen == sorted(set(chosen)) and set(chosen) <= set(range(layers))
            assert kept < 3 or {0, layers - 1} <= set(chosen)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (Checkpoint(path="/nowhere/model"), "no checkpoint at /nowhere/model"),
        (Checkpoint(path="owner/model"), "full commit"),
        (Checkpoint(path="owner/model", revision="main"), "not 'main'"),
    ],
)
def test_checkpoints_that_cannot_be_right(engine: ReferenceEngine, checkpoint: Checkpoint, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engine.start(launch("", checkpoint=checkpoint))


def test_a_sliding_window_bounds_the_context(engine: ReferenceEngine, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(build_tiny(tmp_path / "tiny", seed=0))
    config = MistralConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        sliding_window=16,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "sliding")
    tokenizer.save_pretrained(tmp_path / "sliding")
    engine.start(launch(tmp_path / "sliding"))
    engine.run(Batch(prompts_of_lengths((8,)), 8, ignore_eos=True))
    with pytest.raises(EngineInfeasible, match="exceeds the 16"):
        engine.run(Batch(prompts_of_lengths((8,)), 9, ignore_eos=True))


def test_other_tokenizer_is_refused(engine: ReferenceEngine, tiny: Path, tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "other", seed=1)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"w5"', '"x5"'))
    with pytest.raises(EngineInfeasible, match="tokenizer differs") as caught:
        engine.start(launch(tiny, "draft-model", 4, draft=other))
    assert caught.value.reason is Reason.DRAFTER_REFUSED


def test_out_of_memory_is_a_result(engine: ReferenceEngine, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    engine.start(launch(tiny))
    launched = engine._running()
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ):

        def fail(*_: Any, error: BaseException = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(launched.target, "reserve", fail)
        with pytest.raises(EngineInfeasible, match="a batch of 2 requests") as caught:
            engine.run(Batch(prompts_of_lengths((3, 4)), 4, ignore_eos=True))
        assert caught.value.reason is Reason.OOM_RUN


def test_order_of_calls(engine: ReferenceEngine, tiny: Path) -> None:
    with pytest.raises(EngineBug, match="before `start`"):
        engine.counters()
    engine.start(launch(tiny))
    with pytest.raises(EngineBug, match="at least one prompt"):
        engine.run(Batch((), 4, ignore_eos=True))
    engine.stop()
    engine.stop()
    with pytest.raises(EngineBug, match="after `stop`"):
        engine.run(Batch(prompts_of_lengths((3,)), 4, ignore_eos=True))


def test_importing_the_engine_is_cheap() -> None:
    code = "import sys, specjoule.engines.reference, specjoule.engines.embedded; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_prompts_keep_their_order(engine: ReferenceEngine, tiny: Path) -> None:
    prompts = prompts_of_lengths(LENGTHS)
    engine.start(launch(tiny))
    wave = engine.run(Batch(prompts, 2, ignore_eos=True))
    assert [r.prompt_id for r in wave.requests] == [p.id for p in prompts]
    assert dataclasses.is_dataclass(wave)
