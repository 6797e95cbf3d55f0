"""The explicit form with mixers and a pattern of layers: what it describes, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
from meshwright.cost_models.layer_kinds.graph_convolution import GraphConvolution
from meshwright.cost_models.layer_kinds.registry import MIXERS
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.huggingface import read_config

from meshwright.errors import InputError

from ...snapshots import ROOT

MAMBA = {"kind": "mamba2", "heads": 256, "head_dim": 64, "groups": 8, "state": 256, "chunk": 128}
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp"}
SMALL: dict[str, Any] = {
    "hidden": 64, "layers": 2, "heads": 4, "vocab": 100, "max_positions": 128, "ffn_hidden": 96,
    "mixers": {"ssm": {"kind": "mamba2", "heads": 4, "head_dim": 16, "groups": 2, "state": 8}},
    "pattern": ["ssm+mlp", "attention+mlp"],
}  # fmt: skip


def test_nemotron_h_by_its_sizes_is_nemotron_h_by_its_config() -> None:
    config = json.loads((ROOT / "tests" / "data" / "configs" / "nemotron-h-56b.json").read_text())
    published, _ = read_config(config, "nemotron-h-56b")
    pattern = config["hybrid_override_pattern"]
    data = {
        "hidden": 8192, "layers": 118, "heads": 64, "kv_heads": 8, "head_dim": 128, "vocab": 131072,
        "max_positions": 8192, "ffn_hidden": 32768, "gated_mlp": False, "num_norms": 1, "mixers": {"mamba": MAMBA},
        "pattern": [LETTERS[letter] for letter in pattern],
    }  # fmt: skip
    own, warnings = read_explicit_form(data, "own")

    assert not warnings
    assert own.pattern == published.pattern
    without = [kind if kind.attention is None else replace(kind, attention=replace(kind.attention, rotary=True))
               for kind in published.kinds]  # fmt: skip
    assert list(own.kinds) == without
    assert total_parameters(own) == total_parameters(published)


# The neighbours of a graph are those of a graph network.
@pytest.mark.parametrize("kind", [kind for kind in MIXERS if kind.spec is not GraphConvolution],
                         ids=lambda kind: kind.name)  # fmt: skip
def test_every_kind_of_mixer_can_be_stated(kind: Any) -> None:
    sizes = {name: 4 for name in kind.spec.__dataclass_fields__ if name != "kind"}
    flags = {name: True for name, field in kind.spec.__dataclass_fields__.items() if field.type == "bool"}
    words = {name: options[-1] for name, of in get_type_hints(kind.spec).items() if (options := get_args(of))}
    words.pop("kind", None)  # the class of a ClassVar
    data = {**SMALL, "mixers": {"own": {"kind": kind.name, **sizes, **flags, **words}}, "pattern": ["own+mlp", "own"]}
    del data["heads"]
    spec, _ = read_explicit_form(data, "own")

    assert [type(layer.mixer) for layer in spec.kinds] == [kind.spec] * 2
    assert [layer.num_norms for layer in spec.kinds] == [2, 1]


def test_blocks_join_and_windows_stay_with_attention() -> None:
    moe = {"experts": 4, "topk": 2, "expert_ffn": 32}
    spec, _ = read_explicit_form(
        {**SMALL, "moe": moe, "sliding_window": 16, "pattern": ["attention+ssm+experts", "ssm+mlp"]}, "own"
    )
    first = spec.kinds[0]
    assert first.attention is not None
    assert (first.attention.window, first.is_moe, first.mixer is not None) == (16, True, True)
    assert spec.kinds[1].attention is None


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"layers": 3}, "pattern", "has 2 entries for 3 layers"),
        ({"pattern": "ssm+mlp"}, "pattern", "must be a list with one entry per layer, is 'ssm+mlp'"),
        ({"pattern": None}, "pattern", "must be a list with one entry per layer, is None"),
        ({"pattern": ["ssm+mlp", "conv"]}, "pattern",
         "`conv` of `conv` is no block; known are attention, mlp, experts, ssm"),
        ({"pattern": ["ssm+mlp", "attention+experts"]}, "pattern", "`experts` of `attention+experts` needs `moe`"),
        ({"ffn_hidden": None}, "pattern", "`mlp` of `ssm+mlp` needs `ffn_hidden`"),
        ({"moe": {"experts": 4, "expert_ffn": 32}, "pattern": ["ssm+experts", "attention+mlp"]}, "",
         "missing field `moe.topk`"),
        ({"pattern": ["ssm+mlp", "attention+mlp+mlp"]}, "pattern",
         "`attention+mlp+mlp` has more than one block of a sort: attention, a mixer, mlp or experts"),
        ({"pattern": ["attention", "mlp"]}, "mixers", "ssm is in no layer of `pattern`"),
        ({"mixers": {"ssm": {"kind": "mamba3"}}}, "mixers.ssm.kind", "`mamba3` is no kind of mixer; known are "),
        ({"mixers": {"ssm": {**SMALL["mixers"]["ssm"], "groups": 3}}}, "mixers.ssm.groups",
         "3 groups do not divide 4 heads"),
        ({"mixers": {"ssm": {**SMALL["mixers"]["ssm"], "width": 3}}}, "mixers.ssm.width", "unknown field"),
        ({"mixers": {"mlp": SMALL["mixers"]["ssm"]}}, "mixers.mlp", "is the name of a block already"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pattern_is_named(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_explicit_form({**SMALL, **changes}, "own")
    problems = [(problem.field, problem.message) for problem in caught.value.problems]
    assert any(name == field and text.startswith(message) for name, text in problems), problems
