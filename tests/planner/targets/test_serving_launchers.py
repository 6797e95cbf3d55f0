"""Prefill and decode apart, TensorRT-LLM, Dynamo and llm-d: files that say what the plan says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.planner.targets.engines.manifests import resource_name
from meshwright.planner.targets.engines.registry import ENGINE_TARGETS
from meshwright.profiles.io.yaml_syntax import text_of

from meshwright.errors import UnknownNameError, UnsupportedError

from ...snapshots import ROOT, run_here
from .drawn_services import drawn, for_engine, planned
from .test_engines import known, options

# Read in TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py (TorchLlmArgs and the classes of its blocks).
TENSORRT_LLM_KEYS = {
    "": {"tensor_parallel_size", "pipeline_parallel_size", "gpus_per_node", "max_num_tokens", "max_batch_size",
         "max_seq_len", "enable_chunked_prefill", "enable_attention_dp", "moe_expert_parallel_size",
         "moe_tensor_parallel_size", "disable_overlap_scheduler", "kv_cache_config", "cache_transceiver_config"},
    "kv_cache_config": {"free_gpu_memory_fraction", "dtype", "tokens_per_block", "enable_block_reuse"},
    "cache_transceiver_config": {"backend", "max_tokens_in_buffer", "kv_transfer_timeout_ms"},
}  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    """A planned deployment, and two with the same instances apart: 4 x tp1 + 2 x tp2 and 4 x tp1 + 4 x tp1."""
    plan = planned()
    best = plan.best
    first = best.pools[0].model_copy(update={"role": "prefill", "instances": 4, "gpus": 4})
    others = [first.model_copy(update={"role": "decode", "tp": tp, "instances": 4 // tp}) for tp in (2, 1)]
    pairs = [best.model_copy(update={"choice": number, "pools": (first, other)}) for number, other in
             enumerate(others, 2)]  # fmt: skip
    return plan.model_copy(update={"candidates": (best, *pairs)})


def apart(plan: ServingPlan, *, unlike: bool) -> int:
    """The first deployment of separate pools, with unlike or equal tp."""
    return next(it.choice for it in plan.candidates
                if len(it.pools) == 2 and (it.pools[0].tp != it.pools[1].tp) is unlike)  # fmt: skip


def resized(plan: ServingPlan, **update: Any) -> ServingPlan:
    """The plan with another pool in its first deployment."""
    best = plan.candidates[0]
    pool = best.pools[0].model_copy(update=update)
    return plan.model_copy(update={"candidates": (best.model_copy(update={"pools": (pool,)}),)})


def ran(files: dict[str, str], script: str, folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The words of the command that a script starts, and its variables, by programs that print theirs."""
    for program in ("vllm", "sglang", "trtllm-serve", "trtllm-llmapi-launch", "vllm-router", "python3"):
        (folder / program).write_text(f'#!/bin/sh\necho {program} "$@" "#" gpus=$CUDA_VISIBLE_DEVICES '
                                      'nixl=$VLLM_NIXL_SIDE_CHANNEL_HOST:$VLLM_NIXL_SIDE_CHANNEL_PORT '
                                      'mooncake=$VLLM_MOONCAKE_BOOTSTRAP_PORT '
                                      'staging=$SGLANG_DISAGG_STAGING_BUFFER\n')  # fmt: skip
        (folder / program).chmod(0o755)
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    done = subprocess.run(["bash", script, *arguments], cwd=folder, env=environment, text=True, capture_output=True,
                          check=True)  # fmt: skip
    return shlex.split(done.stdout.replace("{", "'{").replace("}", "}'"))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_options_of_drawn_plans_are_in_the_recorded_list(engine: str, plan: ServingPlan) -> None:
    for one in drawn(plan, 100):
        for name, text in emit_serving(for_engine(one, engine), engine).files.items():
            if name.endswith(".sh") and name != "router.sh":
                assert set(options(text)) <= known(engine)


