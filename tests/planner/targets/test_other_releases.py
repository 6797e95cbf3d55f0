"""Options of other releases and forks: without effect, neutral at a value, renamed, or a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.targets.megatron.target import CONFIG

DENSE = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 512 \\
  --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size 16 --vocab-size 32000 --bf16 --tensor-model-parallel-size 2 \\
  {added}
"""
EXPERTS = DENSE.replace("{added}", "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 \\\n  {added}")


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


@pytest.mark.parametrize("added", [
    "--tile-factor 1 --remote-device none --hidden-size-teacher 512 --num-layers-teacher 4 --kd-alpha-ce 1",
    "--no-contiguous-buffers-in-local-ddp --overlap-p2p-communication --force-ds-sequence-parallel",
    "--no_contiguous_buffers_in_local_ddp", "--pre-tockens 65536 --sparse-mode 2 --optimization-level 2 --use-mc2",
    "--num-seq-splits 1 --moe-num-capacity-bins 0 --schedule-method vanilla", "--rl-generation-lag 1 --otel-enabled",
    "--use-hip-profiler --reproduce --use-primus-topk-router", "--gpt-prob 0.7 --n-hash-layers 0",
    "--cache-fp8-weight True --check-tp-norm",
])  # fmt: skip
def test_options_without_effect(tmp_path: Path, added: str) -> None:
    assert not imported(tmp_path, DENSE.format(added=added)).gaps


@pytest.mark.parametrize(("added", "text"), [
    ("--remote-device cpu", "`cpu`: weights are made on the host"),
    ("--num-seq-splits 4", "`4`: sequences in parts, by another schedule"),
    ("--schedule-method zb_h1", "`zb_h1`: another schedule"),
    ("--ds-inference", "inference: no training"), ("--kd", "a teacher model beside the one that learns"),
    ("--perform-rl-step", "rewards: passes beside those of a training step"),
    ("--te-precision-config-file p.yaml", "layers in another precision"),
    ("--kitchen-recipe-number 2", "layers in another precision"), ("--grad_comp", "compressed gradients"),
    ("--standalone-embedding-stage", "a stage for the embedding alone"), ("--xielu", "an activation that no plan has"),
    ("--glm", "attention to a part of the sequence from both sides"), ("--deepnorm", "norms in other places"),
])  # fmt: skip
def test_options_with_an_effect(tmp_path: Path, added: str, text: str) -> None:
    assert [gap.message for gap in imported(tmp_path, DENSE.format(added=added)).gaps] == [text]


def test_names_of_other_releases(tmp_path: Path) -> None:
    fsdp = "--use-custom-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"
    found = imported(tmp_path, DENSE.format(added=f"{fsdp} --sliding-window 1024"))
    model = found.request.model
    assert isinstance(model, dict)
    assert (found.gaps, found.layout.zero, model["sliding_window"]) == ((), 3, 1024)
    rotary = "--position-embedding-type rope --rotary-base 10000 --rope-alpha 8"
    model = imported(tmp_path, DENSE.format(added=rotary)).request.model
    assert isinstance(model, dict)
    assert model["rope_theta"] == round(10000 * 8 ** (64 / 62))
    model = imported(tmp_path, DENSE.format(added="--use-alibi-position-embeddings")).request.model
    assert isinstance(model, dict)
    assert (model["learned_positions"], model["rope_theta"]) == (False, None)


def test_experts_of_other_releases(tmp_path: Path) -> None:
    """core_v0.8.0, core/transformer/moe/experts.py: --moe-extended-tp splits each expert over ranks of tp and ep."""
    found = imported(tmp_path, EXPERTS.format(added="--moe-extended-tp --sequence-parallel"))
    assert (found.gaps, found.layout.ep, found.layout.etp) == ((), 1, 8)
    shared = "--enable-shared-expert --shared-moe-ffn-hidden-size 256 --moe-router-topk-limited-devices 2"
    found = imported(tmp_path, EXPERTS.format(added=f"{shared} --sequence-parallel"))
    model = found.request.model
    assert isinstance(model, dict)
    assert (found.gaps, model["moe"]["shared_ffn"], model["moe"]["shared_gate"]) == ((), 256, True)


