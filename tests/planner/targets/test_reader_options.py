"""Options that change layout, model, batch, price or memory are gaps of the readers; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

from .test_readers import AXOLOTL, FACTORY, MAXTEXT, NANOTRON, RECIPE, SWIFT, ZERO3, imported

OWN = {"hf-trainer": RECIPE, "axolotl": AXOLOTL, "llama-factory": FACTORY, "swift": SWIFT, "maxtext": MAXTEXT}
# Format -> lines that each leave a gap.
CHANGES = {
    "hf-trainer": (
        "attn_implementation: eager", "adafactor: true", "use_cpu: true", "config_name: mine/small",
        "config_overrides: n_layer=2",
        "model_init_kwargs: {num_hidden_layers: 2}", "use_dora: true",
        "fsdp: full_shard\nfsdp_config: {xla_fsdp_grad_ckpt: true}", "own_tower: 3", "split_batches: true",
        "model_init_kwargs: {attn_implementation: eager}", "lora_target_parameters: [experts.up]",
        "activation_checkpointing_kwargs: {every_n_layers: 2}", "gradient_checkpointing_kwargs: {offload: true}",
    ),
    "axolotl": (
        "peft_use_dora: true", "num_labels: 2", "use_vllm: true",
        "use_onebitllms: true", "device_map: balanced", "max_memory: {0: 20GiB}", "eager_attention: true",
        "lora_rank_pattern: {q_proj: 4}", "peft_trainable_token_indices: [1]",
        "fsdp_config: {mixed_precision_policy: fp16}", "overrides_of_model_config: {num_hidden_layers: 2}",
    ),
    "llama-factory": ("flash_attn: disabled", "use_unsloth: true", "use_galore: true", "device_map: auto",
                      "use_unsloth_gc: true", "use_asft_loss: true", "adafactor: true",
                      "freeze_trainable_modules: mlp"),
    "swift": ("attn_impl: eager\npacking: false", "use_galore: true", "lisa_activated_layers: 2", "optimizer: muon",
              "task_type: seq_cls", "freeze_vit: false", "freeze_llm: true", "freeze_parameters: [model.layers.0]",
              "quant_method: hqq",
              "rlhf_type: kto", "sequence_parallel_size: 8", "device_map: auto",
              "external_plugins: [plugin.py]", "freeze_parameters_ratio: 0.5", "num_labels: 2", "use_ray: true"),
    "maxtext": (
        "attention_type: local_sliding", "attention_type: chunk", "weight_dtype: bfloat16", "mu_dtype: bfloat16",
        "attention: dot_product", "use_ring_of_experts: true", "use_2d_fsdp_sharding: true", "enable_diloco: true",
        "global_parameter_scale: 2", "use_post_attn_norm: true", "dropout_rate: 0.1", "attn_logits_soft_cap: 50.0",
        "override_logical_axis_rules: true", "use_mrope: true", "override_model_config: true\nbase_emb_dim: 64",
        "activations_in_float32: true",
    ),
}  # fmt: skip
# Lines beside which nothing is open.
ASIDE = {
    "hf-trainer": ("dataset_config: all", "dataloader_num_workers: 4", "label_names: [labels]", "run_name: x",
                   "fsdp: full_shard\nfsdp_config: {use_orig_params: true}", "attn_implementation: flash_attention_2",
                   "use_rslora: true", "lora_task_type: CAUSAL_LM", "batch_eval_metrics: true", "optim_args: a=1",
                   "per_gpu_eval_batch_size: 8", "half_precision_backend: auto", "dispatch_batches: true",
                   "model_init_kwargs: {torch_dtype: bfloat16, use_cache: false}",
                   "gradient_checkpointing_kwargs: {use_reentrant: false}"),
    "axolotl": ("num_epochs: 3", "use_wandb: true", "ddp_timeout: 600", "lora_mlp_kernel: true",
                "flash_attention: true", "val_set_size: 0.1", "dataset_processes: 8", "is_llama_derived_model: true",
                "chunked_cross_entropy: true", "ddp: true", "gc_collect_steps: 3", "loraplus_lr_ratio: 16",
                "peft: {loftq_config: {loftq_bits: 4}}", "overrides_of_model_config: {rope_theta: 500000.0}",
                "rope_scaling: {type: linear, factor: 2}"),
    "llama-factory": ("flash_attn: fa2", "use_fast_tokenizer: true", "ddp_timeout: 600", "dataset_dir: data",
                      "pissa_init: true", "rope_scaling: linear", "galore_layerwise: true", "pref_beta: 0.1",
                      "reward_model: x", "freeze_trainable_modules: all", "reserved_label_len: 1"),
    "swift": ("attn_impl: flash_attn", "galore_rank: 64", "lora_alpha: 16", "template: qwen", "dataset: [mine]",
              "freeze_parameters: [visual, visual.merger]", "task_type: causal_lm", "truncation_strategy: delete",
              "rope_scaling: yarn", "streaming: true", "enable_thinking: false", "use_rslora: true", "stop_words: [x]"),
    "maxtext": ("weight_dtype: float32", "attention: flash", "rope_min_timescale: 1", "sliding_window_size: 0",
                "attention_type: global", "dcn_bandwidth_limit: 1", "enable_checkpointing: false",
                "norm_topk_prob: true", "sa_block_q: 512"),
}  # fmt: skip


def lines(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(kind, line) for kind, rows in table.items() for line in rows]


@pytest.mark.parametrize(("kind", "line"), lines(CHANGES))
def test_an_option_that_changes_something_is_a_gap(tmp_path: Path, kind: str, line: str) -> None:
    gaps = imported(tmp_path, kind, f"{OWN[kind]}{line}\n").gaps
    assert len(gaps) == 1
    assert gaps[0].field.startswith(line.partition(":")[0]) or "override_model_config" in line


@pytest.mark.parametrize(("kind", "line"), lines(ASIDE))
def test_an_option_that_changes_nothing_is_none(tmp_path: Path, kind: str, line: str) -> None:
    assert not imported(tmp_path, kind, f"{OWN[kind]}{line}\n").gaps


def test_fused_kernels_are_noted(tmp_path: Path) -> None:
    for kind, line in (("axolotl", "cut_cross_entropy: true"), ("hf-trainer", "use_liger_kernel: true"),
                       ("hf-trainer", "torch_compile: true"), ("hf-trainer", "torch_compile_backend: inductor"),
                       ("axolotl", "torch_compile: auto"), ("llama-factory", "torch_compile: true")):
        notes = imported(tmp_path, kind, f"{OWN[kind]}{line}\n").assumed
        assert f"{line.partition(':')[0]}: priced as without" in notes


SIZES = """\
base_emb_dim: 512
base_num_query_heads: 8
base_num_kv_heads: 8
base_mlp_dim: 1024
base_num_decoder_layers: 4
max_target_length: 2048
per_device_batch_size: 2
"""


def test_positions_and_experts_of_maxtext(tmp_path: Path) -> None:
    few = imported(tmp_path, "maxtext", SIZES.replace("base_emb_dim: 512\n", "")).request.model
    assert isinstance(few, dict)
    assert few["hidden"] == 2048  # of base.yml
    notes = imported(tmp_path, "maxtext", f"{SIZES}rope_type: yarn\n").assumed
    assert any("rope_type yarn" in note for note in notes)
    experts = f"{SIZES}num_experts: 4\nnum_experts_per_tok: 2\n"
    (gap,) = imported(tmp_path, "maxtext", f"{experts}sparse_matmul: false\n").gaps
    assert "every expert computes every token" in gap.message
    for text, normalised in ((experts, True), (f"{experts}decoder_block: deepseek\n", False)):
        model = imported(tmp_path, "maxtext", text).request.model
        assert isinstance(model, dict)
        assert model["moe"]["router_normalised"] is normalised


def test_adapters_of_a_latent_attention_have_their_modules(tmp_path: Path) -> None:
    lora = "adapter: lora\nlora_r: 8\nlora_target_modules: [q_b_proj, kv_b_proj]\n"
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3-8B", "deepseek-ai/DeepSeek-V3") + lora
    found = imported(tmp_path, "axolotl", text)
    assert found.request.workload.train.lora is not None
    assert sorted(found.request.workload.train.lora.targets) == ["k", "q", "v"]
    (gap,) = imported(tmp_path, "axolotl", AXOLOTL + lora.replace("q_b_proj", "query_key_value")).gaps
    assert "query_key_value" in gap.message


TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 8192
{training}
[parallelism]
tensor_parallel_degree = 1
{sections}
"""
COMPILED = [
    ("compile = true", "", "on"), ("compile = false", "", "off"), ("", "[compile]\nenable = true", "on"),
    ("", '[compile]\nenable = true\ncomponents = ["loss"]', "off"), ("", "", "off"),
]