def test_pools_on_a_node_have_their_own_devices_ports_and_router(plan: ServingPlan, tmp_path: Path) -> None:
    choice = apart(plan, unlike=True)
    prefill, decode = plan.candidates[choice - 1].pools
    files = emit_serving(plan, "vllm", choice).files
    first, second = (ran(files, f"{name}.sh", tmp_path, "0") for name in ("prefill", "decode"))
    assert f"gpus={','.join(map(str, range(prefill.tp * prefill.pp)))}" in first
    assert f"gpus={','.join(map(str, range(prefill.gpus, prefill.gpus + decode.tp * decode.pp)))}" in second
    assert ("8100" in first, "8200" in second) == (True, True)
    assert "nixl=127.0.0.1:5600" in first
    router = ran(files, "router.sh", tmp_path)
    assert router.count("--prefill") == prefill.instances
    assert router.count("--decode") == decode.instances
    assert "http://127.0.0.1:8200" in router


def test_sglang_has_bootstrap_ports_that_its_router_knows(plan: ServingPlan, tmp_path: Path) -> None:
    choice = apart(plan, unlike=True)
    files = emit_serving(for_engine(plan, "sglang"), "sglang", choice).files
    first = ran(files, "prefill.sh", tmp_path, "0")
    assert first[first.index("--disaggregation-bootstrap-port") + 1] == "8998"
    assert first[first.index("--host") + 1] == "0.0.0.0"
    assert "staging=1" in first
    assert {word for word in first if word.startswith("--")} <= known("sglang")
    router = ran(files, "router.sh", tmp_path)
    assert router[router.index("http://127.0.0.1:8100") + 1] == "8998"


def test_mooncake_needs_equal_tp(plan: ServingPlan, tmp_path: Path) -> None:
    for engine in ("vllm", "sglang"):
        with pytest.raises(UnsupportedError, match=r"mooncake: prefill has tp \d and decode tp \d"):
            emit_serving(for_engine(plan, engine), engine, apart(plan, unlike=True), transfer="mooncake")
    files = emit_serving(plan, "vllm", apart(plan, unlike=False), transfer="mooncake").files
    assert '"kv_connector":"MooncakeConnector","kv_role":"kv_producer"' in files["prefill.sh"]
    assert '"kv_role":"kv_consumer"' in files["decode.sh"]
    assert "mooncake=8998" in ran(files, "prefill.sh", tmp_path, "0")
    router = ran(files, "router.sh", tmp_path)
    assert router[router.index("--kv-connector") + 1] == "mooncake"
    assert router[router.index("http://127.0.0.1:8100") + 1] == "8998"
    with pytest.raises(UnsupportedError, match="transfers caches by nixl"):
        emit_serving(for_engine(plan, "tensorrt-llm"), "tensorrt-llm", apart(plan, unlike=False), transfer="mooncake")
    with pytest.raises(UnknownNameError, match="transfer"):
        emit_serving(plan, "vllm", transfer="nixel")


def test_tensorrt_llm_has_its_options_in_a_file(plan: ServingPlan, tmp_path: Path) -> None:
    choice = apart(plan, unlike=True)
    prefill, decode = plan.candidates[choice - 1].pools
    files = emit_serving(for_engine(plan, "tensorrt-llm"), "tensorrt-llm", choice).files
    first, second, router = (yaml.safe_load(files[f"{name}.yaml"]) for name in ("prefill", "decode", "router"))
    for config in (first, second):
        assert set(config) <= TENSORRT_LLM_KEYS[""]
        for block in ("kv_cache_config", "cache_transceiver_config"):
            assert set(config[block]) <= TENSORRT_LLM_KEYS[block]
    assert (first["tensor_parallel_size"], second["tensor_parallel_size"]) == (prefill.tp, decode.tp)
    assert first["max_num_tokens"] == prefill.chunk_tokens
    assert (first.get("disable_overlap_scheduler"), second.get("disable_overlap_scheduler")) == (True, None)
    assert first["cache_transceiver_config"] == {"backend": "NIXL", "max_tokens_in_buffer": prefill.chunk_tokens}
    assert router["context_servers"]["num_instances"] == len(router["context_servers"]["urls"]) == prefill.instances
    assert router["generation_servers"]["urls"][0] == "127.0.0.1:8200"
    words = ran(files, "decode.sh", tmp_path, "0")
    assert words[:2] == ["trtllm-serve", "serve"]
    assert words[words.index("--config") + 1].endswith("/decode.yaml")


