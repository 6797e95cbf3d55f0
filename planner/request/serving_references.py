"""The references of a request to serve: the model, the engine, the cluster, the draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.model import ModelSpec
from ...profiles.cluster.load import load_cluster
from ...profiles.model.load import published_in, quantized_in
from ...profiles.stack.engine_file import load_engines
from ...profiles.stack.engines import Engines
from .model_reference import text_model
from .references import together
from .serving import ServingRequest, Weights
from .speculation import MODULE

CHECKPOINT = "the checkpoint"  # origin of a format of weights that a request does not state


@dataclass(frozen=True, kw_only=True)
class ServingReferences:
    """All that a request names."""

    request: ServingRequest  # with the format of its weights
    model: ModelSpec
    warnings: list[str]  # on the model
    engines: Engines
    cluster: ClusterSpec
    draft: ModelSpec | None  # that proposes tokens; None: none, or a module of the model itself

    @classmethod
    def of(cls, request: ServingRequest) -> ServingReferences:
        """Raises the InputError of all that are unknown."""
        work = request.workload
        (model, warnings), engines, cluster, draft = together(request, {
            "model": partial(text_model, request.model, fills=True, sees=work.images is not None),
            "target": partial(_engines, request),
            "cluster": partial(load_cluster, request.cluster, gpu=request.gpu, num_gpus=request.gpus,
                               exclude=request.exclude),
            "workload.speculate": partial(_draft, work.speculate or {}),
        })  # fmt: skip
        return cls(request=_with_weights(request, _published(request, model)), model=model,
                   warnings=[*warnings, *_other_format(model, work.precision)], engines=engines, cluster=cluster,
                   draft=draft)  # fmt: skip


def _published(request: ServingRequest, model: ModelSpec) -> Weights | None:
    """The format of the checkpoint, which engines read from its config where no option names another
    (ModelConfig._verify_quantization of vllm-project/vllm@0052a5b8 and of SGLang 0.5.23)."""
    file = quantized_in(request.model) if isinstance(request.model, str) else None
    published = file or published_in(model.name)
    return next((known for known in get_args(Weights) if known == published), None)


def _with_weights(request: ServingRequest, published: Weights | None) -> ServingRequest:
    """The request with the format of the checkpoint where it states none; bf16 where that is not known."""
    if request.workload.precision is not None:
        return request
    work = request.workload.model_copy(update={"precision": published or "bf16"})
    changed: ServingRequest = request.model_copy(update={"workload": work})
    if published is not None:
        changed._origins = {**request.origins, "workload.precision": CHECKPOINT}
    return changed


def _other_format(model: ModelSpec, weights: str | None) -> list[str]:
    """A warning where a plan prices other weights than those that are published."""
    published = published_in(model.name)
    if published is None or weights in (None, published):
        return []
    return [f"{model.name} is published with weights in {published}, and the plan has them in {weights}: "
            f"`--dtype {published}` prices the published ones"]  # fmt: skip


def _engines(request: ServingRequest) -> Engines:
    """Raises UnknownNameError for an engine that is not known."""
    engines = load_engines(request.stack, request.target)
    engines.of(request.target)
    return engines


def _draft(given: Mapping[str, Any]) -> ModelSpec | None:
    return text_model(given["draft"])[0] if given.get("draft", MODULE) != MODULE else None