@pytest.mark.parametrize(("training", "sections", "state"), COMPILED)
def test_compiled_layers_of_torchtitan(tmp_path: Path, training: str, sections: str, state: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TITAN.format(training=training, sections=sections), encoding="utf-8")
    found = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"})
    assert not found.gaps
    assert found.settings.get("torch_compile", "off") == state


def test_micro_batches_of_a_fork_of_torchtitan(tmp_path: Path) -> None:
    """YNNtitan sums gradients of so many local batches; one of its models is a model of the catalogue."""
    path = tmp_path / "job.toml"
    text = TITAN.replace('"llama3"', '"opt"').replace('"8B"', '"1.3B"').replace("seq_len = 8192", "seq_len = 2048")
    path.write_text(text.format(training="gradient_accumulation_steps = 9", sections=""), encoding="utf-8")
    found = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"})
    assert not found.gaps
    assert (found.layout.micro_batch, found.request.workload.global_batch) == (1, 72)
    assert found.request.model == "opt-1.3b"
    assert "opt/1.3B is opt-1.3b of the catalogue: `--model` names another" in found.assumed


def test_older_names_of_the_host_in_deepspeed(tmp_path: Path) -> None:
    given = {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}
    path = tmp_path / "ds.json"

    def read(option: str) -> Imported:
        path.write_text(ZERO3.replace('"zero_optimization": {', '"zero_optimization": {' + option), encoding="utf-8")
        return import_config("deepspeed", [path], given)

    assert read('"cpu_offload": false, ').layout.as_dict()["offload"] == "none"
    assert read('"cpu_offload": true, ').layout.as_dict()["offload"] == "opt"
    weights = read('"cpu_offload_param": true, ')
    assert not weights.gaps
    assert weights.request.workload.techniques == {"cpu-offload": {"on": 1, "optimizer": 0}}
    (gap,) = read('"offload_param": {"device": "nvme"}, ').gaps
    assert gap.message == "keeps weights on nvme"
    both = read('"cpu_offload": true, "cpu_offload_param": true, ')
    assert not both.gaps
    assert both.request.workload.techniques == {"cpu-offload": {"on": 1, "optimizer": 1}}
    assert both.layout.as_dict()["offload"] == "none"
    path.write_text(ZERO3.replace("{", '{"data_types": {"grad_accum_dtype": "bf16"}, ', 1), encoding="utf-8")
    (gap,) = import_config("deepspeed", [path], given).gaps
    assert gap.message == "gradients are summed in bf16"


