"""The engine contract over the wave loop: load, warm, run, count, stop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from specjoule.clock import Clock, MonotonicClock
from specjoule.engines.base import Batch, Capacity, EngineBug, EngineInfeasible, LaunchSpec, WaveResult
from specjoule.engines.reference.requests import RequestState
from specjoule.engines.reference.settings import ReferenceSettings
from specjoule.errors import ConfigurationError
from specjoule.prompts.corpus import Prompt
from specjoule.reasons import Reason
from specjoule.version import __version__

if TYPE_CHECKING:  # PyTorch takes seconds to import; `start` pays for it, importing this module does not
    from specjoule.engines.reference.drafters.base import Drafter
    from specjoule.engines.reference.loading import Loaded
    from specjoule.engines.reference.model import RaggedModel


@dataclass
class _Totals:
    """Cumulative counts of an engine since `start`."""

    waves: int = 0
    steps: int = 0
    rounds: int = 0
    committed_tokens: int = 0
    prompt_tokens: int = 0
    proposed_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass
class _Launch:
    """What lives from `start` to `stop`."""

    spec: LaunchSpec
    loaded: Loaded
    target: RaggedModel
    drafter: Drafter
    device: str
    totals: _Totals = field(default_factory=_Totals)


class ReferenceEngine:
    """Any transformers causal model with a standard KV cache, decoded greedily in this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Take the clock that stamps arrivals; the meter's. None: CLOCK_MONOTONIC."""
        self.clock: Clock = clock or MonotonicClock()
        self._launch: _Launch | None = None

    def start(self, spec: LaunchSpec) -> Capacity:
        """Load target and drafter; see `ReferenceSettings` for what `spec.settings` may hold.

        Raises ConfigurationError for settings or checkpoints that cannot be right, EngineInfeasible for memory, a
        drafter or an architecture that this engine does not run.
        """
        self.stop()
        settings = ReferenceSettings.of(spec.settings)
        dtype = settings.resolve_dtype(spec.model.name, spec.weight_dtype, spec.kv_dtype)
        torch, transformers = _import_torch()
        from specjoule.engines.reference.drafters.factory import Surroundings, make_drafter
        from specjoule.engines.reference.loading import load, locate, resolve_device
        from specjoule.engines.reference.model import RaggedModel

        where = f"model {spec.model.name}"
        torch.set_num_threads(settings.threads)
        device = resolve_device(spec, settings.device)
        place = locate(spec.model.checkpoint, settings.model_path, where)
        loaded = load(place, device, dtype, settings.attention, where)
        target = RaggedModel(loaded.model, loaded.layers, loaded.context, settings.prefill_tokens)
        drafter, drafter_settings = make_drafter(spec, Surroundings(loaded, settings, device, dtype))
        self._launch = _Launch(spec, loaded, target, drafter, device)
        return Capacity(
            engine_version=f"reference-{__version__}+torch{torch.__version__}+transformers{transformers.__version__}",
            model_revision=loaded.revision,
            drafter_revision=drafter.revision,
            max_running_requests=None,
            kv_tokens=None,
            captured_batches=(),
            resolved={
                **asdict(settings),
                "device": device,
                "dtype": dtype,
                "threads": torch.get_num_threads(),
                "attention": loaded.model.config._attn_implementation,
                "model_path": place.path,
                "context": loaded.context,
                "eos_ids": sorted(loaded.eos_ids),
                "drafter": drafter_settings,
                "specjoule": {"chat_template": _digest(loaded.tokenizer.chat_template)},
            },
            measured_pid=os.getpid(),
        )

    def warm_up(self, concurrency: int, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        """Run one batch of this size; fewer prompts than `concurrency` are repeated."""
        if not prompts:
            raise EngineBug("warm_up was given no prompt")
        batch = tuple(prompts[i % len(prompts)] for i in range(concurrency))
        self.run(Batch(prompts=batch, max_new_tokens=max_new_tokens, ignore_eos=True))

    def flush(self) -> None:
        """Forget drafter state. The KV cache needs nothing: a wave overwrites what it reads."""
        self._running().drafter.flush()

    def run(self, batch: Batch) -> WaveResult:
        """Run one wave. Raises EngineInfeasible: context_too_long, or oom_run where the batch does not fit."""
        launch = self._running()
        from specjoule.engines.reference.loading import out_of_memory
        from specjoule.engines.reference.wave import Wave

        if not batch.prompts or batch.max_new_tokens < 1:
            raise EngineBug("a wave needs at least one prompt and one token to generate")
        if batch.context_tokens is not None:
            raise EngineInfeasible(
                Reason.CONTEXT_NOT_SUPPORTED, "the reference engine runs prompts as they are; leave context_tokens out"
            )
        submit_ns = self.clock.now_ns()
        requests = self._requests(launch, batch)
        drafted_before = dict(launch.drafter.counters())
        wave = Wave(launch.target, launch.drafter, self.clock, launch.loaded.eos_ids, batch.ignore_eos)
        with out_of_memory(
            Reason.OOM_RUN, f"a batch of {len(requests)} requests does not fit into the memory of {launch.device}"
        ):
            outcome = wave.run(requests)
        end_ns = max(request.chunk_t_ns[-1] for request in requests)
        decode = launch.loaded.tokenizer.decode
        results = tuple(
            request.result(decode(request.tokens[request.prompt_tokens :], skip_special_tokens=True))
            for request in requests
        )
        totals = launch.totals
        totals.waves += 1
        totals.steps += outcome.steps
        for result in results:
            totals.rounds += result.rounds
            totals.committed_tokens += result.committed_tokens
            totals.prompt_tokens += result.prompt_tokens
            totals.proposed_tokens += result.proposed_tokens
            totals.accepted_draft_tokens += result.accepted_draft_tokens
        drafted = {key: value - drafted_before.get(key, 0) for key, value in launch.drafter.counters().items()}
        lifetime = sum(request.chunk_t_ns[-1] - submit_ns for request in requests)
        return WaveResult(
            submit_ns=submit_ns,
            end_ns=end_ns,
            steps=outcome.steps,
            requests=results,
            verify_widths=(launch.drafter.draft_tokens + 1,) if outcome.steps else (),
            realized_batch_engine=lifetime / (end_ns - submit_ns) if end_ns > submit_ns else float(len(requests)),
            peak_batch_engine=len(requests),
            # Nothing is captured here. On a CPU there is nothing to capture; on a GPU that must not pass for proof.
            capture_verified=False if launch.spec.capture and launch.device.startswith("cuda") else None,
            notes={**asdict(outcome.times), **drafted},
        )

    def counters(self) -> Mapping[str, float]:
        """Return cumulative counts since `start` (warm-up included), the drafter's own with them."""
        launch = self._running()
        return {**asdict(launch.totals), **launch.drafter.counters()}

    def stop(self) -> None:
        """Drop models and caches."""
        if self._launch is None:
            return
        device = self._launch.device
        self._launch = None
        if device.startswith("cuda"):
            torch, _ = _import_torch()
            torch.cuda.empty_cache()

    def _running(self) -> _Launch:
        if self._launch is None:
            raise EngineBug("the reference engine was used before `start` or after `stop`")
        return self._launch

    def _requests(self, launch: _Launch, batch: Batch) -> list[RequestState]:
        """Tokenise the wave through the model's chat template; EngineInfeasible where an answer cannot fit."""
        tokenizer, context, most = launch.loaded.tokenizer, launch.loaded.context, launch.spec.max_prompt_tokens
        if not tokenizer.chat_template:
            raise ConfigurationError(
                f"model {launch.spec.model.name}: its tokenizer has no chat template; "
                "use an instruction-tuned checkpoint"
            )
        requests = []
        for index, prompt in enumerate(batch.prompts):
            try:
                tokens = tokenizer.apply_chat_template(
                    prompt.chat(), add_generation_prompt=True, tokenize=True, return_dict=False
                )
            except Exception as error:  # a template is a program of the checkpoint's and may raise anything
                raise ConfigurationError(
                    f"model {launch.spec.model.name}: its chat template cannot render prompt {prompt.id} ({error})"
                ) from error
            if not tokens:
                raise ConfigurationError(
                    f"model {launch.spec.model.name}: its tokenizer makes no token of prompt {prompt.id}"
                )
            if most is not None and len(tokens) > most:
                raise EngineInfeasible(
                    Reason.CONTEXT_TOO_LONG,
                    f"prompt {prompt.id} has {len(tokens)} tokens, more than max_prompt_tokens {most}",
                )
            if len(tokens) + batch.max_new_tokens > context:
                raise EngineInfeasible(
                    Reason.CONTEXT_TOO_LONG,
                    f"prompt {prompt.id} has {len(tokens)} tokens; with {batch.max_new_tokens} new ones that exceeds "
                    f"the {context} that {launch.spec.model.name} attends to in full",
                )
            requests.append(
                RequestState(
                    index=index,
                    prompt_id=prompt.id,
                    tokens=list(tokens),
                    prompt_tokens=len(tokens),
                    limit=batch.max_new_tokens,
                    draft_tokens=launch.drafter.draft_tokens,
                )
            )
        return requests


def _digest(template: str | None) -> str | None:
    """Digest of the chat template: text applied to every prompt, so it must be the same on both sides of a pair."""
    return None if template is None else hashlib.sha256(str(template).encode()).hexdigest()[:16]


def _import_torch() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigurationError(
            f"the reference engine needs PyTorch and transformers ({error}); install them with pip install "
            "'specjoule[reference]'"
        ) from error
    return torch, transformers
