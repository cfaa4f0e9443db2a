"""The parameters of simulated boards: one file, every leaf with its source or the word 'assumed'."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from specjoule.engines.checking import checked
from specjoule.errors import ConfigurationError

FILE_NAME = "simulation.yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same safe subset, ten times faster where PyYAML has its C parser: every block's process reads the file."""
_CHECKOUT = Path(__file__).resolve().parents[4] / "config" / FILE_NAME


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
"""One that has a logit."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BoardParameters(_Section):
    """Clocks, power, temperature and the spread between boards, launches and steps."""

    max_clock_mhz: Positive
    min_clock_mhz: Positive
    memory_clock_mhz: NonNegativeFloat
    multiprocessors: PositiveInt
    flop_per_clock_and_multiprocessor: Positive
    matrix_efficiency: Positive
    full_bandwidth_mhz: Positive
    voltage_floor: Share
    voltage_knee_mhz: NonNegativeFloat
    loaded_idle_w: Positive
    active_w: NonNegativeFloat
    byte_pj: NonNegativeFloat
    matrix_byte_per_flop: NonNegativeFloat
    after_load_w: NonNegativeFloat
    after_load_s: Positive
    ambient_c: float
    kelvin_per_watt: NonNegativeFloat
    thermal_time_s: Positive
    leakage_per_kelvin: float
    leakage_reference_c: float
    boards_per_kind: PositiveInt
    board_power_spread: NonNegativeFloat
    board_bandwidth_spread: NonNegativeFloat
    launch_power_spread: NonNegativeFloat
    launch_time_spread: NonNegativeFloat
    step_time_spread: NonNegativeFloat
    stall_probability: Share
    stall_ms: NonNegativeFloat
    ecc: bool
    driver: str

    @model_validator(mode="after")
    def _clocks_in_order(self) -> Self:
        if not max(self.min_clock_mhz, self.voltage_knee_mhz) < self.max_clock_mhz:
            raise ValueError("max_clock_mhz must be above min_clock_mhz and voltage_knee_mhz")
        return self


class MeterParameters(_Section):
    """The energy counter and the slower channels beside it."""

    refresh_ms: Positive
    jitter: NonNegativeFloat
    lag_ms: NonNegativeFloat
    lag_error_ms: NonNegativeFloat
    call_ms: NonNegativeFloat
    resolution_j: Positive
    sample_ms: Positive
    sensor_window_ms: Positive
    slow_sample_ms: Positive


class KernelParameters(_Section):
    """What a forward pass costs beyond the ideal roofline."""

    combine_exponent: Annotated[float, Field(gt=0, allow_inf_nan=True)]
    """Infinity is the ideal roofline."""
    weight_bandwidth_efficiency: Positive
    expert_bandwidth_efficiency: Positive
    kv_bandwidth_efficiency: Positive
    tile_positions: PositiveInt
    expert_tile_positions: PositiveInt
    expert_popular_share: Share
    routing_overlap: Share
    activation_bytes: NonNegativeFloat
    per_layer: dict[str, NonNegativeFloat]
    per_expert_layer: NonNegativeFloat
    captured_us: NonNegativeFloat
    eager_us: NonNegativeFloat
    prefill_efficiency: Positive
    prefill_chunk_tokens: PositiveInt


class HostParameters(_Section):
    """Time that the host takes and the board waits."""

    step_ms: NonNegativeFloat
    speculative_step_ms: NonNegativeFloat
    draft_step_ms: NonNegativeFloat
    ngram_round_ms: NonNegativeFloat
    ngram_request_ms: NonNegativeFloat
    prefill_ms: NonNegativeFloat
    start_s: NonNegativeFloat
    watchdog_s: NonNegativeFloat
    hung_w: NonNegativeFloat


class DraftParameters(_Section):
    """What drafters look like where the catalogue does not say."""

    vocabulary: dict[str, PositiveInt]
    block_layers: PositiveInt
    head_layers: PositiveInt
    extend_pass: bool


class MemoryParameters(_Section):
    """How a server divides the board's memory."""

    static_fraction: Share
    graph_bytes_per_batch: NonNegativeFloat
    workspace_bytes: NonNegativeFloat
    reserve_pool_slot: NonNegativeInt


