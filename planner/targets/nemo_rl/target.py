"""NeMo-RL: post-training by run_grpo.py of its examples, on Megatron-Core or DTensor."""

from __future__ import annotations

from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS, RECOMPUTE_MODES, Layout
from ..post_training.base import RlSetup, RlTarget, layout_of, misplaced, undivided
from ..post_training.core import on_core
from ..post_training.overrides import SCRIPT
from .options import OVERRIDES, overrides, scores_nothing

_CHECKOUT, _EXAMPLES = "NEMO_RL_PATH", "examples"
_BEYOND = "data.train.dataset_name=... policy.megatron_cfg.optimizer.lr=1e-6"


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    base = "grpo_math_1B_megatron" if on_core(setup) else "grpo_math_1B"
    command = f"uv run {_EXAMPLES}/run_grpo.py --config {_EXAMPLES}/configs/{base}.yaml"
    needs = f'cd "${{{_CHECKOUT}:?must be the folder of a checkout of NeMo-RL}}"\n'
    return OVERRIDES.files(setup, header, overrides(setup), command, _BEYOND, needs)


def _refusals(setup: RlSetup) -> list[str]:
    if setup.algorithm not in ("grpo", "dapo"):
        return [f"{setup.algorithm}: run_grpo.py is written for GRPO and DAPO"]
    layout = layout_of(setup.train)
    out = misplaced(setup, "NeMo-RL") + _engine(setup) + (_core if on_core(setup) else _dtensor)(setup, layout)
    if setup.prompts * setup.samples % setup.updates:
        out.append(f"{setup.prompts * setup.samples} answers are no multiple of updates {setup.updates}")
    out += [f"train: {text}" for text in undivided(setup, setup.train)]  # batched_data_dict.py, shard_by_batch_size
    if "reward" in setup.calls:
        out.append("reward: a reward model is an environment on GPUs of its own, which the plan does not have")
    precision = PRECISIONS[layout.precision]
    return out if precision == "bf16" else [*out, f"precision {precision}: files are written for bf16"]


def _engine(setup: RlSetup) -> list[str]:
    """vllm_generation.py; grpo.py, setup: with several nodes the engine has whole ones."""
    engine, generate = setup.rollout, setup.generate
    if setup.engine != "vllm":
        return [f"{setup.engine}: files are written for vllm"]
    if engine is None or generate is None:
        return []
    out = []
    if engine.ep > 1 and engine.ep != engine.tp * engine.attention_dp:
        out.append(f"generate: ep {engine.ep} is not tp {engine.tp} x dp {engine.attention_dp}")
    if engine.ep == 1 and engine.attention_dp > 1:
        out.append(f"generate: dp {engine.attention_dp} without ep")
    if setup.candidate.lag and engine.ep > engine.tp:
        out.append(f"generate: ep {engine.ep} beyond tp {engine.tp} is not for the asynchronous engine that lag needs")
    if setup.candidate.lag and setup.num_gpus > setup.gpus_per_node and generate.gpus % setup.gpus_per_node:
        out.append(f"generate: {generate.gpus} GPUs are no whole nodes of {setup.gpus_per_node}")
    return out


def _core(setup: RlSetup, layout: Layout) -> list[str]:
    out = []
    if layout.vpp > 1:
        out.append(f"train: vpp {layout.vpp}, and its training loop has no interleaved pipeline")
    if layout.pp > 1 and setup.models["policy"].num_layers % layout.pp:
        out.append(f"train: pp {layout.pp} does not divide the layers")
    if layout.zero > 1:
        out.append(f"train: z{layout.zero}: Megatron-FSDP is not written")
    if layout.shard < layout.dp:
        out.append(f"train: shard {layout.shard} of dp {layout.dp}")
    if layout.cp > 1 and CP_ALGORITHMS[layout.cp_algorithm] != "ring":
        out.append(f"train: cp by {CP_ALGORITHMS[layout.cp_algorithm]}, and ring is the one without an option")
    if layout.recompute_layers or layout.offload_layers or "act" in OFFLOADS[layout.offload]:
        out.append("train: recomputation or offload of single layers")
    if setup.optimizer not in ("adamw", "sgd"):
        out.append(f"train: optimizer {setup.optimizer} is not written")
    return out


def _dtensor(setup: RlSetup, layout: Layout) -> list[str]:
    out = [f"train: {name} {getattr(layout, name)}, which DTensor lacks" for name in ("pp", "ep")
           if getattr(layout, name) > 1]  # fmt: skip
    if layout.zero != 3 or layout.shard < layout.dp:
        out.append(f"train: z{layout.zero} over {layout.shard} of {layout.dp} copies: DTensor shards weights over all")
    if layout.cp > 1 and CP_ALGORITHMS[layout.cp_algorithm] != "ring":
        out.append(f"train: cp by {CP_ALGORITHMS[layout.cp_algorithm]}, and DTensor has ring")
    if RECOMPUTE_MODES[layout.recompute] == "selective" or layout.recompute_layers or layout.offload \
            or layout.offload_layers or layout.offload_modules:  # fmt: skip
        out.append("train: recomputation of parts, or offload")
    return out if setup.optimizer == "adamw" else [*out, f"train: optimizer {setup.optimizer} is not written"]


def _notes(setup: RlSetup) -> list[str]:
    kept = [f"{call.name}: it runs by the layout of train, {setup.train.layout_id}, not by {call.layout_id}"
            for call in setup.candidate.calls if call.kind == "infer" and call.layout_id != setup.train.layout_id]
    if "logprobs" not in setup.calls and not scores_nothing(setup):
        kept.append("NeMo-RL scores the answers by the policy first, which the plan does not price: "
                    "`--set workload.old_logprobs=true` does")  # fmt: skip
    return kept + ([] if setup.algorithm != "dapo" else [
        "DAPO's dynamic sampling (grpo.use_dynamic_sampling=true) generates more answers than planned"])  # fmt: skip


NEMO_RL = RlTarget(name="nemo-rl", framework="nemo-rl", release="0.6.0", files=_files, refusals=_refusals, notes=_notes,
                   check=OVERRIDES.check, next_step=f"{_CHECKOUT}=... bash {SCRIPT} {_BEYOND}")  # fmt: skip
