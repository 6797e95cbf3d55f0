"""Encoders in the explicit form: one alone, as BERT, or one in front of the layers of a decoder, as T5.

`bidirectional` (false): tokens attend to those before and after them. `encoder` {layers, max_positions}: layers of the
same sizes that read a source; the decoder's attend to their output, and `layers` are the decoder's. `relative_buckets`
(0): learned biases by distance in place of positions, a table of buckets x heads in each stack. Parts of BERT's ends:
`token_types` (0: rows of its table of types), `head_transform` (false), `transform_norm` (false), `pooled_classes` (0),
`token_head` (true; false: the head of the first token, with `pooled_classes`, is the only one). `unmasks` (false): it
generates by filling in masked tokens (LLaDA), which needs `bidirectional`. `retrieval` {texts (1), shared (false),
projection (0)}: an encoder for queries and one for texts, whose vectors are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...cost_models.specs.encoder import Encoder
from ...cost_models.specs.model import Layer
from ...cost_models.specs.retrieval import Retrieval
from .families_encoder_decoder import stacked
from .fields import Fields

_MAX_LAYERS = 10_000  # as in blocks.py
# Fields whose parts are not described in an encoder or beside one.
_NOT_BESIDE = ("moe", "mla", "pattern", "mixers", "sliding_window", "mtp_layers", "sink_attention")


def read_stacks(f: Fields, layers: Sequence[Layer]) -> tuple[list[Layer], Encoder | None]:
    """The layers of all stacks, and the encoder that is the first of them. layers: those of the only stack, or of the
    decoder."""
    alone, buckets = f.flag("bidirectional", False), f.count("relative_buckets", default=0, minimum=0)
    part = f.part("encoder")
    if not (alone or buckets or part):
        return list(layers), None
    if beside := [name for name in _NOT_BESIDE if f.data.get(name)]:
        f.problem(beside[0], "is not described for encoders and relative positions", "leave it out")
    if part is None:
        if buckets:
            f.problem("relative_buckets", "positions by distance are described for an encoder and its decoder",
                      "give `encoder`, or leave it out")  # fmt: skip
        return [_attending_all(layer) for layer in layers] if alone else list(layers), None
    encoder = Encoder(layers=part.count("layers", maximum=_MAX_LAYERS), max_positions=part.count("max_positions"))
    part.reject_unknown()
    f.absorb(part)
    if alone:
        f.problem("bidirectional", "the decoder beside an encoder is causal", "leave out one of the two")
    return _two_stacks(layers, encoder.layers, buckets), encoder


def _attending_all(layer: Layer) -> Layer:
    return layer if layer.attention is None else replace(layer, attention=replace(layer.attention, causal=False))


def _two_stacks(layers: Sequence[Layer], of_encoder: int, buckets: int) -> list[Layer]:
    """Layers of an encoder, and of a decoder whose layers have a third block and norm."""
    cross = layers[0].attention
    if cross is None:
        return list(layers)
    biased = replace(layers[0], attention=replace(cross, relative_bias=buckets > 0))
    encodes = replace(_attending_all(biased), encodes=True)
    decodes = replace(biased, cross_attention=replace(cross, rotary=False), num_norms=biased.num_norms + 1)
    table = buckets * cross.heads
    return [*stacked(encodes, of_encoder, table), *stacked(decodes, len(layers), table)]


def parts_of_ends(f: Fields) -> dict[str, Any]:
    """The parts of BERT's ends as fields of a ModelSpec."""
    transform = f.flag("head_transform", False)
    if (norm := f.flag("transform_norm", False)) and not transform:
        f.problem("transform_norm", "is in front of the dense layer of `head_transform`", "give both")
    classes, retrieval = f.count("pooled_classes", default=0, minimum=0), _retrieval(f)
    if not (tokens := f.flag("token_head", retrieval is None)):
        if not classes and retrieval is None:
            f.problem("token_head", "without it `pooled_classes` are the only head", "give both")
        of_tokens = (name for name in ("tied_embeddings", "head_bias", "head_transform", "mtp_layers")
                     if f.data.get(name))  # fmt: skip
        if (name := next(of_tokens, None)) is not None:
            f.problem(name, "is of the head that `token_head: false` leaves out", "leave it out")
    if (unmasks := f.flag("unmasks", False)) and not f.data.get("bidirectional"):
        f.problem("unmasks", "masked tokens see those before and after them", "give `bidirectional: true` with it")
    return {
        "unmasks": unmasks,
        "token_types": f.count("token_types", default=0, minimum=0), "head_transform": transform,
        "transform_norm": norm, "pooled_classes": classes, "token_head": tokens, "retrieval": retrieval,
    }  # fmt: skip


def _retrieval(f: Fields) -> Retrieval | None:
    """The encoders of queries and of texts."""
    part = f.part("retrieval")
    if part is None:
        return None
    if not f.flag("bidirectional", False):
        f.problem("retrieval", "its encoders see whole sequences", "give `bidirectional: true` too")
    if f.flag("token_head", False) or f.data.get("pooled_classes"):
        f.problem("retrieval", "compares vectors: its encoders have no other head", "leave the head out")
    found = Retrieval(texts=part.count("texts", default=1), shared=part.flag("shared", False),
                      projection=part.count("projection", default=0, minimum=0),
                      scales_scores=part.flag("scales_scores", True))  # fmt: skip
    part.reject_unknown()
    f.absorb(part)
    return found
