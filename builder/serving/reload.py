"""Have a running server take a new version, and go back to the old one if that does not work."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from builder.errors import BuilderError, ServingError
from builder.repository.history import History, LocalModel, read_history
from builder.repository.interface import called_models, parsed_config, served
from builder.repository.plan import CONFIG_NAME, Publication
from builder.repository.withdraw import withdraw
from builder.serving.client import PROTOCOLS, Client
from builder.serving.log import error_lines

__all__ = ["publish_live", "reload", "server_address"]

Smoke = Callable[[], object]
Log = Callable[[], Sequence[str]]

_TIMEOUT = 600.0
_POLL_SECONDS = 0.05
_LOG_SECONDS = 2.0

# What the server says, and what it says where it says nothing.
_NO_CONTROL = "explicit model load / unload is not allowed"
_OPAQUE = "failed to poll from model repository"


def reload(
    name: str,
    url: str,
    *,
    version: int | None = None,
    smoke: Smoke | None = None,
    timeout: float = _TIMEOUT,
    log: Log | None = None,
) -> None:
    """Load a model as its repository has it now, wait until it is ready, and test it.

    Args:
        name: of the model.
        url: of the server, with --model-control-mode=explicit: "HOST:PORT" (HTTP), or "grpc://HOST:PORT".
        version: that must become ready; None for any.
        smoke: calls the model, and raises if an answer is not right.
        timeout: seconds that loading may take.
        log: gives the server's log, which alone has the reason of some failures; None where it is out of reach.
    Raises:
        ServingError: with the server's reason, when it refuses, fails, or has another repository.
        BuilderError: what `smoke` raises.
    """
    seen = frozenset(log()) if log else frozenset()
    with _connected(url, timeout) as client:
        try:
            client.load_model(name)
        except ServingError as error:
            raise _explained(error, name, _new_lines(log, seen) if log and _OPAQUE in error.what else []) from None
        _wait_ready(client, name, version, timeout)
    if smoke is not None:
        smoke()


def publish_live(
    publication: Publication,
    root: Path,
    url: str,
    smoke: Smoke | None = None,
    *,
    timeout: float = _TIMEOUT,
    log: Log | None = None,
) -> None:
    """Have a server take a publication; it is withdrawn if that fails, and the version before it serves again.

    Members that the model no longer calls are unloaded; older versions are left to the server.

    Args:
        publication: what `publish` or `rollback` gave, before anything was pruned.
        root: the model repository, which is also the server's.
        url, smoke, timeout, log: see `reload`.
    Raises:
        ServingError: with the server's reason.
    """
    history = _history(root, publication.name)
    version = publication.version if publication.version in _served(history) else None
    try:
        reload(publication.name, url, version=version, smoke=smoke, timeout=timeout, log=log)
    except Exception as error:
        raise _withdrawn(publication, root, url, timeout, error) from error
    except BaseException:
        _withdrawn(publication, root, url, timeout, ServingError("interrupted"))
        raise
    _unload_stale(publication, root, url, timeout, history)


def _wait_ready(client: Client, name: str, version: int | None, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not client.model_ready(name, str(version or "")):
        states = [s for s in client.model_states() if s.name == name]
        if version is not None and str(version) not in {s.version for s in states}:
            raise ServingError(
                f"the server loaded model {name}, but has no version {version} of it",
                where=f"{client.protocol} {client.url}",
                fix="have it serve the repository that was published to",
            )
        if time.monotonic() > deadline:
            said = "; ".join(f"version {s.version}: {s.state} {s.reason}".rstrip() for s in states)
            raise ServingError(
                f"model {name} is not ready after {timeout:g} seconds: {said}", where=f"{client.protocol} {client.url}"
            )
        time.sleep(_POLL_SECONDS)


def _new_lines(log: Log, seen: frozenset[str]) -> list[str]:
    """What the log says since: it comes through a pipe, after the server's answer, and keeps its last lines only."""
    deadline = time.monotonic() + _LOG_SECONDS
    while True:
        lines = [line for line in log() if line not in seen]
        if any("Poll failed" in line for line in lines) or time.monotonic() > deadline:
            return lines
        time.sleep(_POLL_SECONDS)


