"""Ratios of hybrid models give the layers that Megatron's own rule gives. MEGATRON_PATH names the checkout.

The function is taken out of the source (core/models/hybrid/hybrid_layer_allocation.py): the module imports torch.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from meshwright.planner.targets.megatron.older_hybrids import pattern_of

CHECKOUT = os.environ.get("MEGATRON_PATH", "")
if not CHECKOUT:
    pytest.skip("MEGATRON_PATH names no checkout of Megatron-LM", allow_module_level=True)
pytestmark = pytest.mark.upstream


def test_layers_are_those_of_megatron() -> None:
    path = Path(CHECKOUT) / "megatron" / "core" / "models" / "hybrid" / "hybrid_layer_allocation.py"
    (node,) = (node for node in ast.parse(path.read_text()).body
               if isinstance(node, ast.FunctionDef) and node.name == "pattern_from_ratios")  # fmt: skip
    names: dict[str, Any] = {"Symbols": SimpleNamespace(MAMBA="M", ATTENTION="*", MLP="-")}
    exec(compile(ast.Module([node], []), path.name, "exec"), names)
    shares = [number / 25 for number in range(26)]
    for layers in range(1, 80, 3):
        for attention in shares:
            for feed_forward in shares:
                if attention + feed_forward <= 1:
                    expected = names["pattern_from_ratios"](layers, attention, feed_forward)
                    assert pattern_of(layers, attention, feed_forward) == expected
