"""Requests to models that fill in all tokens of an answer, or of an image, over several passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...cost_models.specs.model import ModelSpec
from ...cost_models.techniques.base import PROPOSER
from ...cost_models.techniques.passes import UNEQUAL
from ...cost_models.techniques.registry import SERVING
from ...errors import InputError
from .serving import ServeWorkload


def check_passes(model: ModelSpec, work: ServeWorkload, fix: Mapping[str, int], output: float) -> list[str]:
    """Warnings on a model that fills in its answers. output: mean tokens of these. Raises InputError for what such a
    model lacks, and for passes that do not fit."""
    if not model.fills:
        if work.passes is not None:
            raise InputError(f"passes: {model.name} is a decoder, which gives one token after another",
                             hint="leave it out")  # fmt: skip
        return []
    if asked := list(_only_of_decoders(work, fix)):
        raise InputError(f"{', '.join(asked)}: {model.name} fills in all tokens of an answer together, and its prompt "
                         "sees the answer", hint="leave it out, or name a decoder")  # fmt: skip
    if work.passes is None and model.diffusion is not None:
        raise InputError(f"passes: {model.name} denoises an image in several, and their number is not given",
                         hint="`--passes 28`, with the tokens of an image as `--output`: 4096 for 1024x1024 pixels of "
                              "Flux")  # fmt: skip
    if work.passes is not None and work.passes > output:
        raise InputError(f"passes: {work.passes:,} are more than the {output:,.5g} tokens of an answer, of which each "
                         "gives one", hint=f"`--passes {int(output)}` or fewer")  # fmt: skip
    named = [name for name in work.techniques if PROPOSER in SERVING[name].chooses]
    if work.passes is not None and model.unmasks and named:
        raise InputError(f"passes and {named[0]}: both are a number of tokens of a pass", hint="leave out one of them")
    what = "fills in masked tokens" if model.unmasks else "denoises images"
    logits = ["assumed: logits in 16 bits, of all tokens at once; an engine that samples in 64 bits has less room"]
    return [f"{model.name} {what}, and no engine here has it: its passes are priced as iterations of a decoder are, "
            "and none was measured", *(logits if model.unmasks else [])]  # fmt: skip


def _only_of_decoders(work: ServeWorkload, fix: Mapping[str, int]) -> Iterator[str]:
    if work.speculate is not None:
        yield "speculate"
    if work.prefix_hit > 0:
        yield "prefix_hit"
    yield from (f"fix {name}" for name in fix if "." in name)


def about_passes(model: ModelSpec, tokens_of_a_pass: float) -> list[str]:
    """The warning on answers of which a pass gives several tokens."""
    return [f"{tokens_of_a_pass:.3g} tokens of a pass: {UNEQUAL}"] if model.unmasks and tokens_of_a_pass > 1 else []
