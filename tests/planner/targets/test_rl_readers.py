"""Configs of reinforcement learning: the training part is read, generation and rewards are listed as not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

PLACE = {"gpu": "h100-sxm-80gb"}
ACTOR = "actor_rollout_ref.actor."
VERL = """\
python3 -m verl.trainer.main_ppo --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path=$HOME/models/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=${NNODES:-2} $@
"""
FSDP = """\
actor_rollout_ref:
  actor:
    strategy: fsdp2
    ppo_mini_batch_size: 32
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 8192
    ulysses_sequence_parallel_size: 2
    fsdp_config: {fsdp_size: 8, param_offload: true, reshard_after_forward: false}
  rollout: {n: 8, name: vllm}
  model: {path: Qwen/Qwen2.5-7B-Instruct, enable_gradient_checkpointing: false, lora_rank: 32}
data: {max_prompt_length: 1024, max_response_length: 1024}
trainer: {nnodes: 2, n_gpus_per_node: 8}
algorithm: {adv_estimator: grpo}
"""
SLIME_MODEL = """\
MODEL_ARGS=(--swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
   --group-query-attention --num-query-groups 8 --use-rotary-position-embeddings --disable-bias-linear
   --normalization RMSNorm --vocab-size 151936 --kv-channels 128 --qk-layernorm)
"""
SLIME = """\
source "${SCRIPT_DIR}/models/model.sh"
SGLANG_ARGS=(--sglang-mem-fraction-static 0.7 --sglang-cuda-graph-bs 1 2 $(seq 16 8 256))
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \\
   --actor-num-nodes 2 --actor-num-gpus-per-node 8 --colocate ${MODEL_ARGS[@]} \\
   --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 \\
   --rollout-max-prompt-len 1024 --rollout-max-response-len 3072 \\
   --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 \\
   --use-dynamic-batch-size --max-tokens-per-gpu 4096 --advantage-estimator grpo ${SGLANG_ARGS[@]}
