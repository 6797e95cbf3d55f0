"""slime: post-training by its train.py and train_async.py, on Megatron-LM and SGLang."""

from __future__ import annotations

from ....cost_models.specs.variants import valued
from ....cost_models.specs.workload import Workload
from ....profiles.stack.engines import EngineDegrees
from ..megatron.cannot_build import cannot_build
from ..megatron.target import CHECKOUT as MEGATRON
from ..megatron.target import CONFIG
from ..post_training import limits
from ..post_training.base import RlTarget, of_train, without_prediction
from ..post_training.core import OPTIMIZERS, on_core
from ..post_training.limits import LayoutLimit, Limits, RlStep
from ..post_training.option_file import SCRIPT
from ..post_training.setup import RlSetup
from ..post_training.training_setup import trained_model
from .options import ARGUMENTS, arguments

_CHECKOUT = "SLIME_PATH"
_BEYOND = "--ref-load ... --prompt-data ... --rm-type ... --num-rollout ... --lr 1e-6"
# Families of models that slime converts for engines (megatron_to_hf) and that Megatron-LM builds by arguments alone.
_FAMILIES = ("deepseek_v3", "glm4_moe", "kimi_k2", "llama", "mimo", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
# The critic is built by the arguments of the policy (placement_group.py), and its values go from rank to rank.
_JOINT = ("tp", "sequence_parallel", "pp", "vpp", "cp", "dp", "ep", "etp", "micro_batch", "recompute",
          "recompute_modules", "recompute_layers", "offload", "offload_layers", "offload_modules")  # fmt: skip


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    program = "train_async.py" if setup.candidate.lag else "train.py"
    needs = (f'export PYTHONPATH="${{{_CHECKOUT}:?must be the folder of a checkout of slime}}:'
             f'${{{MEGATRON}:?must be the folder of a checkout of Megatron-LM}}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
             'variables="{\\"env_vars\\": {\\"PYTHONPATH\\": \\"$PYTHONPATH\\"}}"\n')  # fmt: skip
    command = ('ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" --runtime-env-json="$variables" -- '
               f'python3 "${_CHECKOUT}/{program}"')  # fmt: skip
    return ARGUMENTS.files(setup, header, arguments(setup), command, _BEYOND, needs)


def _step(step: RlStep, lag: int) -> list[str]:
    if step.algorithm == "dpo":
        return ["dpo: slime trains on answers that it generates, and not on given pairs"]
    policy, out = step.models["policy"], list[str]()
    if not on_core(step):
        return [f"trainer {step.trainer}: slime trains by Megatron-LM; plan with `--trainer megatron`"]
    if policy.family not in _FAMILIES:
        out.append(f"model {policy.name}: slime and arguments of Megatron-LM know {', '.join(_FAMILIES)}")
    work = Workload(seq_len=policy.max_positions or 1, global_batch=1)
    out += cannot_build(trained_model(policy), work, None)
    if lag > 1:
        out.append(f"lag {lag}: train_async.py generates one step ahead")
    if "reward" in step.models:
        out.append("reward: slime asks a reward model by its URL (--rm-type remote_rm), on GPUs that the plan does not "
                   "have")  # fmt: skip
    if step.models.get("critic", valued(policy)) != valued(policy):
        out.append("critic: slime builds it by the arguments of the policy, and it is another model")
    if step.optimizer not in OPTIMIZERS:
        out.append(f"optimizer {step.optimizer}: its options are not written")
    return out


def _engine(engine: EngineDegrees, lag: int) -> list[str]:
    return []


def _layouts(step: RlStep, leaves: bool) -> tuple[LayoutLimit, ...]:
    return (limits.dividing(step), _interleaved(step), *_CORE)


def _interleaved(step: RlStep) -> LayoutLimit:
    """Micro-batches of an update are a multiple of copies x stages, each with an answer (utils/dp_schedule.py)."""
    answers = step.prompts * step.samples // step.updates
    return LayoutLimit(("vpp", "pp", "dp"), lambda x: (x["vpp"] == 1) | (answers % (x["dp"] * x["pp"]) == 0),
                       f"vpp {{vpp}} with dp {{dp}} and pp {{pp}}: the {answers} answers of an update are no multiple "
                       "of dp x pp, of which slime makes micro-batches")  # fmt: skip


_CORE = (
    limits.BF16, limits.WHOLE_SHARDS, limits.SHARDED_OPTIMIZER, limits.KEEPS_ACTIVATIONS,
    limits.context_parallelism("ring", message="cp by {algorithm}: slime cuts sequences for ring"),
)  # fmt: skip


def _notes(setup: RlSetup) -> list[str]:
    out = [*of_train(setup, "slime"), *without_prediction(setup, "slime")]
    if "reference" in setup.models:
        out.append("--kl-loss-coef is 0 unless you give it, and the reference then scores in vain")
    if setup.algorithm == "dapo":
        out.append("DAPO's dynamic sampling (--dynamic-sampling-filter-path) generates more answers than planned")
    return out


SLIME = RlTarget(name="slime", framework="slime", release="0.3.1", files=_files, notes=_notes,
                 limits=Limits(step=_step, layouts=_layouts, engine=_engine,
                               joint=lambda step: _JOINT if "critic" in step.models else ()),
                 option_file=ARGUMENTS, engines=("sglang",), judged=CONFIG.judged,
                 next_step=f"{_CHECKOUT}=... {MEGATRON}=... bash {SCRIPT} {_BEYOND}")  # fmt: skip
