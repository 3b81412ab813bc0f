"""Compiled models as files: a zip archive of the manifest, the engines and the fallback segments. No pickle is read or written."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from builder.errors import RepositoryError, RequestError
from builder.repository.content import digest_of
from builder.runtime.calling import CallForm, OutputForm
from builder.runtime.manifest import Manifest
from builder.runtime.model import RuntimeModel
from builder.runtime.values import to_torch

__all__ = ["LoadedModule", "load_module", "save_files"]

_MANIFEST = "manifest.json"
_CALL = "call.json"
_FORMAT = 1


def save_files(path: Path, manifest: Manifest, files: Mapping[str, Path], form: CallForm, output: OutputForm) -> None:
    """Write a compiled model; the file is there as a whole, or not at all.

    Args:
        path: of the file, replaced where there is one.
        manifest: whose artifacts are names of `files`.
        files: existing file per name in the archive.
        form, output: how it is called.
    Raises:
        RepositoryError: when it cannot be written.
    """
    digests = {name: digest_of(file) for name, file in files.items()}
    call = {
        "format": _FORMAT,
        "parameters": form.parameters,
        "inputs": form.inputs,
        "constants": form.constants,
        "integers": form.integers,
        "output": output.to_json(),
    }
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            try:
                # Stored, not compressed: engines are read as they lie.
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                    archive.writestr(_MANIFEST, dataclasses.replace(manifest, files=digests).to_json())
                    archive.writestr(_CALL, json.dumps(call, indent=1))
                    for name, file in files.items():
                        archive.write(file, name)
                temporary.flush()
                os.fsync(temporary.fileno())
                Path(temporary.name).replace(path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise RepositoryError(
            f"the file cannot be written: {error.strerror}", where=str(path), fix="name a place that you may write to"
        ) from error


def load_module(path: Path, device: str | None) -> LoadedModule:
    """Read a compiled model.

    Raises:
        RepositoryError: when the file is damaged, or is none of ours.
        CompileError: when its engines cannot be loaded here.
    """
    directory = tempfile.TemporaryDirectory(prefix="triton-repo-", ignore_cleanup_errors=True)
    place = Path(directory.name)
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = Manifest.from_json(archive.read(_MANIFEST), f"{path}: {_MANIFEST}")
            call = json.loads(archive.read(_CALL))
            if call["format"] != _FORMAT:
                raise RepositoryError(
                    f"the file has format {call['format']!r}, this version reads {_FORMAT}",
                    where=str(path),
                    fix="use the triton-repo-builder that wrote it, or compile again",
                )
            for name, digest in manifest.files.items():
                # Names come from a file that somebody else may have written.
                if name.startswith("/") or ".." in Path(name).parts:
                    raise RepositoryError(f"the file names {name!r}, which is outside of it", where=str(path))
                archive.extract(name, place)
                if digest_of(place / name) != digest:
                    raise RepositoryError(
                        f"{name} in it is damaged", where=str(path), fix="copy it again, or save again"
                    )
    except OSError as error:
        raise RepositoryError(f"the file cannot be read: {error.strerror or error}", where=str(path)) from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RepositoryError(
            f"this is no file of builder.save, or it is damaged: {error}", where=str(path), fix="save it again"
        ) from error
    form = CallForm(tuple(call["parameters"]), tuple(call["inputs"]), dict(call["constants"]), tuple(call["integers"]))
    model = RuntimeModel(place, manifest=manifest, device=device)
    return LoadedModule(model, form, OutputForm.from_json(call["output"]), directory)


class LoadedModule(torch.nn.Module):
    """A compiled model from a file. It has no weights of its own to train or to move.

    Args:
        model: that runs.
        form, output: how it is called; without an output form it gives outputs by name.
        directory: of its files, kept as long as it is.
    """

    def __init__(self, model: RuntimeModel, form: CallForm, output: OutputForm | None, directory: Any) -> None:
        super().__init__()
        self.training = False
        self.manifest = model.manifest
        self._model = model
        self._form = form
        self._output = output
        self._directory = directory

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module that was compiled.

        Raises:
            RequestError: when the arguments do not fit what was compiled.
        """
        tensors = self._form.tensors(args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RequestError(
                "an input requires gradients, which engines do not give",
                fix="call it under torch.no_grad(), or use the module that was compiled",
            )
        request = dict(zip(self._form.inputs, tensors, strict=True))
        device = tensors[0].device if tensors else "cpu"
        outputs = {n: to_torch(v, str(device)) for n, v in self._model(request).items()}
        return self._output.restore(list(outputs.values())) if self._output else outputs

    def train(self, mode: bool = True) -> LoadedModule:
        """It cannot be trained; calls with True are an error."""
        if mode:
            raise RequestError("a loaded engine cannot be trained", fix="train the module that it was compiled from")
        return self
