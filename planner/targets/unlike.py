"""Parts of a dense model that a framework has no option for: differences from the model that its options describe."""

from __future__ import annotations

from dataclasses import fields

from ...cost_models.specs.model import DROPOUTS, Layer, ModelSpec
from ...cost_models.specs.rope_scaling import RopeScaling
from ...cost_models.specs.workload import Workload


def of_one_layer(model: ModelSpec, layer: Layer, rope_scaling: RopeScaling | None = None) -> ModelSpec:
    """A decoder of `layer` alone with the sizes of `model`, and with nothing beside them but dropouts."""
    return ModelSpec(
        name=model.name, family=model.family, hidden=model.hidden, vocab=model.vocab, kinds=(layer,),
        pattern=(0,) * model.num_layers, max_positions=model.max_positions, tied_embeddings=model.tied_embeddings,
        rope_theta=model.rope_theta, norm_epsilon=model.norm_epsilon, source=model.source, assumed=model.assumed,
        rope_scaling=rope_scaling, unmodelled=tuple(name for name in model.unmodelled if name in DROPOUTS),
    )  # fmt: skip


def unlike(model: ModelSpec, built: ModelSpec, workload: Workload, without: str) -> list[str]:
    """One sentence per field in which a model of one kind of layer differs from `built`.

    without: the end of each sentence. A window that no sequence reaches is no difference.
    """
    (attention, block), (plain, gated) = (spec.kinds[0].transformer_blocks for spec in (model, built))
    unseen = attention.window is not None and attention.window >= workload.seq_len
    parts = [*_others(model, built, "model."), *_others(model.kinds[0], built.kinds[0], "model.kinds."),
             *_others(attention, plain, "model.kinds."), *_others(block, gated, "model.kinds.")]  # fmt: skip
    whole = ("model.kinds ", "model.kinds.attention ", "model.kinds.feed_forward ")
    return [f"{part}: {without}" for part in parts
            if not part.startswith((*whole, *(("model.kinds.window ",) if unseen else ())))]  # fmt: skip


def _others(have: object, built: object, prefix: str) -> list[str]:
    """`field value` of each field of a dataclass that differs from the built one."""
    differ = [(field.name, getattr(have, field.name)) for field in fields(built)  # type: ignore[arg-type]
              if getattr(have, field.name) != getattr(built, field.name)]  # fmt: skip
    return [f"{prefix}{name} {value}" for name, value in differ]
