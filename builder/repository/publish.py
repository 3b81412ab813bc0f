"""Put a model into a repository that a server may be reading.

A server sees nothing of a publication until one rename, and nothing of one that failed. No step relies
on a lock: whoever loses a race for a name looks again and takes the next number.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.files import sync_path
from builder.repository.config import render_config, signature, validate_config
from builder.repository.plan import CONFIG_NAME, Publication, RepositoryPlan
from builder.repository.staging import check_writable, make_directory, os_errors, resolved_root, staging_directory
from builder.runtime.manifest import MANIFEST_NAME, FileDigest, Manifest

__all__ = ["check_writable", "publish"]

_WARMUP_DIR = "warmup"
_CHUNK = 1 << 20
_ATTEMPTS = 100

# What makes two versions the same; the rest of a manifest says how and when one was built.
_IDENTITY = ("name", "inputs", "outputs", "profiles", "segments", "target", "files")

# Settings that the runtime reads from the manifest, under `settings.tensorrt`.
_RUNNING = ("cuda_graphs", "plugins", "version_compatible", "weight_streaming")


@dataclass(frozen=True, slots=True)
class _Staged:
    """A whole model in the staging directory, with the one new version."""

    directory: Path
    manifest: Manifest

    @property
    def version(self) -> Path:
        return self.directory / "1"

    @property
    def warmup(self) -> Path:
        return self.directory / _WARMUP_DIR


def publish(plan: RepositoryPlan, root: Path) -> Publication:
    """Add the model to the repository, as version 1 or as the next version.

    The same content as the newest version adds nothing. A config.pbtxt that was edited by hand stays,
    and the note of the publication says so. Whatever fails, the repository is as it was.

    Args:
        plan: the model.
        root: the model repository; made if it is missing.
    Raises:
        RepositoryError: when the configuration is wrong, the model in the repository has other inputs or
            outputs or was not written by this tool, or a file cannot be written.
    """
    root = resolved_root(root)
    config = render_config(plan)
    validate_config(config, plan.name, plan.triton)
    with os_errors(root), staging_directory(root) as staging, ExitStack() as undo:
        staged = _stage(plan, config, staging / "model")
        for _ in range(_ATTEMPTS):
            make_directory(root)
            add = _add_version if _has_entries(root / plan.name) else _add_model
            publication = add(plan, staged, root / plan.name, undo)
            if publication is not None:
                undo.pop_all()
                return publication
        raise RepositoryError(
            "other publishers keep taking the next version", where=str(root / plan.name), fix="try again"
        )


def _stage(plan: RepositoryPlan, config: str, directory: Path) -> _Staged:
    version = directory / "1"
    encoded = config.encode()
    # The copy in the version directory records what was written, to tell an edited config.pbtxt later.
    files = {CONFIG_NAME: _store([encoded], version / CONFIG_NAME)}
    for path, text in plan.texts.items():
        files[path] = _store([text.encode()], version / path)
    for path, source in plan.artifacts.items():
        files[path] = _store(_chunks(source), version / path)
    manifest = dataclasses.replace(plan.manifest, files=dict(sorted(files.items())))
    _store([manifest.to_json().encode()], version / MANIFEST_NAME)
    for sample in plan.active_warmup:
        for name, tensor in sample.tensors.items():
            _store([tensor.data], directory / _WARMUP_DIR / sample.file_name(name))
    _store([encoded], directory / CONFIG_NAME)
    for parent, _, _ in os.walk(directory):
        sync_path(Path(parent))
    return _Staged(directory, manifest)


def _store(chunks: Iterable[bytes], target: Path) -> FileDigest:
    """Write a new file through to the disk, and digest what was written."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as stream:
        for chunk in chunks:
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    return FileDigest(size, digest.hexdigest())


def _chunks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as stream:
        yield from iter(partial(stream.read, _CHUNK), b"")


def _add_model(plan: RepositoryPlan, staged: _Staged, model: Path, undo: ExitStack) -> Publication | None:
    """Rename the staged model into the repository; None when another publisher was faster."""
    _check_served(plan, [1])
    if not _rename(staged.directory, model, undo):
        return None
    sync_path(model.parent)
    return Publication(plan.name, 1, model / "1", True, staged.manifest, _unserved(plan, 1))


def _add_version(plan: RepositoryPlan, staged: _Staged, model: Path, undo: ExitStack) -> Publication | None:
    """Rename the staged version into the model; None when another publisher was faster.

    Order, with a running server in mind: warm-up files are added first, for no config names them yet;
    config.pbtxt comes last, for a policy in it may ask for the new version.
    """
    newest, manifest = _newest_publication(model)
    _refuse_other_signature(plan, manifest, model / str(newest))
    if _identity(manifest) == _identity(staged.manifest) and _is_whole(model / str(newest), manifest):
        note = _update_config(model, staged, undo)
        return Publication(plan.name, newest, model / str(newest), False, manifest, note)

    versions = _versions(model)
    version = versions[-1] + 1
    target = model / str(version)
    _check_served(plan, [*versions, version])
    _add_warmup(staged, model, undo)
    # Renaming onto an empty directory would succeed, and take it from whoever is about to fill it.
    if target.exists() or not _rename(staged.version, target, undo):
        return None
    sync_path(model)
    note = _update_config(model, staged, undo) or _unserved(plan, version)
    sync_path(model)
    return Publication(plan.name, version, target, True, staged.manifest, note)


