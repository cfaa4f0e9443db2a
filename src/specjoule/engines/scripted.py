"""A trivial simulated engine and meter on a virtual clock: fixed costs, scripted acceptance.

For tests and demonstrations of the workflow: no torch, no waiting. Its numbers mean nothing; everything measured with
it says `simulated`. (The boards that imitate real ones are `engines.simulated`.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from specjoule.clock import VirtualClock
from specjoule.engines.base import (
    Batch,
    Capacity,
    EngineBug,
    EngineInfeasible,
    EngineTransient,
    LaunchSpec,
    RequestResult,
    WaveResult,
)
from specjoule.engines.checking import checked
from specjoule.meters.base import BOARD, BoardInfo, Calibration, MeterName, Refreshes, Trace
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason
from specjoule.version import __version__

IDLE_W = 100.0
BUSY_W = 400.0
REFRESH_NS = 20_000_000
STEP_NS = 10_000_000
"""Time of one plain step; each further verified position of each request adds `POSITION_NS`."""
POSITION_NS = 200_000


class ScriptedBoard:
    """A power timeline on a virtual clock: idle at `IDLE_W`, generating at `BUSY_W`."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._edges_ns: list[int] = [clock.now_ns()]
        self._energy_j: list[float] = [0.0]
        self._power_w = IDLE_W

    def set_power(self, watts: float) -> None:
        """Draw `watts` from now on."""
        now = self.clock.now_ns()
        self._energy_j.append(self.energy_j(now))
        self._edges_ns.append(now)
        self._power_w = watts

    def energy_j(self, t_ns: int | np.ndarray[Any, Any]) -> Any:
        """Return the exact energy since the board's start, J."""
        edges, energies = np.asarray(self._edges_ns, dtype=np.float64), np.asarray(self._energy_j)
        inside = np.interp(t_ns, edges, energies)
        return inside + np.maximum(0.0, np.asarray(t_ns, dtype=np.float64) - edges[-1]) * self._power_w / 1e9


class ScriptedMeter:
    """Reads a `ScriptedBoard` with a counter that refreshes every 20 ms of virtual time."""

    name: MeterName = "simulated"

    def __init__(self, board: ScriptedBoard) -> None:
        self.board = board
        self.clock = board.clock
        self.calibration = Calibration(refresh_ns=REFRESH_NS, idle_w=IDLE_W, calibrated=True)

    def start(self) -> BoardInfo:
        """Describe the board."""
        return BoardInfo(uuid="SCRIPTED-0", name="scripted board", driver="none", power_limit_w=700.0, ecc=True)

    def attach(self, pid: int | None) -> None:
        """Nothing to attach to."""

    def trace(self, start_ns: int, end_ns: int) -> Trace:
        """Return the refreshes from half a second before `start_ns` to half a second after `end_ns`."""
        wanted_end = end_ns + 500_000_000
        if self.clock.now_ns() < wanted_end:
            self.clock.advance_ns(wanted_end - self.clock.now_ns())
        first = (start_ns - 500_000_000) // REFRESH_NS * REFRESH_NS
        t = np.arange(first, wanted_end, REFRESH_NS, dtype=np.int64)
        return Trace({BOARD: Refreshes(t, t.copy(), np.asarray(self.board.energy_j(t), dtype=np.float64))})

    def stop(self) -> None:
        """Nothing to stop."""


