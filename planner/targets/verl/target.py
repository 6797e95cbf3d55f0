"""verl: post-training by trainer.main_ppo, on Megatron-Core or FSDP2."""

from __future__ import annotations

from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS, RECOMPUTE_MODES, Layout
from ...document.rl_plan import RlCall
from ..post_training.base import RlSetup, RlTarget, layout_of, misplaced, undivided
from ..post_training.core import on_core
from ..post_training.overrides import SCRIPT
from .options import ENGINES, OVERRIDES, critic_call, degrees, overrides

_RELEASE = "0.9.1"
_BEYOND = "data.train_files=... data.val_files=... actor_rollout_ref.actor.optim.lr=1e-6"


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    return OVERRIDES.files(setup, header, overrides(setup), "python3 -m verl.trainer.main_ppo", _BEYOND)


def _refusals(setup: RlSetup) -> list[str]:
    if setup.algorithm == "dpo":
        return ["dpo: main_ppo trains on answers that it generates, and not on given pairs"]
    out = _places(setup) + _engine(setup)
    if setup.prompts % setup.updates:
        out.append(f"prompts {setup.prompts} are no multiple of updates {setup.updates}: ppo_mini_batch_size counts "
                   "prompts with all their samples")  # fmt: skip
    for call in setup.candidate.calls:
        if call.kind == "train":
            out += [f"{call.name}: {text}" for text in (_core if on_core(setup) else _fsdp)(setup, layout_of(call))
                    + undivided(setup, call) + _kept(setup, call)]  # fmt: skip
    critic = critic_call(setup)
    if critic is not None and on_core(setup) and degrees(critic) != degrees(setup.train):
        out.append(f"train-critic: {critic.layout_id} has other degrees than train, {setup.train.layout_id}: one "
                   "process holds both, and Megatron-Core is initialised once in it (workers/engine/megatron)")
    return out


def _places(setup: RlSetup) -> list[str]:
    out = misplaced(setup, "verl")
    if setup.candidate.lag and "reward" in setup.calls:
        out.append("reward: separate_async needs a reward model on GPUs of its own, and the plan has it where the "
                   "policy trains (trainer_separate_async.py)")  # fmt: skip
    return out


def _engine(setup: RlSetup) -> list[str]:
    """workers/config/rollout.py, RolloutConfig."""
    engine = setup.rollout
    if setup.engine not in ENGINES:
        return [f"{setup.engine}: verl generates with {', '.join(ENGINES)}"]
    if engine is None:
        return []
    out = [] if engine.pp == 1 else [f"generate: pp {engine.pp}, and verl starts engines without stages"]
    if engine.ep > 1 and engine.ep != engine.tp * engine.attention_dp:
        out.append(f"generate: ep {engine.ep} is not tp {engine.tp} x dp {engine.attention_dp}")
    return out


def _shared(setup: RlSetup, layout: Layout) -> list[str]:
    precision = PRECISIONS[layout.precision]
    out = [] if precision == "bf16" else [f"precision {precision}: files are written for bf16"]
    return out + ([f"offload {OFFLOADS[layout.offload]}: saved activations are not offloaded"]
                  if "act" in OFFLOADS[layout.offload] else [])  # fmt: skip


def _core(setup: RlSetup, layout: Layout) -> list[str]:
    """What the engine of Megatron-Core lacks (workers/config/engine.py, McoreEngineConfig)."""
    out = _shared(setup, layout)
    if layout.shard < layout.dp:
        out.append(f"shard {layout.shard} of dp {layout.dp}: the distributed optimizer is over all copies")
    if layout.cp > 1 and CP_ALGORITHMS[layout.cp_algorithm] == "ring+ulysses":
        out.append("cp by ring+ulysses: initialize_model_parallel gets no sizes of its levels")
    if setup.optimizer == "muon":
        out.append("optimizer muon: its options are not written")
    return out


def _kept(setup: RlSetup, call: RlCall) -> list[str]:
    """A model that cannot leave its GPUs for another call: utils/megatron_utils.py moves the buffers of Megatron-Core's
    DistributedDataParallel to the host, and not those of Megatron-FSDP."""
    zero = layout_of(call).zero
    return [f"z{zero} by Megatron-FSDP, whose buffers verl cannot move to the host for the calls that share the GPUs"
            ] if on_core(setup) and zero > 1 and setup.leaves(call.role) else []  # fmt: skip


def _fsdp(setup: RlSetup, layout: Layout) -> list[str]:
    """What FSDP2 lacks (workers/config/engine.py, FSDPEngineConfig)."""
    out = _shared(setup, layout)
    out += [f"{name} {getattr(layout, name)}: FSDP2 has none; plan with `--target megatron`"
            for name in ("tp", "pp", "ep") if getattr(layout, name) > 1]  # fmt: skip
    if layout.zero < 2:
        out.append(f"z{layout.zero}: FSDP2 shards weights or gradients (z2, z3)")
    if layout.cp > 1 and CP_ALGORITHMS[layout.cp_algorithm] != "ulysses":
        out.append(f"cp by {CP_ALGORITHMS[layout.cp_algorithm]}: FSDP2 has ulysses")
    if RECOMPUTE_MODES[layout.recompute] == "selective" or layout.recompute_layers:
        out.append("recompute: whole layers, all of them, or none")
    if layout.offload or layout.offload_layers or layout.offload_modules:
        out.append("offload: states and activations stay on the GPU while they train")
    if setup.optimizer != "adamw":
        out.append(f"optimizer {setup.optimizer}: AdamW is written")
    return out


def _notes(setup: RlSetup) -> list[str]:
    out = [f"data.max_prompt_length is the planned {setup.prompt_tokens} tokens: raise it for longer prompts, which "
           "verl refuses, and ppo_max_token_len_per_gpu with it"]  # fmt: skip
    for call in setup.candidate.calls:
        home = _home(setup, call)
        same = degrees(call) == degrees(home) if on_core(setup) else call.layout_id == home.layout_id
        if call.layout is not None and call.role != "reward" and not same:
            out.append(f"{call.name}: verl runs it by the layout of {home.name}, {home.layout_id}, not by "
                       f"{call.layout_id}")  # fmt: skip
    if modules := setup.models["policy"].mtp_layers:
        out.append(f"verl trains without the prediction modules of the model, and the plan prices {modules}")
    if "reward" in setup.calls:
        out.append(f"reward: {setup.engine} runs the reward model; the plan prices a forward pass of the trainer")
    if setup.algorithm == "dapo":
        out.append("DAPO's dynamic sampling (algorithm.filter_groups.enable=True) generates more answers than planned")
    return out


def _home(setup: RlSetup, call: RlCall) -> RlCall:
    """The call whose layout verl runs a call by: on FSDP2 a critic has one of its own."""
    return setup.calls["train-critic"] if call.role == "critic" and not on_core(setup) else setup.train


VERL = RlTarget(name="verl", framework="verl", release=_RELEASE, files=_files, refusals=_refusals, notes=_notes,
                check=OVERRIDES.check, next_step=f"bash {SCRIPT} {_BEYOND}")  # fmt: skip
