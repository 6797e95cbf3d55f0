"""Files of frameworks that no target writes: read in full, read in part with the gaps named, or refused by line."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
from meshwright.planner.importing import FORMATS, Imported, import_config
from meshwright.planner.targets.model_names import known_model
from meshwright.planner.targets.readers.registry import READERS
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import InputError, MeshwrightError

RECIPE = """\
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
max_length: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
learning_rate: 1.0e-5
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
gradient_checkpointing: true
bf16: auto
"""
FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
cutoff_len: 2048
packing: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
SWIFT = """\
model: Qwen/Qwen2.5-7B-Instruct
tuner_type: full
deepspeed: zero3
max_length: 4096
packing: true
attn_impl: flash_attn
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
torch_dtype: bfloat16
"""
NEMO = """\
trainer: {num_nodes: 2, devices: 8, precision: bf16}
exp_manager: {name: gpt}
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 16
  num_query_groups: 4
  activation: swiglu
  normalization: rmsnorm
  bias: false
  position_embedding_type: rope
  megatron_amp_O2: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  optim: {name: distributed_fused_adam, lr: 1.0e-4}
"""
NANOTRON = """\
general: {project: own}
parallelism:
  dp: 4
  pp: 2
  tp: 2
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  recompute_layer: true
tokens:
  sequence_length: 2048
  micro_batch_size: 2
  batch_accumulation_per_replica: 4
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}
model:
  dtype: bfloat16
  model_config:
    is_llama_config: true
    hidden_size: 2048
    num_hidden_layers: 24
    num_attention_heads: 16
    num_key_value_heads: 4
    intermediate_size: 5632
    vocab_size: 32001
"""
MAXTEXT = """\
base_config: base.yml
model_name: llama3-8b
ici_fsdp_parallelism: 8
ici_tensor_parallelism: 2
dcn_data_parallelism: 1
per_device_batch_size: 1
max_target_length: 4096
remat_policy: full
"""
ACCELERATE = """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
ZERO3 = """\
{
 "zero_optimization": {"stage": 3},
 "train_micro_batch_size_per_gpu": "auto",
 "bf16": {"enabled": "auto"}
}
"""
NODES = {"cluster": "dgx-h100:2"}


def imported(folder: Path, kind: str, *texts: str, **given: object) -> Imported:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number}{'.json' if text.startswith('{') else '.yaml'}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return import_config(kind, paths, given or NODES)


@pytest.mark.parametrize(("kind", "text"),
                         [("hf-trainer", "RECIPE"), ("axolotl", "AXOLOTL"), ("llama-factory", "FACTORY")])
def test_keys_that_are_given_twice(tmp_path: Path, kind: str, text: str) -> None:
    """The last counts where the framework reads YAML by PyYAML; OmegaConf, which LLaMA-Factory loads it by, refuses."""
    recipe = globals()[text] + "gradient_accumulation_steps: 16\n"
    if kind == "llama-factory":
        with pytest.raises(InputError, match="`gradient_accumulation_steps` is given twice"):
            imported(tmp_path, kind, recipe)
        return
    found = imported(tmp_path, kind, recipe)
    assert found.request.workload.global_batch == 16 * 16 * found.layout.micro_batch
    assert any("`gradient_accumulation_steps` in lines" in note for note in found.assumed)


