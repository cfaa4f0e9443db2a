"""The settings that the reference engine understands, checked before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specjoule.errors import ConfigurationError
from specjoule.study.load import nearest

DTYPES = ("float32", "bfloat16", "float16")
ATTENTIONS = ("packed", "sdpa", "eager")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")
MOST_THREADS = 1024
"""More than any machine has; a larger number would be refused by the thread pool, inside the job."""
FOR_THE_RUNNER = ("interpreter",)
"""Keys of `engine.settings` that are for the runner and pass through here unread."""


@dataclass(frozen=True)
class ReferenceSettings:
    """`engine.settings` of a study, with defaults."""

    device: str | None = None
    """"cpu", "cuda" or "cuda:0"; None: the GPU entry's kind, the board by its UUID."""
    dtype: str | None = None
    """Must equal the model's weight_dtype where given: the rows state that one."""
    threads: int = 1
    """CPU threads of PyTorch. One, because on a shared machine two threads that wait for each other collapse."""
    attention: str = "packed"
    """"packed" (this engine's, see `attention.py`), or an implementation of transformers: "sdpa", "eager"."""
    model_path: str | None = None
    """Overrides the checkpoint's path (a local copy)."""
    drafter_path: str | None = None
    """The same for the draft checkpoint."""
    prefill_tokens: int = 2048
    """Most prompt tokens, padding included, that one prefill pass takes; a longer prompt goes alone."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ReferenceSettings:
        """Read a mapping; ConfigurationError for an unknown key or a value of the wrong kind."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: v for k, v in settings.items() if k not in FOR_THE_RUNNER}
        if unknown := sorted(set(values) - known):
            raise ConfigurationError(
                f"engine.settings: the reference engine does not know {', '.join(map(repr, unknown))}; "
                f"it knows {', '.join(sorted(known))}"
            )
        for key in ("threads", "prefill_tokens"):
            value = values.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"engine.settings.{key}: must be a whole number of at least 1, not {value!r}")
        if values.get("threads", 1) > MOST_THREADS:
            raise ConfigurationError(
                f"engine.settings.threads: must be at most {MOST_THREADS}, not {values['threads']}"
            )
        for key in ("device", "dtype", "model_path", "drafter_path"):
            if (value := values.get(key)) is not None and not isinstance(value, str | Path):
                raise ConfigurationError(f"engine.settings.{key}: must be a text, not {value!r}")
            if value is not None and not str(value):
                raise ConfigurationError(f"engine.settings.{key}: must not be empty; leave the key out")
            if value is not None:
                values[key] = str(value)
        attention = values.get("attention", ATTENTIONS[0])
        if attention not in ATTENTIONS:
            raise ConfigurationError(
                f"engine.settings.attention: '{attention}' is not allowed; {nearest(str(attention), ATTENTIONS)}"
            )
        device = values.get("device")
        if device is not None and not DEVICE.fullmatch(device):
            raise ConfigurationError(f"engine.settings.device: '{device}' is no device; write cpu, cuda or cuda:0")
        return cls(**values)

    def resolve_dtype(self, model: str, weight_dtype: str, kv_dtype: str) -> str:
        """Return the one dtype of weights and KV; ConfigurationError where the study asks for several."""
        dtype = weight_dtype
        if self.dtype not in (None, dtype):
            raise ConfigurationError(
                f"engine.settings.dtype: is {self.dtype}, but the weight_dtype of {model}, which the rows state, is "
                f"{dtype}; set the model's weight_dtype instead"
            )
        if kv_dtype != dtype:
            raise ConfigurationError(
                f"model {model}: kv_dtype is {kv_dtype}, but the reference engine keeps keys and values "
                f"in the weights' {dtype}; set both to the same"
            )
        if dtype not in DTYPES:
            raise ConfigurationError(
                f"model {model}: the reference engine computes in {', '.join(DTYPES)}, not {dtype}"
            )
        return dtype
