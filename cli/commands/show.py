"""`meshwright show`: what is known, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError, did_you_mean, listed, nearest
from .. import catalogues, options
from ..console import FORMAT_VERSION, Terminal
from ..screens import listings as listings_screen
from ..settings import UsageError

if TYPE_CHECKING:
    from ..screens.parts import Part


def _kind(name: str) -> catalogues.Kind:
    """The catalogue of this name. Raises UsageError, which names the catalogues that hold an entry of the name."""
    if kind := next((kind for kind in catalogues.KINDS if kind == name), None):
        return kind
    known = f"they are {listed(catalogues.KINDS)}"
    if not name:
        raise UsageError("missing argument `KIND`: the catalogue to list", hint=known)
    holders = [f"`meshwright show {kind} {name}`" for kind in catalogues.KINDS if _holds(kind, name)]
    hint = did_you_mean(nearest(name, catalogues.KINDS), otherwise=known)
    raise UsageError(f"unknown catalogue `{name}`", hint=f"try {' or '.join(holders)}" if holders else hint)


def _holds(kind: catalogues.Kind, name: str) -> bool:
    """Whether a catalogue has an entry of this name, or of one that stands for it."""
    try:
        catalogues.details(kind, name)
    except InputError:
        return False
    return True


KindArgument = Annotated[
    str,
    typer.Argument(metavar="KIND", help=f"Catalogue to list: {', '.join(catalogues.KINDS)}.", show_default=False,
                   autocompletion=options.of_choices(*catalogues.KINDS)),
]  # fmt: skip
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One entry in full, with its sources.", show_default=False)
]


def command(
    context: typer.Context,
    kind: KindArgument = "",
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
    which = _kind(kind)
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
