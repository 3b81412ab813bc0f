"""Check any Triton model repository against the rules that the server enforces, and those that it should."""

from builder.repository.lint.finding import Finding, Severity
from builder.repository.lint.lint import lint_config, lint_repository

__all__ = ["Finding", "Severity", "lint_config", "lint_repository"]