CASES = [
    ("hf-trainer", (RECIPE,), "dp16-mbs2-z0-rfull", 4096, 128),
    ("hf-trainer", (RECIPE, ZERO3), "dp16-mbs2-z3-rfull", 4096, 128),
    ("hf-trainer", (RECIPE + "fsdp: full_shard auto_wrap\n",), "dp16-mbs2-z3-rfull", 4096, 128),
    ("hf-trainer", (RECIPE + "fsdp: shard_grad_op\n",), "dp16-mbs2-z2-rfull", 4096, 128),
    ("hf-trainer", (RECIPE.replace("gradient_ch", "# "), ACCELERATE), "dp16-mbs2-z3-rnone", 4096, 128),
    ("axolotl", (AXOLOTL,), "dp16-mbs2-z0-rfull", 4096, 128),
    ("axolotl", (AXOLOTL + "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n",), "dp16-mbs2-z2-rfull",
     4096, 128),
    ("axolotl", (AXOLOTL + "deepspeed: deepspeed_configs/zero3.json\n", ZERO3), "dp16-mbs2-z3-rfull", 4096, 128),
    ("axolotl", (AXOLOTL + "context_parallel_size: 2\nfsdp_config:\n  reshard_after_forward: true\n",),
     "cp2r-dp8-mbs2-z3-rfull", 4096, 64),
    ("hf-trainer", (RECIPE + "fsdp: hybrid_shard\n",), "dp16-sh8-mbs2-z3-rfull", 4096, 128),
    ("nemo", (NEMO,), "tp2-pp2-dp4-mbs1-z1-rfull", 4096, 32),
    ("nanotron", (NANOTRON,), "tp2-pp2-dp4-mbs2-z1-rfull", 2048, 32),
    ("maxtext", (MAXTEXT,), "tp2-nosp-dp8-mbs2-z3-rfull", 4096, 16),
    ("maxtext", (MAXTEXT.replace("policy: full", "policy: minimal"),), "tp2-nosp-dp8-mbs2-z3-rsel(attn+norm+act)", 4096,
     16),
    ("maxtext", (MAXTEXT.replace("tensor_par", "context_par").replace("ici_fsdp", "ici_data")
                 + "ici_fsdp_parallelism: 1\n",), "cp2g-dp8-sh1-mbs2-z3-rfull", 4096, 16),
    ("llama-factory", (FACTORY,), "dp16-mbs1-z0-rfull", 2048, 128),
    ("llama-factory", (FACTORY + "disable_gradient_checkpointing: true\n",), "dp16-mbs1-z0-rnone", 2048, 128),
    ("llama-factory", (FACTORY + "fp8: true\nfsdp: [full_shard, auto_wrap]\n",), "dp16-mbs1-z3-rfull-fp8", 2048, 128),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "texts", "layout", "seq_len", "batch"), CASES)
def test_layout_and_batch(tmp_path: Path, kind: str, texts: tuple[str, ...], layout: str, seq_len: int,
                          batch: int) -> None:  # fmt: skip
    found = imported(tmp_path, kind, *texts)
    assert not found.gaps
    assert str(found.layout) == layout
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (seq_len, batch)
    assert found.price().best.step_s > 0


def test_ranks_of_the_accelerate_file(tmp_path: Path) -> None:
    found = imported(tmp_path, "hf-trainer", RECIPE, ACCELERATE, gpu="h100-sxm-80gb")
    assert found.layout.num_gpus == 16


