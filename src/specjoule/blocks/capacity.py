"""How many requests of a launch are expected to fit on its board: the simulated boards' memory model, for plans."""

from __future__ import annotations

from specjoule.cells.cell import Cell
from specjoule.study.model import Study

PROMPT_TOKENS = 512
"""Taken for a prompt's length: corpora differ, and the tokenizer is not at hand."""


def expected_capacity(study: Study, cell: Cell, running_limit: int) -> tuple[int, str | None] | None:
    """Return (requests that fit, reason where the launch is expected not to start) for the cell's launch.

    `running_limit`: the largest batch of its block. None where the memory model cannot say (no board memory in the
    catalogue, or the simulated boards are not installed).
    """
    try:
        from specjoule.engines.simulated import study_parameters
        from specjoule.engines.simulated.memory import plan_memory
        from specjoule.engines.simulated.parameters import find_parameters, load_parameters
        from specjoule.engines.simulated.workload import draft_network, draft_weight_bytes, target_network
    except ImportError:
        return None
    model, drafter, gpu = study.models[cell.model], study.drafters[cell.drafter], study.gpus[cell.gpu]
    if gpu.memory_bytes is None:
        return None
    simulated = study.file.engine.name == "simulated"
    parameters = study_parameters(study) if simulated else load_parameters(find_parameters(study.root, None))
    target = target_network(model, parameters.kernels)
    draft = draft_network(drafter, model, target, parameters.kernels, parameters.draft)
    prompt = cell.context_tokens or study.file.protocol.max_prompt_tokens or PROMPT_TOKENS
    plan = plan_memory(
        memory_bytes=gpu.memory_bytes,
        target=target,
        draft_weight_bytes=draft_weight_bytes(drafter, model, draft),
        draft_kv_bytes=draft.kv_bytes if draft else 0.0,
        verify_width=drafter.verify_width,
        running_limit=running_limit,
        captured_batches=len(_batches(study, cell)) if cell.capture else 0,
        tokens_per_request=prompt + cell.max_new_tokens + drafter.verify_width,
        p=parameters.memory,
    )
    return plan.capacity, str(plan.reason) if plan.reason is not None else None


def _batches(study: Study, cell: Cell) -> set[int]:
    return {n for grid in study.file.grids.values() if cell.model in grid.models for n in grid.concurrency}
