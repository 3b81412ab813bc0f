"""A repository behind a URL: its objects by path, errors in a sentence, and what was uploaded taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from builder.errors import BuilderError, RepositoryError
from builder.remote_url import RemotePlace
from builder.repository.content import Source
from builder.runtime.manifest import MANIFEST_NAME, Manifest

__all__ = ["RemoteModel", "RemoteRepository", "remote_errors"]

T = TypeVar("T")

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RemoteRepository:
    """The objects of a repository.

    Args:
        url: as the user gave it.
        place: what it names.
    """

    url: str
    place: RemotePlace

    def model(self, name: str) -> RemoteModel:
        """A model's directory."""
        return RemoteModel(self, name)

    def models(self) -> list[RemoteModel]:
        """Every directory."""
        return [self.model(name) for name in self.names("")]

    def names(self, path: str) -> list[str]:
        """What is directly below a path; nothing where there is nothing."""
        try:
            found = _attempt(lambda: self.place.fs.ls(self._at(path), detail=False))
        except FileNotFoundError:
            return []
        names = {str(item).rstrip("/").removeprefix(f"{self._at(path)}/") for item in found}
        # A marker that stands for the directory itself is listed, too.
        return sorted(name for name in names if name and "/" not in name)

    def sizes(self, path: str) -> Mapping[str, int]:
        """The size of every object below a path, by its path relative to that."""
        try:
            found = _attempt(lambda: self.place.fs.find(self._at(path), detail=True))
        except FileNotFoundError:
            return {}
        return {str(name).removeprefix(f"{self._at(path)}/"): int(info["size"]) for name, info in found.items()}

    def read(self, path: str) -> bytes | None:
        """The content of an object; None where there is none."""
        try:
            return bytes(_attempt(lambda: self.place.fs.cat_file(self._at(path))))
        except FileNotFoundError:
            return None

    def put(self, source: Source, path: str) -> None:
        """Write an object whole, over whatever has its name."""
        target = self._at(path)
        if isinstance(source, bytes):
            _attempt(lambda: self.place.fs.pipe_file(target, source))
        else:
            _attempt(lambda: self.place.fs.put_file(str(source), target))

    def add(self, source: Source, path: str, undo: ExitStack) -> None:
        """Write an object that is not there; undone by removing it."""
        undo.callback(self.remove, path)
        self.put(source, path)

    def remove(self, path: str, *, strict: bool = False) -> None:
        """Remove an object if it is there; if it cannot be, only `strict` says so, for what stays is never served."""
        try:
            _attempt(lambda: self.place.fs.rm_file(self._at(path)))
        except FileNotFoundError:
            return
        except Exception:
            if strict:
                raise

    def remove_all(self, path: str) -> None:
        """Remove every object below a path.

        Raises:
            Exception: whatever the file system raises.
        """
        # The manifest last: what is left of an interrupted removal is still known to be ours.
        for name in sorted(self.sizes(path), key=lambda name: (name == MANIFEST_NAME, name)):
            target = self._at(f"{path}/{name}")
            with suppress(FileNotFoundError):
                self.place.fs.rm_file(target)

    def shown(self, path: str) -> str:
        """The URL of a path, for messages."""
        return f"{self.url.rstrip('/')}/{path}"

    def _at(self, path: str) -> str:
        return f"{self.place.root}/{path}".rstrip("/")


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model's directory in it; see `ModelFiles`."""

    repository: RemoteRepository
    name: str

    @property
    def where(self) -> str:
        """The directory, for messages."""
        return self.repository.shown(self.name)

    def names(self) -> Sequence[str]:
        """What is directly in it; nothing where there is no such directory."""
        return self.repository.names(self.name)

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""
        return self.repository.read(f"{self.name}/{path}")

    def manifest(self, version: int) -> Manifest | None:
        """The manifest of a version; None where there is none."""
        path = f"{version}/{MANIFEST_NAME}"
        data = self.read(path)
        return None if data is None else Manifest.from_json(data, f"{self.where}/{path}")


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn what a file system raises into a `RepositoryError`."""
    try:
        yield
    except BuilderError:
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise RepositoryError(
            f"the repository cannot be changed: {said[:300]}",
            where=url,
            fix="check the URL, the credentials and the network",
        ) from error


def _attempt(call: Callable[[], T]) -> T:
    """Try some times.

    Raises:
        FileNotFoundError, PermissionError: at once, since trying again changes nothing.
        Exception: the last.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return call()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(0.2 * 4 ** (attempt - 1))
    raise AssertionError("unreachable")
