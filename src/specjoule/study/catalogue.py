"""Models, drafters, GPUs and corpora: described once, in `config/`, for real and simulated studies alike."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
"""A name that is also a path part."""

Scheme = Literal[
    "plain", "plain-matched", "ngram", "layer-skip", "mtp", "assistant", "eagle3", "dflash", "dspark", "draft-model"
]
TrainingOrigin = Literal["none", "co-trained", "post-trained", "vendor-post-trained", "third-party", "target-layers"]


class Entry(BaseModel):
    """Base of catalogue entries: frozen; a key it does not know is an error, and so is a number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class Checkpoint(Entry):
    """Weights by local path or hub name; a hub name needs its revision pinned."""

    path: str = Field(min_length=1)
    revision: str | None = None
    license: str | None = None
    prepare: Literal["embedded-smollm2"] | None = None
    """How `path` is made where it is not there: the embedded model is converted once from a Python package."""
    inferred: bool = False
    """True where the source does not name the checkpoint and we chose it."""


class Architecture(Entry):
    """Sizes that energy models need; counts, not bytes."""

    parameters: float = Field(gt=0)
    active_parameters: float | None = Field(default=None, gt=0)
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    attention_layers: int | None = Field(default=None, ge=0)
    """Layers that keep a growing KV cache; the rest are recurrent or windowed."""
    query_heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    kv_bytes_per_token: float | None = Field(default=None, gt=0)
    """Overrides 2 x layers x kv_heads x head_dim x dtype (latent attention compresses it)."""
    sliding_window: int | None = Field(default=None, gt=0)
    """Tokens that windowed layers keep; their cache stops growing there."""
    sliding_kv_bytes_per_token: float | None = Field(default=None, gt=0)
    """KV bytes per token of the windowed layers, beside `kv_bytes_per_token` of those that keep everything."""
    experts: int | None = Field(default=None, gt=0)
    experts_per_token: int | None = Field(default=None, gt=0)
    recurrent_state_bytes: float | None = Field(default=None, ge=0)
    """One snapshot of all recurrent layers of one request."""
    source: str | None = None
    assumed: tuple[str, ...] = ()
    """Names of the fields above that are assumed rather than read from the model's own configuration."""


class Model(Entry):
    """A target model."""

    name: Name
    family: str
    attention: Literal["full", "sliding", "hybrid", "latent"] = "full"
    checkpoint: Checkpoint
    architecture: Architecture
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    draft_heads: bool = False
    """The checkpoint carries multi-token-prediction heads of its own."""
    forecast_itl_ms: dict[str, dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]] = Field(
        default_factory=dict
    )
    """Plain inter-token latency by GPU and concurrency, used only to plan waves and time before anything is known."""


class DraftCheckpoint(Checkpoint):
    """The weights that draft for one target."""

    parameters: float | None = Field(default=None, ge=0)
    layers: int | None = Field(default=None, ge=0)
    hidden_size: int | None = Field(default=None, ge=0)


class Drafter(Entry):
    """A way to draft: scheme, width, and for trained drafters the checkpoint per target model."""

    name: Name
    scheme: Scheme
    draft_tokens: int = Field(ge=0)
    """k: positions proposed per request and round."""
    verify_width: int = Field(ge=1)
    """w = k + 1: positions verified per request and round. Both are written down; they must agree."""
    serial_steps: int = Field(default=0, ge=0)
    """Draft forward passes that wait for each other in one round (1 for a block drafter, 0 for n-gram)."""
    origin: TrainingOrigin = "none"
    checkpoints: dict[str, DraftCheckpoint] = Field(default_factory=dict)
    """Draft weights by target model; empty for drafters that need none."""
    models: tuple[str, ...] | None = None
    """Targets this drafter applies to; None: every model (or those in `checkpoints`, where given)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Scheme-specific: max_ngram, min_ngram, kept_layers, confidence schedule ..."""
    inferred: bool = False
    label: str | None = None
    """For people; nothing is computed from it, and tables and figures go by the name."""

    def applies_to(self, model: str) -> bool:
        """Say whether this drafter exists for the model of that name."""
        if self.models is not None:
            return model in self.models
        return not self.checkpoints or model in self.checkpoints

    @property
    def is_plain(self) -> bool:
        """True for both baselines."""
        return self.scheme in ("plain", "plain-matched")


class Gpu(Entry):
    """A kind of board (a CPU counts as one)."""

    name: Name
    device: Literal["cuda", "cpu"]
    product: str
    power_limit_w: float | None = Field(default=None, gt=0)
    memory_bytes: float | None = Field(default=None, gt=0)
    peak_flop_s: float | None = Field(default=None, gt=0)
    bandwidth_byte_s: float | None = Field(default=None, gt=0)
    balance_flop_per_byte: float | None = Field(default=None, gt=0)
    """Measured peak over measured bandwidth."""
    idle_w: float | None = Field(default=None, gt=0)
    source: str | None = None


class Corpus(Entry):
    """A pool of distinct prompts."""

    name: Name
    path: str
    language: str
    license: str
    twin: str | None = None
    """Corpus whose item of the same position states the same facts in the other language."""
    note: str | None = None
    """For people; nothing is computed from it."""
