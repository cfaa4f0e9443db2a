"""Chunk arrivals of a wave as flat columns: read from the requests once, used by everything that asks when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specjoule.engines.base import RequestResult
from specjoule.meters.base import I64


@dataclass(frozen=True)
class Arrivals:
    """Chunks of all requests of a wave: request after request, each one's in time order."""

    lengths: I64
    """Chunks of each request; 0 for one that got no token."""
    t_ns: I64
    """When each chunk arrived, ns."""
    tokens: I64
    """Tokens of each chunk."""

    @classmethod
    def of(cls, requests: Sequence[RequestResult]) -> Arrivals:
        """Collect the arrivals of `requests`."""
        lengths = np.array([len(r.chunk_t_ns) for r in requests], dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        times = np.concatenate([none, *(np.asarray(r.chunk_t_ns, dtype=np.int64) for r in requests)])
        tokens = np.concatenate([none, *(np.asarray(r.chunk_tokens, dtype=np.int64) for r in requests)])
        return cls(lengths, times, tokens)

    @cached_property
    def starts(self) -> I64:
        """Index of the first chunk of each request that has any."""
        return (np.cumsum(self.lengths) - self.lengths)[self.lengths > 0]

    @cached_property
    def first_ns(self) -> I64:
        """Time of the first token of each request that has any, ns."""
        return self.t_ns[self.starts]

    @cached_property
    def last_ns(self) -> I64:
        """Time of the last token of each request that has any, ns."""
        last: I64 = self.t_ns[self.starts + self.lengths[self.lengths > 0] - 1]
        return last