LORA = [
    ("hf-trainer", RECIPE + "use_peft: true\nlora_r: 8\nlora_target_modules: [q_proj, v_proj]\n", 8, ("q", "v"),
     "bf16"),
    ("axolotl", AXOLOTL + "adapter: qlora\nlora_r: 32\nload_in_4bit: true\nlora_target_modules: [q_proj, o_proj]\n",
     32, ("q", "o"), "nf4"),
    ("axolotl", AXOLOTL + "adapter: lora\nlora_r: 4\nload_in_8bit: true\nlora_target_modules: [up_proj]\n", 4, ("up",),
     "int8"),
    ("llama-factory", FACTORY.replace("type: full", "type: lora") + "lora_target: q_proj,k_proj\nquantization_bit: 4\n",
     8, ("q", "k"), "nf4"),
    ("nemo", NEMO + "  peft: {peft_scheme: lora, lora_tuning: {target_modules: [attention], adapter_dim: 16}}\n",
     16, ("q", "k", "v", "o"), "bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "rank", "targets", "base"), LORA)
def test_adapters(tmp_path: Path, kind: str, text: str, rank: int, targets: tuple[str, ...], base: str) -> None:
    found = imported(tmp_path, kind, text)
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.base_dtype) == (rank, targets, base)
    assert found.request.target == {"nemo": "any"}.get(kind, kind if kind in TARGETS else "trl")
    assert found.price().best.step_s > 0


def test_weights_in_bf16_are_priced_in_fp32_and_said_so(tmp_path: Path) -> None:
    low = RECIPE + "torch_dtype: bfloat16\n"
    said = "weights and states are trained in bf16: priced with weights and states in fp32"
    assert said in imported(tmp_path, "hf-trainer", low).assumed
    assert said in imported(tmp_path, "axolotl", AXOLOTL).assumed
    assert said not in imported(tmp_path, "hf-trainer", low, ZERO3).assumed  # which keeps a copy in fp32
    assert said not in imported(tmp_path, "hf-trainer", RECIPE).assumed


def test_the_last_layers_of_freeze(tmp_path: Path) -> None:
    text = FACTORY.replace("type: full", "type: freeze") + "freeze_trainable_layers: 3\n"
    found = imported(tmp_path, "llama-factory", text)
    assert (found.request.workload.train.last_layers, found.request.target) == (3, "llama-factory")


GAPS = [
    ("hf-trainer", RECIPE + "deepspeed: ds.json\n", "deepspeed", 9),
    ("hf-trainer", RECIPE + "beta: 0.1\n", "beta", 9),
    ("hf-trainer", RECIPE + "gradient_acumulation_steps: 4\n", "gradient_acumulation_steps", 9),
    ("hf-trainer", RECIPE + "optim: adafactor\n", "optim", 9),
    ("hf-trainer", RECIPE + "fsdp: shard_grad_op offload\n", "fsdp", 9),
    ("axolotl", AXOLOTL + "rl: kto\n", "rl", 9),
    ("axolotl", AXOLOTL + "gradient_checkpointing: offload\n".replace("gradient_checkpointing", "layer_offloading"),
     "layer_offloading", 9),
    ("axolotl", AXOLOTL + "adapter: lora\nlora_r: 8\nlora_target_modules: [in_proj]\n", "lora_target_modules", 11),
    ("axolotl", AXOLOTL + "expert_parallel_size: 2\n", "expert_parallel_size", 9),
    ("nemo", NEMO.replace("2048", "${oc.env:WIDTH}").replace("${multiply:4, ${.hidden_size}}", "8192"),
     "model.hidden_size", 12),
    ("nemo", NEMO + "inference: {greedy: true}\n", "inference", 24),
    ("nemo", NEMO.replace("swiglu", "reglu"), "model.activation", 16),
    ("nemo", NEMO.replace("rope", "kerple"), "model.position_embedding_type", 19),
    ("nanotron", NANOTRON.replace("  tp: 2", "  tp: 2\n  expert_parallel_size: 2"),
     "parallelism.expert_parallel_size", 6),
    ("nanotron", NANOTRON + "    moe_config: {num_experts: 8}\n", "model.model_config.moe_config", 24),
    ("nanotron", NANOTRON + "data_stages:\n- {name: long, sequence_length: 8192}\n", "data_stages", 24),
    ("maxtext", MAXTEXT.replace("policy: full", "policy: save_qkv_proj"), "remat_policy", 8),
    ("maxtext", MAXTEXT.replace("base.yml", "gpu/own.yml"), "base_config", 1),
    ("maxtext", MAXTEXT + "logical_axis_rules: [['mlp', 'fsdp']]\n", "logical_axis_rules", 9),
    ("maxtext", MAXTEXT + "ici_pipeline_parallelism: 2\n", "ici_pipeline_parallelism", 9),
    ("nemo", NEMO + "  peft: {peft_scheme: ia3}\n", "model.peft.peft_scheme", 24),
    ("nemo", NEMO + "  peft: {peft_scheme: lora, lora_tuning: {target_modules: [all], layer_selection: [1]}}\n",
     "model.peft.lora_tuning.layer_selection", 24),
    ("llama-factory", FACTORY.replace("sft", "kto"), "stage", 2),
    ("llama-factory", FACTORY + "mixture_of_depths: convert\n", "mixture_of_depths", 9),
    ("llama-factory", FACTORY + "use_kt: true\n", "use_kt", 9),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "option", "line"), GAPS)
def test_what_may_change_the_layout_is_named_with_its_line(tmp_path: Path, kind: str, text: str, option: str,
                                                           line: int) -> None:  # fmt: skip
    found = imported(tmp_path, kind, text)
    assert [(gap.field, gap.line) for gap in found.gaps] == [(option, line)]
    assert found.completed is None


def test_what_is_switched_off_is_no_gap(tmp_path: Path) -> None:
    assert not imported(tmp_path, "axolotl", AXOLOTL + "rl:\nqat: null\nlayer_offloading: false\nadapter:\n").gaps


