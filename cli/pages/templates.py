"""Pages out of the templates of this folder (jinja2). Whatever a user wrote is escaped."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .. import text

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


def render(template: str, /, **values: object) -> str:
    """A template with values. A name that a template uses and nobody gives is an error."""
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)  # fmt: skip
    filters = (text.significant, text.percent, text.gib, text.count, text.duration, text.words, text.listed,
               text.ranges, text.quantity, text.fixed, text.share, embedded, on_one_line)  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals["file"] = part
    return environment


def part(name: str) -> str:
    """A script or style sheet of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def embedded(data: object) -> str:
    """JSON that is safe inside of a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def on_one_line(line: str) -> str:
    """A line of a screen, which is wrapped, as a page wraps it itself."""
    return " ".join(line.split())
