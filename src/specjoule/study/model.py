"""A study's configuration as one typed model; its JSON schema is generated from here (`study.schema`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from specjoule.study.catalogue import Corpus, Drafter, Entry, Gpu, Model, Name

VIRTUAL_ENGINES: frozenset[str] = frozenset({"simulated", "scripted"})
"""Engines on a virtual clock: they bring their own meter."""

MOST_COUNT = 2**31 - 1
"""Counts are stored in 32 bits."""
MOST_SEED = 2**32 - 1
"""The largest seed that every engine takes: servers hand theirs to numpy, which wants 32 bits without a sign."""


def _with_a_round(tokens: int) -> int:
    """Refuse answers of one token: they come from the prefill alone."""
    if tokens < 2:
        raise ValueError("must be at least 2: the first token comes from the prefill, and only rounds can be compared")
    return tokens


Positive = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
AnswerTokens = Annotated[
    int, Field(ge=1, le=MOST_COUNT, json_schema_extra={"minimum": 2}), AfterValidator(_with_a_round)
]
PLAIN = "plain"
MATCHED = "plain-matched"
"""Name of the baseline that runs plain decoding with the speculative side's scheduler settings."""
BASELINES = (PLAIN, MATCHED)
"""Drafters that do not speculate; each has the scheme of its own name."""
EngineName = Literal["reference", "sglang", "simulated", "scripted"]


class EngineConfig(Entry):
    """Which engine generates, in which version, with which settings; all of it is part of every cell's hash."""

    name: EngineName
    version: str | None = None
    """Release the cells are measured with; null: the installed one. A server's release is pinned here. The reference
    engine's names both libraries, as in torch-2.9.1+transformers-4.57.3; simulated boards have none to pin."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Engine-specific: device, dtype, threads, interpreter ... (docs of the engine)."""
    host_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that cannot change a number (`engines.host_settings` lists them by engine): not part of the hash."""


class MeterConfig(Entry):
    """Which meter reads the board, and how often."""

    name: Literal["auto", "nvml", "rapl", "estimate", "simulated"] = "auto"
    poll_ms: float | None = Field(default=None, gt=0, le=1000)
    """How often the counter is read; null: what suits the meter (5 ms a GPU board, 20 ms a processor)."""
    watts_per_core: float = Field(default=10.0, gt=0)
    """`estimate` only: assumed power of one busy core."""
    powercap_root: str = "/sys/class/powercap"
    host: Literal["auto", "rapl", "none"] = "none"
    """Second meter for CPU packages and DRAM beside a GPU board."""


class SettleConfig(Entry):
    """How long to let a warm board settle before measuring."""

    min_s: float = Field(default=1.0, ge=0)
    max_s: float = Field(default=120.0, ge=0)
    band_c: float = Field(default=1.0, gt=0)
    """Settled when the temperature stayed within this band for `min_s`."""
    idle_s: float = Field(default=1.0, ge=0)
    """Length of the loaded-idle power reading of each launch."""

    @model_validator(mode="after")
    def _in_order(self) -> SettleConfig:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s ({self.min_s:g}) is beyond max_s ({self.max_s:g}): no board could ever settle")
        return self


class ProtocolConfig(Entry):
    """How a cell is measured; every value is part of the hash, except where said."""

    max_new_tokens: AnswerTokens = 512
    max_prompt_tokens: Positive | None = None
    ignore_eos: bool = True
    sampling: Literal["greedy"] = "greedy"
    min_prompts: Positive = 16
    """A cell runs as many waves as it takes for this many prompts ..."""
    min_window_s: float = Field(default=10.0, ge=0)
    """... and, summed over waves, this many seconds on the fastest side's forecast, at most the pool."""
    forecast_speedup: float = Field(default=3.0, ge=1)
    """How much faster than plain the fastest drafter is taken to be when waves are counted beforehand."""
    ngram_state: Literal["cold", "warm"] = "cold"
    idle_refreshes: int = Field(default=3, ge=0)
    """Counter refreshes to stay idle before each wave (not hashed)."""
    warm_up_tokens: Positive = 16
    """Tokens generated per warm-up batch (not hashed)."""
    reference_cells: int = Field(default=2, ge=0)
    """Plain cells measured again by the closing launch of a segment (not hashed)."""
    settle: SettleConfig = SettleConfig()


