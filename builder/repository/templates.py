"""Where the templates are, and how they are filled in."""

from __future__ import annotations

from pathlib import Path

import jinja2
from google.protobuf.text_encoding import CEscape

__all__ = ["quoted", "render"]

_PACKAGE = Path(__file__).resolve().parent.parent


def render(template: str, **values: object) -> str:
    """A template of `templates/`, filled in.

    Args:
        template: its file name ("config.pbtxt.j2").
        values: every name that it uses; one that is missing is an error.
    Raises:
        jinja2.TemplateError: when the template is missing or wrong, a fault of ours.
    """
    return _environment().get_template(template).render(values)


def quoted(text: str) -> str:
    """The text as a string literal of protobuf's text format, non-ASCII characters as they are."""
    return f'"{CEscape(text, as_utf8=True)}"'


def _environment() -> jinja2.Environment:
    # The wheel carries the templates as builder/_templates; a source tree has them beside the package.
    places = [_PACKAGE / "_templates", _PACKAGE.parent / "templates"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(places),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quoted"] = quoted
    return environment
