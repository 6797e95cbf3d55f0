"""OpenRLHF: post-training by its train_ppo_ray, on DeepSpeed and vLLM."""

from __future__ import annotations

from ....cost_models.serving.pool import MEMORY_SHARE
from ....profiles.stack.engines import EngineDegrees
from ..post_training import limits
from ..post_training.base import RlTarget, of_train, scores_first, without_prediction
from ..post_training.limits import LayoutLimit, Limits, RlStep
from ..post_training.option_file import SCRIPT
from ..post_training.setup import RlSetup
from .options import ARGUMENTS, arguments, engine_share, engine_weights_bytes, staying_bytes

_BEYOND = "--data.prompt_dataset ... --reward.remote_url ... --actor.adam.lr 1e-6"
_NAME, _TRAINER = "openrlhf", "deepspeed"
_ZERO_3, _GIB = 3, 2**30
# Its options of DeepSpeed are those of actor and critic alike.
_JOINT = ("tp", "cp", "dp", "zero", "micro_batch", "recompute", "offload")


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    return ARGUMENTS.files(setup, header, arguments(setup), "python3 -m openrlhf.cli.train_ppo_ray", _BEYOND)


def _step(step: RlStep, lag: int) -> list[str]:
    if step.algorithm == "dpo":
        return ["dpo: train_ppo_ray trains on answers that it generates, and not on given pairs"]
    if step.trainer != _TRAINER:
        return [f"trainer {step.trainer}: OpenRLHF trains by DeepSpeed; plan with `--trainer {_TRAINER}`"]
    out = [] if step.optimizer == "adamw" else [f"optimizer {step.optimizer}: AdamW is written"]
    if step.samples == 1 and step.algorithm != "ppo":
        out.append("samples 1: group_norm compares the answers to a prompt")
    return out


def _engine(engine: EngineDegrees, lag: int) -> list[str]:
    others = {"pp": engine.pp, "ep": engine.ep, "dp": engine.attention_dp}
    return [f"{name} {value}: OpenRLHF starts engines of tp alone" for name, value in others.items() if value > 1]


def _layouts(step: RlStep, leaves: bool) -> tuple[LayoutLimit, ...]:
    return (limits.dividing(step), *_DEEPSPEED)


_DEEPSPEED = (
    limits.BF16,
    LayoutLimit(("pp", "ep"), lambda x: (x["pp"] == 1) & (x["ep"] == 1),
                "pp {pp}, ep {ep}: OpenRLHF has neither"),
    limits.context_parallelism("ring", message="cp by {algorithm}: OpenRLHF has ring"),
    limits.WHOLE_SHARDS, limits.WHOLE_LAYERS, limits.KEEPS_ACTIVATIONS,
    # utils/deepspeed/deepspeed_utils.py: only optimizers of ZeRO have states that it can move.
    LayoutLimit(("zero", "dp", "cp"), lambda x: (x["zero"] > 0) | (x["dp"] * x["cp"] == 1),
                "z{zero}: OpenRLHF moves states of ZeRO's optimizers alone (z1, z2, z3)"),
    # trainer/ray/ppo_actor.py, _gather_params_ctx: with tp it gathers over tp alone.
    LayoutLimit(("zero", "tp"), lambda x: (x["zero"] < _ZERO_3) | (x["tp"] == 1),
                "z{zero} with tp {tp}: OpenRLHF sends weights to vLLM without gathering what ZeRO shards"),
)  # fmt: skip


def _staying(step: RlStep, gpus: int) -> tuple[tuple[LayoutLimit, float], ...]:
    """Weights are whole below ZeRO-3, which runs without tp, and of the rest each rank of tp has its part."""
    sharded = LayoutLimit(("zero",), lambda x: x["zero"] == _ZERO_3, "z{zero}: not ZeRO-3")
    out = [(sharded, staying_bytes(step, _ZERO_3, gpus))]
    for tp in (n for n in range(1, gpus + 1) if gpus % n == 0):
        out.append((_whole_over(tp), staying_bytes(step, 0, tp)))
    return tuple(out)


def _whole_over(tp: int) -> LayoutLimit:
    return LayoutLimit(("zero", "tp"), lambda x: (x["zero"] < _ZERO_3) & (x["tp"] == tp),
                       f"z{{zero}}, tp {{tp}}: not whole over tp {tp}")  # fmt: skip


def _no_room(setup: RlSetup) -> list[str]:
    """An engine with less memory than its weights take."""
    engine = setup.rollout
    if engine is None:
        return []
    room, weights = engine_share(setup) * setup.gpu_memory_bytes / _GIB, engine_weights_bytes(setup) / engine.tp / _GIB
    return [] if weights < room else [
        f"generate: {engine_share(setup):g} of a GPU's memory, {room:.1f} GiB, is left beside weights that stay, and "
        f"vLLM's own take {weights:.1f}: plan with `--target openrlhf`"]  # fmt: skip


def _notes(setup: RlSetup) -> list[str]:
    out = [f"--data.max_len is the planned {setup.prompt_tokens} tokens of a prompt and {setup.answer_tokens} of an "
           "answer: raise it for longer prompts, and --train.max_tokens_per_gpu with it"]  # fmt: skip
    out += [*of_train(setup, "OpenRLHF"), *without_prediction(setup, "OpenRLHF")]
    if setup.target != _NAME and engine_share(setup) < MEMORY_SHARE:
        out.append(f"weights of trained models stay on each GPU while vLLM generates: it gets {engine_share(setup):g} "
                   f"of the memory, and its cache holds fewer sequences than planned: plan with `--target {_NAME}`")
    if "logprobs" not in setup.calls:
        out.append(scores_first("OpenRLHF"))
    if "reward" not in setup.models:
        out.append("--reward.remote_url must name your rule: without it OpenRLHF starts a reward model")
    if setup.algorithm == "dapo":
        out.append("DAPO's dynamic sampling (--algo.dynamic_filtering_enable) generates more answers than planned")
    return out


OPENRLHF = RlTarget(name=_NAME, whole=_no_room, framework="openrlhf", release="0.11.2", files=_files, notes=_notes,
                    limits=Limits(step=_step, layouts=_layouts, engine=_engine,
                                  joint=lambda step: _JOINT if "critic" in step.models else (),
                                  scores_by_train=True, staying=_staying,
                                  # models/ring_attn_utils.py: ring-flash-attn in place of DeepSpeed's Ulysses.
                                  without=frozenset({"deepspeed: cp_algorithm"})),
                    engines=("vllm",), trainer=_TRAINER, option_file=ARGUMENTS,
                    scores_first=lambda work: True,  # trainer/ppo_utils/experience_maker.py
                    ray_engine=True,  # trainer/ray/vllm_engine.py, distributed_executor_backend
                    next_step=f"bash {SCRIPT} {_BEYOND}")  # fmt: skip
