"""Call a served model with tritonclient and compare its answers with eager PyTorch."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from builder.errors import ServingError
from builder.export import EagerModel
from builder.inputs import Input
from builder.models.sources import load_model
from builder.preprocess import Preprocessing, prepare
from builder.progress import Progress
from builder.repository.find import newest_version
from builder.runtime.manifest import Manifest
from builder.runtime.values import Value, to_torch
from builder.serving.client import Client
from builder.serving.server import TritonServer
from builder.settings import Settings
from builder.signature import match_inputs
from builder.spec import BuildSpec
from builder.types import Range, TensorSpec
from builder.verify.compare import OutputError, VerificationReport, compare_outputs, keep_worst, verify_model

__all__ = ["SmokeResult", "smoke"]

_DEFAULT_URLS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """What the server answered over each protocol.

    Args:
        server: which one was called.
        version: of the model in the repository that the answers were compared for.
        reports: by protocol, "http" and "grpc".
    """

    server: str
    version: int
    reports: Mapping[str, VerificationReport]


def smoke(spec: BuildSpec, root: Path, progress: Progress, *, urls: Mapping[str, str] | None = None) -> SmokeResult:
    """Compare over HTTP and gRPC, at every corner of the ranges and at random points.

    Args:
        spec: of the model; its module is the reference, its name the model's in the repository.
        root: the model repository.
        progress: told about each point.
        urls: by protocol, of a running server. Without them a server on the default ports is used
            if it has the model, else one is started for the time of the test.
    Raises:
        ServingError: when no server can be started or called.
        VerificationError: when an answer differs.
    """
    directory = newest_version(root / spec.name)
    manifest = Manifest.read(directory)
    progress.stage("load")
    eager = _reference(spec, manifest)
    built = {"precision": manifest.settings.get("precision", "fp32")}
    settings = spec.settings.model_copy(update=built)
    with _server(spec.name, root, urls) as (where, found):
        progress.note(f"calling {where}")
        reports = {}
        for protocol, url in found.items():
            progress.stage(protocol)
            with Client(protocol, url) as client:
                if spec.preprocess is not None:
                    prepared = prepare(spec.preprocess, spec.base, manifest.inputs)
                    reports[protocol] = _compare_examples(eager, client, manifest, prepared, settings)
                    continue
                reports[protocol] = verify_model(
                    eager,
                    _caller(client, manifest),
                    settings,
                    lambda count, point: progress.step(str(point), count, 0),
                )
    return SmokeResult(where, int(directory.name), reports)


@dataclass(frozen=True, slots=True)
class _Seen(EagerModel):
    """What a client sees of a model: not its states, which are zeros where a sequence begins."""

    states: Mapping[str, str]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        hidden = set(self.states.values())
        return {name: value for name, value in EagerModel.__call__(self, tensors).items() if name not in hidden}


def _reference(spec: BuildSpec, manifest: Manifest) -> EagerModel:
    loaded = load_model(spec.source, arguments=spec.arguments, base=spec.base)
    module = loaded.module.eval()
    signature = match_inputs(module, spec.inputs or loaded.default_inputs or ())
    inputs = signature.inputs
    built = {t.name: t for t in manifest.inputs}
    if [i.name for i in inputs] != list(built):
        raise ServingError(
            f"the model in the repository has the inputs {', '.join(built)}, the spec has "
            f"{', '.join(i.name or '' for i in inputs)}",
            fix="build again, or name the spec that it was built from",
        )
    served = partial(_as_served, manifest=manifest)
    inputs = tuple(i.with_values(0, 0) if i.name in manifest.states else i for i in inputs)
    ranged = signature.with_inputs(_as_built(inputs, served(manifest.inputs)))
    profiles = tuple(_as_built(inputs, served(p)) for p in manifest.profiles) or (ranged.inputs,)
    eager = _Seen(module, ranged, tuple(o.tensor.name for o in manifest.outputs), profiles, manifest.states)
    if manifest.weights and eager.weights_digest() != manifest.weights:
        raise ServingError(
            f"{spec.source} has other weights now than those that {manifest.name} was built with",
            fix="build again; if its weights are random, load trained ones or seed every generator that it uses",
        )
    return eager


def _as_served(inputs: Sequence[TensorSpec], manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The ranges without the batches that the server refuses, which may join fewer rows than the engines take."""
    if not manifest.batched:
        return tuple(inputs)
    # A sequence is answered row by row.
    limit = 1 if manifest.sequences else manifest.max_batch_size
    batch = inputs[0].dims[0]
    served = replace(batch, max=min(batch.max or limit, limit), opt=min(batch.opt, limit))
    return tuple(replace(t, dims=(served, *t.dims[1:])) for t in inputs)