class ScriptedSettings(BaseModel):
    """What a study's `engine.settings` (and `host_settings`) may hold for this engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accept: float = Field(default=0.5, ge=0, le=1)
    """Probability that a draft is kept, given that those before it were."""
    fail: dict[str, Literal["infeasible", "transient", "bug"]] = {}
    """How a launch (`drafter`) or a batch (`drafter/c{n}`) ends."""
    capacity: int | None = Field(default=None, gt=0)
    """Most requests at once."""
    seconds_per_wave: float = Field(default=0.0, ge=0)
    """Real time to spend on each batch, for tests that interrupt."""


class ScriptedEngine:
    """Commits a scripted number of tokens a round; costs are constants of this module."""

    def __init__(self, board: ScriptedBoard, clock: VirtualClock) -> None:
        self.board = board
        self.clock = clock
        self._spec: LaunchSpec | None = None
        self._steps = 0

    def start(self, spec: LaunchSpec) -> Capacity:
        """Start a launch; takes one second of virtual time."""
        self._raise_scripted(spec, spec.drafter.name)
        self._spec = spec
        self.clock.sleep_s(1.0)
        return Capacity(
            engine_version=f"scripted-{__version__}",
            model_revision=spec.model.checkpoint.revision or "none",
            drafter_revision=None,
            max_running_requests=_settings(spec).capacity,
            kv_tokens=None,
            captured_batches=spec.concurrencies if spec.capture else (),
            resolved=dict(spec.settings),
        )

    def warm_up(self, concurrency: int, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        """Nothing to warm."""

    def flush(self) -> None:
        """Nothing to forget."""

    def run(self, batch: Batch) -> WaveResult:
        """Generate `max_new_tokens` per request, all ending by length."""
        spec = self._spec
        if spec is None:
            raise EngineBug("run() before start()")
        n = len(batch.prompts)
        self._raise_scripted(spec, f"{spec.drafter.name}/c{n}")
        self._wait_really(spec)
        width = spec.drafter.verify_width
        submit = self.clock.now_ns()
        self.board.set_power(BUSY_W)
        self.clock.advance_ns(STEP_NS + n * 1_000_000)
        first = self.clock.now_ns()
        step_ns = STEP_NS + n * width * POSITION_NS
        requests = []
        for prompt in batch.prompts:
            rng = random.Random(f"{prompt.id}/{width}")
            requests.append(self._request(rng, prompt, batch.max_new_tokens, width - 1, first, step_ns))
        steps = max(r.rounds for r in requests)
        self.clock.advance_ns(steps * step_ns)
        self._steps += steps
        end = self.clock.now_ns()
        self.board.set_power(IDLE_W)
        return WaveResult(
            submit_ns=submit,
            end_ns=end,
            steps=steps,
            requests=tuple(requests),
            verify_widths=(width,),
            capture_verified=True if spec.capture else None,
        )

    def counters(self) -> Mapping[str, float]:
        """Return the steps so far."""
        return {"steps": float(self._steps)}

    def stop(self) -> None:
        """End the launch."""
        self._spec = None

    def _request(
        self, rng: random.Random, prompt: Prompt, limit: int, k: int, first_ns: int, step_ns: int
    ) -> RequestResult:
        accept = _settings(self._spec).accept if self._spec else ScriptedSettings().accept
        committed, accepted, cut = 1, 0, 0
        histogram = [0] * (k + 1)
        times, counts = [first_ns], [1]
        while committed < limit:
            kept = 0
            while kept < k and rng.random() < accept:
                kept += 1
            histogram[kept] += 1
            accepted += kept
            new = min(kept + 1, limit - committed)
            cut += kept + 1 - new
            committed += new
            times.append(times[-1] + step_ns)
            counts.append(new)
        rounds = len(times) - 1
        return RequestResult(
            prompt_id=prompt.id,
            prompt_tokens=sum(len(content.split()) for _, content in prompt.messages),
            committed_tokens=committed,
            finish_reason="length",
            first_eos_position=None,
            rounds=rounds,
            proposed_tokens=rounds * k,
            accepted_draft_tokens=accepted,
            acceptance_histogram=tuple(histogram),
            cut_tokens=cut,
            chunk_t_ns=tuple(times),
            chunk_tokens=tuple(counts),
            cached_tokens=0,
            output_token_ids=tuple(range(committed)),
            text="",
        )

    @staticmethod
    def _raise_scripted(spec: LaunchSpec, key: str) -> None:
        kind = _settings(spec).fail.get(key)
        if kind == "infeasible":
            raise EngineInfeasible(Reason.OOM_RUN, f"scripted: {key} does not fit", capacity_requests=2)
        if kind == "transient":
            raise EngineTransient(Reason.ENGINE_CRASH, f"scripted: {key} crashed")
        if kind == "bug":
            raise EngineBug(f"scripted: {key} returned nonsense")

    @staticmethod
    def _wait_really(spec: LaunchSpec) -> None:
        seconds = _settings(spec).seconds_per_wave
        if seconds:
            import time

            time.sleep(seconds)


def _settings(spec: LaunchSpec) -> ScriptedSettings:
    return checked(ScriptedSettings, dict(spec.settings), "engine.settings.")
