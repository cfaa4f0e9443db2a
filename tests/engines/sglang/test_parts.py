"""The small pure parts: checkpoints' files, captured graphs, log lines, strict fields, outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specjoule.engines.base import EngineBug, EngineInfeasible, EngineTransient
from specjoule.engines.sglang import capture
from specjoule.engines.sglang.checkpoints import Located, chat_template_digest, eos_token_ids, folder_of, hub_cache
from specjoule.engines.sglang.fields import DecodeMoments, need, need_count, read_loads
from specjoule.engines.sglang.log import DecodeStep, LogReader, decode_steps, relevant_lines
from specjoule.engines.sglang.outcomes import judge
from specjoule.engines.sglang.server import Ended
from specjoule.errors import ConfigurationError
from specjoule.reasons import Reason
from tests.engines.sglang import specs
from tests.engines.sglang.tiny import EOS_ID, write_checkpoint

ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())
KILLED = Ended(None, 9, False)


# -- checkpoints


def test_ends_of_sequence_come_from_all_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    assert eos_token_ids(folder) == {EOS_ID, 256}
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text('{"text_config": {"eos_token_id": [7, 8]}}')
    assert eos_token_ids(folder) == {7, 8, EOS_ID}
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigurationError, match="end-of-sequence"):
        eos_token_ids(folder)


def test_template_digest_prefers_the_file_of_its_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    first = chat_template_digest(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert first is not None and chat_template_digest(folder) not in (None, first)


def test_hub_names_are_found_in_the_hubs_cache() -> None:
    cache = hub_cache({"HF_HOME": "/h"})
    assert folder_of(Located("org/m", "abc"), cache) == Path("/h/hub/models--org--m/snapshots/abc")
    assert folder_of(Located("/m", None), cache) == Path("/m")


# -- captured graphs

TARGET_END = "[t] Capture target verify CUDA graph end. bs=[1, 4], elapsed=1.0 s, mem usage=1 GB, avail mem=9 GB."
STEPS = (DecodeStep(4, True), DecodeStep(3, True))


def test_graphs_are_told_apart_by_role() -> None:
    found = capture.captured(
        "\n".join(
            [
                TARGET_END,
                "[t] Capture draft decode CUDA graph begin. backend=full, bs=[1, 4], avail mem=9 GB",
                "[t] Capture draft decode CUDA graph end. elapsed=1.0 s, mem usage=1 GB, avail mem=9 GB.",
                "[t] Capture target prefill CUDA graph end. elapsed=1.0 s",
                "[t] Capture draft extend CUDA graph begin. backend=full, avail mem=9 GB",
            ]
        )
    )
    assert dict(found.batches) == {"target": (1, 4), "draft": (1, 4)}


@pytest.mark.parametrize(
    ("roles", "steps", "expected"),
    [
        ({"target": (1, 4), "draft": (1, 4), "draft_extend": ()}, STEPS, True),
        ({"target": (1, 4), "draft": (1, 4), "draft_extend": ()}, (), None),
        ({"target": (1, 4), "draft": (1, 4)}, STEPS, False),
        ({"target": (1, 4), "draft": (1,), "draft_extend": ()}, STEPS, False),
        ({"target": (1, 4), "draft": (1, 4), "draft_extend": ()}, (*STEPS, DecodeStep(4, False)), False),
        ({}, STEPS, False),
    ],
)
def test_proof_needs_every_graph_and_every_step(
    roles: dict[str, tuple[int, ...]], steps: tuple[DecodeStep, ...], expected: bool | None
) -> None:
    assert capture.verify(True, specs.drafter("eagle3", 4, "/d"), (1, 4), capture.Captured(roles), steps) is expected


def test_fallback_line_outweighs_everything() -> None:
    found = capture.captured(f"{TARGET_END}\n[t] LiLiCorr ran eager (draft cuda graph unavailable for batch size 4; x)")
    assert found.fallbacks
    assert capture.verify(True, specs.drafter("ngram", 4), (1, 4), found, STEPS) is False


def test_capture_off_must_run_without_graphs() -> None:
    plain = specs.drafter("plain")
    assert capture.verify(False, plain, (), capture.Captured({}), (DecodeStep(1, False),)) is True
    assert capture.verify(False, plain, (), capture.Captured({}), STEPS) is False
    assert capture.verify(False, plain, (), capture.Captured({}), ()) is None


# -- log


def test_log_is_read_from_a_mark(tmp_path: Path) -> None:
    log = LogReader(tmp_path / "server.log")
    assert (log.mark(), log.since()) == (0, "")
    log.path.write_text("before\n")
    mark = log.mark()
    with log.path.open("a") as file:
        file.write(
            "[t] Decode batch, #running-req: 3, #token: 9, token usage: 0.00, accept len: 2.10, accept rate: 0.37, "
            "cuda graph: True, gen throughput (token/s): 9.1, #queue-req: 0\n"
            "[t] Prefill batch, #new-seq: 1, cuda graph: False\n"
        )
    assert decode_steps(log.since(mark)) == (DecodeStep(3, True),)


def test_relevant_lines_leave_the_chatter_out() -> None:
    text = 'Decode batch, x\nGET /ready HTTP/1.1" 200\nRuntimeError: out of memory\n\n'
    assert relevant_lines(text) == "RuntimeError: out of memory"


# -- fields


def test_real_loads_are_read() -> None:
    loads = read_loads(ANSWERS["loads"])
    assert loads.running == 0 and loads.kv_tokens == 20000 and loads.moments.steps > 0


def test_moments_give_the_time_weighted_mean() -> None:
    before = DecodeMoments(2, 2, 2000, 2, 2000, 2)
    after = DecodeMoments(4, 7, 5000, 15, 2000 + 4 * 1000 + 1 * 2000, 7)
    assert (after - before).mean_batch == pytest.approx(2.0)
    assert (before - before).mean_batch is None


@pytest.mark.parametrize("value", [None, "3", 1.5, True, -1])
def test_a_count_is_a_count(value: object) -> None:
    with pytest.raises(EngineBug):
        need_count("here", {"n": value}, "n")


def test_missing_field_says_where() -> None:
    with pytest.raises(EngineBug, match="here lacks 'n'"):
        need("here", {}, "n", int)


# -- outcomes


@pytest.mark.parametrize(
    ("log", "phase", "kind", "reason"),
    [
        ("Load weight begin\ntorch.OutOfMemoryError: CUDA out of memory", "start", EngineInfeasible, Reason.OOM_LOAD),
        (
            "Load weight end\nCapture target verify CUDA graph end. bs=[1]\nLoad weight begin\nError: out of memory",
            "start",
            EngineInfeasible,
            Reason.OOM_LOAD,
        ),
        (
            "Capture draft decode CUDA graph begin. x\nError: out of memory",
            "start",
            EngineInfeasible,
            Reason.OOM_CAPTURE,
        ),
        ("Uvicorn running on x\nRuntimeError: CUDA out of memory", "start", EngineInfeasible, Reason.OOM_RUN),
        (
            "Uvicorn running\nRuntimeError: Prefill out of memory. Try to lower your batch size.",
            "wave",
            EngineInfeasible,
            Reason.OOM_RUN,
        ),
        ("Error: speculative decoding is not supported by X", "wave", EngineTransient, Reason.ENGINE_CRASH),
        (
            "torch.AcceleratorError: CUDA error: the GPU has fallen off the bus",
            "wave",
            EngineTransient,
            Reason.NODE_TROUBLE,
        ),
        (
            "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            "start",
            EngineTransient,
            Reason.ENGINE_HANG,
        ),
        ("everything was fine", "wave", EngineTransient, Reason.ENGINE_CRASH),
    ],
)
def test_ends_are_judged_by_phase_and_message(log: str, phase: str, kind: type, reason: Reason) -> None:
    judged = judge(log, phase, KILLED, 12)  # type: ignore[arg-type]
    assert isinstance(judged, kind)
    assert isinstance(judged, EngineInfeasible | EngineTransient) and judged.reason is reason
    if isinstance(judged, EngineInfeasible):
        assert judged.capacity_requests == 12


def test_settings_in_the_log_are_no_errors() -> None:
    """The server prints all its arguments, in which any word of an error may stand."""
    log = (
        "server_args=ServerArgs(speculative_draft='x only supports y', error='out of memory', failed='DFLASH requires')"
    )
    judged = judge(log, "start", KILLED)
    assert isinstance(judged, EngineTransient) and judged.reason is Reason.ENGINE_CRASH
