"""Forks of Megatron-LM: names with underscores, options of Megatron-LLM, and unknown options by whole words."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

SIZES = "--num_layers 4 --hidden_size 512 --num_attention_heads 8 --seq_length 2048 --max_position_embeddings 2048"
LLM = f"""torchrun --nproc_per_node 8 --nnodes 1 finetune.py --model_name llama2 {SIZES} \\
  --tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size=16 --bf16 \\
  --use_rms_norm --glu_activation swiglu --no_tie_embed_logits \\
  --position_embedding_type rotary --rope_theta 1e6 --num_attention_heads_kv 4 --hidden_dropout 0.0 \\
  --attention_dropout 0.0 --layernorm_epsilon 1e-6
"""


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def test_a_script_of_megatron_llm(tmp_path: Path) -> None:
    found = imported(tmp_path, LLM)
    assert (str(found.layout), found.gaps) == ("tp2-nosp-dp4-mbs1-z0-rnone", ())
    model = found.request.model
    assert isinstance(model, dict)
    expected = {"layers": 4, "kv_heads": 4, "gated_mlp": True, "tied_embeddings": False, "rope_theta": 1e6,
                "norm_bias": False, "ffn_bias": False, "qkv_bias": False, "norm_epsilon": 1e-6}  # fmt: skip
    assert {name: model[name] for name in expected} == expected
    biased = imported(tmp_path, LLM.replace("--bf16", "--bf16 --use_bias")).request.model
    assert isinstance(biased, dict)
    assert biased["ffn_bias"]


@pytest.mark.parametrize(("old", "new", "line", "text"), [
    ("--rope_theta 1e6", "--rope_theta inf", 4, "`inf` is no whole number"),
    ("--rope_theta 1e6", "--rope_theta 10000.5", 4, "`10000.5` is no whole number"),
    ("--rope_theta 1e6", "--rotary_base 10000.5", 4, "`10000.5` is no whole number"),
    ("--rope_theta 1e6", "--rope_theta nan", 4, "`nan` is not a number"),
    ("--layernorm_epsilon 1e-6", "--norm-epsilon nan", 5, "`nan` is not a number"),
])  # fmt: skip
def test_numbers_that_are_none(tmp_path: Path, old: str, new: str, line: int, text: str) -> None:
    with pytest.raises(InputError, match=rf"line {line}, --[a-z-]+: {text}"):
        imported(tmp_path, LLM.replace(old, new))


LLAMA = """deepspeed --num_gpus 4 --num_nodes 2 pretrain_llama.py --num-layers 4 --hidden-size 512 \\
  --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size 16 --bf16
