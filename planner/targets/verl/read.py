"""A config of verl as the step of post-training that it runs: models, batch, placement and degrees.

verl 0.9.1 (PyPI), as options.py. Scripts are followed, not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....profiles.io.reader import read_document
from ..model_names import known_model
from ..option_lists import option_list
from ..post_training.stated import StatedStep, StepConfig
from ..readers.hydra import from_script
from .options import ENGINES, OVERRIDES
from .trainer import core_layout, fsdp_layout, most_packed

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
_SHARE = f"{_ROLLOUT}gpu_memory_utilization"
# Blocks whose options are held to the release; others hold data, rewards and logs of users.
_HELD = ("actor_rollout_ref.", "critic.", "trainer.v1.", "async_training.", "rollout.")
# Option of another release (pattern) -> the place of its meaning in this one.
_MOVED: tuple[tuple[str, str], ...] = (
    (r"async_training\.staleness_threshold", "trainer.v1.sampler.max_off_policy_threshold"),
    (r"async_training\.trigger_parameter_sync_step", "trainer.v1.separate_async.parameter_sync_step"),
    (r"async_training\..*", "trainer.v1.separate_async"),
    (r"rollout\.(nnodes|n_gpus_per_node)", r"actor_rollout_ref.rollout.\1"),
    (r"critic\.model\.fsdp_config\.(.*)", r"critic.fsdp.\1"),
    (r"(.*\.megatron)\.grad_offload", r"\1.param_offload"),
    (r"actor_rollout_ref\.(actor|ref)\.router_replay\.(.*)", r"actor_rollout_ref.\1.megatron.router_replay.\2"),
)
_ALGORITHMS = {"gae": "ppo", "grpo": "grpo"}
_MODES = {"sync": 0, "separate_async": 1}


def read_step(files: Mapping[str, str], given: Sequence[str] = (), model: str | None = None) -> StatedStep:
    """The step of files (path -> text); given: `option=value`, or a variable of a script; model: in place of its own.

    Raises InputError with all problems: options of another release, wrong values, degrees that divide nothing.
    """
    config = StepConfig(option_list("verl")[0], file=next(iter(files)))
    for path, text in files.items():
        if Path(path).name == OVERRIDES.file:
            config.add_overrides(OVERRIDES, path, text)
        else:
            config.add_document(from_script("verl.trainer", "actor_rollout_ref")(path, text, given))
            config.added |= set(re.findall(r"\+([A-Za-z_][\w.-]*)=", text))
    for word in given:
        name, equals, text = word.lstrip("+").partition("=")
        if equals and "." in name:
            config.values[name], config.places[name] = read_document("--arg", text).data, ("--arg", 0)
    _hold(config)
    step = _step(config, model)
    if config.problems:
        raise config.error
    return step


def _hold(config: StepConfig) -> None:
    """Options that the release does not have, with the place where it has their meaning."""
    known = config.options.options
    for name in config.values:
        if name in known or not name.startswith(_HELD):
            continue
        parents = [name[: at.start()] for at in re.finditer(r"\.", name)]
        if any(parent in known and known[parent].kind == "object" for parent in parents):
            continue
        moved = next((re.sub(pattern, new, name) for pattern, new in _MOVED if re.fullmatch(pattern, name)), "")
        if name in config.added and not moved:
            continue
        hint = f"its place is {moved}" if moved else config.options.near(name)
        config.fail(name, f"verl {config.options.version} has no such option", hint)


def _step(config: StepConfig, model: str | None) -> StatedStep:
    path = str(config.get(f"{_MODEL}path", ""))
    spec = known_model(path) if model is None else None
    if model is None and spec is None:
        config.fail(f"{_MODEL}path", f"`{path}` is no model of the catalogue", "name one of its shapes: --model NAME")
    core = "megatron" in str(config.get("model_engine", config.values.get("config_name", "dp"))) or (
        config.get(f"{_ACTOR}strategy", "") == "megatron")  # fmt: skip
    trainer = config.get("trainer.nnodes", 1) * config.get("trainer.n_gpus_per_node", 8)
    mode, lag = _lag(config)
    rollout = config.get(f"{_ROLLOUT}nnodes", 0) * config.get(
        f"{_ROLLOUT}n_gpus_per_node", config.values.get("trainer.n_gpus_per_node", 8)) if lag else trainer  # fmt: skip
    if lag and not rollout:
        config.fail("trainer.v1.trainer_mode", f"{mode} needs GPUs of its own for the engine",
                    f"{_ROLLOUT}nnodes=N")  # fmt: skip
    train = core_layout(config, spec or known_model(model or "")) if core else fsdp_layout(config, trainer)
    generate = {"tp": config.get(f"{_ROLLOUT}tensor_model_parallel_size", 2), "pp": 1,
                "attention_dp": config.get(f"{_ROLLOUT}data_parallel_size", 1),
                "ep": config.get(f"{_ROLLOUT}expert_parallel_size", 1)}  # fmt: skip
    degrees = math.prod(train.get(name, 1) for name in ("tp", "pp", "cp"))
    if trainer < 1:
        config.fail("trainer.nnodes", f"{trainer} GPUs train", "trainer.nnodes=1 or more")
    else:
        config.divides(trainer, degrees, "train", "trainer.nnodes")
    config.divides(rollout, generate["tp"] * generate["attention_dp"], "generate",
                   f"{_ROLLOUT}tensor_model_parallel_size")  # fmt: skip
    fields = {
        "model": model or (spec.name if spec is not None else ""), "trainer": "megatron" if core else "accelerate",
        "engine": _engine(config), "lag": lag, **_batch(config, lag), **_scores(config),
    }  # fmt: skip
    packed_tokens = most_packed(config, fields["input"] + fields["output_max"], train["cp"])
    return StatedStep(fields=fields, train=train, generate=generate, trainer_gpus=trainer, rollout_gpus=rollout,
                      disaggregated=lag > 0, packed_tokens=packed_tokens,
                      old_logprobs=not config.get("algorithm.rollout_correction.bypass_mode", False),
                      memory_share=config.share(_SHARE, 0.5), memory_option=_SHARE, options=len(config.read),
                      assumed=tuple(config.assumed))  # fmt: skip


def _engine(config: StepConfig) -> str:
    """Our name of the engine."""
    engine, engines = str(config.get(f"{_ROLLOUT}name", "vllm")), {name: ours for ours, name in ENGINES.items()}
    if engine not in engines:
        config.fail(f"{_ROLLOUT}name", f"`{engine}` is not planned", f"known: {', '.join(engines)}")
    return engines.get(engine, "vllm")


def _lag(config: StepConfig) -> tuple[str, int]:
    """The mode of the trainer, and the steps that answers may be old."""
    mode = str(config.get("trainer.v1.trainer_mode", "sync"))
    if mode not in _MODES:
        config.fail("trainer.v1.trainer_mode", f"`{mode}` is not planned", f"known: {', '.join(_MODES)}")
        return mode, 0
    ahead = config.get("trainer.v1.separate_async.num_warmup_batches", 1)
    return mode, max(math.ceil(ahead), 1) if mode == "separate_async" else 0


def _batch(config: StepConfig, lag: int) -> dict[str, Any]:
    prompts, mini = config.get("data.train_batch_size", 1024), config.get(f"{_ACTOR}ppo_mini_batch_size", 256)
    if mini < 1 or prompts % mini:
        text = f"{prompts} prompts of data.train_batch_size are no multiple of {mini}"
        config.fail(f"{_ACTOR}ppo_mini_batch_size", text, "a divisor of the prompts of a step")
        mini = prompts
    _of_mini_batches(config, prompts, mini, lag)
    return {"prompts": prompts, "samples": config.get(f"{_ROLLOUT}n", 1), "updates": prompts // mini,
            "input": config.get("data.max_prompt_length", 512),
            "output_max": config.get("data.max_response_length", 512)}  # fmt: skip


def _of_mini_batches(config: StepConfig, prompts: int, mini: int, lag: int) -> None:
    """How often they are trained on, and weights move after so many (trainer/ppo/v1/trainer_separate_async.py)."""
    epochs = config.get(f"{_ACTOR}ppo_epochs", 1)
    for name in (f"{_ACTOR}ppo_epochs", "critic.ppo_epochs"):
        if config.get(name, epochs) != 1:
            config.fail(name, f"{config.get(name, epochs)} passes over the answers of a step are not planned",
                        f"{name}=1 shows the step of one pass")  # fmt: skip
            break
    steps = config.get("trainer.v1.separate_async.parameter_sync_step", 4)
    if lag and prompts != steps * mini:
        text = (f"{steps} x {mini} prompts of {_ACTOR}ppo_mini_batch_size = {steps * mini}, data.train_batch_size is "
                f"{prompts}: separate_async stops")  # fmt: skip
        name = "trainer.v1.separate_async.parameter_sync_step"
        config.fail(name, text, f"{name}={prompts // mini}")


def _scores(config: StepConfig) -> dict[str, Any]:
    """The algorithm and the models that score."""
    estimator = str(config.get("algorithm.adv_estimator", "gae"))
    if estimator not in _ALGORITHMS:
        config.assumed.append(f"algorithm.adv_estimator {estimator} is priced as grpo")
    out: dict[str, Any] = {"workload": _ALGORITHMS.get(estimator, "grpo")}
    out["kl"] = bool(config.get(f"{_ACTOR}use_kl_loss", False) or config.get("algorithm.use_kl_in_reward", False))
    out["reward"] = "rule"
    if config.get("reward.reward_model.enable", False):
        named = known_model(str(config.get("reward.reward_model.model_path", "")))
        if named is None:
            config.fail("reward.reward_model.model_path", "is no model of the catalogue", "--arg sets another one")
        else:
            out["reward"] = named.name
    if out["workload"] == "ppo":
        path = str(config.get("critic.model.path", ""))
        critic = known_model(path)
        if critic is None and path:
            config.fail("critic.model.path", f"`{path}` is no model of the catalogue", "--arg sets another one")
        out["critic"] = critic.name if critic is not None else None
    return out
