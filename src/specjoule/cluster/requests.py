"""What a block asks of the queue: Slurm resources from the site file and the block's forecast. Pure functions."""

from __future__ import annotations

import math
from typing import Any

from specjoule.blocks.block import Block
from specjoule.blocks.estimate import block_seconds
from specjoule.cluster.site import SiteFile
from specjoule.errors import ConfigurationError
from specjoule.study.model import Study


def runtime_minutes(study: Study, block: Block, site: SiteFile) -> int:
    """Return the time limit to ask for, minutes: the forecast with its factor and spare, at most the queue's limit."""
    forecast = block_seconds(study, block.cells) / 60
    wanted = forecast * site.limits.runtime_factor + site.limits.spare_minutes + site.limits.stop_minutes
    return max(1, math.floor(min(wanted, site.limits.hours * 60)))


def measure_resources(study: Study, block: Block, site: SiteFile) -> dict[str, Any]:
    """Return the Snakemake resources of a block's job; executors other than Slurm's ignore most of them."""
    gpu = site.gpu(block.gpu)
    memory = gpu.memory_gb or site.memory_gb
    clocks = sorted({c.locked_mhz for c in block.cells if c.locked_mhz is not None})
    constraints = [c for c in (gpu.constraint, site.clocks.constraint if clocks else None) if c]
    wanted: dict[str, Any] = {
        "board": 1,
        "submitted": 1,
        "runtime": runtime_minutes(study, block, site),
        "slurm_account": gpu.account or site.account,
        "slurm_partition": gpu.partition or site.partition,
        "qos": gpu.qos or site.qos,
        "gres": gpu.gres,
        "constraint": "&".join(constraints) or None,
        "mem_mb": round(memory * 1000) if memory else None,
        "cpus_per_task": gpu.cpus or site.cpus,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def light_resources(site: SiteFile) -> dict[str, Any]:
    """Return the resources of jobs that only compute: tables and figures."""
    wanted = {
        "slurm_account": site.account, "slurm_partition": site.partition, "runtime": 60, "mem_mb": 4000,
        "cpus_per_task": 1,
    }  # fmt: skip
    return {key: value for key, value in wanted.items() if value is not None}


def extra_flags(block: Block, site: SiteFile, after: tuple[str, ...] = ()) -> str:
    """Return the sbatch flags that have no resource of their own; `after`: jobs of the same block to wait for.

    Raises ConfigurationError where one job would have to ask for two clocks.
    """
    clocks = sorted({c.locked_mhz for c in block.cells if c.locked_mhz is not None})
    words = list(site.extra)
    if site.exclusive:
        words.append("--exclusive")
    if site.cpu_binding:
        words += ["--gres-flags=enforce-binding", "--hint=nomultithread"]
    if site.limits.stop_minutes:
        words.append(f"--signal=USR1@{round(site.limits.stop_minutes * 60)}")
    if clocks:
        one_a_job = any("{mhz}" in flag for flag in site.clocks.flags)
        if one_a_job and (len(clocks) > 1 or any(c.locked_mhz is None for c in block.cells)):
            raise ConfigurationError(
                f"site file: clocks.flags sets one clock a job, but block {block.id} has several; "
                "add 'locked_mhz' to the study's blocks.split_by"
            )
        words += [flag.replace("{mhz}", str(clocks[0])) for flag in site.clocks.flags]
    if after:
        words.append(f"--dependency=afterany:{':'.join(after)}")
    return " ".join(words)
