"""The `specjoule` command: one small module a command, mounted here."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer

from specjoule.errors import SpecJouleError

app = typer.Typer(
    name="specjoule",
    help="Energy per committed token of speculative decoding, paired with plain decoding on the same board.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

COMMANDS: tuple[tuple[str, str], ...] = (
    ("plan", "specjoule.cli.plan:plan"),
    ("status", "specjoule.cli.status:status"),
    ("check", "specjoule.cli.check:check"),
    ("measure", "specjoule.cli.measure:measure"),
    ("remeasure", "specjoule.cli.remeasure:remeasure"),
    ("describe", "specjoule.cli.describe:describe"),
    ("recompute", "specjoule.cli.recompute:recompute"),
    ("analyse", "specjoule.tables.commands:analyse"),
    ("advise", "specjoule.tables.commands:advise"),
    ("compare", "specjoule.sharing.commands:compare"),
    ("merge", "specjoule.sharing.commands:merge"),
    ("bundle", "specjoule.sharing.commands:bundle"),
    ("unbundle", "specjoule.sharing.commands:unbundle"),
    ("reanalyse", "specjoule.sharing.commands:reanalyse"),
    ("compact", "specjoule.sharing.commands:compact"),
    ("restore", "specjoule.sharing.commands:restore"),
    ("pin", "specjoule.cli.pin:pin"),
    ("schema", "specjoule.cli.schema:schema"),
)
"""Commands by name and where their function is."""

GROUPS: tuple[tuple[str, str], ...] = (
    ("prompts", "specjoule.cli.prompts:app"),
    ("meter", "specjoule.meters.commands:app"),
)
"""Groups of commands by name and where their typer app is."""


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _mount(named: str | None) -> None:
    """Mount the named command alone, or all of them for help and for a name that is none."""
    known = {*(name for name, _ in COMMANDS), *(name for name, _ in GROUPS)}
    wanted = {named} & known or known
    for name, target in COMMANDS:
        if name in wanted:
            app.command(name)(_resolve(target))
    for name, target in GROUPS:
        if name in wanted:
            app.add_typer(_resolve(target), name=name)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    """Energy per committed token of speculative decoding, paired with plain decoding on the same board."""
    if version:
        from specjoule import PROTOCOL_VERSION, __version__

        typer.echo(f"specjoule {__version__} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error meant for the user is one sentence on standard error and exit code 1."""
    _mount(next((word for word in sys.argv[1:] if not word.startswith("-")), None))
    try:
        app()
    except SpecJouleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