class AcceptanceParameters(_Section):
    """Survival curves: by scheme, corpus, language and training origin, and their spread."""

    first_probability: dict[str, Probability]
    slope_logit: dict[str, float]
    corpus_logit: dict[str, float]
    default_corpus_logit: float
    language_logit: dict[str, float]
    pair_spread_logit: NonNegativeFloat
    prompt_scale_logit: NonNegativeFloat
    prompt_degrees: Positive
    prompt_shared: Share
    stretch_logit: NonNegativeFloat
    stretch_rounds: PositiveInt
    repetition_logit: float
    ngram_hit: dict[str, Share]
    default_ngram_hit: Share
    ngram_continue: Probability
    ngram_growth_tokens: Positive
    ngram_start_share: Share
    ngram_trie_gain: NonNegativeFloat
    ngram_trie_tokens: Positive
    ngram_repetition_hit: Share
    ngram_repetition_continue: Probability


class TextParameters(_Section):
    """Lengths, languages and loops of answers."""

    natural_median_tokens: dict[str, Positive]
    default_natural_median_tokens: Positive
    natural_spread_log: NonNegativeFloat
    characters_per_token: dict[str, Positive]
    default_characters_per_token: Positive
    template_tokens: NonNegativeInt
    degenerate_share: dict[str, Share]
    default_degenerate_share: Share
    drift_share: dict[str, Share]


class Parameters(_Section):
    """All of `config/simulation.yaml`, leaves reduced to their values."""

    version: int
    board: BoardParameters
    meter: MeterParameters
    kernels: KernelParameters
    host: HostParameters
    draft: DraftParameters
    memory: MemoryParameters
    acceptance: AcceptanceParameters
    text: TextParameters
    digest: str
    """First hex digits of the sha256 of the values (sources do not enter)."""


def find_parameters(root: str | Path, named: str | None) -> Path:
    """Return the parameter file: the one a study names (relative to its root), its own, or this checkout's."""
    if named is not None:
        return Path(root) / named
    own = Path(root) / "config" / FILE_NAME
    return own if own.is_file() else _CHECKOUT


def load_parameters(path: Path, overrides: Mapping[str, Any] | None = None) -> Parameters:
    """Read and check a parameter file; `overrides` replaces values by section and name (tests, what-if studies).

    Of a value that is a table, an override replaces the entries it names and leaves the others. Raises
    ConfigurationError naming file and key; a leaf without a source is refused.
    """
    values: dict[str, Any] = {
        section: dict(content) if isinstance(content, dict) else content for section, content in _values(path).items()
    }
    for section, content in (overrides or {}).items():
        known = values.get(section)
        if not isinstance(known, dict) or not isinstance(content, Mapping):
            raise ConfigurationError(f"{path}: no section '{section}' to override")
        for name, value in content.items():
            tables = isinstance(known.get(name), dict) and isinstance(value, Mapping)
            known[name] = {**known[name], **value} if tables else value
    digest = hashlib.sha256(repr(_ordered(values)).encode()).hexdigest()[:12]
    return checked(Parameters, {**values, "digest": digest}, f"{path}: ")


def sources(path: Path) -> dict[str, str]:
    """Return the source of every leaf by its dotted name."""
    return {
        f"{section}.{name}": leaf["source"]
        for section, content in _raw(path).items()
        if isinstance(content, dict)
        for name, leaf in content.items()
    }


def _values(path: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for section, content in _raw(path).items():
        if not isinstance(content, dict):
            out[section] = content
            continue
        out[section] = {name: leaf["value"] for name, leaf in content.items()}
    return out


@lru_cache(maxsize=8)
def _parsed(path: Path, stamp: int) -> dict[str, Any]:
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: holds no sections")
    for section, content in data.items():
        if not isinstance(content, dict):
            continue
        for name, leaf in content.items():
            source = leaf.get("source") if isinstance(leaf, dict) and set(leaf) == {"value", "source"} else None
            if not isinstance(source, str) or not source.strip():
                raise ConfigurationError(
                    f"{path}: {section}.{name}: must be {{value, source}}; write 'assumed' if it is"
                )
    return data


def _raw(path: Path) -> dict[str, Any]:
    try:
        stamp = path.stat().st_mtime_ns
        return _parsed(path.resolve(), stamp)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({error.strerror}); name it in engine.settings.parameters"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML ({error})") from error


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((str(k), _ordered(v)) for k, v in value.items())
    return value
