"""Programs with other weights."""

from __future__ import annotations

import torch

from builder.reweighting import reweighted


def test_a_parameter_stays_one() -> None:
    """A weight on another device comes as a plain tensor, and torch takes none for a parameter."""
    module = torch.nn.Linear(4, 2).eval()
    program = torch.export.export(module, (torch.randn(3, 4),))
    other = reweighted(program, {"weight": torch.zeros(2, 4)})
    assert isinstance(other.state_dict["weight"], torch.nn.Parameter)
    assert not other.state_dict["weight"].any()
    assert other.state_dict["bias"] is program.state_dict["bias"]
    assert program.state_dict["weight"].any()
    other.validate()
