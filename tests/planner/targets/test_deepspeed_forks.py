"""Options and programs of forks of Megatron-DeepSpeed and of Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

SIZES = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
         "--micro-batch-size 1 --global-batch-size 16 --bf16")  # fmt: skip
DEEPSPEED = f"deepspeed --num_nodes 1 --num_gpus 8 PROGRAM {SIZES} --deepspeed --zero-stage 1 --no-pipeline-parallel "
EXPERTS = "--num-experts 8 --moe-expert-parallel-size 4 --topk 2 --expert-interval 1"


def imported(folder: Path, text: str, program: str = "pretrain_gpt.py") -> Imported:
    path = folder / "run.sh"
    path.write_text(text.replace("PROGRAM", program), encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def test_experts_over_ranks_of_tp_without_sequence_parallelism(tmp_path: Path) -> None:
    """DeepSpeed runs them, and shares out their tokens; Megatron-LM refuses them, and so does an import of its
    scripts."""
    text = f"{DEEPSPEED} {EXPERTS} --tensor-model-parallel-size 2 "
    read = imported(tmp_path, text)
    assert (str(read.layout), read.gaps) == ("tp2-nosp-dp4-ep4-mbs1-z1-rnone", ())
    assert list(read.request.workload.techniques) == ["duplicate-token-dropping"]
    split = imported(tmp_path, f"{text} --enable-expert-tensor-parallelism")
    assert str(split.layout) == "tp2-nosp-dp4-ep4-etp2-mbs1-z1-rnone"
    checkpoints = imported(tmp_path, f"{text} --checkpoint-activations --deepspeed-activation-checkpointing "
                                     "--partition-activations")  # fmt: skip
    assert sorted(checkpoints.request.workload.techniques) == ["duplicate-token-dropping", "partitioned-checkpoints"]
    for options in (f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel", EXPERTS):
        whole = imported(tmp_path, f"{DEEPSPEED} {options}")
        assert (whole.gaps, whole.request.workload.techniques) == ((), {})
    of_megatron = text.replace("--deepspeed ", "").replace("--zero-stage 1 --no-pipeline-parallel", "")
    of_megatron = of_megatron.replace("--expert-interval 1", "").replace("--tensor", "\\\n --tensor")
    with pytest.raises(InputError, match="experts with tp 2 need sequence parallelism") as error:
        imported(tmp_path, of_megatron)
    (problem,) = error.value.problems
    assert (problem.field, problem.line) == ("--tensor-model-parallel-size", 2)


def test_dropped_duplicates_are_compared_with_layouts_that_deepspeed_runs(tmp_path: Path) -> None:
    text = f"{DEEPSPEED} {EXPERTS} --tensor-model-parallel-size 2 "
    request = imported(tmp_path, text).request
    assert request.target == "any"
    assert {name: request.fix[name] for name in ("sequence_parallel", "cp")} == {"sequence_parallel": False, "cp": 1}


@pytest.mark.parametrize(("option", "stack"), [
    ("", "megatron-deepspeed-2022"), ("--use-flash-attn", "megatron-deepspeed-flash2"),
    ("--use-flash-attn-v2", "megatron-deepspeed-flash2"),
])  # fmt: skip
def test_deepspeeds_engine_is_priced_on_its_own_stack(tmp_path: Path, option: str, stack: str) -> None:
    found = imported(tmp_path, f"{DEEPSPEED} {option}")
    assert (found.request.target, found.request.stack) == ("any", stack)
    assert f"the engine is DeepSpeed: priced on the stack {stack}" in found.assumed
    of_megatron = imported(tmp_path, f"torchrun --nproc_per_node 8 PROGRAM {SIZES} {option}")
    assert (of_megatron.request.target, of_megatron.request.stack) == ("megatron", None)


@pytest.mark.parametrize(("options", "fixed"), [
    ("--zero-stage 1", {"zero": 1, "recompute": "none"}), ("--zero-stage 3", {"pp": 1, "recompute": "none"}),
    ("--zero-stage 0 --checkpoint-activations", {"zero": 1, "recompute": "full"}),
])  # fmt: skip
def test_layouts_that_deepspeeds_engine_runs(tmp_path: Path, options: str, fixed: dict[str, object]) -> None:
    """No pipeline with the states of ZeRO-2 and 3, no interleaved one, and the recomputation of the script."""
    text = f"deepspeed --num_nodes 1 --num_gpus 8 PROGRAM {SIZES} --deepspeed {options}"
    fix = imported(tmp_path, text).request.fix
    assert {name: fix[name] for name in ("schedule", *fixed)} == {"schedule": "1f1b", **fixed}
    assert ("pp" in fix) == ("pp" in fixed)


@pytest.mark.parametrize(("replicas", "fields"), [(4, ()), (8, ("--data-parallel-size-arg",))])
def test_replicas_that_a_fork_states(tmp_path: Path, replicas: int, fields: tuple[str, ...]) -> None:
    text = f"{DEEPSPEED} --tensor-model-parallel-size 2 --data-parallel-size-arg {replicas}"
    assert tuple(gap.field for gap in imported(tmp_path, text).gaps) == fields


def test_replicas_state_the_ranks(tmp_path: Path) -> None:
    text = f"python PROGRAM {SIZES} --tensor-model-parallel-size 2 --data-parallel-size-arg 4"
    assert str(imported(tmp_path, text).layout) == "tp2-nosp-dp4-mbs1-z0-rnone"


@pytest.mark.parametrize(("program", "open_"), [
    ("dpo_training.py", True), ("train_prm.py", True), ("run_rlhf.py", True), ("finetune_dpo_llama.py", True),
    ("pretrain_form.py", False), ("train_reworded.py", False),
])  # fmt: skip
def test_programs_that_train_preferences(tmp_path: Path, program: str, open_: bool) -> None:
    gaps = imported(tmp_path, DEEPSPEED, program).gaps
    assert [gap.message.endswith("passes beside those of a training step") for gap in gaps] == [True] * open_


@pytest.mark.parametrize(("added", "note"), [
    ("--use-pft --use-uneven-all-to-all", "--use-pft, --use-uneven-all-to-all: priced as without"),
    ("--moe-use-legacy-grouped-gemm", "--moe-use-legacy-grouped-gemm: priced as without"),
    ("--moe-router-load-balancing-type global_batch_loss",
     "--moe-router-load-balancing-type global_batch_loss: a fork's loss, priced without"),
    ("--cross-entropy-label-smoothing 0.0 --moe-aux-loss-score-function softmax --output-layer-init-method-normal "
     "--output-layer-init-method-normal-std 0.01", ""),
    ("--use_hpu --hpu-deterministic --theoretical-device-tflops 402.5 --allow-tf32", ""),
    ("--virtual-pipeline-model-parallel-size 1 --nsight-start 5 --moe_log_load_balancing --moe-aux-loss-type x", ""),
    ("--rope-scaling-beta-fast 32 --ai-framework pytorch", ""),
    ("--use-packed-seq-params", "--use-packed-seq-params: every sequence is priced at its full length"),
])  # fmt: skip
def test_options_that_leave_the_layout(tmp_path: Path, added: str, note: str) -> None:
    found = imported(tmp_path, f"{DEEPSPEED} {EXPERTS} {added}")
    assert (found.gaps, not note or note in found.assumed) == ((), True)


def test_chunks_of_stages_by_their_number(tmp_path: Path) -> None:
    """--virtual-pipeline-model-parallel-size of MindSpeed-MM counts the chunks of a stage."""
    text = f"torchrun --nproc_per_node 8 PROGRAM {SIZES} --pipeline-model-parallel-size 2 "
    assert str(imported(tmp_path, f"{text} --virtual-pipeline-model-parallel-size 2").layout) == (
        "pp2-vpp2-dp4-mbs1-z0-rnone")  # fmt: skip


def test_adapters_that_a_fork_names_by_their_method(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, f"{DEEPSPEED} --finetune-method lora").gaps
    assert (gap.field, gap.message) == ("--finetune-method", "adapters")


@pytest.mark.parametrize(("options", "zero"), [
    ("--bf16 --pipeline-model-parallel-size 2", 1), ("--bf16", 1), ("--bf16 --no-pipeline-parallel", 0),
    ("--fp16 --pipeline-model-parallel-size 2", 0),
])  # fmt: skip
def test_states_of_bf16_at_stage_0(tmp_path: Path, options: str, zero: int) -> None:
    """BF16_Optimizer of DeepSpeed's pipelines shards states whatever the stage is (engine.py, bf16_optimizer.py)."""
    text = f"deepspeed --num_nodes 1 --num_gpus 8 PROGRAM {SIZES.replace('--bf16', options)} --deepspeed --zero-stage 0"
    found = imported(tmp_path, text)
    assert (found.layout.zero, any("BF16_Optimizer" in note for note in found.assumed)) == (zero, zero == 1)


