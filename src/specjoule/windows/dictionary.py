"""The data dictionary as a page, made from the schema.

`python -m specjoule.windows.dictionary > docs/data-dictionary.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import pyarrow as pa

from specjoule.windows.schema import (
    COLLECTED,
    COLUMNS,
    REFRESH_TYPE,
    REQUEST_TYPE,
    SAMPLE_TYPE,
    SCHEMA_VERSION,
    Column,
)

REQUEST_FIELDS: Mapping[str, str] = {
    "prompt_id": "the prompt, an id of the corpus",
    "document_id": "the document the prompt is about; null where it is about none",
    "prompt_tokens": "tokens of the prompt with the chat template",
    "committed_tokens": "tokens delivered: 1 from the prefill + accepted_draft_tokens + rounds - cut_tokens",
    "finish_reason": "'length', 'eos' or 'abort'",
    "first_eos_position": "0-based index of the first end of sequence among the committed tokens; null: none",
    "answer_language": "language of the text before its natural end; where not the one asked for: where it drifted",
    "language_ok": "answer_language is the corpus's language; null where it is unclear",
    "distinct_token_ratio": "distinct tokens per token before the natural end",
    "repeated_ngram_share": "share of 8-grams (tokens) seen before, before the natural end",
    "degenerate": "the answer repeats itself by the study's thresholds",
    "rounds": "verification rounds after the prefill",
    "proposed_tokens": "drafts proposed",
    "accepted_draft_tokens": "drafts kept, before the cut",
    "acceptance_histogram": "hist[i] = rounds in which exactly i drafts were kept, before the cut",
    "cut_tokens": "kept tokens that the end of sequence or the length limit cut off",
    "cached_tokens": "prompt tokens taken from a prefix cache",
    "chunk_t_ns": "arrival of each chunk on the monotonic clock, ns",
    "chunk_tokens": "tokens in each chunk",
    "output_digest": "sha256 of the committed token ids",
    "output_token_ids": "the committed token ids",
    "text": "the whole text, also what follows the natural end",
}
REFRESH_FIELDS: Mapping[str, str] = {
    "read_start_ns": "start of the last read that still saw the old value, ns",
    "read_end_ns": "end of the first read that saw this value, ns: the counter moved between the two",
    "counter_j": "the counter's value, J",
    "channel": "'board', a part of it, or 'host/...' for the second meter",
}
SAMPLE_FIELDS: Mapping[str, str] = {
    "t_ns": "time of the reading, ns",
    "channel": "what was read, with its unit: power_w, sm_clock_mhz, temperature_c, ...",
    "value": "the reading",
}
NESTED_FIELDS: tuple[tuple[str, pa.StructType, Mapping[str, str]], ...] = (
    ("requests", REQUEST_TYPE, REQUEST_FIELDS),
    ("refreshes", REFRESH_TYPE, REFRESH_FIELDS),
    ("samples", SAMPLE_TYPE, SAMPLE_FIELDS),
)

HEAD = f"""# Data dictionary

<!-- made by: python -m specjoule.windows.dictionary > docs/data-dictionary.md -->

One Parquet file a cell,
`results/raw/{{study}}/{{model}}/{{gpu}}/{{drafter}}/{{corpus}}/c{{concurrency}}/s{{seed}}.parquet`, holds every attempt
of that cell: one row a wave and window (`generation`, `decode`). Schema version {SCHEMA_VERSION} (in the file's
metadata as `specjoule_schema_version`); a reader refuses a newer one. Units are in the names; a missing
value is null and never zero. All `_ns` times count from the same monotonic clock, from the host's boot. How to read a
file: [Reading a raw window](raw-windows.md).
"""


def data_dictionary() -> str:
    """Return the page in Markdown: every column of the raw files by section, nested fields, and what collect adds."""
    parts = [HEAD]
    for section in dict.fromkeys(c.section for c in COLUMNS):
        parts.append(f"## {section}\n\n{_table(c for c in COLUMNS if c.section == section)}")
    for name, struct, meanings in NESTED_FIELDS:
        rows = [f"| `{f.name}` | {_type(f.type)} | {meanings[f.name]} |" for f in struct]
        parts.append(
            f"### Each of `{name}`\n\n" + "\n".join(["| field | type | meaning |", "|---|---|---|", *rows, ""])
        )
    parts.append(
        "## Added at collect\n\nOnly in `results/collected/{study}/blocks/*.parquet`, which hold the scalar columns of "
        f"all cells of a block.\n\n{_table(COLLECTED)}"
    )
    return "\n".join(parts)


def _table(columns: Iterable[Column]) -> str:
    lines = ["| column | type | unit | null? | meaning |", "|---|---|---|---|---|"]
    for c in columns:
        meaning = c.meaning.replace("|", "\\|")
        lines.append(f"| `{c.name}` | {_type(c.type)} | {c.unit} | {'yes' if c.nullable else 'no'} | {meaning} |")
    return "\n".join([*lines, ""])


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {'records' if pa.types.is_struct(kind.value_type) else kind.value_type}"
    return str(kind)


if __name__ == "__main__":
    sys.stdout.write(data_dictionary())
