"""`specjoule prompts`: import a local copy of a well-known set, seal one's own prompts, check a corpus."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specjoule.cli.options import JsonOption
from specjoule.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Prompt corpora: import a local copy of a known set, seal, check.")


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(metavar="FORMAT", help="humaneval, or questions (MT-Bench, Spec-Bench).")],
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Local copy of the set; nothing is downloaded.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus file to write.")],
    license: Annotated[
        str | None, typer.Option(help="The set's licence, recorded with every prompt; asked for where left out.")
    ] = None,
    language: Annotated[str | None, typer.Option(help="ISO 639-1 code; default: the set's own.")] = None,
) -> None:
    """Turn a local copy of a well-known prompt set into a corpus file, with licence, origin and digests recorded.

    Of multi-turn questions the first turn is taken: the later ones need the model's own answers.

    Examples:

      specjoule prompts import humaneval HumanEval.jsonl --license MIT --output prompts/humaneval.jsonl

      specjoule prompts import questions question.jsonl --license Apache-2.0 --output prompts/mt-bench.jsonl
    """
    from specjoule.prompts.importers import import_prompts

    if license is None:
        if not sys.stdin.isatty():
            raise ConfigurationError("name the set's licence with --license; it is recorded with every prompt")
        license = typer.prompt(f"Under which licence did {source.name} come (recorded with every prompt)")
    count = import_prompts(kind, source, output, license=license, language=language)
    typer.echo(f"{count} prompts in {output}, licence {license}. To use them, add to config/corpora.yaml:")
    typer.echo(f"  {output.stem}: {{path: {output}, language: {language or 'en'}, license: {license}}}")
    typer.echo("Public sets may be in a drafter's training data; say so where you publish numbers.")


@app.command("seal")
def seal_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="Hand-written prompts: id, language, license, messages.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus file to write (may be FILE itself).")],
) -> None:
    """Fill in the digests of a hand-written prompt file.

    Examples:

      specjoule prompts seal my-prompts.jsonl --output prompts/mine.jsonl
    """
    from specjoule.prompts.importers import seal

    typer.echo(f"{seal(source, output)} prompts sealed in {output}")


@app.command("check")
def check_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A corpus file.")],
    as_json: JsonOption = False,
) -> None:
    """Check a corpus: format, digests, how alike its prompts are. Exit code 1 where they are too much alike.

    Examples:

      specjoule prompts check prompts/code.jsonl
    """
    from specjoule.prompts.corpus import corpus_digest, load_corpus
    from specjoule.prompts.quality import largest_overlap, own_texts, too_much_alike

    prompts = load_corpus(file)
    texts = own_texts(file)
    problems = too_much_alike(texts, {p.language for p in prompts})
    document: dict[str, Any] = {
        "file": str(file),
        "prompts": len(prompts),
        "languages": sorted({p.language for p in prompts}),
        "licenses": sorted({p.license for p in prompts}),
        "documents": len({p.document_id for p in prompts if p.document_id is not None}),
        "largest_overlap": round(largest_overlap(texts).jaccard, 4),
        "digest": corpus_digest(prompts),
        "problems": problems,
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        over = f" over {document['documents']} documents" if document["documents"] else ""
        typer.echo(
            f"{file}: {len(prompts)} prompts{over}, {', '.join(document['languages'])}, licence "
            f"{', '.join(document['licenses'])}; most alike: {100 * document['largest_overlap']:.1f} % of 5-grams"
        )
        for problem in problems:
            typer.echo(f"  {problem}")
    if problems:
        raise typer.Exit(1)
