"""Weight decay that leaves kinds of parameters out: as AdamW with groups of parameters in one process."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.runtime import reference
from meshwright.runtime.weight_decay import excluded_kinds, kind_of, merged

from meshwright.errors import InputError

from .fork import run
from .jobs import gpt, gpt_oss, job, llama

HOW: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 2.0, "global_batch": 8, "steps": 3,
                       "stack_changes": {"sharded_states": "zero"}}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "model", "kinds"),
    [
        ("dp4-mbs1-z3-rnone", gpt(), "norms,biases"),
        ("tp2-pp2-dp1-mbs1-z1-rnone", gpt(), "norms,biases,embeddings"),
        ("tp2-dp2-ep4-mbs1-z1-rnone", gpt_oss(), "norms,biases"),
        ("dp2-mbs1-z2-rnone", llama(), "embeddings"),
        ("dp2-mbs1-z1-rnone-oopt", llama(), "norms"),
    ],
)
def test_layouts_decay_as_one_process(layout: str, model: Any, kinds: str) -> None:
    wanted = job(layout, model, no_decay=excluded_kinds(kinds), **HOW)
    alone = reference.train(wanted)
    for step, other in zip(run(wanted), alone, strict=True):
        assert step.loss == pytest.approx(other.loss, rel=1e-12)
        assert step.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-9)
    everything = reference.train(job(layout, model, **HOW))
    assert alone[1:] != everything[1:]


def test_kinds_of_parameters() -> None:
    names = {"layers.0.attention.q": None, "layers.0.attention.q_bias": "biases", "head.norm.bias": "biases",
             "layers.0.attention_norm.weight": "norms", "layers.0.attention.sinks": "norms",
             "layers.0.mixer.step_start": "norms", "embedding.tokens": "embeddings", "embedding.norm.weight": "norms",
             "embedding.positions": "embeddings", "head.projection": None}  # fmt: skip
    vectors = ("sinks", "step_start", "weight")
    assert {name: kind_of(name, 1 if name.endswith(vectors) else 2) for name in names} == names
    assert merged([(0, 3), (3, 5), (5, 5), (6, 8), (9, 4)]) == [slice(0, 5), slice(6, 8)]
    with pytest.raises(InputError, match="--no-decay `norm` is none of norms, biases, embeddings"):
        excluded_kinds("biases,norm")
