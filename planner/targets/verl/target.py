"""verl: post-training by trainer.main_ppo, on Megatron-Core or FSDP2."""

from __future__ import annotations

from ....profiles.stack.engines import EngineDegrees
from ...document.rl_plan import RlCall
from ..post_training import limits
from ..post_training.base import RlTarget, without_prediction
from ..post_training.core import OPTIMIZERS, on_core
from ..post_training.limits import LayoutLimit, Limits, RlStep
from ..post_training.option_file import SCRIPT
from ..post_training.setup import RlSetup
from . import dynamic_degrees
from .options import DEGREES, ENGINES, OVERRIDES, degrees, overrides

_RELEASE = "0.9.1"
_BEYOND = "data.train_files=... data.val_files=... actor_rollout_ref.actor.optim.lr=1e-6"


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    return OVERRIDES.files(setup, header, overrides(setup), "python3 -m verl.trainer.main_ppo", _BEYOND)


def _step(step: RlStep, lag: int) -> list[str]:
    if step.algorithm == "dpo":
        return ["dpo: main_ppo trains on answers that it generates, and not on given pairs"]
    out = list[str]()
    if lag and "reward" in step.models:
        out.append("reward: separate_async needs a reward model on GPUs of its own, and the plan has it where the "
                   "policy trains (trainer_separate_async.py)")  # fmt: skip
    if step.prompts % step.updates:
        out.append(f"prompts {step.prompts} are no multiple of updates {step.updates}: ppo_mini_batch_size counts "
                   "prompts with all their samples")  # fmt: skip
    if on_core(step) and step.optimizer not in OPTIMIZERS:
        out.append(f"optimizer {step.optimizer}: its options are not written")
    if not on_core(step) and step.optimizer != "adamw":
        out.append(f"optimizer {step.optimizer}: AdamW is written")
    return out


def _engine(engine: EngineDegrees, lag: int) -> list[str]:
    """workers/config/rollout.py, RolloutConfig."""
    out = [] if engine.pp == 1 else [f"pp {engine.pp}, and verl starts engines without stages"]
    if engine.ep > 1 and engine.ep != engine.tp * engine.attention_dp:
        out.append(f"ep {engine.ep} is not tp {engine.tp} x dp {engine.attention_dp}")
    return out


def _joint(step: RlStep) -> tuple[str, ...]:
    """Megatron-Core is initialised once in a process (workers/engine/megatron)."""
    return DEGREES if on_core(step) and "critic" in step.models else ()


def _layouts(step: RlStep, leaves: bool) -> tuple[LayoutLimit, ...]:
    if not on_core(step):
        return (limits.dividing(step), *_FSDP)
    return (limits.dividing(step), *_CORE, *([_KEPT] if leaves else []))


# Limits of the engine of Megatron-Core (workers/config/engine.py, McoreEngineConfig).
_CORE = (
    limits.BF16, limits.WHOLE_SHARDS,
    limits.KEEPS_ACTIVATIONS,
    limits.context_parallelism("ring", "ulysses", "allgather",
                        message="cp by {algorithm}: initialize_model_parallel gets no sizes of its levels"),
    # Answers are packed (use_remove_padding of engine/megatron.yaml). The image of verl-project/verl@1dda039b
    # (docker/Dockerfile.stable.vllm) has v2.16.1; NVIDIA/TransformerEngine#2829 came with 2.18.
    limits.context_parallelism("ring", "ulysses", "ring+ulysses",
                        message="cp by {algorithm}: Transformer Engine before 2.18 refuses packed answers"),
)  # fmt: skip
# utils/megatron_utils.py moves the buffers of Megatron-Core's DistributedDataParallel to the host, and not those of
# Megatron-FSDP.
_KEPT = LayoutLimit(("zero",), lambda x: x["zero"] <= 1, "z{zero} by Megatron-FSDP, whose buffers verl cannot move to "
                    "the host for the calls that share the GPUs")  # fmt: skip
# Limits of FSDP2 (workers/config/engine.py, FSDPEngineConfig).
_FSDP = (
    limits.BF16,
    LayoutLimit(("tp", "pp", "ep"), lambda x: (x["tp"] == 1) & (x["pp"] == 1) & (x["ep"] == 1),
                "tp {tp}, pp {pp}, ep {ep}: FSDP2 has none of them; plan with `--trainer megatron`"),
    LayoutLimit(("zero",), lambda x: x["zero"] > 1, "z{zero}: FSDP2 shards weights or gradients (z2, z3)"),
    limits.context_parallelism("ulysses", message="cp by {algorithm}: FSDP2 has ulysses"),
    limits.WHOLE_LAYERS,
    limits.NO_OFFLOAD,
)  # fmt: skip


def _notes(setup: RlSetup) -> list[str]:
    out = [f"data.max_prompt_length is the planned {setup.prompt_tokens} tokens: raise it for longer prompts, which "
           "verl refuses, and ppo_max_token_len_per_gpu with it"]  # fmt: skip
    for call in setup.candidate.calls:
        home = _home(setup, call)
        same = degrees(call) == degrees(home) if on_core(setup) else call.layout_id == home.layout_id
        if call.layout is not None and call.role != "reward" and not same:
            out.append(f"{call.name}: verl runs it by the layout of {home.name}, {home.layout_id}, not by "
                       f"{call.layout_id}")  # fmt: skip
    if setup.train.rank_tokens:
        out.append(dynamic_degrees.NOTE)
    out += without_prediction(setup, "verl")
    if "reward" in setup.calls:
        out.append(f"reward: {setup.engine} runs the reward model; the plan prices a forward pass of the trainer")
    if setup.algorithm == "dapo":
        out.append("DAPO's dynamic sampling (algorithm.filter_groups.enable=True) generates more answers than planned")
    return out


def _home(setup: RlSetup, call: RlCall) -> RlCall:
    """The call whose layout verl runs a call by: on FSDP2 a critic has one of its own."""
    return setup.calls["train-critic"] if call.role == "critic" and not on_core(setup) else setup.train


VERL = RlTarget(name="verl", framework="verl", release=_RELEASE, files=_files, notes=_notes,
                limits=Limits(step=_step, layouts=_layouts, engine=_engine, joint=_joint,
                            by_answer=dynamic_degrees.reasons),
                # utils/torch_functional.py: the loss is flash-attn's, with its gradient in place of the logits (2 bytes
                # each); the entropies of the scores before it hold logits, softmax and their product (2 + 2 + 2).
                fsdp={"cross_entropy": "fused"},
                option_file=OVERRIDES, conflicts=dynamic_degrees.conflicts, engines=tuple(ENGINES),
                next_step=f"bash {SCRIPT} {_BEYOND}")  # fmt: skip
