"""`triton-repo rollback`, `prune` and `verify`: parse, call, print. No logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from builder.cli_common import DEFAULT_ROOT, Debug, Json, Root, reported

__all__ = ["ConfigOption", "prune", "rollback", "verify"]

Published = Annotated[
    str, typer.Argument(metavar="NAME", help="The model's name in the repository.", show_default=False)
]
ConfigOption = Annotated[
    Literal["merge", "keep", "overwrite"],
    typer.Option("--config", help="What becomes of edits by hand in config.pbtxt."),
]


@reported
def rollback(
    name: Published,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="The one before the newest if not given.", min=1)
    ] = None,
    repo: Root = DEFAULT_ROOT,
    config: ConfigOption = "merge",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Publish an older version again, as the newest."""
    from builder.console import print_json
    from builder.repository.rollback import rollback as run

    published = run(repo, name, version, config=config)
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(published))
        return
    if published.created:
        source = published.manifest.settings["copy_of"]
        print(f"published {name} version {published.version}, a copy of version {source}: {published.path}")
    else:
        print(f"{name} version {published.version}, the newest, has this content already")
    if published.note:
        print(f"note: {published.note}")


@reported
def prune(
    name: Published,
    keep: Annotated[int, typer.Option("--keep", help="How many of the newest versions stay.", min=1)],
    repo: Root = DEFAULT_ROOT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove older versions, and the members and files that only they use."""
    from builder.console import print_json, size_text
    from builder.repository.prune import prune as run

    result = run(repo, name, keep)
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(result))
        return
    versions = ", ".join(map(str, result.versions)) or "none"
    print(f"versions removed: {versions} ({size_text(result.freed)})")
    for member in result.members:
        print(f"member removed: {member}")


@reported
def verify(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A repository, a model, or a version.", show_default=False)
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every file of every publication against its digest. Exits 1 if one is missing, changed or extra."""
    from builder.console import print_json, size_text
    from builder.verify.integrity import verify_files

    report = verify_files(path)
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(report))
    else:
        for problem in report.problems:
            print(f"{problem.path}: {problem.kind}" + (f" ({problem.detail})" if problem.detail else ""))
        print(f"files checked: {report.files} ({size_text(report.bytes)}), problems: {len(report.problems)}")
    if report.problems:
        raise typer.Exit(1)
