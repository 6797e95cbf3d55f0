"""The result of a search."""

from __future__ import annotations

from dataclasses import dataclass

from ..space.tree import Count
from .roots import Start
from .top_k import TopK


@dataclass
class SearchOutcome:
    """The result of a search, and its proof."""

    top: TopK  # the best layouts
    count: Count  # counts of all layouts of the space
    lower_bound: float  # below every layout that was not priced; seconds, or bytes if they are minimised
    stopped: str | None = None  # cause of a stopped search: `interrupted` or `time limit`
    start: Start | None = None  # the meshes, for other searches of them; None where none is legal

    def raise_if_interrupted(self) -> None:
        """A search keeps what it has at Ctrl-C and returns. One of many ends them all: raises KeyboardInterrupt."""
        if self.stopped == "interrupted":
            raise KeyboardInterrupt