def _as_built(inputs: Sequence[Input], built: Sequence[TensorSpec]) -> tuple[Input, ...]:
    """The ranges that were built, with the value ranges of the spec."""
    found = []
    for item, spec in zip(inputs, built, strict=True):
        ranged = item.with_dims(spec.dims)
        if item.integer is not None and spec.values is not None:
            low, high = spec.values
            ranged = ranged.with_integer(Range(low, min(max(low, item.integer.opt), high), high))
        found.append(ranged)
    return tuple(found)


def _compare_examples(
    eager: EagerModel, client: Client, manifest: Manifest, prepared: Preprocessing, settings: Settings
) -> VerificationReport:
    """Ranges say nothing of what a function takes, so that its examples are sent."""
    worst: dict[str, OutputError] = {}
    for index, (example, request) in enumerate(zip(prepared.examples, prepared.requests, strict=True)):
        where = f"example {index}"
        sent = {n: a.reshape(*a.shape, 1) if a.ndim == manifest.batched else a for n, a in example.items()}
        actual = _answer(client.infer(manifest.name, sent), manifest)
        expected = eager([to_torch(request[t.name]) for t in manifest.inputs])
        keep_worst(worst, compare_outputs(expected, actual, settings, where), where)
    return VerificationReport(True, len(prepared.examples), tuple(worst.values()))


def _caller(client: Client, manifest: Manifest) -> Any:
    inputs = {t.name: t for t in manifest.inputs}
    sequences = itertools.count(random.randrange(1, 1 << 40))

    def call(request: dict[str, Value]) -> dict[str, Value]:
        sent = {
            manifest.wire_names.get(name, name): _sendable(value, _travels_wider(inputs[name], manifest.batched))
            for name, value in request.items()
            if name not in manifest.states
        }
        # Each request is a sequence of its own: it begins and ends with it.
        sequence = (next(sequences), True, True) if manifest.sequences else None
        return _answer(client.infer(manifest.name, sent, sequence=sequence), manifest)

    return call


def _answer(given: Mapping[str, np.ndarray[Any, Any]], manifest: Manifest) -> dict[str, Value]:
    """The model's outputs of what a client got."""
    outputs = {manifest.wire_names.get(o.tensor.name, o.tensor.name): o.tensor for o in manifest.outputs}
    return {
        outputs[name].name: _received(value, outputs[name].dtype, _travels_wider(outputs[name], manifest.batched))
        for name, value in given.items()
    }


def _travels_wider(spec: TensorSpec, batched: bool) -> bool:
    """Triton cannot declare a tensor without dimensions beside the batch, so it travels with one more, of one element."""
    return len(spec.dims) == (1 if batched else 0)


def _sendable(value: Value, wider: bool) -> np.ndarray[Any, Any]:
    array = value if isinstance(value, np.ndarray) else value.float().numpy()
    return array.reshape(*array.shape, 1) if wider else array


def _received(value: np.ndarray[Any, Any], dtype: str, wider: bool) -> Value:
    shaped = value.reshape(value.shape[:-1]) if wider else value
    if dtype == "bfloat16":
        import torch

        return torch.from_numpy(shaped.copy()).bfloat16()
    return shaped


@contextlib.contextmanager
def _server(name: str, root: Path, urls: Mapping[str, str] | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    if urls:
        yield f"the server at {', '.join(urls.values())}", urls
        return
    if _running(name):
        yield f"the running server at {', '.join(_DEFAULT_URLS.values())}", _DEFAULT_URLS
        return
    with TritonServer(root) as server:
        yield "a server started for this test", {"http": server.http_url, "grpc": server.grpc_url}


def _running(name: str) -> bool:
    """Whether a server on the default ports has the model ready, over both protocols."""
    for protocol, url in _DEFAULT_URLS.items():
        try:
            with Client(protocol, url) as client:
                if not client.model_ready(name):
                    return False
        except ServingError:
            return False
    return True
