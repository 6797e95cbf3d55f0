"""A search over a resolved request: with the rates and the memory of its cluster."""

from __future__ import annotations

from typing import Any

from ..request.resolve import Resolved
from ..space.tree import Space
from .exhaustive import Search


def search_of(resolved: Resolved, space: Space, **options: Any) -> Search:
    """A search of `space`. `options` are those of `Search` and override the memory limits of the request."""
    limits = {"memory_bytes": resolved.budget_bytes, "host_bytes": resolved.host_bytes}
    return Search(space, resolved.rates, **{**limits, **options})
