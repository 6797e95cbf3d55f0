"""The shape of a request to post-train: prompts and answers of a step, the algorithm, how old answers may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import Field

from ...cost_models.specs.workload import OptimizerName, Precision
from ...profiles.io.document import FieldPath
from .fields import Length, Nodes, Number, Positive
from .schema import BaseRequest, RequestPart

Algorithm = Literal["grpo", "ppo", "dapo", "dpo"]
ALGORITHMS: tuple[Algorithm, ...] = ("grpo", "ppo", "dapo", "dpo")


class RlWorkload(RequestPart):
    """One step: answers to prompts are generated, scored and trained on.

    prompts: of a step; samples: answers to each [16; ppo 1; dpo 2, a pair]. input, output: tokens of a prompt and of an
    answer, means; output_p90, output_max: 90th percentile of answers, and the longest that the engine allows.
    updates: optimizer steps on the answers of a step. lag: the most steps that answers may be older than the weights
    that train on them; 0: none. on_policy: answers train only the weights that generated them.
    kl: whether a frozen copy scores the answers [ppo and dpo: yes]. reward: `rule` costs nothing, else a model [ppo:
    as large as the trained one]. critic: of ppo [as large as the trained one]. old_logprobs: whether the trainer scores
    answers before its first update [where there are several updates, and no lag: then the engine's scores are taken].
    lengths_rule: by which the trainer gives each answer a context-parallel degree of its own [one degree for all].
    """

    kind: Literal["rl"]
    algorithm: Algorithm = "grpo"
    prompts: Positive = 128
    samples: Positive | None = None
    input: Length = 512
    output: Length
    output_p90: Length | None = None
    output_max: Length | None = None
    updates: Positive = 1
    lag: Number = 0
    on_policy: bool = Field(default=False, strict=True)
    kl: bool | None = None
    reward: str | None = None
    critic: str | None = None
    old_logprobs: bool | None = None
    lengths_rule: Literal["dynamic"] | None = None
    precision: Precision = "bf16"
    optimizer: OptimizerName = "adamw"

    @property
    def samples_per_prompt(self) -> int:
        return self.samples or {"ppo": 1, "dpo": 2}.get(self.algorithm, 16)

    @property
    def answers(self) -> int:
        """Answers of a step."""
        return self.prompts * self.samples_per_prompt

    @property
    def has_reference(self) -> bool:
        return self.kl if self.kl is not None else self.algorithm in ("ppo", "dpo")

    @property
    def reward_model(self) -> bool:
        """Whether a model gives the rewards, and no rule."""
        return self.algorithm != "dpo" and (self.reward or ("model" if self.algorithm == "ppo" else "rule")) != "rule"

    @property
    def scores_first(self) -> bool:
        """Whether the trainer scores the answers before its first update."""
        if self.algorithm == "dpo":
            return False
        return self.old_logprobs if self.old_logprobs is not None else self.updates > 1 and not self.lag


class RlRequest(BaseRequest):
    """A checked request to post-train. target: the framework that runs the step [any]; trainer: that of its training, a
    target of training steps [megatron, or that of the target]; engine: that generates [vllm, or that of the target]."""

    model: str | dict[str, Any]
    cluster: str | dict[str, Any] | None = None
    gpu: str | None = None
    gpus: Positive | None = None
    exclude: Nodes = ()
    workload: RlWorkload
    target: str | None = None
    trainer: str | None = None
    engine: str | None = None
    top: Positive = 5


class RlFields(TypedDict, total=False):
    """Keywords of `plan_rl`. `model`, `output`, and either `cluster` or `gpu` and `gpus` are needed; each field of the
    workload is described in `RlWorkload`."""

    model: str | Path | Mapping[str, Any] | None
    """As in `plan`."""
    cluster: str | Path | Mapping[str, Any] | None
    """As in `plan`, of nodes that are all alike."""
    gpu: str | None
    """As in `plan`."""
    gpus: int | None
    """As in `plan`."""
    exclude: str | list[str | int] | None
    """As in `plan`."""
    target: str | None
    """The framework that runs the step, as verl: only placements that it runs are planned [any]."""
    trainer: str | None
    """The framework that trains, as `target` of `plan` [megatron, or that of the target]."""
    engine: str | None
    """The engine that generates [vllm, or that of the target]."""
    top: int | None
    """How many placements the plan lists [5]."""
    algorithm: Algorithm | None
    """grpo, ppo, dapo or dpo [grpo]."""
    prompts: int | None
    """Of a step [128]."""
    samples: int | None
    """Answers to each prompt [16; ppo 1; dpo 2]."""
    input: int | str | None
    """Tokens of a prompt, mean [512]."""
    output: int | str | None
    """Tokens of an answer, mean."""
    output_p90: int | str | None
    """90th percentile of the tokens of answers [about twice the mean]."""
    output_max: int | str | None
    """Tokens after which the engine stops an answer [none]."""
    updates: int | None
    """Optimizer steps on the answers of a step [1]."""
    lag: int | None
    """The most steps that answers may be older than the weights that train on them [0]."""
    kl: bool | None
    """Whether a frozen copy of the model scores the answers [ppo, dpo: yes; else no]."""
    reward: str | None
    """`rule`, or a model [ppo: one as large as the trained model; else rule]."""
    critic: str | None
    """The critic of ppo [one as large as the trained model]."""
    lengths_rule: Literal["dynamic"] | None
    """The rule by which the trainer gives each answer a context-parallel degree of its own [one degree for all]."""


# Flat name -> place in the request, of the fields that other requests lack.
RL_FLAT: dict[str, FieldPath] = {
    "engine": ("engine",), "trainer": ("trainer",),
    **{name: ("workload", name) for name in ("algorithm", "prompts", "samples", "output_p90", "output_max", "updates",
                                             "lag", "kl", "reward", "critic")},
}  # fmt: skip
