"""tp above the number of key/value heads: Megatron gathers the parts of a head, other frameworks need whole heads."""

from __future__ import annotations

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve


@pytest.mark.parametrize(
    ("target", "refused"),
    [("torchtitan", True), ("accelerate", True), ("axolotl", True), ("meshwright", True), ("megatron", False)],
)
def test_tp_16_with_8_heads_of_keys(target: str, refused: bool) -> None:
    """Llama 3.1 70B has 8 key/value heads of 128: of 1,024 columns a rank of 16 has 64, half a head."""
    resolved = resolve(load_request(None, {"model": "llama-3.1-70b", "cluster": "dgx-h100:4", "global_batch": 64,
                                          "seq_len": 8192, "target": target}))  # fmt: skip
    for layout_id, said in (("tp16-dp2-mbs1-z3-rfull", refused), ("tp8-dp4-mbs1-z3-rfull", False)):
        layout, problem = parse(layout_id), resolved.problem
        columns = dict(Layouts.of([layout]))
        broken = [rule.explain(layout, problem) for rule in resolved.target.rules
                  if not rule.allows(columns, problem)[0]]  # fmt: skip
        assert any("tp 16 does not divide the 8" in text for text in broken) == said
