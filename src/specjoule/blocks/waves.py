"""The waves of one cell: flush, idle, submit the batch, cut the trace around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specjoule.blocks.devices import Devices
from specjoule.blocks.launching import RunningLaunch
from specjoule.cells.cell import Cell
from specjoule.engines.base import Batch
from specjoule.meters.base import Trace
from specjoule.prompts.corpus import Prompt
from specjoule.prompts.filler import filler
from specjoule.reasons import Reason
from specjoule.study.model import ProtocolConfig
from specjoule.windows.build import Wave


def measure_waves(
    devices: Devices, running: RunningLaunch, cell: Cell, pool: Sequence[Prompt], protocol: ProtocolConfig, root: Path
) -> Iterator[Wave]:
    """Run the cell's waves one after the other and yield each with its trace.

    Wave i takes items i*c to (i+1)*c of the drawn pool. Before each: flush, and `idle_refreshes` refreshes of idling,
    so that the window's edges are idle to busy and busy to idle. `root` is the project's, for text that fills prompts
    up to a context length. Raises what engine and meter raise.
    """
    meter, engine = devices.meter, devices.engine
    refresh_ns = meter.calibration.refresh_ns or 100_000_000
    for index in range(cell.waves):
        prompts = tuple(pool[index * cell.concurrency : (index + 1) * cell.concurrency])
        if protocol.ngram_state == "cold":
            engine.flush()
        meter.clock.sleep_s(protocol.idle_refreshes * refresh_ns / 1e9)
        before = engine.counters()
        result = engine.run(
            Batch(
                prompts=prompts,
                max_new_tokens=cell.max_new_tokens,
                ignore_eos=protocol.ignore_eos,
                context_tokens=cell.context_tokens,
                filler=_filler(prompts, cell.context_tokens, root),
            )
        )
        after = engine.counters()
        trace = meter.trace(result.submit_ns, result.end_ns)
        if not running.settled:
            trace = _flagged(trace, Reason.NOT_SETTLED)
        yield Wave(
            index=index,
            prompts=prompts,
            result=result,
            trace=trace,
            counters_before=before,
            counters_after=after,
            true_energy_j=getattr(meter, "true_energy_j", None),  # simulated boards know it
        )


def _filler(prompts: Sequence[Prompt], context_tokens: int | None, root: Path) -> tuple[str, ...]:
    if context_tokens is None:
        return ()
    return tuple(filler(root, prompt.digest, context_tokens) for prompt in prompts)


def _flagged(trace: Trace, reason: Reason) -> Trace:
    return replace(trace, flags=(*trace.flags, reason))
