"""`triton-repo cache`: parse, call, print. No logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli_common import CacheDir, Debug, Inputs, Json, Remote, reported

app = typer.Typer(
    help="Look at, check and share the engines that builds keep.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The engine's key, or its beginning.", show_default=False)]
Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, or their beginnings.", show_default=False)]
SomeKeys = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY...]", help="Keys, or their beginnings; all if none is given.")
]


def _open(cache: Path | None, *, write: bool = False) -> Any:
    from builder.cache.maintenance import open_store
    from builder.cache.options import CacheOptions

    return open_store(CacheOptions.resolve(cache), write=write)


@app.command("ls", short_help="List the engines.")
@reported
def list_engines(cache: CacheDir = None, as_json: Json = False, debug: Debug = False) -> None:
    """Every engine, the one used last first."""
    from builder.cache.maintenance import listing
    from builder.cache.options import cache_directory
    from builder.console import print_json
    from builder.console_cache import show_listing

    found = listing(_open(cache))
    if as_json:
        print_json(found)
    else:
        show_listing(found, cache_directory(cache))


@app.command(short_help="Show one engine.")
@reported
def show(key: Key, cache: CacheDir = None, as_json: Json = False, debug: Debug = False) -> None:
    """Settings, versions, target, ranges, graph, checksums and users of an engine."""
    from builder.cache.maintenance import find_key
    from builder.cache.maintenance import show as read
    from builder.console import print_json
    from builder.console_cache import show_engine

    store = _open(cache)
    found = read(store, find_key(store, key))
    if as_json:
        print_json(found)
    else:
        show_engine(found)


@app.command(short_help="Say why two models do not share engines.")
@reported
def explain(
    model_a: Annotated[str, typer.Argument(metavar="MODEL_A", help="A model, or the key of an engine.")],
    model_b: Annotated[str, typer.Argument(metavar="MODEL_B", help="Another one.")],
    input_: Inputs = None,
    compiler: Annotated[str | None, typer.Option("--compiler", help="For both.")] = None,
    cache: CacheDir = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print exactly which components of the engine keys of two models differ. Compiles nothing."""
    import dataclasses

    from builder.console import Reporter, print_json
    from builder.console_cache import show_differences
    from builder.spec import find_spec

    with Reporter(quiet=as_json) as reporter:
        reporter.stage("import torch")
        from builder.key_diff import compare_engines, engines_of, stored_engine

        sides = []
        for text in (model_a, model_b):
            stored = stored_engine(_open(cache), text)
            if stored is not None:
                sides.append([stored])
                continue
            overrides = {"compiler": compiler} if compiler else {}
            sides.append(engines_of(find_spec(text, inputs=input_ or (), overrides=overrides), reporter))
        pairs = compare_engines(*sides)
    if as_json:
        print_json([dataclasses.asdict(p) for p in pairs])
    else:
        show_differences(pairs)


@app.command(short_help="Check every file of every engine.")
@reported
def verify(cache: CacheDir = None, as_json: Json = False, debug: Debug = False) -> None:
    """Check all checksums and signatures; what is bad is put aside. Exits 1 if anything was."""
    from builder.cache.maintenance import verify as run
    from builder.console import print_json

    result = run(_open(cache, write=True))
    if as_json:
        print_json(result)
    else:
        for key, reason in result["bad"].items():
            print(f"{key[:12]}: {reason}; put aside")
        print(f"engines checked: {result['checked']}, bad: {len(result['bad'])}")
    if result["bad"]:
        raise typer.Exit(1)


@app.command(short_help="Shrink the cache, and clean up.")
@reported
def gc(
    max_size: Annotated[
        str | None, typer.Option("--max-size", help="For example 5G; else the configured limit.")
    ] = None,
    cache: CacheDir = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evict the engines used least recently until the cache is within its limit; pinned ones stay."""
    from builder.cache.maintenance import collect, open_store
    from builder.cache.options import CacheOptions
    from builder.console import print_json, size_text

    options = CacheOptions.resolve(cache, limit=max_size)
    result = collect(open_store(options, write=True), options.limit)
    if as_json:
        print_json(result)
    else:
        print(
            f"engines removed: {len(result['removed'])} ({size_text(result['freed'])}); "
            f"left: {result['entries']} ({size_text(result['size'])} of at most {size_text(result['limit'])})"
        )


def _pin(keys: list[str], cache: Path | None, as_json: bool, pinned: bool) -> None:
    from builder.cache.maintenance import find_key, set_pin
    from builder.console import print_json

    store = _open(cache, write=True)
    found = [find_key(store, text) for text in keys]
    set_pin(store, found, pinned)
    word = "pinned" if pinned else "unpinned"
    if as_json:
        print_json({word: found})
    else:
        for key in found:
            print(f"{word} {key}")


@app.command(short_help="Keep engines whatever the cache's size.")
@reported
def pin(keys: Keys, cache: CacheDir = None, as_json: Json = False, debug: Debug = False) -> None:
    """Engines that are never evicted."""
    _pin(keys, cache, as_json, True)


@app.command(short_help="Let engines be evicted again.")
@reported
def unpin(keys: Keys, cache: CacheDir = None, as_json: Json = False, debug: Debug = False) -> None:
    """Undo `pin`."""
    _pin(keys, cache, as_json, False)


@app.command(short_help="Send engines to the remote.")
@reported
def push(
    keys: SomeKeys = None, remote: Remote = None, cache: CacheDir = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Send engines that the remote does not have. Exits 1 if one could not be sent."""
    from builder.cache.maintenance import find_key, open_store
    from builder.cache.maintenance import push as run
    from builder.cache.options import CacheOptions

    options = CacheOptions.resolve(cache, remote=remote)
    store = open_store(options)
    _exchanged(run(store, options, [find_key(store, k) for k in keys or ()]), ("sent", "there"), as_json)


@app.command(short_help="Take engines from the remote.")
@reported
def pull(
    keys: SomeKeys = None, remote: Remote = None, cache: CacheDir = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Take engines that are not here. Exits 1 if one could not be taken."""
    from builder.cache.maintenance import open_store
    from builder.cache.maintenance import pull as run
    from builder.cache.options import CacheOptions

    options = CacheOptions.resolve(cache, remote=remote)
    _exchanged(run(open_store(options, write=True), options, keys or ()), ("taken", "here"), as_json)


def _exchanged(result: dict[str, Any], words: tuple[str, str], as_json: bool) -> None:
    from builder.console import print_json

    if as_json:
        print_json(result)
    else:
        for key, reason in result["failed"].items():
            print(f"{key[:12]}: {reason}")
        done, before = (len(result[word]) for word in words)
        print(f"{result['remote']}: {words[0]} {done}, already {words[1]} {before}, failed {len(result['failed'])}")
    if result["failed"]:
        raise typer.Exit(1)


@app.command(short_help="Remove all engines but the pinned ones.")
@reported
def clear(
    pinned: Annotated[bool, typer.Option("--pinned", help="The pinned ones too.")] = False,
    cache: CacheDir = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove every engine that no build is reading now, and the quarantine. Pinned engines stay."""
    from builder.cache.maintenance import clear as run
    from builder.console import print_json

    result = run(_open(cache, write=True), pinned=pinned)
    if as_json:
        print_json(result)
    else:
        print(f"engines removed: {len(result['removed'])}, kept: {len(result['kept'])}")
