"""Forms of public launch files: variables of Slurm, commands beside a training, names that are not set, and batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

CLUSTER = {"cluster": "dgx-h100:2"}
OPTIONS = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
           "--micro-batch-size 1 --global-batch-size 32")  # fmt: skip
TRAINING = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {OPTIONS} --bf16"


def imported(folder: Path, text: str, kind: str = "megatron-args", name: str = "run.sh", **given: object) -> Imported:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return import_config(kind, [path], given or CLUSTER)


def test_variables_of_slurm(tmp_path: Path) -> None:
    text = ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=h100:8\n#SBATCH --cpus-per-task=12\n"
            f"srun python pretrain_gpt.py {OPTIONS} --bf16 --tensor-model-parallel-size $SLURM_GPUS_PER_NODE "
            "--num-workers $SLURM_CPUS_PER_TASK")  # fmt: skip
    found = imported(tmp_path, text)
    assert (found.layout.tp, found.layout.dp, found.assumed[:1]) == (8, 2, found.assumed[-1:])


def test_ranks_that_tasks_of_nodes_are(tmp_path: Path) -> None:
    """Slurm counts tasks by --ntasks-per-node; one task of a node may start several ranks, which a launcher states."""
    lines = "#SBATCH -p batch -t 4:00:00 --nodes=4 --exclusive --ntasks-per-node={}\n"
    command = f"srun -l bash -c 'cd /x && python -u pretrain_gpt.py {OPTIONS} --bf16'\n"
    given = {"gpu": "h100-sxm-80gb"}
    assert imported(tmp_path, lines.format(8) + command, **given).layout.dp == 32
    with pytest.raises(InputError, match="gpus: is missing"):
        imported(tmp_path, lines.format(1) + command, **given)
    started = command.replace("python -u", "torchrun --nnodes 4 --nproc_per_node 4")
    assert imported(tmp_path, lines.format(8) + started, **given).layout.dp == 16


def test_settings_of_a_machine_hold_no_options(tmp_path: Path) -> None:
    """set_env.sh of CANN and setvars.sh of oneAPI set paths."""
    text = "source /usr/local/Ascend/cann/set_env.sh\nsource /opt/intel/oneapi/setvars.sh\n"
    found = imported(tmp_path, f"{text}{TRAINING} $MOE_ARGS")
    assert (found.gaps, [note for note in found.assumed if "sourced" in note]) == ((), [])


@pytest.mark.parametrize("beside", ["convert_weights.py", "preprocess_data.py", "evaluate.py"])
def test_a_command_beside_the_training_is_left_out(tmp_path: Path, beside: str) -> None:
    other = f"torchrun --nproc_per_node 8 tools/{beside} {OPTIONS} --shards-of-the-hub 3 --tensor-model-parallel-size 4"
    branches = f'if [ "$1" = "first" ]; then\n  {other}\nelse\n  {TRAINING}\nfi\n'
    for text in (branches, f"{other}\n{TRAINING}\n", f"{TRAINING}\n{other}\n"):
        found = imported(tmp_path, text)
        assert (found.gaps, found.layout.tp) == ((), 1)
    (*_, gap) = imported(tmp_path, other).gaps
    assert (gap.message, gap.hint) == (f"tools/{beside} does not train", "give the file that starts the training")


def test_an_option_whose_name_is_not_set(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, TRAINING.replace("--bf16", "--$DTYPE")).gaps
    assert gap.message == "`--$DTYPE` is an option whose name is not set here"
    assert gap.hint == "give the value of DTYPE by --arg NAME=VALUE"
    path = tmp_path / "run.sh"
    assert import_config("megatron-args", [path], CLUSTER, None, ["DTYPE=bf16"]).layout.as_dict()["precision"] == "bf16"


def test_options_that_a_missing_file_may_set(tmp_path: Path) -> None:
    text = f"source ./sizes.sh\n{TRAINING} $MORE_ARGS"
    (gap,) = imported(tmp_path, text).gaps
    assert gap.message == "`$MORE_ARGS` may hold options: sizes.sh is not here"
    (tmp_path / "sizes.sh").write_text('MORE_ARGS="--tensor-model-parallel-size 4"', encoding="utf-8")
    found = import_config("megatron-args", [tmp_path / "run.sh", tmp_path / "sizes.sh"], CLUSTER)
    assert (found.gaps, found.layout.tp) == ((), 4)
    # A virtual environment holds none, and a script without sources passes nothing.
    for harmless in (f"source venv/bin/activate\n{TRAINING} $MORE_ARGS", f"{TRAINING} $MORE_ARGS"):
        assert not imported(tmp_path, harmless).gaps


def test_harmless_options_of_forks(tmp_path: Path) -> None:
    names = "--no-seq-len-plus-one-tokens --hf_autotokenizer_model gpt --main-grads-dtype fp32 --goldfish-k 50"
    assert not imported(tmp_path, f"{TRAINING} {names}").gaps
    (gap,) = imported(tmp_path, f"{TRAINING} --main-grads-dtype bf16").gaps
    assert gap.field == "--main-grads-dtype"


def test_degrees_of_a_part_are_those_of_the_cluster(tmp_path: Path) -> None:
    """NNODES of a launcher that is not used counts no ranks where --cluster states them."""
    text = f"NNODES=1\nGPUS_PER_NODE=8\npython pretrain_gpt.py {OPTIONS} --bf16 --extra-blocks 3"
    found = imported(tmp_path, text)
    assert (len(found.gaps), found.layout.dp) == (1, 16)
    assert imported(tmp_path, text, gpus=4, gpu="h100-sxm-80gb").layout.dp == 4


BATCH = '{"train_batch_size": %s, "gradient_accumulation_steps": %s, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(("batch", "steps", "micro"), [(64, 1, 4), (64, 2, 2), (16, 1, 1)])
def test_deepspeed_divides_the_batch_by_ranks_and_steps(tmp_path: Path, batch: int, steps: int, micro: int) -> None:
    found = imported(tmp_path, BATCH % (batch, steps), "deepspeed", "ds.json", **CLUSTER, model="llama-3.1-8b")
    assert (found.layout.micro_batch, found.request.workload.global_batch) == (micro, batch)
    assert not [note for note in found.assumed if "micro-batch" in note]


def test_a_batch_that_ranks_and_steps_do_not_divide(tmp_path: Path) -> None:
    """The error is at the batch, whatever degrees the file has behind it."""
    text = BATCH.replace("{", '{\n"tensor_parallel": {"autotp_size": 2},\n', 1)
    with pytest.raises(InputError, match=r"line 3, train_batch_size: the batch of 24 is no multiple of dp 8 x 2 acc"):
        imported(tmp_path, text % (24, 2), "deepspeed", "ds.json", **CLUSTER, model="llama-3.1-8b")


@pytest.mark.parametrize(("added", "reason"), [
    ("--micro-batch-size 3", "the batch of 32 is no multiple of dp 16 x micro batch 3 = 48"),
    ("--num-experts 12 --expert-model-parallel-size 6", "ep 6 x etp 1 = 6 does not divide the 16 ranks of a stage"),
])  # fmt: skip
def test_a_layout_in_part_that_cannot_exist_is_not_shown(tmp_path: Path, added: str, reason: str) -> None:
    found = imported(tmp_path, f"{TRAINING} {added} --extra-blocks 3")
    assert (found.read_layout, len(found.gaps)) == (None, 1)
    assert reason in found.assumed


@pytest.mark.parametrize(("blocks", "precision"), [("fp16", "fp16"), ("bf16", "bf16"), ("fp16 bf16", "bf16")])
def test_a_precision_that_the_trainer_switches_on(tmp_path: Path, blocks: str, precision: str) -> None:
    parts = {"zero_optimization": {"stage": 2}, **{name: {"enabled": "auto"} for name in blocks.split()}}
    found = imported(tmp_path, json.dumps(parts), "deepspeed", "ds.json", **CLUSTER, model="llama-3.1-8b")
    assert found.layout.as_dict()["precision"] == precision


SPARSE = {**CLUSTER, "model": "qwen3-30b-a3b"}
OVERRIDES = """
train: {global_batch_size: 64, micro_batch_size: 1, train_iters: 40}
optimizer: {%s}
model: {seq_length: 4096, tensor_model_parallel_size: 2, expert_model_parallel_size: 8, expert_tensor_parallel_size: 1,
        sequence_parallel: true}
