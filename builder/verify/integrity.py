"""Whether the files of publications are what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.content import digest_of, files_below
from builder.repository.find import find_models
from builder.repository.history import LocalModel, read_history, version_numbers
from builder.repository.interface import named_files, parsed_config
from builder.repository.plan import CONFIG_NAME
from builder.runtime.manifest import MANIFEST_NAME, FileDigest, Manifest

__all__ = ["IntegrityReport", "Problem", "verify_files"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not as it was written.

    Args:
        path: of the file.
        kind: "missing", "changed", "extra", or "unreadable".
        detail: what was found; empty where the kind says it all.
    """

    path: Path
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """What was checked, and what was found.

    Args:
        problems: in the order of the paths; none where all is well.
        files: how many were there and read.
        bytes: in them.
    """

    problems: tuple[Problem, ...]
    files: int
    bytes: int


def verify_files(path: Path) -> IntegrityReport:
    """Digest every file again that a manifest names, in versions and in the members of ensembles.

    What Python leaves in `__pycache__` is no fault.

    Args:
        path: a repository, a model, or a version.
    Raises:
        RepositoryError: when there is no model of this tool, or a directory cannot be read.
    """
    try:
        return _Check().run(path)
    except OSError as error:
        raise RepositoryError(
            f"the repository cannot be read: {error.strerror or error}", where=str(error.filename or path)
        ) from error


class _Check:
    """Collects what is found; looks at each member once."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._members: set[Path] = set()
        self._files = self._bytes = 0

    def run(self, path: Path) -> IntegrityReport:
        if (path / MANIFEST_NAME).is_file():
            self._version(path.resolve())
        else:
            for model in find_models(path):
                self._model(model.resolve())
        return IntegrityReport(tuple(sorted(self._problems, key=lambda p: p.path)), self._files, self._bytes)

    def _model(self, model: Path) -> None:
        for number in version_numbers([p.name for p in model.iterdir()]):
            if (model / str(number) / MANIFEST_NAME).is_file():
                self._version(model / str(number))
        try:
            config = read_history(LocalModel(model), model.name).config
            if config is None:
                self._problems.append(Problem(model / CONFIG_NAME, "missing"))
            for name in named_files(parsed_config(config or "", str(model))):
                if not (model / name).is_file():
                    self._problems.append(Problem(model / name, "missing", f"{CONFIG_NAME} refers to it"))
        except RepositoryError as error:
            self._problems.append(Problem(model / CONFIG_NAME, "unreadable", error.what))

    def _version(self, version: Path) -> None:
        try:
            manifest = Manifest.read(version)
        except RepositoryError as error:
            self._problems.append(Problem(version / MANIFEST_NAME, "unreadable", error.what))
            return
        self._directory(version, manifest.files, {MANIFEST_NAME})
        for name, digests in manifest.members.items():
            member = version.parent.parent / name
            if member not in self._members:
                self._members.add(member)
                self._directory(member, digests, set())

    def _directory(self, directory: Path, digests: Mapping[str, FileDigest], own: set[str]) -> None:
        there = files_below(directory) if directory.is_dir() else {}
        self._problems += (Problem(directory / name, "extra") for name in there.keys() - digests.keys() - own)
        self._problems += self._compared(directory, digests, there)

    def _compared(
        self, directory: Path, digests: Mapping[str, FileDigest], there: Mapping[str, Path]
    ) -> Iterator[Problem]:
        for name, expected in digests.items():
            if name not in there or not there[name].exists():
                yield Problem(directory / name, "missing")
                continue
            try:
                found = digest_of(there[name])
            except OSError as error:
                yield Problem(directory / name, "unreadable", error.strerror or str(error))
                continue
            self._files += 1
            self._bytes += found.size
            if found.size != expected.size:
                yield Problem(directory / name, "changed", f"{found.size} bytes, not {expected.size}")
            elif found != expected:
                yield Problem(directory / name, "changed", "other content of the same size")