"""


def imported(folder: Path, kind: str, *texts: str, arguments: tuple[str, ...] = ()) -> Imported:
    name = "run.yaml" if texts[0].split(maxsplit=1)[0].endswith(":") else "run.sh"
    paths = [folder / name for name in (name, "model.sh")[: len(texts)]]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return import_config(kind, paths, PLACE, script_arguments=arguments)


def lengths(found: Imported) -> tuple[object, object]:
    return found.request.workload.seq_len, found.request.workload.global_batch


def test_a_micro_batch_of_all_copies(tmp_path: Path) -> None:
    """fsdp_workers.py and megatron_workers.py divide the older name by the copies of the model: four here."""
    older = VERL.replace("batch_size_per_gpu=2", "batch_size=9")
    found = imported(tmp_path, "verl", older)
    assert not found.gaps
    assert str(found.layout) == "tp2-pp2-dp4-mbs2-z1-rnone"
    both = VERL.replace("batch_size_per_gpu=2", "batch_size_per_gpu=2 actor_rollout_ref.actor.ppo_micro_batch_size=8")
    for text, words in ((both, "are both given"), (older.replace("size=9", "size=3"), "less than one sequence")):
        with pytest.raises(InputError, match=words):
            imported(tmp_path, "verl", text)


def test_overrides_of_verl_on_megatron(tmp_path: Path) -> None:
    found = imported(tmp_path, "verl", VERL)
    assert (str(found.layout), found.request.model) == ("tp2-pp2-dp4-mbs2-z1-rnone", "qwen2-7b")
    assert lengths(found) == (4096, 256)
    assert "not read: rollout" in found.assumed
    assert found.price().best.step_s > 0
    assert imported(tmp_path, "verl", VERL, arguments=("NNODES=1",)).layout.dp == 2
    of_slurm = "#SBATCH --nodes=4\n" + VERL.replace("${NNODES:-2}", "$SLURM_JOB_NUM_NODES")
    assert imported(tmp_path, "verl", of_slurm).layout.dp == 8
    wide = imported(tmp_path, "verl", VERL, arguments=(f"{ACTOR}megatron.tensor_model_parallel_size=4",))
    assert (wide.layout.tp, wide.layout.dp) == (4, 2)


def test_a_config_of_verl_on_fsdp(tmp_path: Path) -> None:
    found = imported(tmp_path, "verl", FSDP)
    assert str(found.layout) == "cp2u-dp8-sh4-mbs8-z2-rnone"
    assert lengths(found) == (2048, 256)
    lora = found.request.workload.train.lora
    assert (lora and lora.rank, found.request.target) == (32, "any")
    assert "not read: rollout" in found.assumed


DEGREE = "megatron.pipeline_model_parallel_size=2"
ON_HOST = f"{ACTOR}optim.override_optimizer_config"
VERL_GAPS = [
    (VERL.replace(DEGREE, "megatron.context_parallel_size=$CP"), f"{ACTOR}megatron.context_parallel_size", 10,
     "`${CP}` is set when it runs"),
    (VERL.replace("algorithm.", f"{ON_HOST}.optimizer_cpu_offload=True algorithm."), ON_HOST, 3, "on the host"),
    (VERL.replace("${NNODES:-2}", "$NODES"), "trainer.nnodes", 12, "`${NODES}` is set when it runs"),
    (FSDP.replace("fsdp2", "veomni"), f"{ACTOR}strategy", 3, "`veomni` is not read"),
    (FSDP.replace("param_offload", "offload_policy"), f"{ACTOR}fsdp_config.offload_policy", 8, "on the host"),
    (FSDP.replace("lora_rank", "lora_adapter_path"), "actor_rollout_ref.model.lora_adapter_path", 10, "adapters"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "option", "line", "why"), VERL_GAPS)
def test_options_of_verl_that_no_plan_has(tmp_path: Path, text: str, option: str, line: int, why: str) -> None:
    (gap,) = imported(tmp_path, "verl", text).gaps
    assert (gap.field, gap.line) == (option, line)
    assert why in gap.message


def test_two_jobs_of_verl(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 13: starts 2 jobs .*: 1 \(line 1\); 2 \(line 13, \S+n 8\)"):
        imported(tmp_path, "verl", VERL + VERL.replace("n=4", "n=8"))
    second = imported(tmp_path, "verl", VERL + VERL.replace("n=4", "n=8"), arguments=("job=2",))
    assert second.request == imported(tmp_path, "verl", VERL.replace("n=4", "n=8")).request


def test_a_script_of_slime(tmp_path: Path) -> None:
    found = imported(tmp_path, "slime", SLIME, SLIME_MODEL)
    assert str(found.layout) == "tp2-cp2r-dp4-mbs2-z1-rnone"
    assert lengths(found) == (4096, 128)
    assert isinstance(found.request.model, dict)
    assert (found.request.model["layers"], found.request.model["hidden"]) == (36, 2560)
    (aside,) = (note for note in found.assumed if note.startswith("not read"))
    assert {"--colocate", "--sglang-mem-fraction-static"} <= set(aside.replace(",", "").split())
    assert not found.unknown
    assert found.price().best.step_s > 0


SLIME_GAPS = [
    ("--train-backend fsdp", "--train-backend", "another engine"),
    ("--freeze-params-name-list lm_head", "--freeze-params-name-list", "parts of the model that do not learn"),
    ("--custom-config-path x.yaml", "--custom-config-path", "options in another file"),
    ("--use-gated-attention", "--use-gated-attention", "unknown"),
]


@pytest.mark.parametrize(("extra", "option", "why"), SLIME_GAPS)
def test_options_of_slime_that_no_plan_has(tmp_path: Path, extra: str, option: str, why: str) -> None:
    (gap,) = imported(tmp_path, "slime", SLIME.replace("--colocate", extra), SLIME_MODEL).gaps
    assert gap.field == option
    assert why in gap.message


def test_micro_batches_by_tokens_divide_the_step(tmp_path: Path) -> None:
    """12 sequences of 2,048 tokens fit, and 8 is the largest divisor of the 64 of a rank."""
    text = FSDP.replace("8192", "12288")
    assert imported(tmp_path, "verl", text).layout.micro_batch == 8
    assert imported(tmp_path, "slime", SLIME.replace("4096", "7000"), SLIME_MODEL).layout.micro_batch == 2


def test_groups_of_micro_batches_by_tokens_are_not_judged(tmp_path: Path) -> None:
    """66 sequences of a rank are 66 micro-batches only if all are of the longest: with fixed ones, 66 mod 4 = 2."""
    text = SLIME.replace("--rollout-batch-size 32", "--rollout-batch-size 33")
    stages = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
    text = text.replace("--context-parallel-size 2", stages)
    found = imported(tmp_path, "slime", text, SLIME_MODEL)
    assert "groups of 4 micro-batches per chunk: priced as groups of 6" in found.assumed
    with pytest.raises(InputError, match=r"groups of 4 leave 66 mod 4 = 2 micro-batches, fewer than pp 4"):
        imported(tmp_path, "slime", text.replace("--use-dynamic-batch-size", ""), SLIME_MODEL)


def test_options_of_slimes_forks(tmp_path: Path) -> None:
    """Without a word of a layout, a model or a batch they are named; `dp` is one."""
    text = SLIME.replace("--colocate", "--colocate --multi-turn-gamma 1.0 --do-precheck")
    found = imported(tmp_path, "slime", text, SLIME_MODEL)
    assert not found.gaps
    told = "--multi-turn-gamma, --do-precheck: of a program other than slime's: taken to change no step"
    assert told in found.assumed
    (gap,) = imported(tmp_path, "slime", text.replace("--do-precheck", "--turns-dp-parts 2"), SLIME_MODEL).gaps
    assert gap.field == "--turns-dp-parts"


def test_adapters_beside_a_tower(tmp_path: Path) -> None:
    """Modules of a tower get none, and the text alone is priced; other excluded modules are a gap."""
    for names, gaps in ((".*visual.*", []), (".*visual.*|.*router.*", ["actor_rollout_ref.model.exclude_modules"])):
        text = FSDP.replace("lora_rank: 32", f"lora_rank: 32, exclude_modules: '{names}'")
        assert [gap.field for gap in imported(tmp_path, "verl", text).gaps] == gaps


def test_kernels_of_attention_in_verl(tmp_path: Path) -> None:
    for name, count in (("kernels-community/vllm-flash-attn3", 0), ("eager", 1)):
        text = FSDP.replace("lora_rank: 32", f"lora_rank: 32, override_config: {{attn_implementation: {name}}}")
        assert len(imported(tmp_path, "verl", text).gaps) == count


def test_a_config_of_verl_in_a_block(tmp_path: Path) -> None:
    """Programs that start verl hold its config beside their own; problems have the lines of the file."""
    inside = "run: {model_type: verl}\ntrainer: {devices: 8}\ntraining_config:\n" + "".join(
        f"  {line}\n" for line in FSDP.splitlines())  # fmt: skip
    whole, found = (imported(tmp_path, "verl", text) for text in (FSDP, inside))
    assert (found.layout, found.request, found.gaps) == (whole.layout, whole.request, ())
    with pytest.raises(InputError, match=r"line 7, .*ppo_mini_batch_size"):
        imported(tmp_path, "verl", inside.replace("mini_batch_size: 32", "mini_batch_size: many"))


def test_positional_parameters_of_a_script(tmp_path: Path) -> None:
    """`set -e` scripts check their number; the second decides on the batch."""
    text = 'if [[ $# -ne 2 ]]; then exit 2; fi\ncase $2 in small) N=64;; *) N=128;; esac\n' + VERL.replace(
        "ppo_mini_batch_size=64", "ppo_mini_batch_size=$N")  # fmt: skip
    sizes = [lengths(imported(tmp_path, "verl", text, arguments=("run", size)))[1] for size in ("small", "large")]
    assert sizes == [256, 512]


def test_batches_of_slime_that_contradict(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--global-batch-size: 256 is not 128, the sequences of a rollout by its 2"):
        imported(tmp_path, "slime", SLIME.replace("--colocate", "--global-batch-size 256"), SLIME_MODEL)


def test_a_script_of_megatron_is_none_of_slime(tmp_path: Path) -> None:
    text = "torchrun pretrain_gpt.py --num-layers 36 --hidden-size 2560 --num-attention-heads 32 --seq-length 2048\n"
    with pytest.raises(InputError, match="the script has no option of slime") as caught:
        imported(tmp_path, "slime", text)
    assert caught.value.hint.endswith("`import megatron-args`")


@pytest.mark.parametrize(("size", "said"), [("4", ""), ("1", "group")])
def test_groups_of_micro_batches_of_verl(tmp_path: Path, size: str, said: str) -> None:
    layers = f"{ACTOR}megatron.override_transformer_config."
    script = VERL.replace("$@", f"{ACTOR}megatron.virtual_pipeline_model_parallel_size=2 "
                                f"+{layers}microbatch_group_size_per_vp_stage={size}")  # fmt: skip
    if said:
        with pytest.raises(InputError, match=said):
            imported(tmp_path, "verl", script)
    else:
        found = imported(tmp_path, "verl", script)
        assert (found.gaps, str(found.layout)) == ((), "tp2-pp2-vpp2-dp4-mbs2-z1-rnone")


def test_the_name_of_the_config_may_follow_overrides(tmp_path: Path) -> None:
    """Nothing but the name makes this a run on Megatron."""
    lines = [line for line in VERL.splitlines() if "megatron." not in line]
    (name,) = (line for line in lines if "--config-name" in line)
    later = [line for line in lines if line != name]
    later.insert(-1, name)
    first, moved = (imported(tmp_path, "verl", "\n".join(text) + "\n") for text in (lines, later))
    assert (moved.layout, moved.gaps, moved.assumed) == (first.layout, first.gaps, first.assumed)
