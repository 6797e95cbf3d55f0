"""From a request to post-train to the question that its prices answer: models, cluster, work."""

from __future__ import annotations

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import valued
from ...errors import InputError
from ...profiles.stack.engines import shipped_engines
from ..request.lengths import check_positions
from ..request.model_reference import referenced_model, text_model
from ..request.reinforcement import RlRequest, RlWorkload
from ..request.resolve import resolve
from ..request.schema import Request
from ..targets.post_training.core import PLAIN
from ..targets.post_training.registry import rl_target
from .answer_degrees import check as check_degrees
from .graph import Role, check
from .question import Question, as_set


def question_of(request: RlRequest) -> tuple[Question, tuple[str, ...]]:
    """The models and the cluster behind a request, and warnings. Raises InputError."""
    work = request.workload
    check(work)
    target = rl_target(request.target) if request.target is not None else None
    engine = request.engine or (target.engines[0] if target is not None else "vllm")
    trainer = request.trainer or (target.trainer if target is not None else "megatron")
    shipped_engines().of(engine)
    whole = resolve(Request.model_validate({
        "model": request.model, "cluster": request.cluster, "gpu": request.gpu, "gpus": request.gpus,
        "exclude": request.exclude, "target": trainer,
        "workload": {"precision": work.precision, "optimizer": work.optimizer},
    }, context={"canonical": True}))  # fmt: skip
    if whole.cluster.islands or whole.cluster.links is not None:
        raise InputError("post-training over groups of nodes that differ is not planned",
                         hint="plan on one of the groups: `--exclude` leaves nodes out")  # fmt: skip
    positions = whole.model.max_positions
    if positions and work.output_max is None and work.input + work.output >= positions:
        raise InputError(f"input {work.input} + output {work.output} leave none of the {positions} positions of "
                         f"{whole.model.name} to longer answers", hint="shorter prompts or answers")  # fmt: skip
    if positions and work.output_max is None and work.input + (work.output_p90 or 0) > positions:
        raise InputError(f"input {work.input} + output_p90 {work.output_p90} are more than the {positions} positions "
                         f"of {whole.model.name}", hint="shorter prompts or answers")  # fmt: skip
    models, texts = _models(whole.model, work)
    texts += text_model(request.model)[1]
    # All have an option for the overlap of tensor parallelism, which none of them writes.
    core = target.core if target is not None else {**PLAIN, "tp_comm_overlap": "on"}
    question = Question(as_set(whole, core), work, engine, models, target, core=core,
                        ray_engine=target is not None and target.ray_engine)  # fmt: skip
    if work.lengths_rule is not None:
        check_degrees(question, referenced_model(request.model)[0].tower is not None)
    texts += check_positions(whole.model, question.longest, stretches=True)
    # The target of a training step is the trainer of this one. A framework of post-training builds models by itself, so
    # that it has not the limits of the files of a training run, such as those of Megatron's pretrain_gpt.
    left_out = ("model",) if target is None else ("model", "untrained")
    texts += [notice.text.replace("`--target ", "`--trainer ") for notice in whole.warnings
              if notice.code not in left_out]  # fmt: skip
    return question, tuple(dict.fromkeys(texts))


def _models(policy: ModelSpec, work: RlWorkload) -> tuple[dict[Role, ModelSpec], list[str]]:
    """Role -> model. The reference is a copy of the policy before its first step; critic and reward model give values
    in place of logits, and are one model where one name, or none, is given for both."""
    models: dict[Role, ModelSpec] = {"policy": policy}
    texts, scoring = list[str](), dict[str | None, ModelSpec]()
    named: list[tuple[Role, bool, str | None]] = [
        ("critic", work.algorithm == "ppo", work.critic), ("reward", work.reward_model, work.reward),
    ]  # fmt: skip
    for role, there, name in named:
        if there and name not in scoring:
            model, warnings = (policy, list[str]()) if name is None else text_model(name)
            scoring[name] = valued(model)
            texts += warnings
        if there:
            models[role] = scoring[name]
    if work.has_reference:
        models["reference"] = policy
    return models, texts
