"""From a `LaunchSpec` to the exact command and environment of the server. Pure: nothing is started or looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specjoule.engines.base import LaunchSpec
from specjoule.engines.sglang import container as containers
from specjoule.engines.sglang.checkpoints import Located, locate
from specjoule.engines.sglang.environment import cache_environment, offline_environment, refuse_simulation
from specjoule.engines.sglang.formats import kv_flags, weight_flags
from specjoule.engines.sglang.matching import matched_flags
from specjoule.engines.sglang.ports import HOST, Ports
from specjoule.engines.sglang.settings import Settings, default_backend, parse_settings, server_program
from specjoule.engines.sglang.speculation import Speculation, speculation
from specjoule.errors import ConfigurationError

STUDY_FLAGS: tuple[str, ...] = (
    "--enable-metrics",
    "--decode-log-interval", "1",
    "--load-snapshot-publish-interval", "1",
)  # fmt: skip
"""What the study's counters and proofs need; `instrumentation: minimal` leaves it out on both sides of a pair."""


@dataclass(frozen=True)
class LaunchCommand:
    """A command, what it adds to the environment, and what the server must say of itself once it runs."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    """The server's own flags alone, as its parser takes them."""
    ports: Ports
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Resolved fields and the values they must have."""
    target: Located = field(default_factory=lambda: Located("", None))
    draft: Located | None = None

    def record(self) -> dict[str, Any]:
        """Return the launch as it is stored with every cell."""
        return {
            "argv": list(self.argv),
            "environment": dict(sorted(self.environment.items())),
            "expected": dict(self.expected),
        }


def build(spec: LaunchSpec, ports: Ports, matched: Mapping[str, Any] | None = None) -> LaunchCommand:
    """Return the command of a launch. Raises ConfigurationError where the study asks for what cannot be launched.

    `matched` are the speculative side's scheduler settings (`matching.matched_settings`), for `plain-matched` only;
    `engine.settings.matched` or the drafter's own `matched` setting win over it.
    """
    settings = parse_settings(spec.settings).for_model(spec.model.name)
    target = locate(spec.model.checkpoint, settings.checkpoints, f"model '{spec.model.name}'")
    speculative = speculation(spec.model, target, spec.drafter, settings.checkpoints)
    flags = [
        *_identity(spec, settings, target, ports),
        *_capacity(spec, settings),
        *_graphs(spec),
        *(STUDY_FLAGS if settings.instrumentation == "study" else ()),
        *speculative.flags,
        *(() if spec.drafter.is_plain else settings.speculative_flags(spec.model.name)),
        *settings.flags,
    ]
    expected = _expected(spec, settings, target, speculative)
    if spec.drafter.scheme == "plain-matched":
        chosen = settings.matched or spec.drafter.settings.get("matched") or matched or {}
        flags = _merged(flags, matched_flags(chosen))
        expected |= chosen
    environment = _environment(spec, settings, speculative)
    argv = [*server_program(settings), *flags]
    if settings.container is not None:
        folders = containers.bound_folders(
            target.path, speculative.draft.path if speculative.draft else None, spec.cache_dir, spec.log_path.parent
        )
        argv = containers.wrap(settings.container, flags, environment, folders)
    return LaunchCommand(
        argv=tuple(argv),
        environment=environment,
        flags=tuple(flags),
        ports=ports,
        expected=expected,
        target=target,
        draft=speculative.draft,
    )


def _identity(spec: LaunchSpec, settings: Settings, target: Located, ports: Ports) -> list[str]:
    flags = ["--model-path", target.path]
    if target.revision is not None:
        flags += ["--revision", target.revision]
    if settings.load_format is not None:
        flags += ["--load-format", settings.load_format]
    if settings.trust_remote_code:
        flags.append("--trust-remote-code")
    flags += [
        "--device", settings.device,
        *weight_flags(spec.weight_dtype, settings.weight_formats),
        *kv_flags(spec.kv_dtype, spec.weight_dtype),
        "--tp-size", "1",
        "--random-seed", str(spec.seed),
        "--sampling-defaults", "openai",
        "--incremental-streaming-output",
        "--stream-interval", "1",
        "--watchdog-timeout", f"{settings.watchdog_s:g}",
        "--host", HOST,
        "--port", str(ports.http),
        "--nccl-port", str(ports.nccl),
    ]  # fmt: skip
    return flags


def _capacity(spec: LaunchSpec, settings: Settings) -> list[str]:
    flags = [
        "--max-running-requests", str(max(spec.concurrencies)),
        "--attention-backend", settings.attention_backend or default_backend(spec.model.family),
        "--disable-radix-cache",
    ]  # fmt: skip
    for flag, value in (
        ("--mem-fraction-static", settings.mem_fraction_static),
        ("--context-length", settings.context_length),
        ("--chunked-prefill-size", settings.chunked_prefill_size),
        ("--max-total-tokens", settings.max_total_tokens),
    ):
        if value is not None:
            flags += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return flags


def captured_batches(spec: LaunchSpec) -> tuple[int, ...]:
    """Return the batch sizes whose graphs are captured: every one of the launch, so that none is padded up."""
    return tuple(sorted(set(spec.concurrencies))) if spec.capture else ()


def _graphs(spec: LaunchSpec) -> list[str]:
    if spec.capture:
        return ["--cuda-graph-bs-decode", *(str(b) for b in captured_batches(spec))]
    return ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]


def _environment(spec: LaunchSpec, settings: Settings, speculative: Speculation) -> dict[str, str]:
    refuse_simulation(settings.environment, settings.simulated_acceptance, "engine.settings.environment")
    environment = cache_environment(Path(spec.cache_dir).absolute(), settings.release)
    if settings.offline:
        environment |= offline_environment()
    if spec.device_uuid is not None and settings.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = spec.device_uuid
    both = sorted(set(settings.environment) & set(speculative.environment))
    if both:
        raise ConfigurationError(f"engine.settings.environment sets {both[0]}, which the drafter's own settings decide")
    return {**environment, **settings.environment, **speculative.environment}


def _expected(spec: LaunchSpec, settings: Settings, target: Located, speculative: Speculation) -> dict[str, Any]:
    """Return the resolved fields that make this launch the one asked for."""
    return {
        "model_path": target.path,
        "revision": target.revision,
        "device": settings.device,
        "random_seed": spec.seed,
        "max_running_requests": max(spec.concurrencies),
        "disable_radix_cache": True,
        "incremental_streaming_output": True,
        "sampling_defaults": "openai",
        "tp_size": 1,
        **speculative.expected,
    }


def _merged(flags: list[str], replacing: tuple[str, ...]) -> list[str]:
    """Return `flags` with those that `replacing` sets again taken out, then `replacing`."""
    names = {word for word in replacing if word.startswith("--")}
    kept: list[str] = []
    skipping = False
    for word in flags:
        if word.startswith("--"):
            skipping = word in names
        if not skipping:
            kept.append(word)
    return [*kept, *replacing]


def plan_record(spec: LaunchSpec, command: LaunchCommand) -> dict[str, Any]:
    """Return one line of `specjoule plan --commands`: model, drafter, GPU, command, environment."""
    return {
        "model": spec.model.name,
        "drafter": spec.drafter.name,
        "gpu": spec.gpu.name,
        "capture": spec.capture,
        "locked_mhz": spec.locked_mhz,
        "command": list(command.argv),
        "environment": dict(sorted(command.environment.items())),
    }
