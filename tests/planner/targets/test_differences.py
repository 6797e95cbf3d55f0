"""`check` finds every edit of emitted files that changes model, layout, batch, price or memory; the rest it lists."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit

from ...table import Row
from .emit_corruptions import CATALOGUE, Files, edited
from .emit_plans import config_of, random_plans

# A line with one option and its value, by target.
_LINES = {"megatron": r"--\S+.*", "torchtitan": r"\s+[\w.]+\s*=\s*(?:[\d.]+|True|False|\"[^\"]*\"),?",
          "megatron-bridge": r"\s+\w+\s*=\s*(?:[\d.]+|True|False|\"[^\"]*\"),?"}  # fmt: skip
_LINES["nemo"] = _LINES["megatron-bridge"]
_BLOCKS = r"\s*\"?[\w.]+\"?\s*:\s*(?:[\d.e-]+|true|false|\"[^\"]*\"),?"
# What a plan does not hold: emitted for a start, and for the user to change.
_OWN = re.compile(r"weight_decay|lr|seed|iters|interval|tokenizer|dataloader|split|reset_|eod_|data|save")
_OWN_OF = {"nanotron": re.compile(r"project|train_steps|training_step|std|clip_grad|learning_rate|adam_|log_level"),
           "nemo": re.compile(r"accelerator|max_steps|limit_val|log_every|use_distributed_sampler"),
           "maxtext": re.compile(r"^(run_name|dataset_type|steps|learning_rate|enable_checkpointing):")}
_FLIPPED = {"True": "False", "False": "True", "true": "false", "false": "true"}
EACH = int(os.environ.get("EDITS", "60"))  # of each target; docs/targets has the figure of 300


def _is_own(line: str, target: str) -> bool:
    return any(names.search(line) for names in (_OWN, _OWN_OF.get(target)) if names)


def edit(target: str, files: Files, rng: np.random.Generator) -> tuple[Files, str]:
    """The files with one option dropped, a number changed or a flag flipped; and that line."""
    name = config_of(target).main_file
    lines = files[name].split("\n")
    pattern = re.compile(_LINES.get(target, _BLOCKS))
    index = int(rng.choice([number for number, line in enumerate(lines)
                            if pattern.fullmatch(line) and not _is_own(line, target)]))  # fmt: skip
    line = lines[index]
    flag, number = re.search(r"(True|False|true|false)(?=,?$)", line), re.search(r"\d+(?=,?$)", line)
    if rng.random() < 0.5 and flag:
        lines[index] = line[: flag.start()] + _FLIPPED[flag[0]] + line[flag.end() :]
    elif rng.random() < 0.5 and number:
        lines[index] = line[: number.start()] + str(int(number[0]) * 2 + 1) + line[number.end() :]
    else:
        del lines[index]
    text = "\n".join(lines)
    return {**files, name: re.sub(r",(\s*\n\s*})", r"\1", text) if name.endswith(".json") else text}, line.strip()


@pytest.mark.parametrize("target", CATALOGUE)
def test_edits_are_found(target: str, row: Row) -> None:
    """So many of each target, drawn with a fixed seed."""
    rng, folders = np.random.default_rng(7), list[Files]()
    for plan in random_plans(target, 20, seed=1)[0]:
        try:
            folders.append(dict(emit(plan, target).files))
        except LayoutRefusedError:
            continue
    missed = []
    for _ in range(EACH):
        files, line = edit(target, folders[int(rng.integers(len(folders)))], rng)
        if not check_files(files, target).problems:
            missed.append(line)
    row(target, "edits found by check", f"{EACH - len(missed)} of {EACH}")
    assert len(missed) <= EACH * 0.02, missed


def emitted(model: str, layout: str, target: str, batch: int = 64) -> Files:
    asked = {"model": model, "cluster": "dgx-h100:2", "target": target,
             "workload": {"seq_len": 4096, "global_batch": batch}}  # fmt: skip
    return dict(emit(api.evaluate(request_from_dict(asked), layout), target).files)


@pytest.mark.parametrize(
    ("pattern", "new", "field"),
    [
        (r"^--untie-embeddings-and-output-weights\n", "", "--untie-embeddings-and-output-weights"),
        (r"^(--bf16)$", r"\1\n--use-tp-pp-dp-mapping", "--use-tp-pp-dp-mapping"),
        (r"^(--bf16)$", r"\1\n--recompute-activations", "--recompute-activations"),
        (r"^(--bf16)$", r"\1\n--norm-epsilon 0.01", "--norm-epsilon"),
        (r"^(--bf16)$", r"\1\n--no-gradient-accumulation-fusion", "--no-gradient-accumulation-fusion"),
        (r"^(--bf16)$", r"\1\n--transformer-impl local", "--transformer-impl"),
        (r"^--expert-tensor-parallel-size 1\n", "", "--expert-tensor-parallel-size"),
        (r"^--moe-grouped-gemm\n", "", "--moe-grouped-gemm"),
        (r"^(--moe-token-dispatcher-type) \w+", r"\1 allgather", "--moe-token-dispatcher-type"),
        (r"^(--rotary-base) \d+", r"\1 10000", "--rotary-base"),
    ],
)
def test_edits_that_were_missed_once(pattern: str, new: str, field: str) -> None:
    files = emitted("mixtral-8x7b", "tp2-dp8-ep4-mbs1-z1-rnone", "megatron")
    assert not check_files(files).problems
    changed = edited(files, "megatron.args", pattern, new)
    assert changed is not None
    problems = check_files(changed).problems
    assert problems
    assert problems[0].line
    assert any(field in (problem.field, *problem.message.split()) or problem.field for problem in problems)


# Options of the release that an emitted file lacks, and that matter to the model, layout, batch, price or memory.
ADDED = """--spec a b;--padded-vocab-size 32256;--squared-relu;--quick-geglu;--te-precision-config-file x
--create-all-gather-group;--moe-deepep-num-sms 8;--reset-attention-mask;--hybrid-override-pattern M*;--batch-size 4
--make-vocab-size-divisible-by 3;--model-parallel-size 2;--checkpoint-activations;--warmup 3;--disable-pad-vocab-size
--use-checkpoint-args;--use-mp-args-from-checkpoint-args;--moe-apply-probs-on-input;--perform-rl-step
--keep-fp8-transpose-cache;--moe-router-force-biased 0.3;--moe-enable-routing-replay;--use-kitchen-attention
--disable-bf16-reduced-precision-matmul;--no-clone-scatter-output-in-embedding;--nccl-communicator-config-path x
--overlap-p2p-communication-warmup-flush;--overlap-dispatch-backward-with-experts-wgrad;--logits-load-dir x
--activation-offload-fraction 0.5;--high-priority-a2a-comm-stream;--ep-overlap-early-attn-memory-release
--dataloader-inter-document-masking;--moe-single-grouped-weight"""


def test_options_that_are_added_are_judged() -> None:
    files = emitted("mixtral-8x7b", "tp2-dp8-ep4-mbs1-z1-rnone", "megatron")
    for line in re.split("[;\n]", ADDED):
        problems = check_files({**files, "megatron.args": f"{files['megatron.args']}{line}\n"}).problems
        assert [problem.field for problem in problems] == [line.split()[0]], line


BLOCKS: dict[str, tuple[str, list[tuple[str, object]]]] = {
    "deepspeed": ("ds_config.json", [
        ("activation_checkpointing", {"cpu_checkpointing": True}), ("communication_data_type", "fp32"),
        ("data_types", {"grad_accum_dtype": "bf16"}), ("compile", {"enabled": True}), ("autotuning", {"enabled": True}),
        ("zero_optimization.cpu_offload", True), ("zero_optimization.reduce_bucket_size", 1000),
        ("zero_optimization.stage3_max_live_parameters", 1000), ("tensor_parallel.tp", {"tp_size": 2}),
        ("curriculum_learning", {"enabled": True}), ("zero_optimization.round_robin_gradients", True),
        ("compression_training", {"activation_quantization": {"shared_parameters": {"enabled": True}}}),
    ]),
    "accelerate": ("training_arguments.json", [
        ("gradient_checkpointing", True), ("auto_find_batch_size", True), ("fp16", True), ("torch_compile", True),
        ("fsdp", "full_shard"), ("fsdp_config", {"reshard_after_forward": False}), ("deepspeed", "ds.json"),
        ("use_liger_kernel", True), ("parallelism_config", {"tp_size": 2}), ("optim_target_modules", "all-linear"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("target", BLOCKS)
def test_blocks_that_are_added_are_judged(target: str) -> None:
    """And those that are switched off are not."""
    name, added = BLOCKS[target]
    files = emitted("llama-3.1-8b", "dp16-mbs1-z3-rfull", target)

    def with_option(option: str, value: object) -> Files:
        data = json.loads(files[name])
        *blocks, last = option.split(".")
        holder = data
        for block in blocks:
            holder = holder.setdefault(block, {})
        holder[last] = value
        return {**files, name: json.dumps(data, indent=1)}

    for option, value in added:
        problems = check_files(with_option(option, value), target).problems
        assert [str(problem.field).endswith(option) for problem in problems] == [True], option
        if value is True or (isinstance(value, dict) and "enabled" in value):
            off = False if value is True else {"enabled": False}
            assert not check_files(with_option(option, off), target).problems, option


def test_rotary_positions_of_torchtitan_are_compared() -> None:
    files = emitted("llama-3.1-8b", "dp16-mbs1-z3-rfull", "torchtitan")
    changed = edited(files, "torchtitan_plan.py", r"theta=[\d.]+", "theta=10000.0")
    assert changed is not None
    assert [problem.field for problem in check_files(changed).problems] == ["as_planned"]


def test_the_rest_is_listed_as_not_judged() -> None:
    files = emitted("llama-3.1-8b", "tp2-dp8-mbs1-z1-rnone", "megatron")
    added = {**files, "megatron.args": files["megatron.args"] + "--seed 7\n--log-interval 3\n"}
    checked = check_files(added)
    assert not checked.problems
    assert checked.not_judged == ["--seed", "--log-interval"]


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo"])
def test_constructors_are_no_options_that_are_not_judged(target: str) -> None:
    names = check_files(emitted("llama-3.1-8b", "tp2-dp8-mbs1-z1-rnone", target)).not_judged
    assert names
    assert all("." in name for name in names)
