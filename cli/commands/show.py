"""`meshwright show`: what is known, and from where."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .. import catalogues
from ..console import FORMAT_VERSION, Terminal
from ..screens import listings as listings_screen

if TYPE_CHECKING:
    from ..screens.parts import Part


class Kind(StrEnum):
    """The catalogues."""

    gpus = "gpus"
    models = "models"
    families = "families"
    clusters = "clusters"
    targets = "targets"
    stacks = "stacks"
    techniques = "techniques"
    formats = "formats"


KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="Catalogue to list.", show_default=False)]
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One entry in full, with its sources.", show_default=False)
]


def command(
    context: typer.Context,
    kind: KindArgument,
    name: Name = None,
) -> None:
    """List known GPUs, models, model families, node types, targets, stacks, techniques or number formats; with a name,
    all about one.

    \b
    Examples:
      meshwright show gpus
      meshwright show models llama-3.1-8b
    """
    terminal: Terminal = context.obj
    which: catalogues.Kind = kind.value
    screen: list[Part]
    if name is None:
        items = catalogues.rows(which)
        screen = [listings_screen.items_table(items, catalogues.COLUMNS[which])] if which in catalogues.COLUMNS else (
            listings_screen.techniques_screen(items))  # fmt: skip
    else:
        entry = catalogues.details(which, name)
        items = [entry]
        screen = [listings_screen.facts_table(entry)]
        if "facts" in entry:
            screen = listings_screen.sources_screen(entry["name"], entry["facts"])
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": which, "items": items})
    terminal.show(screen)
