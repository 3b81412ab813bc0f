"""Run a compiled model in-process: the same code verifies a build and serves it in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.errors import BuilderError, RequestError
from builder.runtime.check import SizeCheck, check_request
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.runtime.profiles import ProfileChooser
from builder.runtime.runners import Runner, load_runner
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
        self._steps = [
            (
                segment,
                load_runner(segment, directory, device=device, threads=threads, settings=self.manifest.settings),
                SizeCheck(segment.outputs),
            )
            for segment in self.manifest.segments
        ]
        self._profiles = ProfileChooser(self.manifest.profiles or (self.manifest.inputs,))
        self._last_use = _last_uses(self.manifest)

    def __call__(self, request: Mapping[str, Value]) -> dict[str, Value]:
        """Outputs by name for inputs by name.

        Raises:
            RequestError: when a name, dtype, rank or size does not fit the model, no profile holds the sizes, or
                the data make a size that is out of bounds.
        """
        check_request(self.manifest.inputs, request)
        profile = self._profiles.choose(request)
        values = dict(request)
        for index, (segment, runner, check_sizes) in enumerate(self._steps):
            own = segment.profiles[profile] if segment.profiles else 0
            results = _run(runner, segment, [values[t.name] for t in segment.inputs], own)
            check_sizes(results)
            values.update(zip((t.name for t in segment.outputs), results, strict=True))
            for name in self._last_use.get(index, ()):
                del values[name]
        return {o.tensor.name: values[o.value] for o in self.manifest.outputs}


def _run(runner: Runner, segment: SegmentSpec, inputs: list[Value], profile: int) -> list[Value]:
    """What a library raises for the values of a request is that request's error, and no other's."""
    try:
        return runner.run(inputs, profile)
    except BuilderError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300] or "no message"
        raise RequestError(
            f"{segment.name} fails for this request: {type(error).__name__}: {text}",
            fix="send values that the model takes",
        ) from error


def _last_uses(manifest: Manifest) -> dict[int, list[str]]:
    """Values that no later segment needs, by the segment after which they can go."""
    kept = {o.value for o in manifest.outputs}
    last: dict[str, int] = {}
    for index, segment in enumerate(manifest.segments):
        for tensor in (*segment.inputs, *segment.outputs):
            last[tensor.name] = index
    uses: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in kept:
            uses.setdefault(index, []).append(name)
    return uses
