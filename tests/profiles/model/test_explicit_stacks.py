"""Encoders in the explicit form of a model: one alone, and one in front of a decoder."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.profiles.model.explicit_form import read_explicit_form

from meshwright.errors import InputError

BASE: dict[str, Any] = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1024, "max_positions": 512, "ffn_hidden": 1024,
                        "gated_mlp": False, "bias": True, "learned_positions": True}  # fmt: skip


def test_layers_of_both_stacks() -> None:
    model, _ = read_explicit_form({**BASE, "encoder": {"layers": 3, "max_positions": 256}}, "two stacks")
    kinds = [model.kinds[kind] for kind in model.pattern]
    assert [kind.encodes for kind in kinds] == [True] * 3 + [False] * 4
    assert [kind.cross_attention is not None for kind in kinds] == [False] * 3 + [True] * 4
    assert [kind.starts for kind in kinds] == [True, False, False, True, False, False, False]
    assert {kind.attention.causal for kind in kinds[:3] if kind.attention} == {False}
    assert {kind.num_norms for kind in kinds[:3]} == {2}
    assert {kind.num_norms for kind in kinds[3:]} == {3}
    assert model.encoder is not None
    assert model.encoder.max_positions == 256
    assert not model.bidirectional


def test_an_encoder_alone() -> None:
    model, _ = read_explicit_form({**BASE, "bidirectional": True, "token_types": 2, "pooled_classes": 2}, "one stack")
    assert (model.bidirectional, model.token_types, model.pooled_classes, model.encoder) == (True, 2, 2, None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"encoder": {"layers": 0, "max_positions": 2}}, "encoder.layers: must be 1 or more"),
        ({"encoder": {"layers": 2}}, "missing field `encoder.max_positions`"),
        ({"encoder": 3}, "encoder: must be a mapping"),
        ({"encoder": {"layers": 2, "max_positions": 9, "mel": 2}}, "encoder.mel: unknown field"),
        ({"encoder": {"layers": 2, "max_positions": 9}, "bidirectional": True}, "decoder beside an encoder is causal"),
        ({"relative_buckets": 32}, "positions by distance are described for an encoder and its decoder"),
        ({"transform_norm": True}, "give both"),
        ({"token_head": False}, "without it `pooled_classes` are the only head"),
        ({"token_head": False, "pooled_classes": 2, "tied_embeddings": True}, "tied_embeddings: is of the head that"),
        ({"bidirectional": True, "sliding_window": 64}, "sliding_window: is not described for encoders"),
    ],
)
def test_stacks_that_are_not_described_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_explicit_form({**BASE, **fields}, "bad")
    shown = f"{caught.value} {caught.value.hint}"
    assert text in shown