CONTRADICTIONS = [
    ("hf-trainer", (RECIPE + "fp16: true\n",), r"line 9, fp16: fp16 and bf16 \(line 7\)"),
    ("hf-trainer", (RECIPE, ZERO3.replace('"auto",', "4,")), r"line 4, per_device_train_batch_size: 2 here, .* 4 in .*"
     "line 3"),
    ("hf-trainer", (RECIPE.replace("size: 2", "size: 0"),), "line 4, per_device_train_batch_size: `0` is not 1"),
    ("axolotl", (AXOLOTL + "load_in_4bit: true\nload_in_8bit: true\n",), "line 10, load_in_8bit: cannot be given"),
    ("nanotron", (NANOTRON.replace("  tp: 2", "  tp: 3"),), r"line 5, parallelism\.tp: tp 3 x cp 1 x pp 2 = 6 "),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "texts", "message"), CONTRADICTIONS)
def test_contradictions_are_refused_with_both_lines(tmp_path: Path, kind: str, texts: tuple[str, ...],
                                                    message: str) -> None:  # fmt: skip
    with pytest.raises(InputError, match=message):
        imported(tmp_path, kind, *texts)


OWN = {"hf-trainer": RECIPE, "axolotl": AXOLOTL, "llama-factory": FACTORY, "swift": SWIFT, "accelerate": ACCELERATE,
       "nemo": NEMO, "nanotron": NANOTRON, "maxtext": MAXTEXT}


@pytest.mark.parametrize(("whose", "given_to"), list(itertools.permutations(OWN, 2)))
def test_a_file_of_another_framework_is_answered_with_its_own(tmp_path: Path, whose: str, given_to: str) -> None:
    with pytest.raises(InputError) as error:
        imported(tmp_path, given_to, OWN[whose])
    assert f"`import {whose}`" in str(error.value.hint or error.value)


@pytest.mark.parametrize("kind", [entry.name for entry in READERS if entry.name != "slime"])  # which has scripts
def test_a_file_of_no_framework_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match=r"line 1, apiVersion: .* has no such option, nor 1 more of the 2 here"):
        imported(tmp_path, kind, "apiVersion: v1\nkind: Pod\n")


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    path = tmp_path / "gpt.yaml"
    path.write_text(NEMO.replace("2048", "${oc.env:WIDTH}"), encoding="utf-8")
    given = ["model.hidden_size=1024", "model.tensor_model_parallel_size=4"]
    found = import_config("nemo", [path], NODES, script_arguments=given)
    assert isinstance(found.request.model, dict)
    assert (found.layout.tp, found.request.model["hidden"]) == (4, 1024)
    with pytest.raises(InputError, match=r"`model\.hiden_size=1` states no option that is read"):
        import_config("nemo", [path], NODES, script_arguments=["model.hiden_size=1"])


def test_sizes_of_the_models(tmp_path: Path) -> None:
    nemo = imported(tmp_path, "nemo", NEMO).request.model
    nanotron = imported(tmp_path, "nanotron", NANOTRON).request.model
    assert isinstance(nemo, dict)
    assert isinstance(nanotron, dict)
    assert (nemo["ffn_hidden"], nemo["kv_heads"], nemo["max_positions"]) == (8192, 4, 4096)
    assert (nemo["gated_mlp"], nemo["qkv_bias"]) == (True, False)
    assert (nanotron["ffn_hidden"], nanotron["kv_heads"], nanotron["vocab"]) == (5632, 4, 32002)  # rows of tp 2
    assert imported(tmp_path, "maxtext", MAXTEXT).request.model == "llama-3-8b"


def test_ranks_of_a_recipe(tmp_path: Path) -> None:
    for kind, text in (("nemo", NEMO), ("nanotron", NANOTRON)):
        assert imported(tmp_path, kind, text, gpu="h100-sxm-80gb").layout.num_gpus == 16


WORDS = ("-1", "0", "7", "1.5", "1e400", "nan", "true", "null", '"x"', "[]", "[1, 2]", "{}", "{a: 1}", '"${x}"',
         '"???"', "999999999999999999999", "~", "2020-01-01", "[q_proj, 3, null]", '"4"')  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
