"""One launch of the engine: started, every shape warmed, settled, its idle power read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specjoule.blocks.block import Block, Launch
from specjoule.blocks.devices import Devices
from specjoule.blocks.warm_up import warm_up_prompts
from specjoule.engines.base import Capacity, LaunchSpec
from specjoule.meters.base import BOARD, Meter
from specjoule.study.catalogue import Model
from specjoule.study.model import ProtocolConfig, SettleConfig, Study


@dataclass(frozen=True)
class RunningLaunch:
    """A launch that is ready to be measured."""

    number: int
    capacity: Capacity
    start_s: float
    """From the call to a server that answers."""
    ready_s: float
    """From there to warmed and settled."""
    settled: bool
    idle_power_w: float | None


def launch_spec(
    study: Study,
    block: Block,
    launch: Launch,
    concurrencies: tuple[int, ...],
    *,
    board_uuid: str | None,
    log_path: Path,
    cache_dir: Path,
) -> LaunchSpec:
    """Return what the engine is started with. `concurrencies` are the whole block's, so that both sides match."""
    model = _at_home(study.models[block.model], Path(study.root))
    return LaunchSpec(
        model=model,
        gpu=study.gpus[block.gpu],
        drafter=study.drafters[launch.drafter],
        capture=launch.capture,
        locked_mhz=launch.locked_mhz,
        concurrencies=concurrencies,
        max_new_tokens=max(c.max_new_tokens for c in block.cells),
        max_prompt_tokens=study.file.protocol.max_prompt_tokens,
        seed=block.seed,
        settings={
            **_pinned_release(study),
            **study.file.engine.settings,
            **study.file.engine.host_settings,
            **({"instrumentation": launch.instrumentation} if launch.instrumentation else {}),
        },
        device_uuid=board_uuid,
        log_path=log_path,
        cache_dir=cache_dir,
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        ngram_state=study.file.protocol.ngram_state,
        context_tokens=tuple(sorted({c.context_tokens for c in block.cells if c.context_tokens is not None})),
    )


def _pinned_release(study: Study) -> dict[str, str]:
    """The server must be the release that the study's cells are hashed with."""
    engine = study.file.engine
    return {"release": engine.version} if engine.name == "sglang" and engine.version else {}


def _at_home(model: Model, root: Path) -> Model:
    """Return the model with a checkpoint that lies in the project named by its absolute path."""
    local = root / model.checkpoint.path
    if not local.exists():
        return model  # a name on a hub
    return model.model_copy(update={"checkpoint": model.checkpoint.model_copy(update={"path": str(local)})})


def start_launch(devices: Devices, spec: LaunchSpec, protocol: ProtocolConfig, number: int) -> RunningLaunch:
    """Start the engine, warm every shape with prompts outside the pool, flush, settle, read the loaded-idle power.

    Raises what the engine raises.
    """
    clock = devices.meter.clock
    begun = clock.now_ns()
    capacity = devices.engine.start(spec)
    devices.meter.attach(capacity.measured_pid)
    started = clock.now_ns()
    for concurrency in spec.concurrencies:
        devices.engine.warm_up(concurrency, warm_up_prompts(concurrency), protocol.warm_up_tokens)
    devices.engine.flush()
    settled = settle(devices.meter, protocol.settle)
    idle = idle_power_w(devices.meter, protocol.settle.idle_s)
    return RunningLaunch(
        number=number,
        capacity=capacity,
        start_s=(started - begun) / 1e9,
        ready_s=(clock.now_ns() - started) / 1e9,
        settled=settled,
        idle_power_w=idle,
    )


def settle(meter: Meter, config: SettleConfig) -> bool:
    """Wait until the board's temperature stayed within the band for `min_s`; True if it did before `max_s`.

    A device that reports no temperature is given `min_s` and taken as settled.
    """
    clock = meter.clock
    begun = clock.now_ns()
    while True:
        clock.sleep_s(config.min_s)
        now = clock.now_ns()
        window_ns = round(config.min_s * 1e9)
        samples = meter.trace(now - window_ns, now).samples.get("temperature_c")
        if samples is None or len(samples) == 0:
            return True
        recent = samples.value[samples.t_ns >= now - window_ns]
        if recent.size and float(np.ptp(recent)) <= config.band_c:
            return True
        if (now - begun) / 1e9 >= config.max_s or config.min_s == 0:
            return False


def idle_power_w(meter: Meter, seconds: float) -> float | None:
    """Return the mean power over `seconds` in which the loaded engine does nothing, W; None if it cannot be read."""
    if seconds <= 0:
        return None
    clock = meter.clock
    start = clock.now_ns()
    clock.sleep_s(seconds)
    end = clock.now_ns()
    refreshes = meter.trace(start, end).refreshes.get(BOARD)
    if refreshes is None:
        return None
    inside = (refreshes.t_ns >= start) & (refreshes.t_ns <= end)
    if int(inside.sum()) < 2:
        return None
    t, counter = refreshes.t_ns[inside], refreshes.counter_j[inside]
    return float((counter[-1] - counter[0]) / ((t[-1] - t[0]) / 1e9))
