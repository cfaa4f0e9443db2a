"""Runs under the pinned SGLang's own interpreter: parses and resolves commands, prints what they resolved to.

Standard input: a JSON list of {"flags": [...], "environment": {...}}. Standard output: one JSON object a line,
{"resolved": {...}} or {"error": "..."}. Every command resolves in a fork of its own, since resolution leaves state.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import Any


def resolve(flags: list[str]) -> dict[str, Any]:
    """Return the resolved arguments of `sglang serve <flags>`."""
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils.msgspec_utils import msgspec_to_builtins

    args = prepare_server_args(flags)
    args.resolve_once()
    return msgspec_to_builtins(args.resolved_dict())  # type: ignore[no-any-return]


def in_fork(command: dict[str, Any]) -> dict[str, Any]:
    """Resolve one command in a forked child and return its answer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            os.environ.update(command.get("environment", {}))
            answer = {"resolved": resolve(command["flags"])}
        except BaseException:  # also the SystemExit of argparse
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writer, "w") as out:
            json.dump(answer, out, default=str)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        text = source.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the resolving process died"}


def main() -> None:
    """Answer every command of standard input."""
    commands = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(BaseException):
            resolve(commands[0]["flags"])  # imports once, in the parent, what every child needs
        answers = [in_fork(c) for c in commands]
    for answer in answers:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
