"""llm-d: Deployments of model servers, and the Helm values of its router. llm-d/llm-d 83bb7c18:
guides/pd-disaggregation/modelserver/gpu/{vllm,sglang}/base, guides/recipes/modelserver/base/single-host (labels, ports,
the sidecar beside instances that decode), guides/{pd-disaggregation,optimized-baseline}/router (plugins); 2267387c:
guides/optimized-baseline/modelserver/gpu/trtllm/base (TensorRT-LLM)."""

from __future__ import annotations

from typing import Any

from ....profiles.io.yaml_syntax import text_of
from .base import DeploymentSetup, EngineSetup, ServingLauncher
from .manifests import config_map, documents, label_notes, node_selector, resource_name

_FILE, _VALUES = "modelserver.yaml", "router.values.yaml"
# The router reads gauges that TensorRT-LLM has since 1.3.0rc12 (NVIDIA/TensorRT-LLM#12545).
_IMAGES = {"vllm": "docker.io/vllm/vllm-openai:v0.32.0", "sglang": "docker.io/lmsysorg/sglang:v0.5.23",
           "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc18"}  # fmt: skip
# 8f5f0733, guides/recipes/modelserver/components/images/routing-sidecar.
_SIDECAR = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.8.0"
_CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}
_PORT, _BEHIND_SIDECAR = 8000, 8200
_FOLDER = "/etc/meshwright"  # of options in a file
# A command takes the place of the image's entrypoint, which sets the paths of libraries; names of pods are too long for
# the host names of its MPI (NVIDIA/TensorRT-LLM#19607).
_TENSORRT_LLM = {"LD_LIBRARY_PATH": "/usr/local/tensorrt/lib:/usr/local/cuda/lib64:/usr/local/nvidia/lib64",
                 "PMIX_HOSTNAME": "trtllm-node"}  # fmt: skip


def _files(service: DeploymentSetup) -> dict[str, str]:
    name = resource_name(service.deployment_id)
    engine = service.engine
    header = (f"{service.deployment_id}. Options of {engine.name} {engine.release}.", f"kubectl apply -f {_FILE}")
    router = (f"helm install {name} $ROUTER_STANDALONE_CHART -f guides/recipes/router/base.values.yaml -f {_VALUES}",)
    configs = {} if engine.config is None else {
        f"{setup.name}.yaml": text_of(engine.config(setup)) for setup in service.setups}  # fmt: skip
    options = [config_map(name, configs)] if configs else []
    return {_FILE: documents(header, *options, *(_deployment(service, setup, name) for setup in service.setups)),
            _VALUES: documents(router, _values(service, name))}  # fmt: skip


def _deployment(service: DeploymentSetup, setup: EngineSetup, name: str) -> dict[str, Any]:
    role = "decode" if setup.pool.role == "both" else setup.pool.role
    labels = {"llm-d.ai/guide": name, "llm-d.ai/role": role, "llm-d.ai/inference-serving": "true"}
    pod: dict[str, Any] = {
        "containers": [_container(service, setup)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "20Gi"}}],
        **node_selector(service, setup),
    }  # fmt: skip
    if service.engine.config is not None:
        pod["volumes"].append({"name": "options", "configMap": {"name": name}})
    if setup.pool.role == "decode":
        pod = {"initContainers": [_sidecar(service)], **pod}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": f"{name}-{setup.name}", "labels": labels},
        "spec": {"replicas": setup.pool.instances, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": pod}},
    }  # fmt: skip


def _container(service: DeploymentSetup, setup: EngineSetup) -> dict[str, Any]:
    engine = service.engine
    port = _BEHIND_SIDECAR if setup.pool.role == "decode" else _PORT
    words = [setup.model, *(word for option in engine.options(setup) for word in option),
             "--host", "0.0.0.0", "--port", str(port)]  # fmt: skip
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if engine.config is not None:
        words += ["--config", f"{_FOLDER}/{setup.name}.yaml"]
        mounts.append({"name": "options", "mountPath": _FOLDER})
    return {
        "name": "modelserver", "image": _IMAGES[engine.name], "command": list(engine.start), "args": words,
        "env": _variables(service, setup), "ports": [{"name": "modelserver", "containerPort": port}],
        "resources": {"limits": {"nvidia.com/gpu": str(setup.gpus)}},
        "startupProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 30, "failureThreshold": 120},
        "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 5},
        "volumeMounts": mounts,
    }  # fmt: skip


