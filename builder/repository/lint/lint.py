"""Check a repository against the rules of the server, before a server sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.errors import RepositoryError
from builder.releases import Release
from builder.repository.lint import (
    artifacts,
    backends,
    batch_io,
    dtypes,
    ensemble,
    identity,
    instances,
    members,
    onnx_model,
    python_model,
    scheduling,
    sequences,
    tensors,
    versions,
    warmup,
    warmup_files,
)
from builder.repository.lint.finding import Finding
from builder.repository.lint.folder import Folder
from builder.repository.lint.model import Model
from builder.repository.lint.reading import parse_config
from builder.repository.lint.repository import CONFIG_NAME, Loaded, Repository
from builder.repository.lint.rule import Rule

__all__ = ["READING_RULES", "RULES", "lint_config", "lint_repository"]

_FOLDER_RULES: tuple[Rule, ...] = (*versions.FOLDER_RULES, *python_model.RULES)
_CONFIG_RULES: tuple[Rule, ...] = (
    *identity.RULES,
    *tensors.RULES,
    *batch_io.RULES,
    *dtypes.RULES,
    *instances.RULES,
    *scheduling.RULES,
    *sequences.RULES,
    *warmup.RULES,
    *ensemble.RULES,
    *backends.RULES,
    *versions.RULES,
    *artifacts.RULES,
    *warmup_files.RULES,
    *members.RULES,
    *onnx_model.RULES,
)

RULES: tuple[Rule, ...] = (*_CONFIG_RULES, *_FOLDER_RULES)

# Rules about what is no configuration that could be checked further.
READING_RULES = ("config-missing", "config-syntax", "config-unreadable", "directory-unreadable", "stray-directory")


def lint_config(text: str, directory_name: str, *, release: Release | None = None) -> list[Finding]:
    """What is wrong with the text of a config.pbtxt, as far as the text alone tells.

    Args:
        text: the content of the file.
        directory_name: the model's directory in the repository.
        release: the server's; None for what every release refuses.
    Returns: findings in the order of their lines, with `path` "config.pbtxt".
    """
    parsed = parse_config(text, CONFIG_NAME)
    if isinstance(parsed, Finding):
        return [parsed]
    return _sorted(_checked(Model(CONFIG_NAME, directory_name, *parsed, release), RULES))


def lint_repository(path: Path, *, release: Release | None = None) -> list[Finding]:
    """What is wrong with a model repository, or with one model of it.

    Args:
        path: a repository, or the directory of one model; its neighbours are read where it is an ensemble.
        release: the server's; None for what every release refuses.
    Returns: findings in the order of their paths and lines; none for a repository that a server loads as it says.
    Raises:
        RepositoryError: when there is no such directory, or it cannot be read.
    """
    try:
        next(path.iterdir(), None)
        # A path may end with ".", which is no name.
        place = path.resolve() if path.name in ("", "..") else path
    except OSError as error:
        raise RepositoryError(
            f"there is no directory that can be read: {error.strerror or error}",
            where=str(path),
            fix="name a model repository, or the directory of a model",
        ) from None
    if _is_model(Folder(path)):
        return _sorted(_model(Repository(place.parent, release), place.name))
    repository = Repository(path, release)
    return _sorted(finding for name in Folder(path).directories for finding in _model(repository, name))


def _is_model(folder: Folder) -> bool:
    """Whether a directory is a model's and not a repository, in which a model may be called "1" and a file anything."""
    holds_models = any(folder.is_file(name, CONFIG_NAME) for name in folder.directories)
    configured = folder.is_file(CONFIG_NAME)
    versioned = bool(folder.versions)
    return (versioned and configured) or ((versioned or configured) and not holds_models)


def _model(repository: Repository, name: str) -> Iterator[Finding]:
    loaded = repository.load(name)
    unreadable = _unreadable(loaded.folder)
    if unreadable is not None:
        yield unreadable
        return
    yield from loaded.findings
    if not loaded.configured:
        yield from _unconfigured(loaded)
    elif loaded.main is not None:
        yield from _checked(loaded.main, RULES)
    for other in loaded.alternatives:
        yield from _checked(other, RULES)


def _unreadable(folder: Folder) -> Finding | None:
    try:
        next(folder.path.iterdir(), None)
    except OSError as error:
        message = f"the directory cannot be read: {error.strerror or error}"
        return Finding("directory-unreadable", "error", str(folder.path), None, message, "let the server read it")
    return None


def _unconfigured(loaded: Loaded) -> Iterator[Finding]:
    path = str(loaded.folder.path)
    if not loaded.folder.versions and not loaded.alternatives:
        yield Finding(
            "stray-directory",
            "error",
            path,
            None,
            f"No model version was found for '{loaded.folder.path.name}': the server takes every directory of a "
            "repository for a model, and ends where one cannot be loaded",
            "move it out of the repository",
        )
        return
    if not loaded.alternatives:
        yield Finding(
            "config-missing",
            "warning",
            path,
            None,
            f"model '{loaded.folder.path.name}' has no {CONFIG_NAME}, so the server derives everything, and nothing with "
            "--disable-auto-complete-config",
            f"write {CONFIG_NAME} with every input, output and max_batch_size",
        )
        if loaded.main is not None:
            named = (rule for rule in RULES if rule.name in ("backend-missing", "version-none", "artifact-missing"))
            yield from _checked(loaded.main, (*named, *_FOLDER_RULES))


def _checked(model: Model, rules: Iterable[Rule]) -> Iterator[Finding]:
    for rule in rules:
        yield from rule.findings(model)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of paths and lines, each once: configurations of one model share its files."""
    return sorted(dict.fromkeys(findings), key=lambda finding: (finding.path, finding.line or 0, finding.severity))