def test_the_length_of_a_decoder_under_its_older_name(tmp_path: Path) -> None:
    found = imported(tmp_path, DEEPSPEED.replace("--seq-length 1024", "--encoder-seq-length 1024"))
    assert (found.gaps, found.request.workload.seq_len) == ((), 1024)
    (gap,) = imported(tmp_path, f"{DEEPSPEED} --encoder-seq-length 512").gaps
    assert gap.field == "--encoder-seq-length"


@pytest.mark.parametrize(("named", "rows"), [
    ("--tokenizer-type GPT2BPETokenizer --vocab-file /data/nordic_tokenizer_131072/vocab.json", 131072),
    ("--tokenizer-type GPT2BPETokenizer --vocab-file /data/131072/vocab.json", 50304),
    ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model /data/mt_nlg_frac_015_256k.model", 256000),
    ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model /data/code30k_en80k.model", 128256),
    ("--tokenizer-type Llama2Tokenizer --tokenizer-model /data/ja_52k_bpe/tokenizer.model", 52096),
])  # fmt: skip
def test_tokens_that_the_name_of_a_tokenizer_states(tmp_path: Path, named: str, rows: int) -> None:
    model = imported(tmp_path, f"{DEEPSPEED} {named}").request.model
    assert isinstance(model, dict)
    assert model["vocab"] == rows