"""


def test_programs_and_options_of_forks_that_build_llama(tmp_path: Path) -> None:
    """A program without options of its layers has those of Llama; with one of them the options count."""
    found = imported(tmp_path, LLAMA)
    assert any(note.startswith("pretrain_llama.py is a fork's") for note in found.assumed)
    expected = {"gated_mlp": True, "tied_embeddings": False, "norm_bias": False, "ffn_bias": False,
                "learned_positions": False}  # fmt: skip
    model = found.request.model
    assert isinstance(model, dict)
    assert {name: model[name] for name in expected} == expected
    for added, name, value in (("--swiglu --llama-swiglu", "ffn_hidden", 1536), ("--swiglu", "ffn_hidden", 1344),
                               ("--use-rmsnorm", "norm_bias", False),
                               ("--use-rmsnorm --rmsnorm-epsilon 1e-6", "norm_epsilon", 1e-6)):  # fmt: skip
        model = imported(tmp_path, LLAMA.replace("--bf16", f"--bf16 {added}")).request.model
        assert isinstance(model, dict)
        assert (model[name], model["tied_embeddings"]) == (value, True)


ROPE = " --position-embedding-type rope --rope-factor 8.0 --rope-low-freq-factor 1.0 --rope-high-freq-factor %s " \
       "--rope-original-max-positional-embeddings 8192"  # fmt: skip


def test_positions_of_a_fork_in_four_numbers(tmp_path: Path) -> None:
    found = imported(tmp_path, LLAMA.replace("--bf16", "--bf16" + ROPE % "4.0"))
    assert isinstance(found.request.model, dict)
    assert found.request.model["rope_scaling"]["type"] == "llama3"
    (gap,) = imported(tmp_path, LLAMA.replace("--bf16", "--bf16" + ROPE % "2.0")).gaps
    assert (gap.field, gap.line) == ("--rope-factor", 3)


@pytest.mark.parametrize(("added", "name", "value"), [
    ("--position-embedding-type rope --rotary-base 500000.0 --rope-style llama", "rope_theta", 5e5),
    ("--tokenizer-type Llama3Tokenizer --tokenizer-model x/tokenizer.json", "vocab", 128256),
    ("--tokenizer-type QwenTokenizer --tokenizer-model $TOKENIZER_PATH", "vocab", 151936),
    ("--tokenizer-type TokenizerFromFile --tokenizer-file tokenizer.json", "vocab", 128256),
    ("", "vocab", 50304),
])  # fmt: skip
def test_values_that_forks_take(tmp_path: Path, added: str, name: str, value: float) -> None:
    """A tokenizer that no release has is not that of GPT-2, which is the default without one."""
    found = imported(tmp_path, LLAMA.replace("pretrain_llama", "pretrain_gpt").replace("--bf16", f"--bf16 {added}"))
    assert isinstance(found.request.model, dict)
    assert (found.gaps, found.request.model[name]) == ((), value)


GAPS = [
    (LLM.replace("--bf16", "--bf16 --rope_scaling_factor 4.0"), "--rope-scaling-factor"),
    (LLM.replace("--bf16", "--bf16 --parallel_attn"), "--parallel_attn"),
    (LLM.replace("--bf16", "--bf16 --balancer diffusion"), "--balancer"),
    (LLM.replace("--bf16", "--bf16 --with-extra-blocks"), "--with-extra-blocks"),
    (LLM.replace("--bf16", "--bf16 --environments 4"), "--environments"),
    (LLM.replace("--bf16", "--bf16 --dynamic-context-parallel"), "--dynamic-context-parallel"),
    (LLM.replace("--bf16", "--bf16 --sequence-packing-scheduler default_dynamic_cp"), "--sequence-packing-scheduler"),
]


@pytest.mark.parametrize(("text", "option"), GAPS, ids=[option for _, option in GAPS])
def test_what_the_fork_leaves_open(tmp_path: Path, text: str, option: str) -> None:
    assert [gap.field for gap in imported(tmp_path, text).gaps] == [option]


def test_learning_rates_of_parts_change_no_price(tmp_path: Path) -> None:
    text = LLM.replace("--bf16", "--bf16 --embedding-lr-multiplier 2.0 --ademamix-alpha 8")
    assert not imported(tmp_path, text).gaps


def test_options_of_modelopt_do_nothing_without_it(tmp_path: Path) -> None:
    """megatron/post_training/arguments.py: pretrain_gpt.py builds its own model unless --modelopt-enabled is given."""
    text = LLM.replace("--bf16", "--bf16 --enable-gpt-oss --export-force-local-attention --export-kd-teacher-load x")
    assert not imported(tmp_path, text).gaps
    (gap,) = imported(tmp_path, text.replace("--bf16", "--bf16 --modelopt-enabled")).gaps
    assert gap.field == "--modelopt-enabled"


MAMBA = """torchrun --nproc_per_node 8 pretrain_mamba.py --num-layers 16 --hidden-size 512 --num-attention-heads 8 \\
  --seq-length 2048 --max-position-embeddings 2048 --position-embedding-type none --micro-batch-size 1 \\
  --global-batch-size 16 --bf16 {pattern}
