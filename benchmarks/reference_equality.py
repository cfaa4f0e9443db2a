"""Does the reference engine commit exactly the text of plain greedy decoding? Writes docs/reference-equality.md.

Every prompt's text is compared token by token with transformers' `generate` on that prompt alone, float32, EOS ignored.
Default: every prompt of every corpus (hours on two cores); `--per-corpus` takes a sample, `--schemes` some drafters.
Each command has a section of its own in the page: run again, it replaces that section and leaves the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from reference_common import KEPT_LAYERS, ROOT, Generate, command, drafter, embedded_model, launch, machine

from specjoule.engines.base import Batch
from specjoule.engines.reference import ReferenceEngine
from specjoule.prompts.corpus import load_corpus
from specjoule.study.catalogue import Drafter

CORPORA = ("code", "conversation", "long_document", "news_en", "news_rm")
SCHEMES = ("plain", "ngram", "layer-skip")
WIDTHS = (2, 4, 8, 16)
PAGE = ROOT / "docs/reference-equality.md"
TITLE = "# Equality of committed text and plain greedy decoding"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-corpus", type=int, default=None, help="prompts of each corpus (default: all)")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    found = [path for name in options.corpora if (path := ROOT / f"prompts/{name}.jsonl").is_file()]
    # Interleaved, so that every wave mixes corpora and lengths.
    pools = [load_corpus(path)[: options.per_corpus] for path in found]
    prompts = [pool[i] for i in range(max(map(len, pools))) for pool in pools if i < len(pool)]
    generate = Generate()
    plain = [generate([prompt], options.tokens)[0] for prompt in prompts]
    lines = [
        f"## {', '.join(options.schemes)}: {', '.join(path.stem for path in found)}",
        "",
        f"Made by `{command()}` on {machine()}.",
        "",
        f"{len(prompts)} prompts ({', '.join(path.stem for path in found)}), {options.tokens} tokens each, weights and "
        f"cache in {options.dtype}. *Equal* counts prompts whose every token is that of transformers' `generate` in "
        "float32 on that prompt alone; *agreeing tokens* are those before the first difference.",
        "",
        "| drafter | width | batch | equal | agreeing tokens | committed a round |",
        "|---|---|---|---|---|---|",
    ]
    engine = ReferenceEngine()
    for entry in _drafters(options.schemes):
        engine.start(launch(entry, embedded_model(options.dtype)))
        for batch in options.batches:
            equal = agreeing = committed = rounds = 0
            for start in range(0, len(prompts), batch):
                wave = engine.run(Batch(tuple(prompts[start : start + batch]), options.tokens, ignore_eos=True))
                for request, text in zip(wave.requests, plain[start : start + batch], strict=True):
                    same = _common_prefix(request.output_token_ids, text)
                    equal += same == len(text)
                    agreeing += same
                    committed += request.committed_tokens - 1 + request.cut_tokens
                    rounds += request.rounds
            lines.append(
                f"| {entry.scheme} | {entry.verify_width} | {batch} | {equal}/{len(prompts)} | "
                f"{100 * agreeing / (len(prompts) * options.tokens):.1f} % | {committed / rounds:.2f} |"
            )
            print(lines[-1], flush=True)
            # Written after each line: an interrupted run leaves what it found.
            _replace_section(lines)


def _replace_section(lines: list[str]) -> None:
    """Put a section, which begins with its heading, into the page: in place of the one with that heading, else last."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else TITLE
    head, *sections = [part.strip() for part in text.split("\n## ")]
    new = "\n".join(lines).removeprefix("## ")
    headings = [section.splitlines()[0] for section in sections]
    place = headings.index(lines[0].removeprefix("## ")) if lines[0].removeprefix("## ") in headings else len(sections)
    sections[place : place + 1] = [new]
    PAGE.write_text("\n\n## ".join([head, *sections]) + "\n", encoding="utf-8")


def _drafters(schemes: Sequence[str]) -> Iterator[Drafter]:
    for scheme in schemes:
        if scheme == "plain":
            yield drafter(scheme)
            continue
        for width in WIDTHS:
            yield drafter(scheme, width, **({"kept_layers": KEPT_LAYERS} if scheme == "layer-skip" else {}))


def _common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), len(right))


if __name__ == "__main__":
    main()
