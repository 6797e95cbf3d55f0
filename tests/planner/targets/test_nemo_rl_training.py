"""The training part of NeMo-RL's configs: SFT, and the policy of GRPO, without `--output`."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

PARENT = """\
sft: {max_num_steps: 60}
policy:
  model_name: meta-llama/Llama-3.2-1B
  train_global_batch_size: 32
  train_micro_batch_size: 1
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1, context_parallel_size: 1, activation_checkpointing: false}
  megatron_cfg: {enabled: false, pipeline_model_parallel_size: 1}
  dynamic_batching: {enabled: false, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 2}"}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 1.0e-6}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
CHILD = """\
defaults: sft.yaml
policy:
  model_name: meta-llama/Llama-3.1-8B
  train_global_batch_size: 512
  max_total_sequence_length: 4096
  dtensor_cfg:
    tensor_parallel_size: 4
"""


def imported(folder: Path, text: str, *arguments: str) -> Imported:
    (folder / "sft.yaml").write_text(PARENT, encoding="utf-8")
    path = folder / "child.yaml"
    path.write_text(text, encoding="utf-8")
    return import_config("nemo-rl", [path], {"gpu": "h100-sxm-80gb"}, None, arguments)


@pytest.mark.parametrize(("text", "layout"), [
    (CHILD, "tp4-nosp-dp2-mbs1-z3-rnone"),
    (CHILD + "    activation_checkpointing: true\n    sequence_parallel: true\n", "tp4-dp2-mbs1-z3-rfull"),
    (CHILD + "  dynamic_batching: {enabled: true}\n", "tp4-nosp-dp2-mbs2-z3-rnone"),
    (CHILD + "    enabled: false\n  megatron_cfg: {enabled: true, pipeline_model_parallel_size: 2}\n",
     "pp2-dp4-mbs1-z1-rnone"),
    (CHILD + "grpo: {num_prompts_per_step: 32}\n", "tp4-nosp-dp2-mbs1-z3-rnone"),
])  # fmt: skip
def test_layout_and_batch(tmp_path: Path, text: str, layout: str) -> None:
    found = imported(tmp_path, text)
    assert (str(found.layout), found.gaps) == (layout, ())
    assert found.request.model == "llama-3.1-8b"
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (4096, 512)


@pytest.mark.parametrize(("text", "option"), [
    (CHILD + "dpo: {reference_policy_kl_penalty: 0.1}\n", "dpo"),
    (CHILD + "    lora_cfg: {enabled: true, match_all_linear: true}\n", "policy.dtensor_cfg.lora_cfg.enabled"),
    (CHILD + "  draft: {enabled: true}\n", "policy.draft"),
    (CHILD + "    enabled: false\n", "policy.dtensor_cfg.enabled"),
    (CHILD + "  precision: float8\n", "policy.precision"),
])  # fmt: skip
def test_what_is_not_read_is_named(tmp_path: Path, text: str, option: str) -> None:
    assert [gap.field for gap in imported(tmp_path, text).gaps] == [option]


@pytest.mark.parametrize(("text", "rank", "targets"), [
    (CHILD + "    lora_cfg: {enabled: true, match_all_linear: false, dim: 32, target_modules: ['*q_proj', v_proj]}\n",
     32, ("q", "v")),
    (CHILD + "    enabled: false\n  megatron_cfg: {enabled: true, peft: {enabled: true, dim: 16,"
     " target_modules: [linear_proj]}}\n", 16, ("o",)),
])  # fmt: skip
def test_adapters(tmp_path: Path, text: str, rank: int, targets: tuple[str, ...]) -> None:
    found = imported(tmp_path, text)
    lora = found.request.workload.train.lora
    assert not found.gaps
    assert lora is not None
    assert (lora.rank, lora.targets) == (rank, targets)


def test_blocks_that_are_off_say_nothing(tmp_path: Path) -> None:
    off = "  draft: {enabled: false, num_layers: 4}\n  megatron_cfg: {fp8_cfg: {enabled: false, fp8: e4m3}}\n"
    assert imported(tmp_path, CHILD + off).gaps == ()


def test_options_and_parents(tmp_path: Path) -> None:
    assert imported(tmp_path, CHILD, "cluster.num_nodes=2").layout.num_gpus == 16
    with pytest.raises(InputError, match="no such file"):
        imported(tmp_path, CHILD.replace("sft.yaml", "other.yaml"))
    with pytest.raises(InputError, match="`0` is not 1 or more"):
        imported(tmp_path, CHILD.replace("size: 4", "size: 0"))
    with pytest.raises(InputError, match="states no option"):
        imported(tmp_path, CHILD, "policy.no_such=2")
