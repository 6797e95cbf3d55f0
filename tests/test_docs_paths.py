"""Every path of ours that a page, a docstring or a comment names is there.

A path counts as ours where its first part is a top-level folder of the repository. Python files may also be named by
the end of their path (`ledger.py`, `schedules/simulator.py`). Files of other projects are in the table FOREIGN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .snapshots import ROOT
from .test_architecture import COST_MODELS, LAYERS, PLANNER, PRIVATE

# Files of other projects that pages and sources name, by project; a part of the end is enough to name one.
FOREIGN = {
    "DeepSpeed": (
        "deepspeed/runtime/bf16_optimizer.py", "deepspeed/runtime/pipe/engine.py", "deepspeed/runtime/utils.py",
        "deepspeed/runtime/zero/config.py", "deepspeed/runtime/zero/offload_config.py",
        "deepspeed/runtime/zero/stage3.py", "deepspeed/runtime/precision_config.py", "deepspeed/runtime/pipe/module.py",
        "deepspeed/runtime/data_pipeline/constants.py", "deepspeed/moe/sharded_moe.py", "deepspeed/moe/mappings.py",
        "deepspeed/moe/layer.py",
    ),
    "Megatron-LM": (
        "pretrain_gpt.py", "pretrain_hybrid.py", "examples/bert/pretrain_bert.py", "examples/t5/pretrain_t5.py",
        "pretrain_ict.py",
        "examples/multimodal/train.py", "examples/multimodal/model.py", "examples/multimodal/config.py",
        "examples/multimodal/nvlm/internvit.py",
        "megatron/core/datasets/data_schedule_utils.py", "megatron/training/datasets/sft_dataset.py",
        "megatron/training/arguments.py", "megatron/training/theoretical_memory_usage.py",
        "megatron/core/transformer/moe/moe_utils.py", "megatron/core/transformer/moe/token_dispatcher.py",
        "megatron/core/transformer/moe/experts.py", "megatron/core/models/common/embeddings/rope_utils.py",
        "megatron/core/fusions/fused_mla_yarn_rope_apply.py", "megatron/core/transformer/cuda_graphs.py",
        "megatron/core/transformer/transformer_layer.py", "megatron/core/full_cuda_graph.py",
        "megatron/core/datasets/gpt_dataset.py", "megatron/core/optimizer/emerging_optimizers.py",
        "megatron/core/optimizer/layer_wise_optimizer.py",
        "megatron/core/models/common/language_module/language_module.py",
        "megatron/core/models/gpt/gpt_layer_specs.py", "megatron/core/transformer/transformer_config.py",
        "megatron/core/pipeline_parallel/fine_grained_activation_offload.py",
        "megatron/core/ssm/mamba_mixer.py", "megatron/core/ssm/mamba_context_parallel.py",
        "megatron/core/transformer/experimental_attention_variant/absorbed_mla.py",
        "megatron/core/transformer/experimental_attention_variant/dsa.py",
        "megatron/core/transformer/moe/moe_layer.py", "megatron/core/transformer/moe/paged_stash.py",
        "megatron/core/transformer/attention.py", "megatron/core/transformer/multi_token_prediction.py",
        "megatron/core/tensor_parallel/mappings.py", "megatron/core/tensor_parallel/layers.py",
        "megatron/core/distributed/param_and_grad_buffer.py",
    ),
    "Emerging-Optimizers": ("emerging_optimizers/orthogonalized_optimizers/muon_utils.py",),
    "Megatron-Bridge": (
        "docs/performance-summary.md", "src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py",
    ),
    "NeMo-RL": ("run_grpo.py", "examples/configs/sft.yaml"),
    "LLaMA-Factory": ("examples/deepspeed", "examples/deepspeed/ds_z3_config.json"),
    "Pai-Megatron-Patch": ("examples/llava_mcore/pretrain_llava.py",),
    "slime": ("train_async.py",),
    "verl": ("verl/utils/dynamic_cp_scheduler.py",),
    "AReaL": ("gsm8k_rl.py",),
    "nanotron": ("run_train.py", "src/nanotron/optim/gradient_accumulator.py"),
    "maxtext": ("multihost_runner.py", "src/maxtext/configs/gpu/models/llama2_70b.yml",),
    "TransformerEngine": (
        "transformer_engine/pytorch/module/_common.py", "transformer_engine/pytorch/permutation.py",
        "transformer_engine/pytorch/graph.py", "transformer_engine/pytorch/cpu_offload.py",
        "transformer_engine/pytorch/cpu_offload_v1.py", "transformer_engine/pytorch/ops/fused/grouped_mlp.py",
        "transformer_engine/pytorch/ops/basic/grouped_linear.py", "transformer_engine/pytorch/ops/basic/swiglu.py",
    ),
    "mamba": ("mamba_ssm/ops/triton/ssd_combined.py", "mamba_ssm/ops/selective_scan_interface.py"),
    "flash-linear-attention": (
        "fla/ops/gated_delta_rule/chunk.py", "fla/ops/kda/chunk.py", "fla/ops/kda/chunk_intra.py",
        "fla/ops/generalized_delta_rule/dplr/chunk.py",
    ),
    "torch": ("tools/autograd/derivatives.yaml",),
    "torchtitan": ("torchtitan/models/norms.py",),
    "transformers": ("src/transformers/modeling_rope_utils.py", "src/transformers/activations.py"),
    "of the reader": ("recipe.py", "run/bridge_plan.py", "run/nemo_plan.py"),
}
# What the commands of the Makefile write; it is not kept.
WRITTEN = {"benchmarks/single_gpu/runs.jsonl", "benchmarks/single_gpu_h200"}
# Folders that have their import rule and no file yet.
FREE = {f"planner/{name}" for line in PLANNER for name in line} | {f"cost_models/{name}" for name in COST_MODELS}
FREE |= set(PRIVATE)

FOLDERS = (*LAYERS, "benchmarks", "docs", "examples", "meshwright", "tests", "tools")
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "profiles/**/*.md")
    for path in ROOT.glob(pattern) if path.name != "CHANGELOG.md"
)  # fmt: skip
SOURCES = sorted(path for folder in (*LAYERS, "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))

# Every Python file by every end of its path: `planner/space/tree.py`, `space/tree.py`, `tree.py`.
ENDS = {"/".join(parts[start:]) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
        for parts in [path.relative_to(ROOT).parts] for start in range(len(parts))}  # fmt: skip

_PATH = re.compile(rf"(?<![\w./$@-])(?:{'|'.join(FOLDERS)})/[\w./*<>{{}},-]*[\w*>}}/]")
_FILE = re.compile(r"(?<![\w./*<>{}-])[a-z_][\w]*(?:/\w+)*\.py\b")


def ident(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_there(path: str) -> bool:
    """Whether a path from the root exists: a file, a folder, a pattern, or a module with a name in it."""
    if "<" in path:  # a placeholder: the folder of what would bear that name
        path = path.partition("<")[0].rpartition("/")[0]
    if "*" in path or "{" in path:
        return any(ROOT.glob(re.sub(r"\{[^}]*\}?", "*", path)))
    bare = path.rstrip("/")
    module = bare if bare.endswith(".py") else bare.rpartition(".")[0]
    return any((ROOT / name).exists() for name in (bare, f"{bare}.py", *([module, f"{module}.py"] if module else [])))


def is_foreign(path: str) -> bool:
    return any(f"/{name}".endswith(f"/{path}") for names in FOREIGN.values() for name in names)


def absent(text: str, *, files: bool) -> Iterator[str]:
    """Paths of ours in `text` that do not exist; `files`: also Python files by the end of their path."""
    for found in _PATH.finditer(text):
        path = found[0]
        if path.rstrip("/") not in WRITTEN | FREE and not is_foreign(path) and not is_there(path):
            yield path
    for found in _FILE.finditer(text) if files else ():
        name = found[0]
        if name.split("/")[0] in FOLDERS or is_foreign(name):
            continue
        if name not in ENDS:
            yield name


def nothing_absent(missing: Mapping[Path, list[str]]) -> None:
    """missing: what each file names that is not there."""
    wrong = [f"{ident(path)} names what is not there: {', '.join(names)}" for path, names in missing.items() if names]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def test_paths_of_pages_exist() -> None:
    quoted = {page: "\n".join(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))) for page in PAGES}
    nothing_absent({page: list(absent(text, files=True)) for page, text in quoted.items()})


def test_links_of_pages_lead_somewhere() -> None:
    links = {page: re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8")) for page in PAGES}
    nothing_absent({page: [link for link in names if not (page.parent / link).exists()]
                    for page, names in links.items()})  # fmt: skip


def test_paths_in_sources_exist() -> None:
    """In targets and switches, most files that are named by their end are those of the frameworks."""
    folders = (ROOT / "planner" / "targets", ROOT / "planner" / "switches", ROOT / "tools")
    of_framework = {source for source in SOURCES if any(source.is_relative_to(folder) for folder in folders)}
    nothing_absent({source: list(absent(source.read_text(encoding="utf-8"), files=source not in of_framework))
                    for source in SOURCES})  # fmt: skip


def test_no_foreign_file_is_listed_for_nothing() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES))
    assert not [name for names in FOREIGN.values() for name in names if Path(name).name not in text]


def test_a_wrong_path_is_reported() -> None:
    text = "planner/emitters/nearest.py, cost_models/step/ledger.py, cost_models/collectives.OpRates, order_problem.py"
    assert list(absent(text, files=True)) == text.split(", ")
    right = "planner/api.py, ledger.py, schedules/simulator.py, planner/targets/<name>/target.py, planner/switches/"
    assert not list(absent(right, files=True))
