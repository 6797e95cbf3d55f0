"""NVIDIA Dynamo: a DynamoGraphDeployment of nvidia.com/v1beta1. Its operator starts the nodes of an instance, and its
frontend routes requests to both pools. ai-dynamo/dynamo 04521f47: deploy/operator/api/v1beta1 (the types);
components and options as in the v1beta1 examples of its backends (agg, disagg, disagg-multinode)."""

from __future__ import annotations

from typing import Any

from ....profiles.io.yaml_syntax import text_of
from .base import DeploymentSetup, EngineSetup, ServingLauncher
from .manifests import config_map, documents, label_notes, node_selector, resource_name

_FILE = "dynamo.yaml"
# Engine -> its name in Dynamo, and the option before the model (ai-dynamo 1.6.1, dynamo/*/backend_args.py).
_BACKENDS = {"vllm": ("vllm", "--model"), "sglang": ("sglang", "--model-path"),
             "tensorrt-llm": ("trtllm", "--model")}  # fmt: skip
_IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "tensorrt-llm": "tensorrtllm-runtime"}
_IMAGE = "nvcr.io/nvidia/ai-dynamo/{}:1.6.0"
_FOLDER = "/etc/meshwright"


def _files(service: DeploymentSetup) -> dict[str, str]:
    name = resource_name(service.deployment_id)
    engine = service.engine
    configs = {} if engine.config is None else {
        f"{setup.name}.yaml": text_of(engine.config(setup)) for setup in service.setups}  # fmt: skip
    graph = {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": name},
        "spec": {"backendFramework": _BACKENDS[engine.name][0],
                 "components": [_frontend(service), *(_worker(service, setup, name) for setup in service.setups)]},
    }  # fmt: skip
    header = (f"{service.deployment_id}. Options of {engine.name} {engine.release}: the image must hold that release.",
              f"kubectl apply -f {_FILE}")  # fmt: skip
    return {_FILE: documents(header, *([config_map(name, configs)] if configs else []), graph)}


def _image(service: DeploymentSetup) -> str:
    return _IMAGE.format(_IMAGES[service.engine.name])


def _frontend(service: DeploymentSetup) -> dict[str, Any]:
    container = {"name": "main", "image": _image(service)}
    return {"name": "Frontend", "type": "frontend", "replicas": 1,
            "podTemplate": {"spec": {"containers": [container]}}}  # fmt: skip


def _worker(service: DeploymentSetup, setup: EngineSetup, name: str) -> dict[str, Any]:
    pool, (backend, model) = setup.pool, _BACKENDS[service.engine.name]
    container: dict[str, Any] = {
        "name": "main", "image": _image(service), "command": ["python3", "-m", f"dynamo.{backend}"],
        "args": [model, setup.model, *_arguments(service, setup)],
        "envFrom": [{"secretRef": {"name": "hf-token-secret"}}],
        "resources": {"limits": {"nvidia.com/gpu": str(min(setup.gpus, pool.gpus_per_node))}},
    }  # fmt: skip
    pod: dict[str, Any] = {"containers": [container], **node_selector(service, setup)}
    if service.engine.config is not None:
        container["volumeMounts"] = [{"name": "options", "mountPath": _FOLDER, "readOnly": True}]
        pod["volumes"] = [{"name": "options", "configMap": {"name": name}}]
    nodes = {"multinode": {"nodeCount": setup.nodes}} if setup.nodes > 1 else {}
    kind = "worker" if pool.role == "both" else pool.role
    return {"name": setup.name, "type": kind, "replicas": pool.instances, **nodes, "podTemplate": {"spec": pod}}


def _arguments(service: DeploymentSetup, setup: EngineSetup) -> list[str]:
    """The options of a worker. SGLang's own include the mode; TensorRT-LLM's are in the file."""
    engine, role = service.engine, setup.pool.role
    mode = [] if role == "both" or engine.name == "sglang" else ["--disaggregation-mode", role]
    if engine.config is not None:
        return ["--extra-engine-args", f"{_FOLDER}/{setup.name}.yaml", *mode]
    return [*(word for option in engine.options(setup) for word in option), *mode]


def _refusals(service: DeploymentSetup) -> list[str]:
    out = [f"{setup.pool.role}: attention data parallelism over several nodes has options of each node, which only "
           "scripts have" for setup in service.setups
           if service.engine.name == "vllm" and setup.nodes > 1 and setup.pool.attention_dp > 1]  # fmt: skip
    return [*out, *(f"mooncake with {service.engine.name}: Dynamo's images move caches by NIXL"
                    for setup in service.setups[:1]
                    if service.disaggregated and setup.transfer == "mooncake")]  # fmt: skip


def _notes(service: DeploymentSetup) -> list[str]:
    image = f"put an image of Dynamo with {service.engine.name} {service.engine.release} in place of {_image(service)}"
    return [image, *label_notes(service)]


DYNAMO = ServingLauncher(name="dynamo", files=_files, refusals=_refusals, notes=_notes,
                         next_step=lambda service: f"kubectl apply -f {_FILE}")  # fmt: skip