def test_the_cache_of_tensorrt_llm_is_that_of_the_plan(plan: ServingPlan) -> None:
    pool = plan.candidates[0].pools[0]
    files = emit_serving(for_engine(plan, "tensorrt-llm"), "tensorrt-llm").files
    share = yaml.safe_load(files["serve.yaml"])["kv_cache_config"]["free_gpu_memory_fraction"]
    memory = plan.resolved["cluster"]["groups"][0]["gpu"]["memory_bytes"]
    assert share * (memory - pool.weights_bytes) == pytest.approx(pool.cache_bytes, rel=2e-3)


def test_tensorrt_llm_splits_attention_over_all_ranks_or_none(plan: ServingPlan) -> None:
    plan = for_engine(plan, "tensorrt-llm")
    whole = yaml.safe_load(emit_serving(resized(plan, tp=1, attention_dp=8, gpus=8, instances=1, max_sequences=64),
                                        "tensorrt-llm").files["serve.yaml"])  # fmt: skip
    assert (whole["tensor_parallel_size"], whole["enable_attention_dp"], whole["max_batch_size"]) == (8, True, 8)
    with pytest.raises(UnsupportedError, match="attention_dp 4 with tp 2"):
        emit_serving(resized(plan, tp=2, attention_dp=4, gpus=8, instances=1), "tensorrt-llm")


def test_mpi_starts_tensorrt_llm_over_nodes(plan: ServingPlan, tmp_path: Path) -> None:
    two = resized(for_engine(plan, "tensorrt-llm"), tp=8, pp=2, gpus=16, instances=1)
    files = emit_serving(two, "tensorrt-llm").files
    assert "mpirun -n 16 --map-by ppr:8:node" in files["serve.sh"]
    assert ran(files, "serve.sh", tmp_path)[:3] == ["trtllm-llmapi-launch", "trtllm-serve", "serve"]