def test_companions_are_known_with_their_option() -> None:
    """A companion has no effect alone, so its option has to be a gap."""
    reading = CONFIG.reading
    for option, companion in (("--kd", "--kd-temp"), ("--mos", "--num-layers-teacher"), ("--tp-2d", "--tp-x"),
                              ("--ds-sequence-parallel-fpdt", "--ds-sequence-parallel-fpdt-chunk-size"),
                              ("--use-quantize-comm", "--quant-comm-bits"), ("--gumbel-scale-range", "--N"),
                              ("--hetero-mode", "--use-hetnet"),
                              ("--adaptive-expert-replication", "--num-expert-classes"),
                              ("--quantized-weights", "--weight-quantization-bits"),
                              ("--outer-optimizer", "--num-subgroup"), ("--fmoefy", "--balance-strategy"),
                              ("--use-moba-attn", "--moba-topk"),
                              ("--enable-hyper-connections", "--mhc-tau"), ("--swap-attention", "--swap-modules")):
        assert reading.says_nothing(companion), companion
        assert reading.change_of(option) or not reading.says_nothing(option), option


def test_blocks_of_forks(tmp_path: Path) -> None:
    """FlagScale release/v0.2, megatron/arguments.py: 8/3 of the width, in multiples; Pai's Qwen: biases of q, k, v."""
    added = "--swiglu --multiple-of 256 --hidden-dim-multiplier 1.3 --apply-layernorm-rms"
    model = imported(tmp_path, DENSE.format(added=added)).request.model
    assert isinstance(model, dict)
    assert (model["ffn_hidden"], model["norm_bias"]) == (1792, False)  # int(int(8 x 512 / 3) x 1.3) = 1774
    biases = "--disable-bias-linear-fc --disable-bias-attn-fc"
    text = DENSE.format(added=biases)
    for program, expected in (("pretrain_gpt.py", (True, True)), ("pretrain_megatron_qwen.py", (True, False))):
        found = imported(tmp_path, text.replace("pretrain_gpt.py", program))
        model = found.request.model
        assert isinstance(model, dict)
        assert (found.gaps, model["qkv_bias"], model["ffn_bias"]) == ((), *expected)


def test_names_of_early_llamas(tmp_path: Path) -> None:
    """LydiaXiaohongLi/Megatron-DeepSpeed, megatron/arguments.py; a file of SentencePiece is no table of GPT-2."""
    added = "--no-bias --activation fast-swiglu --vocab-model-file chinese_vocab.model"
    found = imported(tmp_path, DENSE.format(added=added).replace("--vocab-size 32000", ""))
    model = found.request.model
    assert isinstance(model, dict)
    assert (found.gaps, model["gated_mlp"], model["ffn_bias"], model["qkv_bias"]) == ((), True, False, False)
    assert not [note for note in found.assumed if "GPT-2" in note]
    (gap,) = imported(tmp_path, DENSE.format(added="--activation geglu")).gaps
    assert gap.message == "`geglu` has no counterpart in a plan"


def test_schedules_and_batches_of_forks(tmp_path: Path) -> None:
    pipes = DENSE.replace("--global-batch-size 16", "--pipe-parallel-size 2 --gas 6")
    found = imported(tmp_path, pipes.format(added=""))
    assert (found.gaps, found.layout.pp, found.request.workload.global_batch) == ((), 2, 12)
    assert [gap.message for gap in imported(tmp_path, pipes.format(added="--sparsity all")).gaps] == [
        "`all`: sparse attention"]  # fmt: skip
    overlap = EXPERTS.format(added="--sequence-parallel --moe-token-dispatcher-type alltoall --combined-1f1b {}")
    found = imported(tmp_path, overlap.format("--combined-1f1b-recipe ep_a2a"))
    assert (found.gaps, found.layout.ep_overlap) == ((), 1)
    assert [gap.message for gap in imported(tmp_path, overlap.format("--combined-1f1b-recipe golden")).gaps] == [
        "`golden`: another schedule"]  # fmt: skip


def test_equal_jobs_with_other_options_of_forks(tmp_path: Path) -> None:
    """The job that is read is named, and an option without effect is not."""
    plain, other = DENSE.format(added=""), DENSE.format(added="--msamp --wandb-run x")
    jobs = f"if [ $1 = a ]; then\n{plain}\nelif [ $1 = b ]; then\n{other}\nfi\n"
    notes = [note for note in imported(tmp_path, jobs).assumed if "otherwise the same" in note]
    assert [note.partition(":")[0] for note in notes] == ["--msamp (line 11)"]


@pytest.mark.parametrize(("program", "own"), [
    ("pretrain_gpt.py", False), ("pretrain_mcore_llama.py", False), ("finetune_llama.py", False), ("train.py", False),
    ("pretrain_gpt_sft.py", False), ("posttrain_gpt.py", False), ("pretrain_maskllm.py", True),
])  # fmt: skip
def test_programs_of_their_own_are_named(tmp_path: Path, program: str, own: bool) -> None:
    found = imported(tmp_path, DENSE.format(added="").replace("pretrain_gpt.py", program))
    assert [note for note in found.assumed if "program of its own" in note] == own * [
        f"{program} is a program of its own: taken to train the model that its options state"]  # fmt: skip
