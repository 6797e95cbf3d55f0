"""Flags of `launch` for data and training, and the settings that they give."""

from __future__ import annotations

from typing import Annotated

import typer

Shuffle = Annotated[
    bool, typer.Option("--shuffle", help="Read sequences in a random order, by seed and epoch.", show_default=False)
]
EndToken = Annotated[
    int | None, typer.Option("--end-token", metavar="ID", help="End of a document; what follows it has no loss.",
                             show_default=False)
]  # fmt: skip
