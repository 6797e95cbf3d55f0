"""The calls of a step of post-training, by algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...cost_models.serving.rollout import MOST_P90
from ...errors import InputError
from ..request.reinforcement import RlWorkload

Kind = Literal["generate", "infer", "train"]
Role = Literal["policy", "critic", "reference", "reward"]


@dataclass(frozen=True)
class Call:
    """One model at work on the answers of a step."""

    name: str
    kind: Kind
    role: Role  # of the model
    after: tuple[str, ...] = ()  # calls that it waits for


def graph_of(work: RlWorkload) -> tuple[Call, ...]:
    """The calls in the order in which a controller starts them.

    PPO (arXiv 1707.06347, 2203.02155), GRPO (2402.03300: no critic), DAPO (2503.14476: no reference either), DPO
    (2305.18290: pairs that are given, so that nothing is generated).
    """
    if work.algorithm == "dpo":
        return (Call("reference", "infer", "reference"), Call("train", "train", "policy", ("reference",)))
    named: tuple[tuple[str, Role, bool], ...] = (
        ("reward", "reward", work.reward_model), ("reference", "reference", work.has_reference),
        ("values", "critic", work.algorithm == "ppo"), ("logprobs", "policy", work.scores_first),
    )  # fmt: skip
    scores = [Call(name, "infer", role, ("generate",)) for name, role, there in named if there]
    scored = ("generate", *(call.name for call in scores))
    critic = [Call("train-critic", "train", "critic", scored)] if work.algorithm == "ppo" else []
    return (Call("generate", "generate", "policy"), *scores, *critic, Call("train", "train", "policy", scored))


def check(work: RlWorkload) -> None:
    """Raises InputError for what no run of the algorithm can do."""
    if work.answers % work.updates:
        fits = f"{work.answers // work.updates * work.updates} answers would be"
        raise InputError(
            f"prompts {work.prompts} x samples {work.samples_per_prompt} = {work.answers} answers are no multiple of "
            f"updates {work.updates}",
            hint=fits if work.answers > work.updates else f"at most {work.answers} updates")  # fmt: skip
    if work.lag and work.algorithm == "dpo":
        raise InputError(f"lag {work.lag}: dpo trains on pairs that are given, and generates none that could be old",
                         hint="leave out lag")  # fmt: skip
    if work.on_policy and (work.lag or work.updates > 1):
        behind = work.lag * work.updates + work.updates - 1
        raise InputError(
            f"on_policy and lag {work.lag}, updates {work.updates}: the last update trains on answers of weights that "
            f"are {work.lag} x {work.updates} + {work.updates - 1} = {behind} updates old",
            hint="lag 0 and updates 1, or leave out on_policy: the clipped ratio corrects for it")  # fmt: skip
    if work.algorithm == "dpo" and work.samples_per_prompt != 2:
        raise InputError(f"samples {work.samples_per_prompt}: dpo trains on pairs", hint="leave out samples")
    if work.output_max is not None and work.output_max <= work.output:
        raise InputError(f"output_max {work.output_max}: answers of {work.output} tokens in the mean need longer ones",
                         hint="output_max is the length at which the engine stops")  # fmt: skip
    if work.output_p90 is not None and not work.output < work.output_p90 <= (work.output_max or work.output_p90):
        raise InputError(f"output_p90 {work.output_p90} is not between the mean {work.output} and output_max "
                         f"{work.output_max}", hint="90 % of the answers are no longer than output_p90")  # fmt: skip
    if work.output_p90 is not None and work.output_p90 > MOST_P90 * work.output:
        raise InputError(f"output_p90 {work.output_p90} is more than {MOST_P90:.2f} x {work.output}: no log-normal "
                         "distribution of lengths has a 90th percentile further from its mean",
                         hint="give a larger mean, or leave out output_p90")  # fmt: skip
    without = {"critic": work.algorithm != "ppo", "reward": work.algorithm == "dpo"}
    for name, value in (("critic", work.critic), ("reward", work.reward)):
        if value is not None and without[name]:
            raise InputError(f"{name} {value}: {work.algorithm} has none", hint=f"leave out {name}")
