"""Models of backends that the test server does not have, run by Python models instead.

The server's core checks the same ensemble graph, names, dims, dtypes, batches and warm-up, and the same engine files
answer; only what opens them is another.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder.types import DTYPES

__all__ = ["answer_nothing", "stand_in"]

_FILES = {"onnxruntime": ("onnxruntime", "model.onnx"), "pytorch": ("inductor", "model.pt2")}

_CODE = """
import json
import pathlib

import triton_python_backend_utils as pb_utils

from builder.runtime.manifest import SegmentSpec
from builder.runtime.runners import load_runner
from builder.runtime.values import to_numpy
from builder.types import TensorSpec


class TritonPythonModel:
    def initialize(self, args):
        version = pathlib.Path(args["model_repository"]) / args["model_version"]
        about = json.loads((version / "stand_in.json").read_text())
        self.inputs, self.outputs, self.dtypes = about["inputs"], about["outputs"], about["dtypes"]
        spec = SegmentSpec(
            "stand_in", "engine", about["compiler"], about["artifact"],
            tuple(TensorSpec(n, "", ()) for n in self.inputs), tuple(TensorSpec(n, "", ()) for n in self.outputs),
            tensor_names=(tuple(self.inputs), tuple(self.outputs)),
        )
        self.runner = load_runner(spec, version, threads=1)

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        values = [pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in self.inputs]
        results = [to_numpy(r) for r in self.runner.run(values)]
        for name, result in zip(self.outputs, results):
            assert str(result.dtype) == self.dtypes[name], (name, result.dtype)
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, r) for n, r in zip(self.outputs, results)])
"""


_NOTHING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def answer_nothing(model: Path) -> None:
    """Have a Python model stand in that answers without outputs: for what only the core checks."""
    config = model / "config.pbtxt"
    text = re.sub(r'^platform: "torch_aoti"\n', "", config.read_text(), flags=re.M)
    config.write_text(re.sub(r'^backend: ".*"$', 'backend: "python"', text, flags=re.M))
    for version in model.glob("[0-9]*"):
        (version / "model.py").write_text(_NOTHING)


def stand_in(repository: Path) -> list[str]:
    """Have Python models stand in for all native ones of a repository; their names."""
    replaced = []
    for config in sorted(repository.glob("*/config.pbtxt")):
        text = config.read_text()
        parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
        if parsed.backend not in _FILES:
            continue
        compiler, file = _FILES[parsed.backend]
        names = {d.triton: d.numpy for d in DTYPES.values()}
        for version in config.parent.glob("[0-9]*"):
            artifact = f"{file}/{file}" if (version / file).is_dir() else file
            about = {
                "compiler": compiler,
                "artifact": artifact,
                "inputs": [i.name for i in parsed.input],
                "outputs": [o.name for o in parsed.output],
                "dtypes": {o.name: names[model_config_pb2.DataType.Name(o.data_type)] for o in parsed.output},
            }
            (version / "stand_in.json").write_text(json.dumps(about))
            (version / "model.py").write_text(_CODE)
        text = re.sub(r'^platform: "torch_aoti"\n', "", text, flags=re.M)
        config.write_text(re.sub(r'^backend: ".*"$', 'backend: "python"', text, flags=re.M))
        replaced.append(config.parent.name)
    return replaced
