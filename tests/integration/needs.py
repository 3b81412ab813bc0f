"""Marks of tests that need what not every machine has."""

from __future__ import annotations

import pytest

from builder.compilers.inductor import InductorCompiler

__all__ = ["needs_compiler"]

needs_compiler = pytest.mark.skipif(not InductorCompiler().availability().can_build, reason="needs a C++ compiler")
