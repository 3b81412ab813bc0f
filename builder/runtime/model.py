"""Run a compiled model in-process: the same code verifies a build and serves it in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.runtime.check import check_request
from builder.runtime.manifest import Manifest
from builder.runtime.profiles import ProfileChooser
from builder.runtime.runners import load_runner
from builder.runtime.steps import Steps, fits
from builder.runtime.values import Value

__all__ = ["RuntimeModel"]


class RuntimeModel:
    """A publication, loaded.

    Args:
        directory: the version directory.
        manifest: read from the directory unless given.
        device: "cpu" or "cuda:N"; None takes the first device of the kind that the engines were built for.
        threads: CPU threads for one operator; None leaves it to the libraries.
    Raises:
        RepositoryError: when the manifest cannot be read.
        CompileError: when an artifact cannot be loaded here.
    """

    def __init__(
        self,
        directory: Path,
        *,
        manifest: Manifest | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.manifest = manifest or Manifest.read(directory)
        if device is None:
            device = "cuda:0" if self.manifest.target.get("device") == "cuda" else "cpu"
        self._steps = Steps(
            self.manifest,
            [
                load_runner(segment, directory, device=device, threads=threads, settings=self.manifest.settings)
                for segment in self.manifest.segments
            ],
        )
        self._inputs = [spec.name for spec in self.manifest.inputs]
        self._fits = fits(self.manifest.inputs)
        self._profiles = ProfileChooser(self.manifest.profiles or (self.manifest.inputs,))

    def __call__(self, request: Mapping[str, Value]) -> dict[str, Value]:
        """Outputs by name for inputs by name.

        Raises:
            RequestError: when a name, dtype, rank or size does not fit the model, no profile holds the sizes, or
                the data make a size that is out of bounds.
        """
        tensors = [request[name] for name in self._inputs if name in request]
        if len(tensors) != len(self._inputs) or len(request) != len(tensors) or not self._fits(tensors):
            check_request(self.manifest.inputs, request)
        results = self._steps.run(tensors, self._profiles.choose(request))
        return {o.tensor.name: result for o, result in zip(self.manifest.outputs, results, strict=True)}