"""
# Ratios, or an older name -> the layers: as pattern_from_ratios of Megatron-LM d98e8a64 spreads them.
PATTERNS = {
    "--hybrid-attention-ratio 0.125 --hybrid-mlp-ratio 0.25": "MMM-M*M-MM*M-MM-",
    "--hybrid-attention-ratio 0.08": "MMMMMMMM*MMMMMMM",
    "--hybrid-override-pattern MM*-MM*-MM*-MM*-": "MM*-MM*-MM*-MM*-",
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "letters"), PATTERNS.items())
def test_hybrids_by_ratio(tmp_path: Path, pattern: str, letters: str) -> None:
    found = imported(tmp_path, MAMBA.format(pattern=pattern))
    assert not found.gaps
    model = found.request.model
    assert isinstance(model, dict)
    words = {"M": "mamba", "*": "attention", "-": "mlp"}
    assert model["pattern"] == [words[letter] for letter in letters]


def test_hybrids_without_attention_are_a_gap(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, MAMBA.format(pattern="")).gaps
    assert gap.message == f"{'M' * 16} has no layer of attention, models that are read have one"


def test_wrong_ratios_of_hybrids_are_refused(tmp_path: Path) -> None:
    for pattern, message in (("--hybrid-attention-ratio 8", "`8` is not between 0 and 1"),
                             ("--hybrid-attention-ratio 0.6 --hybrid-mlp-ratio 0.5", "are more than all layers")):
        with pytest.raises(InputError, match=message):
            imported(tmp_path, MAMBA.format(pattern=pattern))


def test_layers_without_positions_are_a_gap(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, LLM.replace("--bf16", "--bf16 --no-rope-freq 4")).gaps
    assert gap.message == "layers without positions"


ZB = LLM.replace("--bf16", "--bf16 --pipeline_model_parallel_size 2 --enable-zb-runtime")


def test_the_runtime_of_zero_bubbles_runs_1f1b(tmp_path: Path) -> None:
    found = imported(tmp_path, ZB)
    assert (str(found.layout), found.gaps) == ("tp2-nosp-pp2-dp2-mbs1-z0-rnone", ())
    assert "--enable-zb-runtime without another schedule runs 1F1B" in found.assumed


@pytest.mark.parametrize("schedule", [
    "--enable-zero-bubble", "--zero-bubble-v-schedule", "--interleave-group-size 2",
    "--num-layers-per-virtual-pipeline-stage 1",
])  # fmt: skip
def test_other_schedules_of_that_runtime_are_gaps(tmp_path: Path, schedule: str) -> None:
    gaps = imported(tmp_path, ZB.replace("--enable-zb-runtime", f"--enable-zb-runtime {schedule}")).gaps
    assert ("--enable-zb-runtime", "another schedule") in [(gap.field, gap.message) for gap in gaps]


FULL = "--bf16 --checkpoint-activations"


@pytest.mark.parametrize(
    ("tp", "options", "techniques"),
    [
        (2, f"{FULL} --distribute-checkpointed-activations", ["partitioned-checkpoints"]),
        (1, f"{FULL} --distribute-checkpointed-activations", []),
        (2, f"{FULL} --partition-activations --deepspeed-activation-checkpointing", ["partitioned-checkpoints"]),
        (2, f"{FULL} --partition-activations", []),
        (2, "--bf16 --partition-activations --deepspeed-activation-checkpointing", []),
    ],
)
def test_saved_inputs_in_parts_of_tp_ranks(tmp_path: Path, tp: int, options: str, techniques: list[str]) -> None:
    """Without recomputation by DeepSpeed, its option has no effect (Megatron-DeepSpeed, megatron/initialize.py)."""
    text = LLM.replace("parallel_size 2", f"parallel_size {tp}").replace("--bf16", options)
    assert list(imported(tmp_path, text).request.workload.techniques) == techniques


@pytest.mark.parametrize(("options", "layout"), [
    (f"{FULL} --deepspeed-activation-checkpointing", "tp2-nosp-dp4-mbs1-z0-rfull-oact"),
    (f"{FULL} --deepspeed-activation-checkpointing --cpu-optimizer", "tp2-nosp-dp4-mbs1-z0-rfull-oopt+act"),
    (FULL, "tp2-nosp-dp4-mbs1-z0-rfull"), ("--bf16 --deepspeed-activation-checkpointing", "tp2-nosp-dp4-mbs1-z0-rnone"),
])  # fmt: skip
def test_saved_inputs_on_the_host(tmp_path: Path, options: str, layout: str) -> None:
    """Only DeepSpeed's own recomputation obeys the option (runtime/activation_checkpointing, CPU_CHECKPOINT)."""
    found = imported(tmp_path, LLM.replace("--bf16", f"{options} --checkpoint-in-cpu"))
    assert (str(found.layout), found.gaps) == (layout, ())
    assert any("--checkpoint-in-cpu" in note for note in found.assumed) == ("oact" in layout or "+act" in layout)