@pytest.mark.parametrize("engine", list(ENGINE_TARGETS))
def test_dynamo_has_a_component_for_each_pool(engine: str, plan: ServingPlan) -> None:
    choice = apart(plan, unlike=True)
    pools = plan.candidates[choice - 1].pools
    *configs, graph = yaml.safe_load_all(emit_serving(for_engine(plan, engine), engine, choice, "dynamo")
                                         .files["dynamo.yaml"])  # fmt: skip
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    frontend, *workers = graph["spec"]["components"]
    assert frontend["type"] == "frontend"
    assert [(it["type"], it["replicas"]) for it in workers] == [(pool.role, pool.instances) for pool in pools]
    for worker, pool in zip(workers, pools, strict=True):
        container = worker["podTemplate"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(pool.tp * pool.pp)
        assert container["args"].count("--disaggregation-mode") == 1
        assert container["args"][container["args"].index("--disaggregation-mode") + 1] == pool.role
        if engine != "tensorrt-llm":
            assert set(filter(lambda it: it.startswith("--"), container["args"])) <= known(engine) | {
                "--disaggregation-mode"}  # fmt: skip
    if engine == "tensorrt-llm":
        path = workers[0]["podTemplate"]["spec"]["containers"][0]["args"][3]
        assert yaml.safe_load(configs[0]["data"][Path(path).name])["tensor_parallel_size"] == pools[0].tp


def test_dynamo_starts_the_nodes_of_an_instance(plan: ServingPlan) -> None:
    two = resized(plan, tp=8, pp=2, gpus=32, instances=2)
    worker = list(yaml.safe_load_all(emit_serving(two, "vllm", 1, "dynamo").files["dynamo.yaml"]))[-1]["spec"][
        "components"][1]  # fmt: skip
    assert (worker["type"], worker["replicas"], worker["multinode"]) == ("worker", 2, {"nodeCount": 2})
    assert worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_llm_d_routes_by_labels_to_each_pool(engine: str, plan: ServingPlan) -> None:
    choice = apart(plan, unlike=True)
    files = emit_serving(for_engine(plan, engine), engine, choice, "llm-d").files
    prefill, decode = yaml.safe_load_all(files["modelserver.yaml"])
    router = yaml.safe_load(files["router.values.yaml"])["router"]
    plugins = yaml.safe_load(router["epp"]["pluginsCustomConfig"]["plugins.yaml"])
    declared = {plugin["type"] for plugin in plugins["plugins"]}
    assert {it["pluginRef"] for profile in plugins["schedulingProfiles"] for it in profile["plugins"]} <= declared
    for deployment, pool in zip((prefill, decode), plan.candidates[choice - 1].pools, strict=True):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert router["modelServers"]["matchLabels"].items() <= labels.items()
        assert (labels["llm-d.ai/role"], deployment["spec"]["replicas"]) == (pool.role, pool.instances)
        words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert {word for word in words if word.startswith("--")} <= known(engine)
    ports = [it["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] for it in (prefill, decode)]
    assert ports == [8000, 8200]
    assert "initContainers" not in prefill["spec"]["template"]["spec"]
    assert "--port=8000" in decode["spec"]["template"]["spec"]["initContainers"][0]["args"]


def test_llm_d_gives_tensorrt_llm_its_options_in_a_file(plan: ServingPlan) -> None:
    files = emit_serving(for_engine(plan, "tensorrt-llm"), "tensorrt-llm", 1, "llm-d").files
    options, deployment = yaml.safe_load_all(files["modelserver.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    file = container["args"][container["args"].index("--config") + 1]
    folder = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "options")
    name = next(volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == "options")
    assert name == options["metadata"]["name"]
    pool = plan.candidates[0].pools[0]
    config = yaml.safe_load(options["data"][file.removeprefix(f"{folder}/")])
    assert config["tensor_parallel_size"] == pool.tp * pool.attention_dp
    assert container["command"] == ["trtllm-serve", "serve"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(pool.gpus // pool.instances)


def test_llm_d_refuses_what_it_has_no_model_server_for(plan: ServingPlan) -> None:
    together = list(yaml.safe_load_all(emit_serving(plan, "vllm", 1, "llm-d").files["modelserver.yaml"]))
    assert len(together) == 1
    with pytest.raises(UnsupportedError, match="vLLM and SGLang"):
        emit_serving(for_engine(plan, "tensorrt-llm"), "tensorrt-llm", apart(plan, unlike=False), "llm-d")
    with pytest.raises(UnsupportedError, match="2 nodes is no Deployment"):
        emit_serving(resized(plan, tp=8, pp=2, gpus=16, instances=1), "vllm", 1, "llm-d")
    for launcher in ("llm-d", "dynamo"):
        with pytest.raises(UnsupportedError, match="mooncake"):
            emit_serving(plan, "vllm", apart(plan, unlike=False), launcher, "mooncake")
    with pytest.raises(UnknownNameError, match="launcher of serving plans"):
        emit_serving(plan, "vllm", 1, "slurm")


def test_yaml_reads_back() -> None:
    value = {"text": "no", "n": 3, "f": 0.5, "set": True, "empty": [], "none": {}, "port": "8000", "colon": "a: b",
             "list": [{"a": 1, "b": ["x", "1"]}, 2], "block": "a: 1\nb:\n  - x\n", "url": "http://a:1/b",
             "hash": "a #b"}  # fmt: skip
    assert yaml.safe_load(text_of(value)) == value


def test_the_command_takes_launcher_and_transfer(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(planned().to_json())
    written = run_here("emit", "p.json", "--launcher", "dynamo", "-d", "run", cwd=tmp_path)
    assert written.code == 0, written.err
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"dynamo.yaml", "plan.json"}
    training = ROOT / "examples/launch/dense/megatron/plan.json"
    assert run_here("emit", str(training), "--transfer", "nixl", cwd=tmp_path).code == 2
    assert run_here("emit", str(training), "--launcher", "dynamo", cwd=tmp_path).code == 2


def test_names_of_graphs_are_names_of_services() -> None:
    """A letter first (before Kubernetes 1.36), and 45 characters with the component (ai-dynamo/dynamo issue 5449)."""
    name = resource_name("12 x tp1-pp4-adp4-ep4 + 34 x tp1-pp4-adp4-ep4")
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name)
    assert len(f"{name}-frontend") <= 45