@pytest.mark.parametrize(("added", "facts"), [
    ("--layernorm-type rmsnorm --activation-func-type swiglu", {"norm_bias": False, "gated_mlp": True}),
    ("--layernorm-type layernorm --activation-func-type gelu", {"norm_bias": True, "gated_mlp": False}),
])  # fmt: skip
def test_layers_as_habana_names_them(tmp_path: Path, added: str, facts: dict[str, bool]) -> None:
    found = imported(tmp_path, f"{DEEPSPEED} {added}")
    assert isinstance(found.request.model, dict)
    assert ({name: found.request.model[name] for name in facts}, found.gaps) == (facts, ())
    (gap,) = imported(tmp_path, f"{DEEPSPEED} --activation-func-type geglu").gaps
    assert gap.field == "--activation-func-type"


def test_dispatchers_of_older_cores(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 PROGRAM {SIZES} --num-experts 8 --moe-token-dispatcher-type "
    found = imported(tmp_path, f"{text} alltoall_seq")
    assert (found.gaps, found.settings["moe_dispatcher"]) == ((), "alltoall")
    (gap,) = imported(tmp_path, f"{text} mine").gaps
    assert gap.field == "--moe-token-dispatcher-type"


def test_recomputed_blocks_of_habana(tmp_path: Path) -> None:
    """Its granularity `mlp` recomputes the feed-forward block of every layer; other words are a gap."""
    text = f"{DEEPSPEED} --tensor-model-parallel-size 2 --recompute-granularity "
    assert str(imported(tmp_path, f"{text} mlp").layout) == "tp2-nosp-dp4-mbs1-z1-rsel(mlp)"
    unknown = imported(tmp_path, f"{text} attention")
    assert [(gap.field, gap.message) for gap in unknown.gaps] == [
        ("--recompute-granularity", "`attention` is none of full, selective")]  # fmt: skip
    assert "recompute" not in unknown.stated
