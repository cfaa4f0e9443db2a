"""Every command a study will run, known before anything is submitted: `specjoule plan STUDY --commands`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specjoule.blocks.block import Block, Launch, make_blocks
from specjoule.blocks.launching import launch_spec
from specjoule.cells.expand import expand, load_pools
from specjoule.engines.base import LaunchSpec
from specjoule.engines.sglang.launch import build, plan_record
from specjoule.engines.sglang.ports import Ports
from specjoule.study.model import Study

PLANNED_PORTS = Ports(http=30000, nccl=30001)
"""Stand for the ports that each job chooses when it starts."""

PLANNED_BOARD = "GPU-of-the-job"
"""Stands for the UUID of the board that the job is given."""


def planned_launches(study: Study) -> Iterator[LaunchSpec]:
    """Yield one launch for each model, GPU, drafter, capture state and clock of a study: seeds share their command."""
    blocks = make_blocks(expand(study, load_pools(study)), study.file.blocks.split_by)
    seen: set[tuple[Any, ...]] = set()
    for block in blocks:
        concurrencies = tuple(sorted({c.concurrency for c in block.cells}))
        for launch in _launches(block):
            key = (
                block.model, block.gpu, launch.drafter, launch.capture, launch.locked_mhz, launch.instrumentation,
                concurrencies,
            )  # fmt: skip
            if key in seen:
                continue
            seen.add(key)
            yield launch_spec(
                study,
                block,
                launch,
                concurrencies,
                board_uuid=PLANNED_BOARD if study.gpus[block.gpu].device == "cuda" else None,
                log_path=Path("server.log"),
                cache_dir=Path(".cache"),
            )


def command_records(study: Study) -> Iterator[dict[str, Any]]:
    """Yield one JSON-ready record a launch: model, drafter, GPU, command, environment; each record once."""
    seen: list[dict[str, Any]] = []
    for spec in planned_launches(study):
        record = plan_record(spec, build(spec, PLANNED_PORTS))
        if record not in seen:
            seen.append(record)
            yield record


def _launches(block: Block) -> Iterator[Launch]:
    for drafter, (capture, mhz, flags) in dict.fromkeys(c.launch_key for c in block.cells):
        yield Launch(drafter, capture, mhz, "cell", (), flags)
