"""The stages that a request gives, held against its model and its target."""

from __future__ import annotations

from ...cost_models.quantities.even_stages import first_cut, joined_kinds
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, UnsupportedError
from ..space.stage_string import GRAMMAR, misplaced, read_stages
from ..targets.base import Target
from .fields import STAGES
from .load import Request


def given_stages(request: Request, model: ModelSpec, target: Target) -> tuple[int, ...] | None:
    """[chunk] layers in the order of the model; None where the request gives none.

    Raises InputError where they do not add up to the model, UnsupportedError where the target divides layers itself.
    """
    given = request.stages
    if given is None or given in STAGES:
        return None
    if isinstance(given, str):
        chunks = read_stages(given)
        sizes = tuple(chunk.count("layer") for chunk in chunks)
        wrong = misplaced(chunks, model.num_layers, model.mtp_layers)
    else:
        sizes, total = given, sum(given)
        wrong = [f"{total} layers instead of {model.num_layers}"] if total != model.num_layers else []
    if wrong:
        text = given if isinstance(given, str) else ",".join(map(str, given))
        hint = f"every part once, in order (Megatron Core, validate_layer_layout): {GRAMMAR}"
        raise InputError(f"stages `{text}` do not add up to {model.name}: {'; '.join(wrong)}", hint=hint)
    if (layer := first_cut(model.pattern, joined_kinds(model), sizes)) is not None:
        text = f"stages cut {model.name} before layer {layer}, which sees the tokens that the layer before it chose"
        raise InputError(f"{text}: no stage sends those on", hint="start each stage with a layer that has an index")
    tower = model.tower
    if tower is not None and len(sizes) > 1 and sizes[0] < tower.deepstack:
        text = f"stages give the first chunk {sizes[0]} layers, and the vision tower's outputs go to {tower.deepstack}"
        raise InputError(f"{text}: no stage sends those on",
                         hint=f"start with a chunk of {tower.deepstack} layers or more")  # fmt: skip
    if target.stages == "even" and not target.divides(model, sizes):
        own = target.cut and target.cut(model, len(sizes))
        hint = f"its own: --stages {','.join(map(str, own))}" if own else "leave out `stages`, or choose another target"
        raise UnsupportedError(f"{target.name} cannot run the stages of the request: it divides the layers itself",
                               hint=hint)  # fmt: skip
    return sizes
