"""What all items share: the collected rows and, computed once when first asked for, cells, pairs and summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from specjoule.pairs.cells import sum_waves
from specjoule.pairs.configurations import configurations, counted_cells
from specjoule.pairs.instrumentation import only_minimal, without_minimal
from specjoule.pairs.pairing import Pairs, make_pairs
from specjoule.pairs.summary import summarise
from specjoule.study.catalogue import Drafter, Gpu, Model
from specjoule.study.model import AnalysisConfig
from specjoule.tables.provenance import provenance_words

if TYPE_CHECKING:
    from specjoule.statistics.floor import DetectionFloor
    from specjoule.windows.collect import StoredNested
    from specjoule.windows.nested import Nested


@dataclass
class Context:
    """Collected rows of one study (or several, merged), what may be known beside them, and everything derived."""

    rows: pd.DataFrame
    study: str
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    """Constants of the analysis: targets, margins, confidence, mixes."""
    models: Mapping[str, Model] = field(default_factory=dict)
    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    """Catalogue entries, where known: sizes, training origins, balance points; what needs them is empty without."""
    nested: Nested | StoredNested | None = None
    """Flat frames of the raw files' nested columns; items of those are empty without it."""
    records: Sequence[Mapping[str, Any]] = ()
    """Block records, for the settings in which launches differ."""
    _made: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every cell attempt over its generation windows, all under the study's own flags."""
        return without_minimal(self.every_cell)

    @cached_property
    def every_cell(self) -> pd.DataFrame:
        """As `cells`, with those that the sub-study of instrumentation measured under minimal flags."""
        return sum_waves(self.rows, "generation")

    @cached_property
    def decode_cells(self) -> pd.DataFrame:
        """Every cell attempt over its decode windows."""
        return without_minimal(sum_waves(self.rows, "decode"))

    @cached_property
    def paired(self) -> Pairs:
        """Pairs and excluded cells."""
        return make_pairs(self.cells, self.decode_cells)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Pairs that may be divided, with what their waves say of their scatter."""
        from specjoule.statistics.nested import with_wave_variance

        return with_wave_variance(self.paired.pairs, self.rows)

    @cached_property
    def paired_minimal(self) -> Pairs:
        """Pairs and excluded cells under minimal flags."""
        return make_pairs(only_minimal(self.every_cell))

    def prepare(self) -> None:
        """Compute now what nearly every item needs, so that forked workers find it done."""
        for name in ("cells", "decode_cells", "pairs", "summary", "judged", "counted", "configurations"):
            getattr(self, name)

    def once(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return what `make` gives, computed once: several items show the same table."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name].copy()

    @cached_property
    def excluded(self) -> pd.DataFrame:
        """Speculative cells in no pair, with their reasons."""
        minimal = only_minimal(self.every_cell)
        if minimal.empty:
            return self.paired.excluded
        return pd.concat([self.paired.excluded, self.paired_minimal.excluded], ignore_index=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Medians, half-ranges and totals per configuration."""
        return summarise(self.pairs)

    @cached_property
    def floor(self) -> DetectionFloor | None:
        """What plain relaunched differs from plain by, pooled over blocks; None without any closing plain."""
        from specjoule.statistics.floor import floor_of

        return floor_of(self.rows)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The summary with intervals and verdicts."""
        from specjoule.statistics.intervals import with_intervals
        from specjoule.statistics.verdicts import with_verdicts

        table = with_intervals(self.pairs, level=self.analysis.confidence)
        return with_verdicts(table, self.floor, rate=self.analysis.false_discovery_rate)

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The attempt of each cell that counts, plain and speculative alike."""
        return counted_cells(self.cells)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """Medians over seeds of energy and latency per configuration."""
        return configurations(self.counted)

    @property
    def meters(self) -> list[str]:
        """Meters that occur."""
        return [str(m) for m in self.rows["meter"].dropna().unique()]

    @property
    def assumed_w_per_core(self) -> list[float]:
        """Power of a busy core that estimated joules rest on, W; empty where nothing was estimated."""
        if "assumed_w_per_core" not in self.rows:
            return []
        return [float(w) for w in self.rows["assumed_w_per_core"].dropna().unique()]

    @property
    def provenance(self) -> str:
        """Where the joules came from, in words."""
        return provenance_words(self.meters, self.assumed_w_per_core)
