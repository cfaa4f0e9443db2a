"""The rules of `windows.validity` over a whole table: the same verdicts, without an object a request.

The identities over requests are checked column by column; only a row in which one of them fails is judged request by
request, by the one function that knows the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from specjoule.study.model import ValidityConfig
from specjoule.windows.nested import list_field, sums
from specjoule.windows.validity import JUDGED, Attempt, Verdict, attempt_of, judge, with_repetition

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

JUDGED_FIELDS: tuple[str, ...] = (
    "committed_tokens", "rounds", "accepted_draft_tokens", "cut_tokens", "distinct_token_ratio",
    "repeated_ngram_share", "acceptance_histogram", "chunk_tokens", "output_token_ids", "prompt_id",
)  # fmt: skip
"""Fields of a request that a verdict is made from."""


class _Row(dict[str, Any]):
    """A row of `JUDGED` columns; asking for another one is an error, never a silent null."""

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


def judge_table(table: pa.Table, rules: ValidityConfig) -> list[Verdict]:
    """Return the verdict on every row of a raw table (`JUDGED` columns and `requests` with `JUDGED_FIELDS`)."""
    records = [_Row(r) for r in table.select(list(JUDGED)).to_pylist()]
    column = table["requests"]
    lists = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    items = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    owner = np.repeat(np.arange(len(lists)), lengths)
    sound = _sound_rows(table, items, owner, lengths, present)
    bad = np.bincount(owner, weights=_repetitive(items, rules), minlength=len(lists)).astype(np.int64)
    verdicts = []
    for i, row in enumerate(records):
        known = bool(sound[i])
        nested = None if known or not present[i] else lists[i].as_py()
        verdicts.append(judge(row, nested, rules, accounted=known))
    answers = list(zip(bad.tolist(), lengths.tolist(), strict=True))
    return with_repetition(records, verdicts, answers, _repeating(records, items, owner), rules)


def _repeating(records: Sequence[_Row], items: Any, owner: I64) -> set[Attempt]:
    """Return the attempts in which a prompt occurs in more than one wave."""
    numbers: dict[Attempt, int] = {}
    attempt = np.array([numbers.setdefault(attempt_of(r), len(numbers)) for r in records], dtype=np.int64)
    generation = np.array([r["window"] == "generation" for r in records], dtype=bool)
    prompts = items.field("prompt_id").dictionary_encode()
    known = prompts.is_valid().to_numpy(zero_copy_only=False) & generation[owner]
    code = pc.fill_null(prompts.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)[known]
    # Each prompt once a wave (it may fill a batch several times, which the row's own rule sees), then once an attempt.
    waves = np.unique(owner[known] * len(prompts.dictionary) + code)
    row, code = np.divmod(waves, max(len(prompts.dictionary), 1))
    pairs, times = np.unique(attempt[row] * len(prompts.dictionary) + code, return_counts=True)
    again = set((pairs[times > 1] // max(len(prompts.dictionary), 1)).tolist())
    return {key for key, number in numbers.items() if number in again}


def _sound_rows(table: pa.Table, items: Any, owner: I64, lengths: I64, present: Any) -> npt.NDArray[np.bool_]:
    """Say which rows satisfy every identity over their requests for sure; false is not yet a verdict."""
    committed, rounds, accepted, cut = (
        _floats(items.field(n)) for n in ("committed_tokens", "rounds", "accepted_draft_tokens", "cut_tokens")
    )
    width, asked, wanted = (_floats(table[n]) for n in ("verify_width", "max_new_tokens", "committed_tokens"))
    ids = pc.fill_null(pc.list_value_length(items.field("output_token_ids")), 0).to_numpy(zero_copy_only=False)
    chunk_lengths, chunk_tokens = list_field(items, "chunk_tokens")
    histogram = items.field("acceptance_histogram")
    bins, counts = list_field(items, "acceptance_histogram")
    starts = np.cumsum(bins) - bins
    kept = np.arange(len(counts)) - np.repeat(starts, bins)
    no_histogram = ~histogram.is_valid().to_numpy(zero_copy_only=False)
    decoded = committed - 1
    full = committed >= asked[owner]
    with np.errstate(invalid="ignore"):  # a null is a NaN here, with which every comparison is false
        fine = (
            ((ids == 0) | (ids == committed))
            & (sums(chunk_tokens, chunk_lengths) == committed)
            & items.field("chunk_tokens").is_valid().to_numpy(zero_copy_only=False)
            & (decoded == accepted + rounds - cut)
            & (rounds <= decoded)
            & (decoded <= rounds * width[owner])
            & (no_histogram | ((sums(counts, bins) == rounds) & (sums(counts * kept, bins) == accepted)))
            & (full | ~_booleans(table["ignore_eos"])[owner])
        )
    failed = np.bincount(owner[~fine], minlength=len(lengths))
    total = np.bincount(owner, weights=np.nan_to_num(committed), minlength=len(lengths))
    sound: npt.NDArray[np.bool_] = present & (failed == 0) & (total == wanted)
    return sound


def _repetitive(items: Any, rules: ValidityConfig) -> F64:
    distinct, repeated = (_floats(items.field(n)) for n in ("distinct_token_ratio", "repeated_ngram_share"))
    found: F64 = ((distinct < rules.min_distinct_token_ratio) | (repeated > rules.max_repeated_ngram_share)).astype(
        np.float64
    )
    return found


def _floats(values: Any) -> F64:
    """Return numbers as float64, null as NaN."""
    return np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _booleans(values: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=bool)