def test_saved_inputs_in_parts_where_megatron_refuses_them(tmp_path: Path) -> None:
    for options, message in (("--distribute-saved-activations", "needs --recompute-granularity full"),
                             (f"{FULL} --sequence-parallel --distribute-checkpointed-activations",
                              "cannot be given together with --sequence-parallel")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            imported(tmp_path, LLM.replace("--bf16", f"--bf16 {options}"))


def test_the_sizes_of_a_checkpoint_are_those_of_a_named_model(tmp_path: Path) -> None:
    text = LLM.replace(SIZES, "--seq_length 2048 --use_checkpoint_args")
    with pytest.raises(InputError, match="does not name its model"):
        imported(tmp_path, text)
    (path := tmp_path / "run.sh").write_text(text, encoding="utf-8")
    read = import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb", "model": "llama-2-7b"})
    assert (read.request.model, str(read.layout)) == ("llama-2-7b", "tp2-nosp-dp4-mbs1-z0-rnone")


def test_torchrun_alone_starts_one_rank(tmp_path: Path) -> None:
    """torch/distributed/run.py: one process of one node, unless options say otherwise."""
    sizes = f"pretrain_gpt.py {SIZES} --micro-batch-size 1 --global-batch-size 16 --bf16"
    assert str(imported(tmp_path, f"torchrun {sizes}").layout) == "dp1-mbs1-z0-rnone"
    with pytest.raises(InputError, match="gpus: is missing"):
        imported(tmp_path, f"torchrun $DISTRIBUTED {sizes}")


def test_sequences_that_grow_are_priced_at_their_last_length(tmp_path: Path) -> None:
    text = f"deepspeed pretrain_gpt.py {SIZES} --micro-batch-size 1 --global-batch-size 16 --fp16 --deepspeed "
    (tmp_path / "run.sh").write_text(f"WORLD_SIZE=8\n{text} --deepspeed_config ds.json\n")
    notes = {}
    for enabled in ("true", "false"):
        (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 0}, "curriculum_learning": {"enabled": '
                                          f"{enabled}}}}}")  # fmt: skip
        paths = [tmp_path / "run.sh", tmp_path / "ds.json"]
        notes[enabled] = import_config("megatron-args", paths, {"gpu": "h100-sxm-80gb"}).assumed
    assert [note for note in notes["true"] if note not in notes["false"]] == [
        "curriculum_learning.enabled begins with shorter sequences: priced as without"]  # fmt: skip


@pytest.mark.parametrize(("block", "gaps", "notes"), [
    ('"enabled": true, "data_routing": {"enabled": true, "random_ltd": {"enabled": true}}',
     ["layers that skip tokens (random_ltd)"], 0),
    ('"enabled": true, "data_routing": {"random_ltd": {"enabled": true}}', [], 0),
    ('"data_routing": {"enabled": true, "random_ltd": {"enabled": true}}', [], 0),
    ('"enabled": true, "data_sampling": {"enabled": true, "curriculum_learning": {"enabled": true}}', [], 1),
    ('"enabled": true, "data_sampling": {"enabled": true, "dynamic_batching": {"enabled": true}}',
     ["a batch that follows the lengths of samples (dynamic_batching)"], 0),
])  # fmt: skip
def test_data_efficiency_of_deepspeed(tmp_path: Path, block: str, gaps: list[str], notes: int) -> None:
    """deepspeed 0.19, runtime/data_pipeline/constants.py: a block is on only with those around it."""
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{"stage": 1}}, "data_efficiency": {{{block}}}}}')
    script = f"deepspeed pretrain_gpt.py {SIZES} --micro-batch-size 1 --global-batch-size 16 --fp16 --deepspeed "
    (tmp_path / "run.sh").write_text(f"WORLD_SIZE=8\n{script} --deepspeed_config ds.json\n")
    found = import_config("megatron-args", [tmp_path / "run.sh", tmp_path / "ds.json"], {"gpu": "h100-sxm-80gb"})
    assert [gap.message for gap in found.gaps] == gaps
    assert len([note for note in found.assumed if note.startswith("data_efficiency: ")]) == notes