def _variables(service: DeploymentSetup, setup: EngineSetup) -> list[dict[str, Any]]:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "llm-d-hf-token", "key": "HF_TOKEN"}}}
    if service.engine.name == "tensorrt-llm":
        return [token, *({"name": name, "value": value} for name, value in _TENSORRT_LLM.items())]
    if not service.disaggregated:
        return [token]
    if service.engine.name == "vllm":  # one instance in a pod: no ports of its own
        return [token, {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
                        "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]  # fmt: skip
    return [token, *({"name": name, "value": value} for name, value in
                     service.engine.environment(setup, service).items())]  # fmt: skip


def _sidecar(service: DeploymentSetup) -> dict[str, Any]:
    """Asks an instance that prefills for the cache of each request before it passes the request on."""
    return {
        "name": "routing-proxy", "image": _SIDECAR, "restartPolicy": "Always",
        "args": [f"--port={_PORT}", f"--kv-connector={_CONNECTORS[service.engine.name]}", "--secure-serving=false"],
        "ports": [{"name": "sidecar", "containerPort": _PORT}],
    }  # fmt: skip


def _values(service: DeploymentSetup, name: str) -> dict[str, Any]:
    return {"router": {
        "extraServicePorts": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}],
        "epp": {"replicas": 1, "pluginsConfigFile": "plugins.yaml",
                "pluginsCustomConfig": {"plugins.yaml": text_of(_plugins(disaggregated=service.disaggregated))}},
        "modelServers": {"matchLabels": {"llm-d.ai/guide": name}},
    }}  # fmt: skip


def _plugins(*, disaggregated: bool) -> dict[str, Any]:
    """Least loaded first, as the plan deals requests evenly; no caches of prefixes."""
    names = ("inflight-load-producer", "token-load-scorer", "max-score-picker")
    load: list[dict[str, Any]] = [{"type": name} for name in names]
    if not disaggregated:
        plugins = load
        profiles = [_profile("default", "token-load-scorer")]
    else:
        decider = {"deciders": {"prefill": "always-disagg-pd-decider"}}
        plugins = [{"type": "always-disagg-pd-decider"}, {"type": "disagg-profile-handler", "parameters": decider},
                   *({"type": name} for name in ("prefill-filter", "decode-filter", "active-request-scorer")), *load]
        profiles = [_profile("prefill", "prefill-filter", "token-load-scorer"),
                    _profile("decode", "decode-filter", "active-request-scorer")]  # fmt: skip
    return {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": plugins,
            "schedulingProfiles": profiles}  # fmt: skip


def _profile(name: str, *plugins: str) -> dict[str, Any]:
    return {"name": name, "plugins": [{"pluginRef": it} for it in (*plugins, "max-score-picker")]}


def _refusals(service: DeploymentSetup) -> list[str]:
    if service.disaggregated and service.engine.name not in _CONNECTORS:
        return [f"{service.engine.name}: llm-d's routing sidecar moves caches of vLLM and SGLang"]
    out = [f"{setup.pool.role}: an instance of {setup.nodes} nodes is no Deployment (llm-d starts it as a "
           "LeaderWorkerSet)" for setup in service.setups if setup.nodes > 1]  # fmt: skip
    if service.disaggregated and service.setups[0].transfer == "mooncake":
        out.append("mooncake: the image of the model server does not have it")
    return out


def _notes(service: DeploymentSetup) -> list[str]:
    notes = [f"install the chart of llm-d's router with {_VALUES}"]
    notes += [f"put the release of your llm-d in place of {_SIDECAR}"] if service.disaggregated else []
    if service.engine.name == "tensorrt-llm":
        notes.append(f"the options are those of {service.engine.release}; llm-d's router needs the newer "
                     f"{_IMAGES['tensorrt-llm']}")  # fmt: skip
    return [*notes, *label_notes(service)]


LLM_D = ServingLauncher(name="llm-d", files=_files, refusals=_refusals, notes=_notes,
                        next_step=lambda service: f"kubectl apply -f {_FILE}")  # fmt: skip
