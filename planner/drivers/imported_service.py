"""A team's own command of vLLM or SGLang, priced, and the deployment of the same GPUs that serves more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError, NoFeasibleLayoutError
from ...profiles.cluster.load import load_cluster
from ...profiles.io.reader import read_text
from ...profiles.stack.engines import shipped_engines
from ..document.serving_plan import ServingPlan
from ..request.load import load_any_request
from ..request.model_reference import referenced_model
from ..request.serving import ServingRequest
from ..targets.engines.command_line import CommandLine, ReadInstance, instance_of, read_command
from ..targets.model_names import known_model
from .serving import plan_serving

# The end of a checkpoint's name that states the format of its weights.
_FORMAT = re.compile(r"-(fp8|nvfp4|fp4|mxfp4|awq|gptq)\b.*$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ImportedService:
    """A command and the plans of its instances and of the best ones; both carry as much as the GPUs can."""

    command: CommandLine
    instance: ReadInstance | None  # None: gaps leave it open
    theirs: ServingPlan | None  # None: gaps, or no load keeps the promises
    best: ServingPlan | None
    why: str = ""  # no plan of theirs, or no best one
    assumed: tuple[str, ...] = ()


def import_service(
    engine: str, paths: Sequence[Path], given: Mapping[str, Any], script_arguments: Sequence[str] = ()
) -> ImportedService:  # fmt: skip
    """The command of `engine` in `paths` on the cluster and under the promises of `given` (flat fields of a request).

    Raises InputError: no command, wrong values, no model, no GPUs, no lengths of prompts and answers.
    """
    command = read_command(engine, {str(path): read_text(path) for path in paths}, script_arguments)
    if command.gaps:
        return ImportedService(command=command, instance=None, theirs=None, best=None)
    fields = {name: value for name, value in given.items() if value is not None and name not in ("rate", "concurrency")}
    assumed: list[str] = []
    fields["model"] = fields.get("model") or _model(command)
    instance = instance_of(command, is_moe=referenced_model(fields["model"])[0].is_moe)
    fields |= {"workload": "serve", "target": engine, "precision": instance.weights or "bf16",
               "kv_cache": instance.cache or "auto"}  # fmt: skip
    if instance.weights is None:
        assumed.append("weights in bf16: the command names no other format")
    fix = {**instance.fix}
    if "chunk_tokens" not in fix:
        fix["chunk_tokens"] = shipped_engines().of(engine).chunk_tokens
        assumed.append(f"chunks of {fix['chunk_tokens']:,} prompt tokens: the default")
    fix["replicas"] = _instances(fields, instance)
    assumed.append(f"instances: {fix['replicas']}, as many as the GPUs hold")
    theirs, why = _planned({**fields, "fix": fix}, instance.max_sequences)
    best, none = _planned(fields)
    return ImportedService(command=command, instance=instance, theirs=theirs, best=best, why=why or none,
                           assumed=tuple(assumed))  # fmt: skip


def _planned(fields: Mapping[str, Any], max_sequences: int | None = None) -> tuple[ServingPlan | None, str]:
    """The plan, or why there is none. max_sequences: as in `plan_serving`."""
    request = load_any_request(None, fields)
    if not isinstance(request, ServingRequest):
        raise InputError("the workload is not one to serve", hint="take `workload.kind` out of the environment")
    try:
        return plan_serving(request, max_sequences), ""
    except NoFeasibleLayoutError as error:
        return None, error.message


def _instances(fields: Mapping[str, Any], instance: ReadInstance) -> int:
    """As many as the cluster has GPUs for."""
    if fields.get("cluster") is None and fields.get("gpu") is None:
        raise InputError("a command does not name its GPUs", hint="add `--cluster 8xh100-sxm-80gb`")
    cluster = load_cluster(fields.get("cluster"), gpu=fields.get("gpu"), num_gpus=fields.get("gpus"),
                           exclude=fields.get("exclude") or ())  # fmt: skip
    fix = instance.fix
    gpus = fix["tp"] * fix["pp"] * fix["attention_dp"]
    if gpus > cluster.num_gpus:
        degrees = f"tp {fix['tp']} x pp {fix['pp']} x attention_dp {fix['attention_dp']}"
        raise InputError(f"an instance has {degrees} = {gpus} GPUs, the cluster {cluster.num_gpus}",
                         hint="name a larger cluster")  # fmt: skip
    return cluster.num_gpus // gpus


def _model(command: CommandLine) -> str:
    name = str(command.facts.get("model", ""))
    if not name:
        raise InputError("the command does not name its model", hint="add `--model NAME` (`show models`)")
    if (spec := known_model(_FORMAT.sub("", name))) is None:
        raise InputError(f"the model {name} is not in the catalogue",
                         hint="add `--model FOLDER` with its config.json")  # fmt: skip
    return str(spec.name)