def test_options_of_megatron_llama(tmp_path: Path) -> None:
    """alibaba/Megatron-LLaMA 25306de8: its causal head is a matrix of its own, its optimizer keeps shares of states."""
    added = "--RMSNorm --swiglu --causal-lm --overlapped-distributed-optimizer --reduce-bucket-size=2e8"
    found = imported(tmp_path, LLAMA.replace("--bf16", f"--bf16 {added}"))
    model = found.request.model
    assert isinstance(model, dict)
    assert (found.gaps, found.layout.zero, model["tied_embeddings"], model["norm_bias"]) == ((), 1, False, False)
    assert found.settings["overlap_grad_reduce"] == "on"


@pytest.mark.parametrize("added", [
    "--use-torch-compile=0 --use-fast-softmax 1 --with-stack",
    "--rank 3 --world-size 8 --local-rank 3 --dist-url tcp://host:1", "--use-flush-denormal",
    "--context-parallel-algo ulysses_cp_algo", "--enable-hf2mg-convert --model-type-hf qwen3",
])  # fmt: skip
def test_options_without_effect_on_a_price(tmp_path: Path, added: str) -> None:
    text = LLAMA.replace("--bf16", f"--bf16 {added}")
    assert not imported(tmp_path, text).gaps
    (gap,) = imported(tmp_path, text.replace("--bf16", "--bf16 --lora-rank 3")).gaps
    assert gap.field == "--lora-rank"


SMALL = """torchrun --nproc_per_node 8 {program} --num-layers 4 --hidden-size 512 --num-attention-heads 8 \\
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 --bf16 """


@pytest.mark.parametrize(("program", "added", "rows"), [
    ("pretrain_gpt_mine.py", "--vocab-file ../data/gpt2-vocab.json --merge-file m.txt", 50304),
    ("pretrain_gpt.py", "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path /models/GPT2", 50304),
    ("pretrain_gpt_mine.py", "--vocab-file ../data/vocab.json --merge-file m.txt", 128256),
    ("pretrain_qwen.py", "--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421", 152064),
    ("pretrain_x.py", "--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 4 --load /DeepSeek-V3", 129280),
    ("pretrain_x.py", "--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 467", 128256),
])  # fmt: skip
def test_tables_of_tokenizers(tmp_path: Path, program: str, added: str, rows: int) -> None:
    """Rows are those of config.json of Qwen2.5-7B and DeepSeek-V3; of GPT-2 in multiples of 128."""
    model = imported(tmp_path, SMALL.format(program=program) + added).request.model
    assert isinstance(model, dict)
    assert model["vocab"] == rows


def test_a_batch_that_the_json_states_otherwise(tmp_path: Path) -> None:
    heredoc = 'cat <<E > ds.json\n{"train_batch_size": SIZE, "zero_optimization": {"stage": 1}}\nE\n'
    command = SMALL.format(program="pretrain_gpt.py") + "--deepspeed --deepspeed_config ds.json --using-torchrun"
    assert not imported(tmp_path, heredoc.replace("SIZE", "16") + command).gaps
    (gap,) = imported(tmp_path, heredoc.replace("SIZE", "32") + command).gaps
    assert (gap.field, gap.message) == ("--deepspeed_config", "it has 32 for --global-batch-size, the command 16")


def test_flexible_dispatch_is_deepep_by_default(tmp_path: Path) -> None:
    added = "--num-experts 8 --moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-dtype fp32"
    assert imported(tmp_path, SMALL.format(program="pretrain_gpt.py") + added).settings["moe_dispatcher"] == "deepep"
