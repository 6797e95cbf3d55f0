"""Options that show no default, since their help states it."""

from __future__ import annotations

import typer


def flag(*names: str, metavar: str | None = None, text: str) -> object:
    """An option of a command."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)