@pytest.mark.parametrize(
    ("block", "gap"),
    [
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: true}", ""),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_offload_params: true}",
         "in ZeRO-3 alone"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, "
         "offload_param_device: cpu}", ""),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_param_device: cpu}", ""),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_param_device: nvme}",
         "keeps weights on nvme"),
    ],
)  # fmt: skip
def test_states_on_the_host_in_accelerate(tmp_path: Path, block: str, gap: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"{block}\nnum_processes: 8\n", encoding="utf-8")
    found = import_config("accelerate", [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"})
    assert [gap in each.message for each in found.gaps] == [True] * bool(gap)
    if not gap:
        alone = "offload_param_device" in block and "offload_optimizer" not in block
        assert found.request.workload.techniques == {"cpu-offload": {"on": 1, "optimizer": int(not alone)}}


@pytest.mark.parametrize(
    ("kind", "text"),
    [("accelerate", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}\n"),
     ("deepspeed", ZERO3.replace('"stage": 3', '"stage": 2, "offload_param": {"device": "cpu"}'))],
)  # fmt: skip
def test_weights_stay_on_the_device_in_lower_stages(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / ("ds.json" if kind == "deepspeed" else "ds.yaml")
    path.write_text(text, encoding="utf-8")
    found = import_config(kind, [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"})
    assert not found.gaps
    assert found.layout.zero == 2
    assert not found.request.workload.techniques
    assert any("ZeRO-3 alone" in note for note in found.assumed)


def test_the_json_that_an_accelerate_file_names(tmp_path: Path) -> None:
    first, second, recipe = (tmp_path / name for name in ("accelerate.yaml", "ds.json", "recipe.yaml"))
    recipe.write_text(RECIPE, encoding="utf-8")
    first.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n", "utf-8")
    given = {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}
    second.write_text('{"zero_optimization": {"stage": 3,\n"offload_param": {"device": "nvme"}}}', "utf-8")
    (gap,) = import_config("accelerate", [first, second], given).gaps
    assert (gap.file, gap.line) == (str(second), 2)
    second.write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 3,\n'
                      '"fp16": {"enabled": true}, "sequence_parallel_size": 2}', "utf-8")  # fmt: skip
    found = import_config("accelerate", [first, second], given)
    assert str(found.layout) == "cp2u-dp4-mbs3-z2-rnone-fp16"
    for text, message in (('{"zero_optimization": {"stage": "two"}}', "two"), ('{"zero_optimization": {', "ds.json")):
        second.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            import_config("accelerate", [first, second], given)
        with pytest.raises(InputError, match=message):
            import_config("hf-trainer", [recipe, second], given)


@pytest.mark.parametrize(("line", "gap"), [("", False), ('dtype = "float32"', False), ('dtype = "bfloat16"', True)])
def test_weights_of_torchtitan_in_bf16_alone_are_a_gap(tmp_path: Path, line: str, gap: bool) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TITAN.format(training=line, sections=""), encoding="utf-8")
    gaps = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}).gaps
    assert [each.field for each in gaps] == ["training.dtype"] * gap


GPT3 = """\
base_emb_dim: 3072
base_num_query_heads: 12
base_num_kv_heads: 12
base_mlp_dim: 12288
base_num_decoder_layers: 48
head_dim: 256
vocab_size: 32768
trainable_position_size: 16384
mlp_activations: [gelu]
logits_via_embedding: true
decoder_block: gpt3
"""


def test_gpt3_of_maxtext_by_name_and_by_sizes(tmp_path: Path) -> None:
    named, described = (imported(tmp_path, "maxtext", MAXTEXT.replace("model_name: llama3-8b\n", text))
                        for text in ("model_name: gpt3-6b\n", GPT3))  # fmt: skip
    first, second = (resolve(found.request).model for found in (named, described))
    assert first == second
    assert round(total_parameters(first) / 1e9, 1) == 5.6
    assert first.learned_positions == 16384
    text = GPT3.replace("trainable_position_size: 16384\n", "")
    (gap,) = imported(tmp_path, "maxtext", MAXTEXT.replace("model_name: llama3-8b\n", text)).gaps
    assert gap.field == "trainable_position_size"


GEMMA3 = """\
base_emb_dim: 2560
base_num_query_heads: 8
base_num_kv_heads: 4
base_mlp_dim: 10240
base_num_decoder_layers: 34
head_dim: 256
vocab_size: 262_144
decoder_block: gemma3
use_post_attn_norm: true
hidden_size_for_vit: 1152
"""


def test_sizes_of_maxtext_that_are_a_model_of_the_catalogue(tmp_path: Path) -> None:
    """configs/models/gemma3-4b.yml. The encoder of images is built with use_multimodal alone."""
    found = imported(tmp_path, "maxtext", MAXTEXT.replace("model_name: llama3-8b\n", GEMMA3))
    assert not found.gaps
    assert found.request.model == "gemma-3-4b"
    assert found.request.target == "any"
    assert any("its vocabulary of 262,208 for 262,144" in note for note in found.assumed)
    for line, field in (("use_multimodal: true", "use_multimodal"), ("base_emb_dim: 2048", "use_post_attn_norm")):
        text = GEMMA3.replace("base_emb_dim: 2560\n", "") + f"{line}\n" if "emb" in line else f"{GEMMA3}{line}\n"
        gaps = imported(tmp_path, "maxtext", MAXTEXT.replace("model_name: llama3-8b\n", text)).gaps
        assert field in [gap.field for gap in gaps]


def test_layers_of_nanotron_without_positions(tmp_path: Path) -> None:
    """models/qwen.py skips the rotation in every fourth layer; its Llama knows no such option."""
    text = NANOTRON.replace("  model_config:\n", "  model_config:\n    no_rope_layer: 4\n")
    qwen = text.replace("is_llama_config", "is_qwen2_config")
    found = imported(tmp_path, "nanotron", qwen)
    assert not found.gaps
    assert resolve(found.request).model.unmodelled == ("no_rope_layers",)
    assert found.request.target == "any"
    (gap,) = imported(tmp_path, "nanotron", text).gaps
    assert gap.field == "model.model_config.no_rope_layer"


def test_experts_of_axolotl_in_the_type_of_other_weights(tmp_path: Path) -> None:
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3-8B", "Qwen/Qwen3-30B-A3B") + "quantize_moe_experts: true\n"
    lora = "adapter: qlora\nlora_r: 8\nlora_target_modules: [q_proj, o_proj]\n"
    found = imported(tmp_path, "axolotl", f"{text}{lora}load_in_4bit: true\n")
    assert not found.gaps
    assert found.request.workload.train.lora is not None
    assert found.request.workload.train.lora.base_dtype == "nf4"
    (gap,) = imported(tmp_path, "axolotl", text + lora).gaps
    assert gap.field == "quantize_moe_experts"
    with pytest.raises(InputError, match="cannot be given together with lora_target_linear"):
        imported(tmp_path, "axolotl", f"{text}{lora}load_in_4bit: true\nlora_target_linear: true\n")


def test_degrees_below_one_are_listed_together(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = TITAN.replace("batch_size = 1", "local_batch_size = -3").replace("degree = 1", "degree = 0")
    path.write_text(text.format(training="", sections=""), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        import_config("torchtitan", [path], {"cluster": "dgx-h100:1"})
    assert str(caught.value).splitlines() == [
        f"{path}, line 9, parallelism.tensor_parallel_degree: `0` is not 1 or more",
        f"{path}, line 5, training.local_batch_size: `-3` is not 1 or more",
    ]


@pytest.mark.parametrize("value", ["[1, 2]", "ds.json", "3"])
def test_another_value_in_the_place_of_a_block_is_a_gap(tmp_path: Path, value: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"distributed_type: DEEPSPEED\ndeepspeed_config: {value}\n", encoding="utf-8")
    (gap,) = import_config("accelerate", [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}).gaps
    assert (gap.line, gap.message) == (2, f"`{value}` is no block of options")


def test_an_unknown_fsdp_option_of_accelerate_is_a_gap(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_extra_sharding: true}\nnum_processes: 8\n"
    path = tmp_path / "accelerate.yaml"
    path.write_text(text, encoding="utf-8")
    (gap,) = import_config("accelerate", [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}).gaps
    assert gap.field == "fsdp_config.fsdp_extra_sharding"
