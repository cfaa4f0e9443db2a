"""The nested records of a wave's requests, as columns: counts, arrivals, text, and what the text says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from specjoule.engines.base import RequestResult
from specjoule.prompts.corpus import Prompt
from specjoule.study.model import ValidityConfig
from specjoule.windows.arrivals import Arrivals
from specjoule.windows.records import Lists, Records
from specjoule.windows.text import answer_language, before_natural_end, repetition

_AS_RETURNED = (
    "prompt_id", "prompt_tokens", "committed_tokens", "finish_reason", "first_eos_position", "rounds",
    "proposed_tokens", "accepted_draft_tokens", "cut_tokens", "cached_tokens", "text",
)  # fmt: skip


def request_records(
    requests: Sequence[RequestResult], arrivals: Arrivals, prompts: Sequence[Prompt], validity: ValidityConfig
) -> Records:
    """Return the records of a wave's requests, with language and repetition judged up to the first EOS."""
    by_id = {p.id: p for p in prompts}
    asked = [by_id.get(r.prompt_id) for r in requests]
    judged = [
        repetition(
            r.output_token_ids,
            r.first_eos_position,
            min_distinct=validity.min_distinct_token_ratio,
            max_repeated=validity.max_repeated_ngram_share,
            min_tokens=validity.min_tokens_for_repetition,
        )
        for r in requests
    ]
    languages = [_language(r, validity) for r in requests]
    return Records(
        {
            **{name: [getattr(r, name) for r in requests] for name in _AS_RETURNED},
            "document_id": [p.document_id if p else None for p in asked],
            "answer_language": languages,
            "language_ok": [
                None if spoken is None or p is None else spoken == p.language
                for spoken, p in zip(languages, asked, strict=True)
            ],
            "distinct_token_ratio": [j.distinct_token_ratio for j in judged],
            "repeated_ngram_share": [j.repeated_ngram_share for j in judged],
            "degenerate": [j.degenerate for j in judged],
            "acceptance_histogram": [r.acceptance_histogram for r in requests],
            "chunk_t_ns": Lists(arrivals.lengths, arrivals.t_ns),
            "chunk_tokens": Lists(arrivals.lengths, arrivals.tokens),
            "output_digest": [_digest(r) for r in requests],
            "output_token_ids": [r.output_token_ids for r in requests],
        }
    )


def _language(request: RequestResult, validity: ValidityConfig) -> str | None:
    own = before_natural_end(request.text, request.first_eos_position, request.committed_tokens)
    return answer_language(own, validity.min_romansh_rate) if own else None


def _digest(request: RequestResult) -> str:
    """Digest of the committed token ids; of the text where an engine returns no ids."""
    ids = request.output_token_ids
    data = np.asarray(ids, dtype=np.int64).tobytes() if ids else request.text.encode()
    return hashlib.sha256(data).hexdigest()
