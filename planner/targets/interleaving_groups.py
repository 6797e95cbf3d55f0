"""Groups in which the chunks of an interleaved pipeline take turns, as a launch config has them."""

from __future__ import annotations

import re

from ...cost_models.degrees import interleaving_group
from ...cost_models.layouts import Layout
from ...errors import InputError
from .megatron.stages import GROUP_SIZE, refused_groups
from .options import Facts, Table

# The option in every framework's spelling, among those of a whole layout.
_SIZE = re.compile(r"microbatch.group.size")


def check_groups(facts: Facts, layout: Layout, batch: int, table: Table) -> None:
    """Raises InputError where Megatron-LM refuses the groups of micro-batches of an interleaved pipeline."""
    replicas = layout.dp * layout.micro_batch
    if (group := facts.get("interleaving_group")) is None or batch % replicas:
        return
    number = batch // replicas
    if not (reason := refused_groups(group, layout.pp, number)):
        return
    named = [name for entry in table.entries if "interleaving_group" in entry.fields for name in entry.options
             if _SIZE.search(name)]  # fmt: skip
    size = int(interleaving_group(layout.pp, number))
    hint = f"set {named[0]} to {size}" if named else f"groups of {size} would run, which {GROUP_SIZE} of Megatron sets"
    if number < layout.pp:
        hint = f"a global batch of at least {layout.pp} x {replicas} = {layout.pp * replicas}, or no virtual stages"
    count = f"batch {batch} / (dp {layout.dp} x micro-batch {layout.micro_batch}) = {number}"
    details = {"field": "interleaving_group"}
    raise InputError(f"Megatron does not run it: {reason} ({count})", hint=hint, details=details)


def regrouped(facts: Facts, layout: Layout, batch: int) -> list[str]:
    """A sentence where chunks of an interleaved pipeline take turns in other groups than in plans."""
    if (stated := facts.get("interleaving_group")) is None:
        return []
    group = int(interleaving_group(layout.pp, batch // (layout.dp * layout.micro_batch)))
    return [] if stated == group else [f"groups of {stated} micro-batches per chunk: priced as groups of {group}"]
