"""Whatever model and options are drawn: the config parses, says the same again, and the linter finds nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from builder.repository.assemble import assemble
from builder.repository.lint import lint_config
from tests.unit.random_assemblies import draw


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_config_is_clean(seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        parts = draw(Path(place), seed)
        plan = assemble(parts)
        for text, name in [(plan.config, plan.name), *((m.config, m.name) for m in plan.members)]:
            config = text_format.Parse(text, model_config_pb2.ModelConfig())
            assert config.name == name
            assert [str(f) for f in lint_config(text, name, release=parts.release)] == []
        config = text_format.Parse(plan.config, model_config_pb2.ModelConfig())
        assert [i.name for i in config.input] == [t.name for t in parts.manifest.inputs]
        assert [o.name for o in config.output] == [o.tensor.name for o in parts.manifest.outputs]
        for sample in config.model_warmup:
            for given_ in sample.inputs.values():
                if given_.input_data_file:
                    assert f"warmup/{given_.input_data_file}" in plan.beside