"""


def test_overrides_of_a_bridge_recipe(tmp_path: Path) -> None:
    """A YAML that leaves the sizes of its model to a recipe keeps its experts and its precision."""
    found = imported(tmp_path, OVERRIDES % "bf16: true", "megatron-bridge", "run.yaml", **SPARSE)
    layout = found.layout.as_dict()
    assert (layout["ep"], layout["etp"], layout["precision"]) == (8, 1, "bf16")
    found = imported(tmp_path, OVERRIDES % "lr: 1.0e-5", "megatron-bridge", "run.yaml", **SPARSE)
    assert found.layout.as_dict()["precision"] == "bf16"
    assert "the precision is not in the config: the default of `plan` is taken" in found.assumed


def test_shapes_of_the_base_model_given_once_more(tmp_path: Path) -> None:
    text = ("base_model: meta-llama/Llama-2-7b-hf\nbase_model_config: %s\nsequence_len: 2048\nmicro_batch_size: 2\n"
            "gradient_accumulation_steps: 2\nbf16: true\n")  # fmt: skip
    assert not imported(tmp_path, text % "meta-llama/Llama-2-7b-hf", "axolotl", "run.yaml").gaps
    (gap,) = imported(tmp_path, text % "meta-llama/Llama-2-13b-hf", "axolotl", "run.yaml").gaps
    assert gap.field == "base_model_config"


def test_a_recipe_of_nemo_rl_is_named(tmp_path: Path) -> None:
    text = "sft: {max_num_epochs: 1}\npolicy:\n  model_name: Qwen/Qwen3-0.6B\n  train_global_batch_size: 8\n"
    with pytest.raises(InputError) as error:
        imported(tmp_path, text, "verl", "run.yaml")
    assert "it looks like a file of NeMo-RL: `import nemo-rl`" in str([error.value.hint, error.value.problems])


def test_recomputation_that_verl_switches_on_by_itself(tmp_path: Path) -> None:
    text = ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-3B trainer.nnodes=1 "
            "trainer.n_gpus_per_node=8 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 algorithm.adv_estimator=grpo")  # fmt: skip
    option = "actor_rollout_ref.model.enable_gradient_checkpointing"
    taken = "enable_gradient_checkpointing is not stated: on, as verl has it since 0.2"
    for given, mode in (("", "full"), (f" {option}=True", "full"), (f" {option}=False", "none")):
        found = imported(tmp_path, text + given, "verl", cluster="dgx-h100:1")
        assert (found.layout.as_dict()["recompute"]["mode"], taken in found.assumed) == (mode, not given)


def test_recomputation_of_the_first_release_of_verl(tmp_path: Path) -> None:
    """verl v0.1, trainer/config/ppo_trainer.yaml: off, and micro-batches are counted over all ranks."""
    text = ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-3B trainer.nnodes=1 "
            "trainer.n_gpus_per_node=8 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
            "actor_rollout_ref.actor.ppo_micro_batch_size=16")  # fmt: skip
    found = imported(tmp_path, text, "verl", cluster="dgx-h100:1")
    assert str(found.layout) == "dp8-mbs2-z3-rnone"
    note = "enable_gradient_checkpointing is not stated: off, as verl 0.1"
    assert any(taken.startswith(note) for taken in found.assumed)
    other = text.replace("verl.trainer.main_ppo", "my_ppo")  # a program of one's own, with verl's overrides
    assert str(imported(tmp_path, other, "verl", cluster="dgx-h100:1").layout) == "dp8-mbs2-z3-rnone"


def test_positions_of_llama_3_1_in_nemo(tmp_path: Path) -> None:
    """NeMo 8cfedd72, megatron_gpt_model.py, mcore_model_customize: a factor of 8 over 8192 positions."""
    text = ("trainer: {devices: 8, num_nodes: 2, precision: bf16}\nmodel:\n  num_layers: 4\n  hidden_size: 512\n"
            "  num_attention_heads: 8\n  encoder_seq_length: 1024\n  max_position_embeddings: 1024\n"
            "  position_embedding_type: rope\n  micro_batch_size: 1\n  global_batch_size: 32\n"
            "  megatron_amp_O2: true\n  tp_only_amax_red: true\n  scale_positional_embedding: %s\n"
            "  optim: {name: distributed_fused_adam}\n")  # fmt: skip
    found = imported(tmp_path, text % "true", "nemo", "run.yaml")
    assert isinstance(found.request.model, dict)
    scaling = found.request.model["rope_scaling"]
    assert (found.gaps, scaling["factor"], scaling["original_max_position_embeddings"]) == ((), 8.0, 8192)
    plain = imported(tmp_path, text % "false", "nemo", "run.yaml").request.model
    assert isinstance(plain, dict)
    assert not plain.get("rope_scaling")


def test_layers_recompute_in_llama_factory_whatever_transformers_is_given(tmp_path: Path) -> None:
    text = ("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
            "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nbf16: true\n")  # fmt: skip
    for given in ("", "gradient_checkpointing: true\n", "gradient_checkpointing: false\n"):
        found = imported(tmp_path, text + given, "llama-factory", "run.yaml")
        assert found.layout.as_dict()["recompute"]["mode"] == "full"


@pytest.mark.parametrize(
    ("options", "rows", "whose"),
    [
        ("--tensor-model-parallel-size 4", 50688, "GPT-2"), ("--tokenizer-type Llama2Tokenizer", 32000, "Llama 2"),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B-Instruct", 152064, "qwen2.5-7b"),
        ("--tokenizer-type HFTokenizer --tokenizer-model models--Qwen--Qwen2.5-14B/x/9", 152064, "qwen2.5-14b"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model /m/Mistral-7B-v0.3/tokenizer.model", 32768, "mistral-7b"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model /m/tokenizer.model", 32000, "Llama 2"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model v4_alpha_1.0.model", 128256, "128,256 taken"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $ENV/v4_alpha_1.0.model", 128256, "128,256 taken"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $TOKENIZER", 32000, "Llama 2"),
        ("--tokenizer-type HFTokenizer --tokenizer-model $HOME/Qwen2.5-7B", 152064, "qwen2.5-7b"),
        ("--tokenizer-type GPT2BPETokenizer --make-vocab-size-divisible-by 1", 50257, "GPT-2"),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/my-own", 128256, "128,256 taken"),
        ("--vocab-size 1024", 1024, ""), ("--no-pad-vocab-size", 50257, "GPT-2"),
    ],
)  # fmt: skip
def test_the_table_of_tokens_of_a_tokenizer(tmp_path: Path, options: str, rows: int, whose: str) -> None:
    """50,257 tokens, in multiples of 128 x 4: 99 x 512. Of pretrain_gpt.py the tokenizer is that of GPT-2."""
    found = imported(tmp_path, f"{TRAINING} {options}")
    model = found.request.model
    assert isinstance(model, dict)
    assert model["vocab"] == rows
    assert any(whose in text for text in found.assumed) or not whose


@pytest.mark.parametrize("value", [0, -128])
def test_a_table_in_multiples_of_nothing(tmp_path: Path, value: int) -> None:
    (gap,) = imported(tmp_path, f"{TRAINING} --make-vocab-size-divisible-by {value}").gaps
    assert (gap.field, gap.message) == ("--make-vocab-size-divisible-by", f"must be 1 or more, is {value}")
    with pytest.raises(InputError, match="tensor-model-parallel-size"):
        imported(tmp_path, f"{TRAINING} --tensor-model-parallel-size {value}")


def test_the_program_of_hybrids_takes_the_tokens_of_gpt_2(tmp_path: Path) -> None:
    for program in ("pretrain_mamba.py", "pretrain_hybrid.py"):
        text = TRAINING.replace("pretrain_gpt.py", program) + " --hybrid-layer-pattern M*-M"
        model = imported(tmp_path, text).request.model
        assert isinstance(model, dict)
        assert model["vocab"] == 50304


def test_variables_of_a_yaml_of_nemo(tmp_path: Path) -> None:
    """The default of a variable counts; one without a default is open."""
    text = ("trainer: {devices: '${oc.decode:${oc.env:GPUS,8}}', num_nodes: 2, precision: bf16}\nmodel:\n"
            "  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n  encoder_seq_length: 1024\n"
            "  max_position_embeddings: 1024\n  megatron_amp_O2: true\n"
            "  micro_batch_size: ${oc.decode:${oc.env:MBS%s}}\n"
            "  global_batch_size: ${multiply:4,${floor_div:${trainer.devices},2}}\n"
            "  activations_checkpoint_granularity: ${oc.decode:${oc.env:CKPT,null}}\n"
            "  sequence_parallel: ${oc.decode:${oc.env:SP,False}}\n")  # fmt: skip
    found = imported(tmp_path, text % ",1", "nemo", "run.yaml")
    assert (str(found.layout), found.request.workload.global_batch) == ("dp16-mbs1-z0-rnone", 16)
    (gap,) = imported(tmp_path, text % "", "nemo", "run.yaml").gaps
    assert (gap.field, gap.line) == ("model.micro_batch_size", 9)


def test_degrees_in_a_block_that_is_not_read(tmp_path: Path) -> None:
    """The layout stays open: its degrees are in the block."""
    text = ("trainer: {devices: 8, num_nodes: 2, precision: bf16}\nmodel: {num_layers: 4, hidden_size: 512}\n"
            "plan_of_mine: {%s: 8, expert: {rate: 1}}\n")  # fmt: skip
    found = imported(tmp_path, text % "tensor_model_parallel_size", "nemo", "run.yaml")
    assert (found.read_layout, [gap.field for gap in found.gaps]) == (None, ["plan_of_mine"])
    assert imported(tmp_path, text % "expert_rate", "nemo", "run.yaml").layout.dp == 16


def test_a_key_that_nanotron_has_twice(tmp_path: Path) -> None:
    text = ("parallelism: {dp: 2, pp: 1, tp: 2}\nmodel: {model_config: {is_llama_config: true, hidden_size: 64, "
            "intermediate_size: 128, num_attention_heads: 4, num_hidden_layers: 2, num_key_value_heads: 4, "
            "vocab_size: 128, max_position_embeddings: 64}}\ntokens: {micro_batch_size: 1, sequence_length: 64}\n"
            "tokens: {micro_batch_size: 2, sequence_length: 64, batch_accumulation_per_replica: 1}\n")  # fmt: skip
    found = imported(tmp_path, text, "nanotron", "run.yaml", gpu="h100-sxm-80gb")
    assert (found.layout.micro_batch, found.layout.dp) == (2, 2)