def _rename(source: Path, target: Path, undo: ExitStack) -> bool:
    """Rename a directory to a name that is free; False when it is taken, or its parent is gone."""
    undo.callback(_take_back, target, source, source.stat().st_ino)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            return False
        raise
    return True


def _take_back(target: Path, source: Path, inode: int) -> None:
    """Undo a rename, unless it never happened or another publisher's file is there now."""
    if target.exists() and target.stat().st_ino == inode:
        target.rename(source)


def _add_warmup(staged: _Staged, model: Path, undo: ExitStack) -> None:
    """Move the warm-up files to the model's; a name fixes the size, so a config in use stays right."""
    if not staged.warmup.is_dir():
        return
    directory = model / _WARMUP_DIR
    if not directory.exists():
        undo.callback(_remove_if_empty, directory)
        make_directory(directory)
    for source in sorted(staged.warmup.iterdir()):
        target = directory / source.name
        if not target.exists():
            undo.callback(_take_back, target, source, source.stat().st_ino)
        source.replace(target)
    sync_path(directory)


def _update_config(model: Path, staged: _Staged, undo: ExitStack) -> str:
    """Make config.pbtxt that of the newest version, unless a person edited it; gives the note to the user.

    It goes round until nothing is newer, so that of two publishers the one with the newest version wins.
    """
    path = model / CONFIG_NAME
    while True:
        recorded = _recorded_configs(model)
        newest = max(recorded)
        current = path.read_bytes() if path.exists() else None
        if current == recorded[newest]:
            return ""
        if current is not None and current not in recorded.values():
            return (
                f"{CONFIG_NAME} was edited by hand, so it was kept; "
                f"what would have been written is in {newest}/{CONFIG_NAME}"
            )
        _replace_config(path, recorded[newest], current, staged, undo)


def _replace_config(path: Path, new: bytes, old: bytes | None, staged: _Staged, undo: ExitStack) -> None:
    fresh, previous = (staged.directory / f"{CONFIG_NAME}.{uuid.uuid4().hex}" for _ in range(2))
    _store([new], fresh)
    if old is not None:
        # Written now, since undoing must not need space on a disk that may be full.
        _store([old], previous)
    undo.callback(_restore_config, path, new, previous)
    fresh.replace(path)


def _restore_config(path: Path, new: bytes, previous: Path) -> None:
    if not path.exists() or path.read_bytes() != new:
        return
    if previous.exists():
        previous.replace(path)
    else:
        path.unlink()


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except FileNotFoundError:
        return False


def _versions(model: Path) -> list[int]:
    """The version numbers that are taken, in order. A server ignores `0`, `01` and `v1`."""
    names = [path.name for path in model.iterdir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0")


def _newest_publication(model: Path) -> tuple[int, Manifest]:
    for version in reversed(_versions(model)):
        if (model / str(version) / MANIFEST_NAME).exists():
            return version, Manifest.read(model / str(version))
    raise RepositoryError(
        f"the repository has a model {model.name!r} already, with no version that triton-repo wrote",
        where=str(model),
        fix="publish under another name, or move that directory away",
    )


def _recorded_configs(model: Path) -> dict[int, bytes]:
    configs = {}
    for version in _versions(model):
        with suppress(FileNotFoundError, NotADirectoryError):
            configs[version] = (model / str(version) / CONFIG_NAME).read_bytes()
    return configs


def _refuse_other_signature(plan: RepositoryPlan, published: Manifest, where: Path) -> None:
    old, new = signature(published), signature(plan.manifest)
    if old != new:
        changes = [*(f"- {line}" for line in sorted(old - new)), *(f"+ {line}" for line in sorted(new - old))]
        raise RepositoryError(
            f"the model {plan.name!r} in the repository has other inputs or outputs, and all versions share "
            f"one {CONFIG_NAME}",
            where="\n".join([str(where), *changes]),
            fix="publish under another name, or remove the old model",
        )


def _identity(manifest: Manifest) -> dict[str, Any]:
    # Through JSON, as the published one was: it makes lists of tuples.
    data = json.loads(manifest.to_json())
    running = data["settings"].get("tensorrt", {})
    return {
        **{key: data[key] for key in _IDENTITY},
        "running": {name: running[name] for name in _RUNNING if running.get(name)},
    }


def _is_whole(version: Path, manifest: Manifest) -> bool:
    files = ((version / path, digest.size) for path, digest in manifest.files.items())
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _check_served(plan: RepositoryPlan, versions: list[int]) -> None:
    policy = plan.triton.version_policy
    if policy and policy.specific and not set(policy.specific.versions) & set(versions):
        raise RepositoryError(
            f"at least one version must be available under the version policy of model '{plan.name}'",
            where=f"version_policy.specific asks for {list(policy.specific.versions)}, there will be {versions}",
            fix="name a version that exists, or leave version_policy out",
        )


def _unserved(plan: RepositoryPlan, version: int) -> str:
    policy = plan.triton.version_policy
    if policy and policy.specific and version not in policy.specific.versions:
        return f"a server will not load version {version}: version_policy.specific does not name it"
    return ""
