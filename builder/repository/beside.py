"""Files in a model's directory that all versions share: warm-up requests, labels.

They are added before the config.pbtxt that names them, and taken away after the last one that did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from builder.files import sync_path
from builder.repository.content import Source, digest_of, size_of, store
from builder.repository.history import History
from builder.repository.interface import named_files, parsed_config
from builder.repository.undo import make_parents, move, put_file

__all__ = ["add_beside", "files_named", "take_out_unnamed"]


def add_beside(files: Mapping[str, Source], model: Path, staging: Path, undo: ExitStack) -> None:
    """Add those that are missing or damaged."""
    for path, source in files.items():
        target = model / path
        if target.is_file() and target.stat().st_size == size_of(source) and digest_of(target) == digest_of(source):
            continue
        fresh = staging / "beside" / path
        if not fresh.exists():
            store(source, fresh)
        make_parents(target.parent, undo)
        put_file(fresh, target, undo)
        sync_path(target.parent)


def files_named(history: History, without: Iterable[int] = ()) -> frozenset[str]:
    """The files that the model's config.pbtxt, or one recorded for a version, refers to.

    Args:
        history: of the model.
        without: versions that do not count.
    """
    gone = set(without)
    versions = [v for v in history.versions.values() if v.number not in gone]
    return _named(
        {text for v in versions for text in (v.rendered, v.left)} | {history.config or ""}, history.config_where
    )


def take_out_unnamed(
    history: History, gone: Iterable[int], model: Path, into: Path, undo: ExitStack
) -> tuple[str, ...]:
    """Move the files that only versions refer to that are `gone` out of the model; gives their paths."""
    versions = [history.versions[number] for number in gone]
    candidates = _named({text for v in versions for text in (v.rendered, v.left)}, history.where)
    taken = []
    for path in sorted(candidates - files_named(history, gone)):
        if not (model / path).is_file():
            continue
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        if move(model / path, into / path, undo):
            taken.append(path)
            with suppress(OSError):
                (model / path).parent.rmdir()
    return tuple(taken)


def _named(texts: Iterable[str], where: str) -> frozenset[str]:
    return frozenset().union(*(named_files(parsed_config(text, where)) for text in filter(None, texts)))
