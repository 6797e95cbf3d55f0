"""A team's own command of vLLM or SGLang, priced, and the deployment of the same GPUs that serves more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cost_models.specs.cluster import ClusterSpec
from ...errors import InputError, NoFeasibleLayoutError
from ...profiles.cluster.load import load_cluster
from ...profiles.io.reader import read_text
from ..document.serving_plan import ROLES, ServingPlan
from ..request.load import load_any_request
from ..request.model_reference import referenced_model
from ..request.serving import ServingRequest
from ..targets.engines.command_line import CommandLine, ReadInstance, instance_of
from ..targets.engines.pool_commands import ReadService, read_service
from ..targets.model_names import known_model, no_model
from .serving import plan_serving

# The end of a checkpoint's name that states the format of its weights.
_FORMAT = re.compile(r"-(fp8|nvfp4|fp4|mxfp4|awq|gptq)\b.*$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ImportedService:
    """Commands and the plans of their instances and of the best ones; both carry as much as the GPUs can."""

    service: ReadService
    fix: Mapping[str, int] | None  # as a request has it; None: gaps leave it open
    theirs: ServingPlan | None  # None: gaps, or no load keeps the promises
    best: ServingPlan | None
    why: str = ""  # no plan of theirs, or no best one
    assumed: tuple[str, ...] = ()


def import_service(
    engine: str, paths: Sequence[Path], given: Mapping[str, Any], script_arguments: Sequence[str] = ()
) -> ImportedService:  # fmt: skip
    """The commands of `engine` in `paths` on the cluster and under the promises of `given` (flat fields of a request).

    Raises InputError: no command, wrong values, no model, no GPUs, no lengths of prompts and answers.
    """
    service = read_service(engine, {str(path): read_text(path) for path in paths}, script_arguments)
    if service.gaps:
        return ImportedService(service=service, fix=None, theirs=None, best=None)
    fields = {name: value for name, value in given.items() if value is not None and name not in ("rate", "concurrency")}
    fields["model"] = fields.get("model") or _model(service.commands)
    is_moe = referenced_model(fields["model"])[0].is_moe
    pools = [instance_of(command, is_moe=is_moe) for command in service.commands]
    weights, cache = (_only(name, [getattr(pool, name) for pool in pools]) for name in ("weights", "cache"))
    fields |= {"workload": "serve", "target": engine, "precision": weights or "bf16", "kv_cache": cache or "auto"}
    assumed = list(service.assumed)
    if weights is None:
        assumed.append("weights in bf16: the command names no other format")
    if "chunk_tokens" not in service.commands[0].facts:
        assumed.append(f"chunks of {pools[0].fix['chunk_tokens']:,} prompt tokens: the default")
    if len(pools) > 1 and pools[0].max_sequences not in (None, pools[1].max_sequences):
        assumed.append(f"the limit of {pools[0].max_sequences} sequences of the pool that prefills does not bind")
    cluster = _cluster(fields)
    for pool in pools:
        _check_size(pool, cluster.num_gpus)
    fix = _fix(pools, service.instances, cluster.num_gpus)
    theirs, why = _planned({**fields, "fix": fix}, pools[-1].max_sequences)
    best, none = _planned(fields)
    if "replicas" in fix:
        assumed.append(f"instances: {fix['replicas']}, as many as the GPUs hold")
    elif theirs is not None and not service.instances:
        assumed.append(f"instances: {theirs.best.deployment_id}, the numbers that carry most")
    return ImportedService(service=service, fix=fix, theirs=theirs, best=best, why=why or none, assumed=tuple(assumed))


def _fix(pools: Sequence[ReadInstance], servers: Sequence[int], num_gpus: int) -> dict[str, int]:
    """The axes of a request. servers: of each pool; empty: not stated."""
    first, *others = (pool.fix for pool in pools)
    if not others:
        return {**first, "replicas": num_gpus // pools[0].gpus}
    fix = {f"{role}.{axis}": value for role, axes in zip(ROLES, (first, *others), strict=True)
           for axis, value in axes.items()}  # fmt: skip
    return fix | {f"{role}.replicas": number * pool.replicas
                  for role, pool, number in zip(ROLES, pools, servers, strict=False) if number}  # fmt: skip


def _only(name: str, formats: Sequence[str | None]) -> str | None:
    """The number format that all pools have."""
    if len(set(formats)) > 1:
        stated = " and ".join(value or "none" for value in formats)
        raise InputError(f"the pools that prefill and decode have {name} in {stated}: plans have one format",
                         hint="give the same options to both")  # fmt: skip
    return formats[0]


def _planned(fields: Mapping[str, Any], max_sequences: int | None = None) -> tuple[ServingPlan | None, str]:
    """The plan, or why there is none. max_sequences: as in `plan_serving`."""
    request = load_any_request(None, fields)
    if not isinstance(request, ServingRequest):
        raise InputError("the workload is not one to serve", hint="take `workload.kind` out of the environment")
    try:
        return plan_serving(request, max_sequences), ""
    except NoFeasibleLayoutError as error:
        return None, error.message


def _cluster(fields: Mapping[str, Any]) -> ClusterSpec:
    if fields.get("cluster") is None and fields.get("gpu") is None:
        raise InputError("a command does not name its GPUs", hint="add `--cluster 8xh100-sxm-80gb`")
    return load_cluster(fields.get("cluster"), gpu=fields.get("gpu"), num_gpus=fields.get("gpus"),
                        exclude=fields.get("exclude") or ())  # fmt: skip


def _check_size(pool: ReadInstance, num_gpus: int) -> None:
    """Raises InputError for an instance that is larger than the cluster."""
    if pool.gpus > num_gpus:
        degrees = f"tp {pool.fix['tp']} x pp {pool.fix['pp']} x attention_dp {pool.fix['attention_dp']}"
        raise InputError(f"an instance has {degrees} = {pool.gpus} GPUs, the cluster {num_gpus}",
                         hint="name a larger cluster")  # fmt: skip


def _model(commands: Sequence[CommandLine]) -> str:
    name, *others = dict.fromkeys(str(command.facts.get("model", "")) for command in commands)
    if others:
        raise InputError(f"the pools serve {name} and {others[0]}: a plan has one model", hint="add `--model NAME`")
    if not name:
        raise InputError("the command does not name its model", hint="add `--model NAME` (`show models`)")
    if (spec := known_model(_FORMAT.sub("", name))) is None:
        raise no_model(name)
    return str(spec.name)

