"""Requests to models that fill in all tokens of an answer over several passes: what they cannot have, and warnings."""

from __future__ import annotations

from collections.abc import Mapping

from ...cost_models.specs.model import ModelSpec
from ...cost_models.techniques.passes import UNEQUAL
from ...errors import InputError
from .serving import ServeWorkload


def check_passes(model: ModelSpec, work: ServeWorkload, fix: Mapping[str, int]) -> list[str]:
    """Warnings on a model that fills in its answers. Raises InputError for what only a decoder has."""
    if not model.unmasks:
        return []
    apart = {"speculate": work.speculate is not None, "prefix_hit": work.prefix_hit > 0,
             **{f"fix {name}": True for name in fix if "." in name}}  # fmt: skip
    if asked := [name for name, given in apart.items() if given]:
        raise InputError(f"{', '.join(asked)}: {model.name} fills in all tokens of an answer together, and its prompt "
                         "sees the answer", hint="leave it out, or name a decoder")  # fmt: skip
    return [f"{model.name} fills in masked tokens, and no engine here has it: its passes are priced as iterations of a "
            "decoder are, and none was measured"]  # fmt: skip


def about_passes(model: ModelSpec, tokens_of_a_pass: float) -> list[str]:
    """The warning on answers of which a pass gives several tokens."""
    return [f"{tokens_of_a_pass:.3g} tokens of a pass: {UNEQUAL}"] if model.unmasks and tokens_of_a_pass > 1 else []
