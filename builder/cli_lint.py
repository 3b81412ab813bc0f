"""`triton-repo lint`: parse, call, print. No logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli_common import Debug, Json, reported

__all__ = ["lint"]


@reported
def lint(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A model repository, or the directory of a model.", show_default=False),
    ],
    triton: Annotated[
        str | None, typer.Option("--triton", metavar="YY.MM", help="The release that will serve it, for example 26.09.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a model repository, ours or not, against the rules of the server. Exits 2 if one is broken."""
    import dataclasses

    from builder.console import print_json
    from builder.releases import release
    from builder.repository.lint import lint_repository

    found = lint_repository(path, release=release(triton) if triton is not None else None)
    errors = sum(finding.severity == "error" for finding in found)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in found])
    else:
        for finding in found:
            # A name on disk may be no text.
            print(f"{finding}\n    to do: {finding.fix}".encode(errors="backslashreplace").decode())
        print(f"errors: {errors}, warnings: {len(found) - errors}")
    if errors:
        raise typer.Exit(2)
