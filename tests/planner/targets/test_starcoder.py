"""StarCoder2 in nanotron's YAML: another model class than those of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.resolve import resolve

TEXT = """\
parallelism: {dp: 2, pp: 1, tp: 4, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
tokens: {sequence_length: 4096, micro_batch_size: 4, batch_accumulation_per_replica: 2}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true}
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 128
  model_config:
    is_starcoder2_config: true
    grouped_query: true
    num_kv_heads: 4
    hidden_size: 4608
    num_attention_heads: 36
    num_hidden_layers: 32
    vocab_size: 49152
    rope_theta: 100000
    layer_norm_epsilon: 0.00001
    activation_function: gelu
"""


def imported(folder: Path, text: str) -> Imported:
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    return import_config("nanotron", [folder / "c.yaml"], {"gpu": "h100-sxm-80gb"})


def test_its_sizes(tmp_path: Path) -> None:
    """StarCoder2-7B (arXiv:2402.19173, table 5) has 7.17 billion parameters."""
    found = imported(tmp_path, TEXT)
    assert not found.gaps
    model = resolve(found.request).model
    assert total_parameters(model) / 1e9 == pytest.approx(7.17, abs=0.01)
    assert (model.attentions[0].kv_heads, model.tied_embeddings, model.norm_epsilon) == (4, True, 1e-5)
    single = resolve(imported(tmp_path, TEXT.replace("grouped_query: true", "multi_query: true")).request).model
    assert single.attentions[0].kv_heads == 1


@pytest.mark.parametrize(("old", "new", "option"), [
    ("pp: 1", "pp: 2", "model.model_config.is_starcoder2_config"),
    ("activation_function: gelu", "activation_function: quick", "model.model_config.activation_function"),
    ("rope_theta: 100000", "sliding_window_size: 1024", "model.model_config.sliding_window_size"),
    ("rope_theta: 100000", "use_rotary_embeddings: false", "model.model_config.use_rotary_embeddings"),
])  # fmt: skip
def test_what_no_plan_has(tmp_path: Path, old: str, new: str, option: str) -> None:
    assert [gap.field for gap in imported(tmp_path, TEXT.replace(old, new)).gaps] == [option]
