"""What can be computed by hand must come out: energy of a constant round, intensity, n*, E[A], MoE reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjoule.clock import VirtualClock
from specjoule.engines.simulated.acceptance import World, expected_committed, logit, survival, uniforms
from specjoule.engines.simulated.board import SimulatedBoard
from specjoule.engines.simulated.memory import MemoryPlan, plan_memory
from specjoule.engines.simulated.parameters import find_parameters, load_parameters
from specjoule.engines.simulated.physics import Physics, Spread
from specjoule.engines.simulated.workload import (
    draft_network,
    draft_weight_bytes,
    expert_reach,
    pass_cost,
    target_network,
)
from specjoule.study.model import Study
from tests.engines.simulated.conftest import IDEAL, NO_SPREAD, ROOT, batch, make_prompts, started, with_settings

PATH = find_parameters(ROOT, None)


def test_constant_power_has_the_energy_computed_by_hand(rehearsal: Study) -> None:
    p = load_parameters(PATH, {"board": IDEAL["board"]})
    board = SimulatedBoard(rehearsal.gpus["H100"], p, VirtualClock(), "x", 1)
    board.loaded = True
    start = board.clock.now_ns()
    full = p.board.max_clock_mhz
    board.run(np.array([2.0, 3.0]), np.array([800.0, 300.0]), np.array([full, full]), None, np.zeros(2, dtype=np.int64))
    # 2 s at 118 + 400 W, 3 s at 118 + 100 W.
    assert board.energy_between(start, start + 5_000_000_000) == pytest.approx(2 * 518 + 3 * 218, rel=1e-12)
    assert board.energy_between(start + 1_000_000_000, start + 3_000_000_000) == pytest.approx(518 + 218, rel=1e-12)
    for _ in range(100):
        board.run(np.array([1.0]), np.array([100.0]), np.array([full]), None, np.zeros(1, dtype=np.int64))
    late = board.clock.now_ns()
    assert board.energy_between(late - 10_000_000_000, late) == pytest.approx(10 * 218, rel=1e-12)
    with pytest.raises(ValueError, match="is kept from"):
        board.energy_between(start, late)


def test_a_plain_round_costs_weights_cache_and_operations(rehearsal: Study) -> None:
    study = with_settings(rehearsal, overrides=IDEAL)
    engine, meter = started(study, "Qwen3-4B", "H100", "plain", mhz=1500, sizes=(1,))
    result = engine.run(batch(1, 3))
    request = result.requests[0]
    physics, board = engine.board.physics, engine.p.board
    target = target_network(study.models["Qwen3-4B"], engine.p.kernels)
    for i in (1, 2):
        cached = request.prompt_tokens + i
        read = 4.02e9 * 2 + cached * 2 * 36 * 8 * 128 * 2
        seconds = read / 2.2e12
        start, end = request.chunk_t_ns[i - 1], request.chunk_t_ns[i]
        assert (end - start) / 1e9 == pytest.approx(seconds, rel=1e-6)
        operations = 2 * 4.02e9 + target.attention_flop * cached
        v2 = float(physics.voltage2(np.asarray(1500.0)))
        watts = float(physics.idle_w(np.asarray(1500.0))) + board.active_w * 1500 / 1980 * v2
        joules = watts * seconds + read * 60e-12 + operations * physics.flop_pj * 1e-12 * v2
        assert meter.true_energy_j(start, end) == pytest.approx(joules, rel=1e-6)


def test_the_calibrated_peak_is_reached_at_the_power_limit(rehearsal: Study) -> None:
    p = load_parameters(PATH)
    for name, balance in (("H100", 316), ("H200", 163)):
        gpu = rehearsal.gpus[name]
        physics = Physics(gpu, p.board, p.kernels)
        assert gpu.peak_flop_s is not None and gpu.bandwidth_byte_s is not None
        assert gpu.peak_flop_s / gpu.bandwidth_byte_s == pytest.approx(balance, rel=2e-3)
        assert gpu.balance_flop_per_byte == balance
        mhz = np.asarray(physics.calibration_mhz)
        assert float(physics.compute_rate(mhz)) == pytest.approx(gpu.peak_flop_s)
        v2 = float(physics.voltage2(mhz))
        operations = gpu.peak_flop_s * physics.flop_pj * 1e-12 * v2
        traffic = gpu.peak_flop_s * p.board.matrix_byte_per_flop * p.board.byte_pj * 1e-12
        active = p.board.active_w * float(mhz) / p.board.max_clock_mhz * v2
        assert operations + traffic + active + p.board.loaded_idle_w == pytest.approx(gpu.power_limit_w)


@pytest.mark.parametrize(("gpu", "width", "context"), [("H100", 16, 260), ("H200", 16, 260), ("H200", 7, 260)])
def test_intensity_and_crossing_batch_are_recovered(rehearsal: Study, gpu: str, width: int, context: int) -> None:
    p = load_parameters(PATH, IDEAL)
    physics = Physics(rehearsal.gpus[gpu], p.board, p.kernels)
    net = target_network(rehearsal.models["Qwen3-4B"], p.kernels)
    balance = physics.peak / physics.bandwidth
    # F counts the attention to the cache as well: it belongs to a position's operations.
    f = net.flop_per_position + net.attention_flop * context
    w_bytes, k = net.bytes_loaded, float(net.cache_bytes(context))
    n = np.arange(1, 400, dtype=np.float64)
    cost = pass_cost(net, n, width, n * context, n * 0, p.kernels)
    assert cost.flop / cost.bytes == pytest.approx(n * width * f / (w_bytes + n * k), rel=1e-12)
    crossing = balance * w_bytes / (width * f - balance * k)
    mhz = np.asarray(physics.calibration_mhz)
    seconds = physics.pass_seconds(cost, mhz, Spread())
    by_memory = cost.bytes / physics.memory_rate(mhz)
    bound = np.nonzero(seconds > by_memory * (1 + 1e-12))[0]
    assert n[bound[0]] == np.ceil(crossing)


def test_plain_decoding_at_long_context_never_crosses(rehearsal: Study) -> None:
    p = load_parameters(PATH, IDEAL)
    physics = Physics(rehearsal.gpus["H200"], p.board, p.kernels)
    net = target_network(rehearsal.models["Qwen3-4B"], p.kernels)
    balance, k = physics.peak / physics.bandwidth, float(net.cache_bytes(8192))
    assert net.flop_per_position - balance * k <= 0
    cost = pass_cost(net, np.array([1e5]), 1, np.array([1e5 * 8192]), np.zeros(1), p.kernels)
    # Beyond any batch the intensity stays below the limit w F / K.
    assert float(cost.flop[0] / cost.bytes[0]) < (net.flop_per_position + net.attention_flop * 8192) / k


def test_expected_committed_of_a_constant_probability() -> None:
    assert float(expected_committed(survival(logit(0.7), 0.0, 6))) == pytest.approx(3.06, abs=5e-3)
    assert float(expected_committed(survival(logit(0.7), 0.0, 15))) == pytest.approx(3.32, abs=5e-3)
    s = survival(logit(0.7), 0.0, 7)
    assert float(s[6] / expected_committed(s[:6])) == pytest.approx(0.0269, abs=5e-5)


FLAT: dict[str, Any] = {
    "acceptance": {
        "pair_spread_logit": 0, "prompt_scale_logit": 0, "stretch_logit": 0, "repetition_logit": 0,
        "first_probability": {"dflash": 0.7}, "slope_logit": {"dflash": 0.0},
    },
    "text": {"default_degenerate_share": 0.0},
}  # fmt: skip


def test_drawn_rounds_recover_the_expectation_and_the_survival_curve(rehearsal: Study) -> None:
    study = with_settings(rehearsal, overrides=FLAT)
    engine, _ = started(study, "Qwen3-4B", "H200", "DFlash-16")
    requests = engine.run(batch(64)).requests
    rounds = sum(r.rounds for r in requests)
    histogram = np.sum([r.acceptance_histogram for r in requests], axis=0)
    kept = np.cumsum(histogram[::-1])[::-1][1:] / rounds
    assert 1 + sum(r.accepted_draft_tokens for r in requests) / rounds == pytest.approx(3.32, abs=0.06)
    assert kept[:6] == pytest.approx(0.7 ** np.arange(1, 7), abs=0.02)


def test_expert_reach() -> None:
    assert float(expert_reach(8, 4)) == pytest.approx(3.31, abs=5e-3)
    assert float(expert_reach(8, 16)) == pytest.approx(7.06, abs=5e-3)
    assert float(expert_reach(8, 1, 3)) == pytest.approx(3)
    assert float(expert_reach(8, 2, 4)) == pytest.approx(6)


def test_a_pass_reads_the_experts_it_reaches(rehearsal: Study) -> None:
    p = load_parameters(PATH, IDEAL)
    model = rehearsal.models["Qwen3-Coder-30B-A3B"]
    one_choice = model.architecture.model_copy(update={"experts": 8, "experts_per_token": 1, "active_parameters": 10e9})
    net = target_network(model.model_copy(update={"architecture": one_choice}), p.kernels)
    each = net.expert_parameters / 8 * net.weight_bytes
    cost = pass_cost(net, np.array([1.0, 4.0]), 4.0, np.zeros(2), np.zeros(2), p.kernels)
    assert cost.expert_bytes / each == pytest.approx([3.31, 7.06], abs=5e-3)
    # All parameters are counted once: dense, and what one token uses of the experts.
    assert net.dense_parameters + net.expert_parameters == pytest.approx(model.architecture.parameters)
    assert net.flop_per_position == pytest.approx(2 * 10e9)


def test_rollback_memory_is_n_k_snapshots(rehearsal: Study) -> None:
    engine, _ = started(rehearsal, "Qwen3.6-27B", "H200", "MTP-4", sizes=(16,))
    rollback = engine._launch.plan.rollback_bytes  # type: ignore[union-attr]
    assert rollback == pytest.approx((16 + 1) * 4 * 153.9e6)


@given(
    st.floats(30e9, 150e9), st.sampled_from([("Qwen3.6-27B", "MTP-4"), ("Qwen3.6-27B", "DFlash-16"),
    ("Qwen3.6-35B-A3B", "DFlash-16"), ("Gemma-4-31B", "plain")]), st.integers(1, 256), st.integers(200, 20_000),
)  # fmt: skip
def test_a_limit_that_does_not_start_names_the_highest_that_runs_whole(
    rehearsal: Study, memory_bytes: float, pair: tuple[str, str], limit: int, tokens: int
) -> None:
    p = load_parameters(PATH)
    model, drafter = rehearsal.models[pair[0]], rehearsal.drafters[pair[1]]
    target = target_network(model, p.kernels)
    draft = draft_network(drafter, model, target, p.kernels, p.draft)

    def plan(running_limit: int) -> MemoryPlan:
        return plan_memory(
            memory_bytes=memory_bytes, target=target, draft_weight_bytes=draft_weight_bytes(drafter, model, draft),
            draft_kv_bytes=draft.kv_bytes if draft else 0.0, verify_width=drafter.verify_width,
            running_limit=running_limit, captured_batches=4, tokens_per_request=tokens, p=p.memory,
        )  # fmt: skip

    asked = plan(limit)
    assert 0 <= asked.capacity <= limit
    if asked.reason is None:
        assert asked.capacity >= 1
        return
    assert asked.capacity < limit
    if asked.capacity:
        whole, beyond = plan(asked.capacity), plan(asked.capacity + 1)
        assert whole.reason is None and whole.capacity == asked.capacity
        assert beyond.reason is not None or beyond.capacity <= asked.capacity
    elif target.state_bytes:
        assert plan(1).reason is not None


def test_uniform_numbers_are_uniform_and_independent_of_count() -> None:
    keys = np.array([1, 2, 3], dtype=np.uint64)
    many = uniforms(keys, 20_000)
    assert np.array_equal(uniforms(keys, 50), many[:, :50])
    assert many.mean() == pytest.approx(0.5, abs=5e-3)
    assert np.var(many) == pytest.approx(1 / 12, rel=0.02)
    assert abs(np.corrcoef(many[0], many[1])[0, 1]) < 0.02
    assert abs(np.corrcoef(many[0, 1:], many[0, :-1])[0, 1]) < 0.02
    assert not np.array_equal(uniforms(keys, 50, stream=1), many[:, :50])


def test_prompts_differ_with_heavy_tails() -> None:
    world = World(load_parameters(PATH), 0)
    ease = np.array([world.answer("Qwen3-4B", q).difficulty for q in make_prompts(2000)])
    assert np.median(ease) == pytest.approx(0.0, abs=0.1)
    assert np.mean(np.abs(ease) > 4) > 3 * 6.3e-5  # far more than a normal distribution has
    natural = np.array([world.answer("Qwen3-4B", q).natural_tokens for q in make_prompts(2000)])
    assert np.median(natural) == pytest.approx(760, rel=0.06)


def test_spread_settings_cover_every_random_difference() -> None:
    board = load_parameters(PATH).board.model_dump()
    assert {k for k in board if "spread" in k or "probability" in k} == set(NO_SPREAD)