class Grid(Entry):
    """One named part of a study: the product of its lists."""

    question: str = ""
    """What this part is to answer; for people."""
    models: tuple[Name, ...] = Field(min_length=1)
    gpus: tuple[Name, ...] = Field(min_length=1)
    drafters: tuple[Name, ...] = Field(min_length=1)
    concurrency: tuple[Positive, ...] = Field(min_length=1)
    corpora: tuple[Name, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    replicates: tuple[Positive, ...] = Field(default=(1,), min_length=1)
    capture: tuple[bool, ...] = Field(default=(True,), min_length=1)
    locked_mhz: tuple[Positive | None, ...] = Field(default=(None,), min_length=1)
    context_tokens: tuple[Positive | None, ...] = Field(default=(None,), min_length=1)
    instrumentation: tuple[Literal["minimal"] | None, ...] = Field(default=(None,), min_length=1)
    """`minimal`: both sides without the flags that only counters and proofs need; null: with them, as all else."""
    max_new_tokens: AnswerTokens | None = None
    """Overrides the protocol's, for sub-studies."""
    inferred: tuple[str, ...] = ()
    """Names of the lists above that the reproduced study does not state and we chose."""

    @model_validator(mode="after")
    def _known_and_distinct(self) -> Grid:
        if unknown := sorted(set(self.inferred) - set(Grid.model_fields)):
            raise ValueError(f"'inferred' names {', '.join(unknown)}, which a grid does not have")
        if PLAIN not in self.drafters:
            raise ValueError(f"'drafters' lacks '{PLAIN}': every drafter is compared with plain decoding on its board")
        for key in (
            "models",
            "gpus",
            "drafters",
            "concurrency",
            "corpora",
            "seeds",
            "replicates",
            "capture",
            "locked_mhz",
            "context_tokens",
            "instrumentation",
        ):
            values = getattr(self, key)
            twice = sorted({str(v) for v in values if values.count(v) > 1})
            if twice:
                raise ValueError(f"'{key}' lists {', '.join(twice)} twice")
        return self


class BlockConfig(Entry):
    """How cells are grouped into jobs."""

    split_by: tuple[Literal["corpus", "capture", "locked_mhz", "context_tokens"], ...] = ()
    """Factors by which a block is split further; both sides of every pair stay together."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Longest estimated run time of a block; longer ones are split by corpus."""
    store: str = Field(default="results/store", min_length=1)
    """Where finished cells are kept until (and after) they are copied into results/raw."""
    overhead_s: float = Field(default=20.0, ge=0)
    """Seconds a launch takes before its first window, for time estimates."""


class ValidityConfig(Entry):
    """Thresholds of the validity rules, set before the data; applied at collect, so a change re-measures nothing."""

    power_limit_factor: float = Field(default=1.2, gt=1)
    max_degenerate_share: float = Field(default=0.5, ge=0, le=1)
    """A row is invalid above this share of requests that repeat themselves before their natural end."""
    min_distinct_token_ratio: float = Field(default=0.2, ge=0, le=1)
    """A request repeats itself when it has fewer distinct tokens per token than this ..."""
    max_repeated_ngram_share: float = Field(default=0.3, ge=0, le=1)
    """... or a larger share of 8-grams (tokens) seen before than this."""
    min_tokens_for_repetition: Positive = 24
    min_romansh_rate: float = Field(default=0.03, ge=0, le=1)
    """Share of Romansh function words from which an answer counts as Romansh."""
    max_block_drift: float = Field(default=0.05, gt=0)
    max_cross_check: float = Field(default=0.02, gt=0)
    """Largest relative difference of counter and integrated power in a long window ..."""
    cross_check_edge_ms: float = Field(default=30.0, ge=0)
    """... plus this time over the window's length: a power reading trails the power at the window's edges."""
    max_batch_disagreement: float = Field(default=0.05, gt=0)
    """Largest relative difference of the engine's and the client's realized batch."""
    max_client_lag_ms: float = Field(default=5.0, gt=0)
    max_clock_deviation: float = Field(default=0.02, gt=0)
    max_relative_uncertainty: float = Field(default=0.02, gt=0)
    """A window whose energy is less certain than this is too short for its meter."""
    max_load_average: float | None = Field(default=None, gt=0)
    """Processor meters count the whole package or process tree: above this 1-minute load a row is invalid."""


class AnalysisConfig(Entry):
    """Constants of the analysis; a change rebuilds tables and figures and measures nothing."""

    latency_targets_ms: tuple[Annotated[float, Field(gt=0)], ...] = (15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0)
    headline_target_ms: float = Field(default=25.0, gt=0)
    tightening: float = Field(default=0.92, gt=0, le=1)
    tie_margin: float = Field(default=0.01, gt=0)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    false_discovery_rate: float = Field(default=0.05, gt=0, lt=1)
    control_limit: float = Field(default=0.03, gt=0)
    mixes: dict[str, dict[str, float]] = Field(default_factory=dict)


class StudyFile(Entry):
    """The study file as written; catalogues are named by path, relative to it."""

    study: Name
    title: str = ""
    site: str | None = None
    catalogues: dict[Literal["models", "drafters", "gpus", "corpora"], str] = Field(default_factory=dict)
    engine: EngineConfig
    meter: MeterConfig = MeterConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    grids: dict[Name, Grid] = Field(min_length=1)
    blocks: BlockConfig = BlockConfig()
    validity: ValidityConfig = ValidityConfig()
    analysis: AnalysisConfig = AnalysisConfig()


class Study(Entry):
    """A study with its catalogue entries resolved; the rest of the library takes this and no file."""

    file: StudyFile
    models: dict[str, Model]
    drafters: dict[str, Drafter]
    gpus: dict[str, Gpu]
    corpora: dict[str, Corpus]
    root: str
    """Folder that relative paths of corpora and checkpoints start from."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.file.study