def _explained(error: ServingError, name: str, log: Sequence[str]) -> ServingError:
    if _NO_CONTROL in error.what:
        return ServingError(
            f"the server does not load model {name} when it is told to: it is not in explicit mode",
            where=error.where,
            fix="start it with --model-control-mode=explicit; in mode poll it takes new versions by itself",
        )
    if _OPAQUE not in error.what:
        return ServingError(error.what.strip(), where=error.where, fix=error.fix)
    reasons = error_lines(log) if log else []
    return ServingError(
        ": ".join([error.what, "\n".join(reasons)]) if reasons else error.what,
        where=error.where,
        fix=None if reasons else f"its log has the reason, in the line 'Poll failed for model directory {name!r}'",
    )


def _withdrawn(publication: Publication, root: Path, url: str, timeout: float, error: Exception) -> ServingError:
    """Go back; gives the error to raise, which says what serves now."""
    name, version = publication.name, publication.version
    reason = error.what if isinstance(error, BuilderError) else f"{type(error).__name__}: {error}"
    where = getattr(error, "where", None) or url
    fix = getattr(error, "fix", None)
    if not publication.created:
        return ServingError(f"the server does not serve version {version} of {name!r}: {reason}", where=where, fix=fix)
    what = f"version {version} of {name!r} does not work in the server: {reason}"
    try:
        withdraw(root, publication)
        left = _served(_history(root, name))
    except BuilderError as failed:
        return ServingError(f"{what}\ngoing back failed, too: {failed.what}", where=where, fix=fix)
    try:
        with _connected(url, timeout) as client:
            if left:
                client.load_model(name)
            else:
                client.unload_model(name)
            for member in sorted(publication.manifest.members.keys() - _called(root)):
                with contextlib.suppress(ServingError):
                    client.unload_model(member)
    except BuilderError as failed:
        return ServingError(
            f"{what}\nit was withdrawn from the repository, but the server could not be told: {failed.what}",
            where=where,
            fix=fix,
        )
    said = f"version {max(left)} still serves" if left else "no version serves"
    return ServingError(f"{what}\nit was withdrawn; {said}", where=where, fix=fix)


def _unload_stale(publication: Publication, root: Path, url: str, timeout: float, history: History) -> None:
    """Members that earlier versions called; the server keeps them in memory otherwise."""
    earlier = {name for v in history.versions.values() for name in v.manifest.members}
    stale = earlier - publication.manifest.members.keys() - _called(root)
    with _connected(url, timeout) as client:
        ready = {s.name for s in client.model_states() if s.state == "READY"} if stale else set()
        for name in sorted(stale & ready):
            with contextlib.suppress(ServingError):
                client.unload_model(name)


def _called(root: Path) -> frozenset[str]:
    """The models that any ensemble in the repository calls now."""
    found: set[str] = set()
    for path in root.glob(f"*/{CONFIG_NAME}"):
        with contextlib.suppress(BuilderError, OSError, UnicodeDecodeError):
            found |= called_models(parsed_config(path.read_text(encoding="utf-8"), str(path)))
    return frozenset(found)


def _history(root: Path, name: str) -> History:
    return read_history(LocalModel(Path(root) / name), name)


def _served(history: History) -> frozenset[int]:
    return served(parsed_config(history.config or "", history.config_where), history.taken)


def _connected(url: str, timeout: float) -> Client:
    protocol, address = server_address(url)
    return Client(protocol, address, timeout=timeout)


def server_address(url: str) -> tuple[str, str]:
    """Protocol and HOST:PORT of "HOST:PORT", "http://HOST:PORT" or "grpc://HOST:PORT".

    Raises:
        ServingError: when it is none of these.
    """
    scheme, separator, rest = url.partition("://")
    protocol, address = (scheme, rest) if separator else (PROTOCOLS[0], url)
    address = address.rstrip("/")
    if protocol not in PROTOCOLS or not re.fullmatch(r"[^/\s]+:\d+", address):
        raise ServingError(f"{url!r} is no address of a server", fix="write HOST:PORT, or grpc://HOST:PORT")
    return protocol, address
