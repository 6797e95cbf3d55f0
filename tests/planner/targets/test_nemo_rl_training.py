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
    (CHILD + "distillation: {topk_logits_k: 64}\n", "distillation"),
    (CHILD + "  dynamic_batching: {enabled: true}\ndpo: {sft_loss_weight: 0}\n", "policy.dynamic_batching.enabled"),
    (CHILD + "    enabled: false\n  megatron_cfg: {enabled: true, pipeline_model_parallel_size: 2}\n"
     "dpo: {sft_loss_weight: 0}\n", "policy.megatron_cfg.pipeline_model_parallel_size"),
    (CHILD + "    lora_cfg: {enabled: true, exclude_modules: ['*out_proj*']}\n",
     "policy.dtensor_cfg.lora_cfg.exclude_modules"),
    (CHILD + "    lora_cfg: {enabled: true, target_modules: ['*.layers.0.*.q_proj']}\n",
     "policy.dtensor_cfg.lora_cfg.target_modules"),
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


_EVERY = ("q", "k", "v", "o", "gate", "up", "down")
_CORE = "    enabled: false\n  megatron_cfg: {enabled: true, peft: {enabled: true, dim: 8%s}}\n"


@pytest.mark.parametrize(("text", "head"), [
    ("    lora_cfg: {enabled: true, match_all_linear: true}\n", True),
    ("    lora_cfg: {enabled: true}\n", False),
    ("    lora_cfg: {enabled: true, target_modules: ['*_proj']}\n", False),
    ("    lora_cfg: {enabled: true, exclude_modules: ['*.lm_head']}\n", False),
    (_CORE % ", target_modules: []", True),
    (_CORE % ", exclude_modules: [output_layer]", False),
])  # fmt: skip
def test_adapters_of_all_modules(tmp_path: Path, text: str, head: bool) -> None:
    """8 x (4,096 + 128,256) parameters are those of the head's adapter, which no plan has."""
    found = imported(tmp_path, CHILD + text)
    lora = found.request.workload.train.lora
    assert not found.gaps
    assert lora is not None
    assert (lora.rank, set(lora.targets)) == (8, set(_EVERY))
    assert any("adapter of 1,058,816 parameters" in note for note in found.assumed) is head


def test_choices_of_modules_exclude_one_another(tmp_path: Path) -> None:
    both = "    lora_cfg: {enabled: true, match_all_linear: true, target_modules: [q_proj]}\n"
    with pytest.raises(InputError, match="target_modules: goes with neither"):
        imported(tmp_path, CHILD + both)


@pytest.mark.parametrize(("block", "learns"), [
    ("dpo: {reference_policy_kl_penalty: 0.1}\n", (True, False)),
    ("rm: {max_num_steps: 10}\n", (False, True)),
])  # fmt: skip
def test_pairs(tmp_path: Path, block: str, learns: tuple[bool, bool]) -> None:
    reward = "  reward_model_cfg: {enabled: true, reward_model_type: bradley_terry}\n" if "rm" in block else ""
    found = imported(tmp_path, CHILD + reward + block)
    assert (str(found.layout), found.gaps) == ("tp4-nosp-dp2-mbs2-z3-rnone", ())
    work = found.request.workload
    assert (work.global_batch, work.reference, work.reward_model) == (1024, *learns)
    assert found.request.fix["micro_batch"] == 2
    assert any("the reference is on the host" in note for note in found.assumed) is learns[0]


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
