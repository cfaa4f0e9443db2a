"""The parameters of simulated boards: one file, every leaf with its source or the word 'assumed'."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from specjoule.errors import ConfigurationError

FILE_NAME = "simulation.yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same safe subset, ten times faster where PyYAML has its C parser: every block's process reads the file."""
_CHECKOUT = Path(__file__).resolve().parents[4] / "config" / FILE_NAME


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BoardParameters(_Section):
    """Clocks, power, temperature and the spread between boards, launches and steps."""

    max_clock_mhz: float
    min_clock_mhz: float
    memory_clock_mhz: float
    multiprocessors: int
    flop_per_clock_and_multiprocessor: float
    matrix_efficiency: float
    full_bandwidth_mhz: float
    voltage_floor: float
    voltage_knee_mhz: float
    loaded_idle_w: float
    active_w: float
    byte_pj: float
    matrix_byte_per_flop: float
    after_load_w: float
    after_load_s: float
    ambient_c: float
    kelvin_per_watt: float
    thermal_time_s: float
    leakage_per_kelvin: float
    leakage_reference_c: float
    boards_per_kind: int
    board_power_spread: float
    board_bandwidth_spread: float
    launch_power_spread: float
    launch_time_spread: float
    step_time_spread: float
    stall_probability: float
    stall_ms: float
    ecc: bool
    driver: str


class MeterParameters(_Section):
    """The energy counter and the slower channels beside it."""

    refresh_ms: float
    jitter: float
    lag_ms: float
    lag_error_ms: float
    call_ms: float
    resolution_j: float
    sample_ms: float
    sensor_window_ms: float
    slow_sample_ms: float


class KernelParameters(_Section):
    """What a forward pass costs beyond the ideal roofline."""

    combine_exponent: float
    weight_bandwidth_efficiency: float
    expert_bandwidth_efficiency: float
    kv_bandwidth_efficiency: float
    tile_positions: int
    expert_tile_positions: int
    expert_popular_share: float
    routing_overlap: float
    activation_bytes: float
    per_layer: dict[str, float]
    per_expert_layer: float
    captured_us: float
    eager_us: float
    prefill_efficiency: float
    prefill_chunk_tokens: int


class HostParameters(_Section):
    """Time that the host takes and the board waits."""

    step_ms: float
    speculative_step_ms: float
    draft_step_ms: float
    ngram_round_ms: float
    ngram_request_ms: float
    prefill_ms: float
    start_s: float
    watchdog_s: float
    hung_w: float


class DraftParameters(_Section):
    """What drafters look like where the catalogue does not say."""

    vocabulary: dict[str, int]
    block_layers: int
    head_layers: int
    extend_pass: bool


class MemoryParameters(_Section):
    """How a server divides the board's memory."""

    static_fraction: float
    graph_bytes_per_batch: float
    workspace_bytes: float
    reserve_pool_slot: int


class AcceptanceParameters(_Section):
    """Survival curves: by scheme, corpus, language and training origin, and their spread."""

    first_probability: dict[str, float]
    slope_logit: dict[str, float]
    corpus_logit: dict[str, float]
    default_corpus_logit: float
    language_logit: dict[str, float]
    pair_spread_logit: float
    prompt_scale_logit: float
    prompt_degrees: float
    prompt_shared: float
    stretch_logit: float
    stretch_rounds: int
    repetition_logit: float
    ngram_hit: dict[str, float]
    default_ngram_hit: float
    ngram_continue: float
    ngram_growth_tokens: float
    ngram_start_share: float
    ngram_trie_gain: float
    ngram_trie_tokens: float
    ngram_repetition_hit: float
    ngram_repetition_continue: float


class TextParameters(_Section):
    """Lengths, languages and loops of answers."""

    natural_median_tokens: dict[str, float]
    default_natural_median_tokens: float
    natural_spread_log: float
    characters_per_token: dict[str, float]
    default_characters_per_token: float
    template_tokens: int
    degenerate_share: dict[str, float]
    default_degenerate_share: float
    drift_share: dict[str, float]


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

    Raises ConfigurationError naming file and key; a leaf without a source is refused.
    """
    values: dict[str, Any] = {
        section: dict(content) if isinstance(content, dict) else content for section, content in _values(path).items()
    }
    for section, content in (overrides or {}).items():
        if not isinstance(values.get(section), dict) or not isinstance(content, Mapping):
            raise ConfigurationError(f"{path}: no section '{section}' to override")
        values[section] |= content
    digest = hashlib.sha256(repr(_ordered(values)).encode()).hexdigest()[:12]
    try:
        return Parameters.model_validate({**values, "digest": digest})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{path}: {key}: {first['msg']}") from error


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
            if not isinstance(leaf, dict) or set(leaf) != {"value", "source"} or not str(leaf["source"]).strip():
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
