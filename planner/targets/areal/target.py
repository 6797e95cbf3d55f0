"""AReaL: post-training by gsm8k_rl.py of its examples, on Megatron-Core or FSDP2."""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.quantities.params import total_parameters
from ....cost_models.specs.workload import OPERAND_BYTES
from ....profiles.stack.engines import EngineDegrees
from ...space.rules import Columns
from ..post_training import limits
from ..post_training.base import RlTarget, of_train, without_prediction
from ..post_training.core import on_core
from ..post_training.limits import LayoutLimit, Limits, RlStep
from ..post_training.option_file import SCRIPT
from ..post_training.setup import RlSetup
from .options import OPTIMIZERS, OVERRIDES, overrides

_CHECKOUT, _EXAMPLES = "AREAL_PATH", "examples"
_BEYOND = "train_dataset.path=... actor.optimizer.lr=1e-6"


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    algorithm = "ppo" if setup.algorithm == "ppo" else "grpo"
    base = f"gsm8k_{algorithm}{'_megatron' if on_core(setup) else ''}"
    command = f"python3 {_EXAMPLES}/math/gsm8k_rl.py --config {_EXAMPLES}/math/{base}.yaml"
    needs = f'cd "${{{_CHECKOUT}:?must be the folder of a checkout of AReaL}}"\n'
    return OVERRIDES.files(setup, header, overrides(setup), command, _BEYOND, needs)


def _step(step: RlStep, lag: int) -> list[str]:
    if step.algorithm == "dpo":
        return ["dpo: files are written for its PPO trainer"]
    out = []
    if "reward" in step.models:
        out.append("reward: AReaL takes a function for the reward, and starts no model for it")
    optimizers = tuple(OPTIMIZERS) if on_core(step) else ("adamw",)
    if step.optimizer not in optimizers:
        out.append(f"optimizer {step.optimizer}: {', '.join(optimizers)} are written")
    return out


def _engine(engine: EngineDegrees, lag: int) -> list[str]:
    out = []
    ranks = engine.tp * engine.attention_dp * engine.pp
    if not lag and ranks > 1:
        out.append(f"tp {engine.tp} x dp {engine.attention_dp} x pp {engine.pp}: beside the trainer on its GPUs it has "
                   "as many instances as ranks, of one GPU each")  # fmt: skip
    return out


def _layouts(step: RlStep, leaves: bool) -> tuple[LayoutLimit, ...]:
    return (limits.dividing(step), _together(step), _staged(step), *(_CORE if on_core(step) else _FSDP))


def _together(step: RlStep) -> LayoutLimit:
    """The answers to a prompt go to one rank (infra/controller/train_controller.py, utils/seqpack.py)."""
    return LayoutLimit(("dp",), lambda x: step.prompts % x["dp"] == 0,
                       f"dp {{dp}} does not divide the {step.prompts} prompts, and AReaL keeps the answers to a prompt "
                       "on one rank")  # fmt: skip


def _staged(step: RlStep) -> LayoutLimit:
    """Micro-batches of a pipeline: two or more per stage, and as many for each (engine/megatron_engine.py)."""
    answers = step.prompts * step.samples // step.updates

    def allows(x: Columns) -> Mask:
        copy = answers // x["dp"]
        return np.asarray((x["pp"] == 1) | ((copy >= 2 * x["pp"]) & (copy % x["pp"] == 0)))

    return LayoutLimit(("pp", "dp"), allows,
                       f"pp {{pp}} with dp {{dp}}: of the {answers} answers of an update each copy takes a multiple of "
                       "pp, 2 pp or more, because AReaL cuts so many micro-batches")  # fmt: skip


_CORE = (
    limits.BF16, limits.WHOLE_SHARDS, limits.SHARDED_OPTIMIZER, limits.NO_OFFLOAD,
    LayoutLimit(("tp", "sequence_parallel"), lambda x: (x["tp"] == 1) | (x["sequence_parallel"] == 1),
                "tp {tp} without sequence parallelism, which AReaL always has with it"),
    limits.context_parallelism("ring", message="cp by {algorithm}: AReaL cuts sequences for ring"),
)  # fmt: skip
_FSDP = (
    limits.BF16,
    LayoutLimit(("tp", "pp", "ep"), lambda x: (x["tp"] == 1) & (x["pp"] == 1) & (x["ep"] == 1),
                "tp {tp}, pp {pp}, ep {ep}: written for Megatron-Core; plan with `--trainer megatron`"),
    limits.WHOLE_WEIGHTS,
    limits.context_parallelism("ulysses", message="cp by {algorithm}: FSDP2 has ulysses"),
    limits.WHOLE_LAYERS,
    limits.NO_OFFLOAD,
)  # fmt: skip


def _notes(setup: RlSetup) -> list[str]:
    out = [f"train_dataset.max_length leaves out prompts of more than the planned {setup.prompt_tokens} tokens: raise "
           "it for longer ones, and mb_spec.max_tokens_per_mb with it and with the tokens of a chat template, because "
           "AReaL stops at a sequence that is longer than a micro-batch"]  # fmt: skip
    out += [*of_train(setup, "AReaL"), *without_prediction(setup, "AReaL")]
    if not setup.candidate.lag:
        num_bytes, readers = OPERAND_BYTES["bf16"] * total_parameters(setup.models["policy"]), setup.num_gpus
        out.append("new weights go to the engine by files in cluster.fileroot, which all nodes must share, because "
                   "AReaL refuses other ways beside the trainer (PPOTrainer): a step writes "
                   f"{num_bytes / 1e9:.3g} GB and {readers} instances read them, and the plan prices messages: add "
                   "their seconds on your storage")  # fmt: skip
    if (engine := setup.rollout) and (ranks := engine.tp * engine.attention_dp * engine.pp) > setup.gpus_per_node:
        out.append(f"an instance of {ranks} GPUs is one worker in AReaL, and a node has {setup.gpus_per_node}: Ray "
                   "does not place it (infra/controller/rollout_controller.py)")  # fmt: skip
    if "reference" in setup.models:
        out.append("the reference starts only with an actor.kl_ctl above 0, which the examples do not have: give it")
    if setup.algorithm == "dapo":
        out.append("DAPO's dynamic sampling (dynamic_bs=true) generates more answers than planned")
    return out


AREAL = RlTarget(name="areal", framework="areal", release="1.0.4", files=_files, notes=_notes,
                 limits=Limits(step=_step, layouts=_layouts, engine=_engine, scores_by_train=True), engines=("sglang",),
                 option_file=OVERRIDES, next_step=f"{_CHECKOUT}=... bash {SCRIPT} {_BEYOND}")  # fmt: skip