def test_any_value_is_read_or_answered(tmp_path: Path, kind: str) -> None:
    """Each line with words that it is not made for: read, a gap or an error of ours."""
    draw, lines = random.Random(kind), OWN[kind].splitlines()
    outcomes = set()
    for number, line in enumerate(lines):
        name, colon, _ = line.partition(": ")
        for word in draw.sample(WORDS, 3) if colon else ():
            text = "\n".join([*lines[:number], f"{name}: {word}", *lines[number + 1 :], ""])
            try:
                outcomes.add("gap" if imported(tmp_path, kind, text, model="llama-3.1-8b", **NODES).gaps else "read")
            except MeshwrightError:
                outcomes.add("error")
    assert {"read", "error"} <= outcomes


def test_every_reader_is_a_format() -> None:
    assert [reader.name for reader in READERS] == list(FORMATS)[-len(READERS) :]
    assert all(option in reader.option_list(None)[0].options for reader in READERS
               for entry in reader.table(reader.option_list(None)[0]).entries for option in entry.options)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "known"),
    [("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "qwen2.5-7b"),
     ("arcee-ai/AFM-4.5B", "afm-4.5b"), ("arcee-ai/AFM-9B", None), ("some/Llama-3-8B-pruned", None)],
)  # fmt: skip
def test_names_of_the_hub(name: str, known: str | None) -> None:
    spec = known_model(name)
    assert (spec and spec.name) == known


def test_states_on_the_host_are_read(tmp_path: Path) -> None:
    recipe = imported(tmp_path, "hf-trainer", RECIPE + "fsdp: full_shard offload\n")
    assert not recipe.gaps
    assert list(recipe.request.workload.techniques) == ["cpu-offload"]


def test_other_words_for_accelerator_change_nothing(tmp_path: Path) -> None:
    """Of its block only the synchronisation of micro-batches matters, where weights are sharded."""
    block = "accelerator_config: {split_batches: false, gradient_accumulation_kwargs: {sync_each_batch: true}}\n"
    sharded, plain = (imported(tmp_path, "hf-trainer", RECIPE + more) for more in (f"fsdp: full_shard\n{block}", block))
    assert not sharded.gaps + plain.gaps
    assert sharded.settings["sync_each_batch"] == "on"
    assert "sync_each_batch" not in plain.settings


_EACH = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'


def test_words_for_accelerator_as_text_and_as_file(tmp_path: Path) -> None:
    """TrainingArguments takes the block as JSON, and the name of a JSON file."""
    text = f"{RECIPE}fsdp: full_shard\naccelerator_config: "
    assert imported(tmp_path, "hf-trainer", f"{text}'{_EACH}'\n").settings["sync_each_batch"] == "on"
    (gap,) = imported(tmp_path, "hf-trainer", f"{text}acc.json\n").gaps
    assert gap.message == "its fields are in acc.json: give it as a further FILE"
    assert imported(tmp_path, "hf-trainer", f"{text}acc.json\n", _EACH).settings["sync_each_batch"] == "on"


@pytest.mark.parametrize(
    ("block", "message"),
    [("'{\"split_batches\": tru}'", "is not JSON"), ("{split_batch: true}", "has no field `split_batch`"),
     ("{gradient_accumulation_kwargs: {sync_each: true}}", "has no field `sync_each`"),
     ("{gradient_accumulation_kwargs: {num_steps: 0}}", "num_steps `0` is not 1 or more"),
     ("{gradient_accumulation_kwargs: 3}", "gradient_accumulation_kwargs `3` is no block")],
)  # fmt: skip
def test_wrong_words_for_accelerator(tmp_path: Path, block: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        imported(tmp_path, "hf-trainer", f"{RECIPE}accelerator_config: {block}\n")


def test_batches_that_accelerator_sets(tmp_path: Path) -> None:
    lines = [line for line in RECIPE.splitlines() if not line.startswith("gradient_accumulation_steps")]
    block = "accelerator_config: {gradient_accumulation_kwargs: {num_steps: 4}}\n"
    alone = imported(tmp_path, "hf-trainer", "\n".join([*lines, block]))
    assert alone.request.workload.global_batch == 4 * alone.layout.dp * alone.layout.micro_batch
    with pytest.raises(InputError, match="num_steps 4 here, and gradient_accumulation_steps"):
        imported(tmp_path, "hf-trainer", RECIPE + block)
    (gap,) = imported(tmp_path, "hf-trainer", f"{RECIPE}accelerator_config: {{split_batches: true}}\n").gaps
    assert "sequences of all ranks" in gap.message
