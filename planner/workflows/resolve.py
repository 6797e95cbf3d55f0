"""From a request to post-train to the problem that is searched: models, cluster, work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import valued
from ...errors import InputError
from ...profiles.cluster.load import load_cluster
from ...profiles.stack.engines import shipped_engines
from ..request.lengths import check_positions
from ..request.model_reference import referenced_model, text_model
from ..request.references import together
from ..request.reinforcement import RlRequest, RlWorkload
from ..request.resolve import resolve
from ..request.schema import Request
from ..targets.post_training.base import RlTarget, set_by
from ..targets.post_training.registry import rl_target
from ..targets.registry import target as trainer_of
from .answer_degrees import check as check_degrees
from .graph import Role, check
from .problem import RlProblem, as_set


def rl_problem_of(request: RlRequest) -> tuple[RlProblem, tuple[str, ...]]:
    """The models and the cluster behind a request, and warnings. Raises InputError."""
    loaded = _references(request)
    target: RlTarget | None = loaded.get("target")
    work = _as_run(request.workload, target)
    check(work)
    engine = request.engine or (target.engines[0] if target is not None else "vllm")
    trainer = request.trainer or (target.trainer if target is not None else "megatron")
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
    models, texts = _models(whole.model, work, loaded)
    texts += loaded["model"][1]
    switches = set_by(target, trainer)
    rl = RlProblem(as_set(whole, switches), work, engine, models, target, switches=switches,
                        ray_engine=target is not None and target.ray_engine)  # fmt: skip
    if work.lengths_rule is not None:
        check_degrees(rl, referenced_model(request.model)[0].tower is not None)
    texts += check_positions(whole.model, rl.longest)
    # The target of a training step is the trainer of this one. A framework of post-training builds models by itself, so
    # that it has not the limits of the files of a training run, such as those of Megatron's pretrain_gpt.
    left_out = ("model",) if target is None else ("model", "untrained")
    texts += [notice.text.replace("`--target ", "`--trainer ") for notice in whole.warnings
              if notice.code not in left_out]  # fmt: skip
    return rl, tuple(dict.fromkeys(texts))


def _as_run(work: RlWorkload, target: RlTarget | None) -> RlWorkload:
    """The work with the scores that a framework takes before the first update, unless the request sets them."""
    if target is None or work.old_logprobs is not None or work.algorithm == "dpo":
        return work
    return work.model_copy(update={"old_logprobs": target.scores_first(work)})


def _references(request: RlRequest) -> dict[str, Any]:
    """Field -> what it refers to. Raises the InputError of all that are unknown."""
    work = request.workload
    given: Mapping[str, tuple[str | None, Callable[[str], Any]]] = {
        "target": (request.target, rl_target), "trainer": (request.trainer, trainer_of),
        "engine": (request.engine, shipped_engines().of),
        "workload.critic": (work.critic if work.algorithm == "ppo" else None, text_model),
        "workload.reward": (work.reward if work.reward_model else None, text_model),
    }  # fmt: skip
    loads: dict[str, Callable[[], Any]] = {
        "model": partial(text_model, request.model),
        "cluster": partial(load_cluster, request.cluster, gpu=request.gpu, num_gpus=request.gpus,
                           exclude=request.exclude),
        **{field: partial(load, name) for field, (name, load) in given.items() if name is not None},
    }  # fmt: skip
    return dict(zip(loads, together(request, loads), strict=True))


def _models(
    policy: ModelSpec, work: RlWorkload, loaded: Mapping[str, Any]
) -> tuple[dict[Role, ModelSpec], list[str]]:  # fmt: skip
    """Role -> model. loaded: field -> the model that it names, and warnings. The reference is a copy of the policy
    before its first step; critic and reward model give values in place of logits, and are one model where one name, or
    none, is given for both."""
    models: dict[Role, ModelSpec] = {"policy": policy}
    texts, scoring = list[str](), dict[str | None, ModelSpec]()
    named: list[tuple[Role, bool, str | None]] = [
        ("critic", work.algorithm == "ppo", work.critic), ("reward", work.reward_model, work.reward),
    ]  # fmt: skip
    for role, there, name in named:
        if there and name not in scoring:
            model, warnings = loaded.get(f"workload.{role}", (policy, []))
            scoring[name] = valued(model)
            texts += warnings
        if there:
            models[role] = scoring[name]
    if work.has_reference:
        models["reference"] = policy
    return models, texts
