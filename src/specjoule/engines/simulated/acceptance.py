"""How many drafts each round keeps: survival curves by scheme, corpus, language and prompt; n-gram state; EOS.

A draw belongs to (model, drafter, prompt): greedy text does not depend on the batch it runs in, so the same prompt
keeps the same drafts at every concurrency, seed and launch. Only the n-gram matcher sees the other requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specjoule.engines.simulated.parameters import AcceptanceParameters, Parameters
from specjoule.meters.base import F64, I64
from specjoule.prompts.corpus import Prompt
from specjoule.study.catalogue import Drafter

SAMPLES: Mapping[str, str] = {
    "rm": "Quai è ina resposta simulada, betg in text: las valurs vegnan dals parameters, sco tut ils auters quants.",
    "it": "Questa è una risposta simulata e non un testo: i valori sono più quelli del modello, come anche il resto.",
    "en": "This is a simulated answer and not a text: the values are those of the model, as is the rest of it.",
    "de": "Das ist eine simulierte Antwort und nicht ein Text: die Werte sind auch die des Modells mit dem Rest.",
    "fr": "Ceci est une réponse simulée et pas un texte: les valeurs sont dans le modèle et le reste avec.",
}
"""Stands where an answer would; only enough for the language test, and only for answers that drift and for prompts that
exist in two languages."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def stable_seed(*parts: object) -> int:
    """Return 64 bits that depend on the parts alone, the same in every process."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "little")


def uniforms(keys: npt.NDArray[np.uint64], count: int, stream: int = 0) -> F64:
    """Return `count` uniform numbers in [0, 1) for each key (splitmix64 in counter mode)."""
    counter = np.arange(1 + stream * 65536, 1 + stream * 65536 + count, dtype=np.uint64) * _GOLDEN
    x = keys[:, None] + counter[None, :]
    x ^= x >> np.uint64(30)
    x *= _MIX_A
    x ^= x >> np.uint64(27)
    x *= _MIX_B
    x ^= x >> np.uint64(31)
    return np.asarray((x >> np.uint64(11)) * (1.0 / (1 << 53)))


def survival(first_logit: F64 | float, slope: float, k: int) -> F64:
    """Return S_1 ... S_k, S_j = prod of the conditional probabilities with logits first + slope (i - 1)."""
    logits = np.asarray(first_logit, dtype=np.float64)[..., None] + slope * np.arange(k)
    return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(-logits)), axis=-1), dtype=np.float64)


def expected_committed(s: F64) -> F64:
    """Return E[A] = 1 + sum of S_j."""
    return np.asarray(1.0 + s.sum(axis=-1))


def logit(p: float) -> float:
    """Return log(p / (1 - p))."""
    return float(np.log(p / (1.0 - p)))


@dataclass(frozen=True)
class Answer:
    """What a model would write to a prompt, whoever drafts it."""

    key: int
    natural_tokens: int
    """Index of its first end of sequence."""
    difficulty: float
    """Heavy-tailed, standardised; positive is easy to draft."""
    degenerate: bool
    language: str


class World:
    """Everything random that is a property of models and texts rather than of a run; one per study and world seed."""

    def __init__(self, parameters: Parameters, seed: int) -> None:
        self.p = parameters
        self.seed = seed
        self._answers: dict[tuple[str, str, str], Answer] = {}
        self._own: dict[tuple[str, str, str], tuple[int, float]] = {}

    def answer(self, model: str, prompt: Prompt) -> Answer:
        """Return the answer of a model to a prompt."""
        # By corpus too, whose lengths it has: two corpora may hold the same text.
        found = self._answers.get((model, prompt.corpus, prompt.digest))
        if found is None:
            key = stable_seed("answer", self.seed, model, prompt.digest)
            rng = np.random.default_rng(key)
            text, acceptance = self.p.text, self.p.acceptance
            median = text.natural_median_tokens.get(prompt.corpus, text.default_natural_median_tokens)
            natural = max(8, round(median * float(np.exp(text.natural_spread_log * rng.standard_normal()))))
            loops = text.degenerate_share.get(prompt.language, text.default_degenerate_share)
            drifts = text.drift_share.get(prompt.language, 0.0)
            degenerate, drifted = rng.random() < loops, rng.random() < drifts
            found = Answer(
                key=key,
                natural_tokens=natural,
                difficulty=float(rng.standard_t(acceptance.prompt_degrees)),
                degenerate=bool(degenerate),
                language=("it" if prompt.language == "rm" else "en") if drifted else prompt.language,
            )
            self._answers[(model, prompt.corpus, prompt.digest)] = found
        return found

    def own(self, model: str, drafter: str, prompt: Prompt) -> tuple[int, float]:
        """Return (key of the draws, this drafter's own part of the prompt's difficulty)."""
        found = self._own.get((model, drafter, prompt.digest))
        if found is None:
            key = stable_seed("draws", self.seed, model, drafter, prompt.digest)
            found = (key, float(np.random.default_rng(key).standard_t(self.p.acceptance.prompt_degrees)))
            self._own[(model, drafter, prompt.digest)] = found
        return found

    def pair_logit(self, model: str, drafter: Drafter) -> float:
        """Return how much better or worse than its scheme this drafter is on this model."""
        rng = np.random.default_rng(stable_seed("pair", self.seed, model, drafter.scheme, drafter.origin))
        return float(self.p.acceptance.pair_spread_logit * rng.standard_normal())


@dataclass(frozen=True)
class Rounds:
    """The rounds of a wave. Row i holds request i; columns beyond its own rounds mean nothing."""

    kept: npt.NDArray[np.int64]
    """Drafts kept, before any cut; shape (requests, columns)."""
    before: I64
    """Tokens committed after the prefill before each round; same shape."""
    rounds: I64
    accepted: I64
    cut: I64
    histograms: I64
    """Shape (requests, k + 1)."""

    def alone(self) -> list[OneText]:
        """Return the rounds of each request by itself."""
        counts = self.rounds.tolist()
        return [
            OneText(
                self.kept[i, :r].copy(), self.before[i, :r].copy(), int(self.accepted[i]), int(self.cut[i]),
                self.histograms[i],
            )
            for i, r in enumerate(counts)
        ]  # fmt: skip


@dataclass(frozen=True)
class OneText:
    """The rounds of one request: a row of `Rounds`."""

    kept: I64
    before: I64
    accepted: int
    cut: int
    histogram: I64


def together(texts: Sequence[OneText]) -> Rounds:
    """Return the rounds of a wave from those of its requests."""
    rounds = np.array([t.kept.size for t in texts], dtype=np.int64)
    shape = (len(texts), int(rounds.max(initial=0)))
    kept, before = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, text in enumerate(texts):
        kept[i, : text.kept.size] = text.kept
        before[i, : text.kept.size] = text.before
    return Rounds(
        kept=kept,
        before=before,
        rounds=rounds,
        accepted=np.array([t.accepted for t in texts], dtype=np.int64),
        cut=np.array([t.cut for t in texts], dtype=np.int64),
        histograms=np.array([t.histogram for t in texts], dtype=np.int64),
    )


def _plain_rounds(decode_tokens: I64) -> Rounds:
    n, most = decode_tokens.size, int(decode_tokens.max(initial=0))
    zero = np.zeros(n, dtype=np.int64)
    return Rounds(
        kept=np.broadcast_to(np.int64(0), (n, most)),
        before=np.broadcast_to(np.arange(most, dtype=np.int64), (n, most)),
        rounds=decode_tokens,
        accepted=zero,
        cut=zero,
        histograms=decode_tokens[:, None],
    )


class Drafting:
    """One drafter on one model: draws the rounds of waves."""

    def __init__(self, world: World, model: str, drafter: Drafter) -> None:
        self.world, self.model, self.drafter = world, model, drafter
        self.p: AcceptanceParameters = world.p.acceptance
        self.k = drafter.draft_tokens
        self.is_ngram = drafter.scheme == "ngram"
        if self.k and not self.is_ngram:
            override = drafter.settings.get("first_probability")
            first = float(override) if override is not None else self.p.first_probability[drafter.scheme]
            self.first = logit(first) + world.pair_logit(model, drafter)
            self.slope = self.p.slope_logit[drafter.scheme]
        self._drawn: dict[tuple[str, str, str, bool, int, int], OneText] = {}
        """Drawn once for each text of a corpus: the batch it runs in changes nothing of it."""

    def first_logits(self, prompts: tuple[Prompt, ...], answers: list[Answer]) -> F64:
        """Return each request's logit of the first conditional probability (n-gram: of going on after a hit)."""
        p = self.p
        shared = np.array([a.difficulty for a in answers])
        own = np.array([self.world.own(self.model, self.drafter.name, q)[1] for q in prompts])
        spread = p.prompt_scale_logit * (p.prompt_shared**0.5 * shared + (1 - p.prompt_shared) ** 0.5 * own)
        if self.is_ngram:
            return np.asarray(logit(p.ngram_continue) + spread)
        corpus = np.array([p.corpus_logit.get(q.corpus, p.default_corpus_logit) for q in prompts])
        low = p.language_logit.get(self.drafter.origin, 0.0)
        language = np.array([low if a.language == "rm" else 0.0 for a in answers])
        loops = np.array([p.repetition_logit if a.degenerate else 0.0 for a in answers])
        return np.asarray(np.clip(self.first + corpus + language + spread + loops, -4.0, 6.0))

    def draw(
        self, prompts: tuple[Prompt, ...], answers: list[Answer], decode_tokens: I64, natural: I64, trie_tokens: float
    ) -> Rounds:
        """Draw the rounds until request i has `decode_tokens[i]` tokens after the prefill's.

        Text from `natural[i]` on repeats. `trie_tokens` is what the n-gram matcher has seen since its last flush.
        """
        if self.k == 0:
            return _plain_rounds(decode_tokens)
        if self.is_ngram:
            return self._draw_together(prompts, answers, decode_tokens, natural, trie_tokens)
        wanted = list(zip(prompts, answers, decode_tokens.tolist(), natural.tolist(), strict=True))
        keys = [(q.corpus, q.digest, a.language, a.degenerate, tokens, end) for q, a, tokens, end in wanted]
        new = [i for i, key in enumerate(keys) if key not in self._drawn]
        if new:
            drawn = self._draw_together(
                tuple(prompts[i] for i in new), [answers[i] for i in new], decode_tokens[new], natural[new], trie_tokens
            )
            self._drawn.update(zip((keys[i] for i in new), drawn.alone(), strict=True))
        return together([self._drawn[key] for key in keys])

    def _draw_together(
        self, prompts: tuple[Prompt, ...], answers: list[Answer], decode_tokens: I64, natural: I64, trie_tokens: float
    ) -> Rounds:
        n, most = len(prompts), int(decode_tokens.max(initial=0))
        keys = np.array([self.world.own(self.model, self.drafter.name, q)[0] for q in prompts], dtype=np.uint64)
        first = self.first_logits(prompts, answers)
        columns = min(most, int(most / self._slowest(first) * 1.3) + 12) if most else 0
        while True:
            kept = self._kept(prompts, keys, first, columns, trie_tokens, repeated=False)
            total = np.cumsum(kept + 1, axis=1)
            if (natural < decode_tokens).any() and columns:
                late = total - (kept + 1) >= natural[:, None]
                if late.any():
                    kept = np.where(late, self._kept(prompts, keys, first, columns, trie_tokens, repeated=True), kept)
                    total = np.cumsum(kept + 1, axis=1)
            if columns >= most or bool((total[:, -1] >= decode_tokens).all()):
                break
            columns = min(most, columns * 2)
        rounds = (total < decode_tokens[:, None]).sum(axis=1) + (decode_tokens > 0)
        valid = np.arange(columns)[None, :] < rounds[:, None]
        last = np.maximum(rounds - 1, 0)
        reached = total[np.arange(n), last] if columns else np.zeros(n, dtype=np.int64)
        rows = np.broadcast_to(np.arange(n)[:, None] * (self.k + 1), kept.shape)
        histograms = np.bincount((rows + kept)[valid], minlength=n * (self.k + 1)).reshape(n, self.k + 1)
        return Rounds(
            kept=kept,
            before=total - (kept + 1),
            rounds=rounds.astype(np.int64),
            accepted=histograms @ np.arange(self.k + 1),
            cut=np.where(rounds > 0, reached - decode_tokens, 0).astype(np.int64),
            histograms=histograms.astype(np.int64),
        )

    def _slowest(self, first: F64) -> float:
        if self.is_ngram:
            return 1.15
        hard = survival(first.min() - self.p.stretch_logit, self.slope, self.k)
        return float(expected_committed(hard))

    def _kept(
        self,
        prompts: tuple[Prompt, ...],
        keys: npt.NDArray[np.uint64],
        first: F64,
        columns: int,
        trie_tokens: float,
        *,
        repeated: bool,
    ) -> I64:
        stream = 3 if repeated else 0
        u = uniforms(keys, columns, stream)
        if self.is_ngram:
            return self._ngram(prompts, keys, first, u, columns, trie_tokens, stream, repeated)
        p = self.p
        if repeated:
            curves = survival(np.minimum(first + p.repetition_logit, 6.0), self.slope, self.k)
            return _count(u, curves)
        stretch = -(-columns // p.stretch_rounds) if columns else 0
        easy = np.repeat(uniforms(keys, stretch, 7) < 0.5, p.stretch_rounds, axis=1)[:, :columns]
        high = survival(first + p.stretch_logit, self.slope, self.k)
        low = survival(first - p.stretch_logit, self.slope, self.k)
        return _count_two(u, easy, high, low)

    def _ngram(
        self,
        prompts: tuple[Prompt, ...],
        keys: npt.NDArray[np.uint64],
        first: F64,
        u: F64,
        columns: int,
        trie_tokens: float,
        stream: int,
        repeated: bool,
    ) -> I64:
        p = self.p
        draws = uniforms(keys, columns, stream + 1)
        if repeated:
            hit = np.full((len(prompts), columns), p.ngram_repetition_hit)
            go_on = np.full((len(prompts), 1), p.ngram_repetition_continue)
        else:
            base = np.array([p.ngram_hit.get(q.corpus, p.default_ngram_hit) for q in prompts])
            own = np.arange(columns) * 1.5
            growth = p.ngram_start_share + (1 - p.ngram_start_share) * -np.expm1(-own / p.ngram_growth_tokens)
            shared = 1 + p.ngram_trie_gain * -np.expm1(-(trie_tokens + own * len(prompts)) / p.ngram_trie_tokens)
            # A prompt whose copies go on for longer is also hit more often.
            ease = np.exp(0.5 * (first - logit(p.ngram_continue)))
            hit = np.minimum(0.95, (base * ease)[:, None] * (growth * shared)[None, :])
            go_on = np.clip(1.0 / (1.0 + np.exp(-first)), 0.05, 0.99)[:, None]
        length = 1 + np.floor(np.log(np.maximum(draws, 1e-300)) / np.log(go_on)).astype(np.int64)
        return np.where(u < hit, np.minimum(length, self.k), 0)


def _count(u: F64, curves: F64) -> I64:
    """Return, for each u, how many of its row's S_j it lies below."""
    out = np.zeros(u.shape, dtype=np.int64)
    for j in range(curves.shape[1]):
        out += u < curves[:, j, None]
    return out


def _count_two(u: F64, easy: npt.NDArray[np.bool_], high: F64, low: F64) -> I64:
    """Return `_count` with one curve in easy stretches and another in hard ones."""
    out = np.zeros(u.shape, dtype=np.int64)
    for j in range(high.shape[1]):
        out += u < np.where(easy, high[:, j, None], low[:, j, None])
    return out
