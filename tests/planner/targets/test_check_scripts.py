"""`check` on broken scripts and manifests of a deployment: each mistake is named, and nothing else."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.targets.engines.check import check_service
from meshwright.planner.targets.engines.check_commands import CheckedService
from meshwright.planner.targets.engines.emit import emit_serving

from .drawn_services import planned

_POOL: dict[str, Any] = {
    "role": "both", "weights": "bf16", "kv_cache": "bf16", "tp": 2, "attention_dp": 1, "pp": 1, "ep": 1,
    "instances": 2, "chunk_tokens": 8192, "max_sequences": 64, "cache_sequences": 100}  # fmt: skip
# Name of a deployment -> its pools: two instances of a node, one of two nodes, one alone, prefill apart from decode.
_POOLS: dict[str, list[dict[str, Any]]] = {
    "two": [{}], "nodes": [{"tp": 16, "instances": 1}], "one": [{"instances": 1}],
    "groups": [{"tp": 1, "attention_dp": 16, "instances": 1}], "apart": [{"role": "prefill"}, {"role": "decode"}],
}  # fmt: skip


@cache
def service(engine: str, name: str) -> ServingPlan:
    plan = planned()
    pools = []
    for changed in _POOLS[name]:
        pool = {**_POOL, **changed}
        pool["gpus"] = pool["instances"] * pool["tp"] * pool["attention_dp"]
        pools.append(plan.best.pools[0].model_copy(update=pool))
    best = plan.best.model_copy(update={"pools": tuple(pools)})
    return plan.model_copy(update={"resolved": {**plan.resolved, "engine": engine}, "candidates": (best,)})


def checked(engine: str, name: str, place: str, before: str, after: str, *, prefix_hit: float = 0.0) -> CheckedService:
    """The result for one file with the first match of `before` replaced. place: `launcher file`."""
    plan, (launcher, file) = service(engine, name), place.split()
    work = {**plan.request["workload"], "prefix_hit": prefix_hit}
    plan = plan.model_copy(update={"request": {**plan.request, "workload": work}})
    files = dict(emit_serving(plan, engine, 1, launcher).files)
    changed = re.sub(before, lambda _: after, files[file], count=1)
    assert changed != files[file]
    return check_service(plan, {**files, file: changed})


SERVE, ROUTER, VALUES = "scripts serve.sh", "scripts router.sh", "llm-d modelserver.yaml"
SEQS, LIMIT = "--max-num-seqs 64", "--max-running-requests 64"
DEVICES = r"export CUDA_VISIBLE_DEVICES=.*"


@pytest.mark.parametrize(("engine", "name", "place", "before", "after", "expected"), [
    # Options that undo a price.
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --enforce-eager", "no CUDA graphs: .*: the plan does not have it"),
    ("sglang", "two", SERVE, LIMIT, f"{LIMIT} --disable-cuda-graph", "no CUDA graphs: .*: the plan does not have it"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --no-enable-chunked-prefill", "prompts in one piece"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --num-gpu-blocks-override 9", "a cache of another size"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --dtype float32", "is `float32`, the plan computes in bf16"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --load-format dummy", "weights that are drawn"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --max-model-len 1024", r"is `1024`: a request has up to 2,\d+ tokens"),
    ("sglang", "two", SERVE, LIMIT, f"{LIMIT} --context-length 1024", "is `1024`: a request has"),
    ("tensorrt-llm", "two", "scripts serve.yaml", "max_batch_size: 64",
     "max_batch_size: 64\nspeculative_config: {decoding_type: NGram}", "speculation: the plan does not have it"),
    ("tensorrt-llm", "two", "scripts serve.yaml", "max_batch_size: 64",
     "max_batch_size: 64\ncontext_parallel_size: 2", "context parallelism: the plan does not have it"),
    ("tensorrt-llm", "two", SERVE, "--backend", "--max_batchsize 4 --backend", "unknown option"),
    ("sglang", "two", SERVE, LIMIT, f"{LIMIT} --disable-decode-cuda-graph", "no CUDA graphs"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --optimization-level 0", "no compilation and no CUDA graphs"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --kv-cache-memory-bytes 1G", "a cache of another size"),
    # The model.
    ("vllm", "two", SERVE, "Llama-3.1-8B", "Llama-3.1-70B", "the plan has `meta-llama/Llama-3.1-8B`"),
    ("sglang", "two", SERVE, "Llama-3.1-8B", "Llama-3.1-70B", "the plan has `meta-llama/Llama-3.1-8B`"),
    ("vllm", "two", "dynamo dynamo.yaml", "Llama-3.1-8B", "Llama-3.1-70B", "the plan has `meta-llama/Llama-3.1-8B`"),
    # Several instances of a node, several nodes of an instance.
    ("vllm", "two", SERVE, DEVICES, "export CUDA_VISIBLE_DEVICES=0", "is `0`, 1 of 2 GPUs of an instance"),
    ("vllm", "two", SERVE, DEVICES, "export CUDA_VISIBLE_DEVICES=0,1", "is `0,1` for all instances of a node"),
    ("vllm", "one", SERVE, DEVICES, "export CUDA_VISIBLE_DEVICES=5,5", "1 of 2 GPUs of an instance"),
    ("vllm", "two", SERVE, DEVICES, "", r"is missing: the plan has `CUDA_VISIBLE_DEVICES="),
    ("vllm", "two", SERVE, r"port=.*", "port=8000", "is `8000` for every argument of the script"),
    ("vllm", "two", SERVE, r"--port \$port", "--port 9000", "is `9000` for every argument of the script"),
    ("vllm", "apart", "scripts prefill.sh", r"SIDE_CHANNEL_PORT=.*", "SIDE_CHANNEL_PORT=5600",
     "is `5600` for every argument of the script"),
    ("vllm", "apart", "scripts prefill.sh", r"export VLLM_NIXL_SIDE_CHANNEL_HOST=.*", "",
     "is missing: the plan has `VLLM_NIXL_SIDE_CHANNEL_HOST="),
    ("sglang", "apart", "scripts prefill.sh", r"bootstrap-port \S+ \+ slot\)\)", "bootstrap-port 8998",
     "is `8998` for every argument of the script"),
    ("sglang", "apart", "scripts decode.sh", "backend nixl", "backend mooncake", "is `mooncake`, the plan has `nixl`"),
    ("vllm", "nodes", SERVE, r" \\\n  --node-rank \$rank", "", "is missing: the plan has `--node-rank 0` and `1`"),
    ("vllm", "nodes", SERVE, r"\$\(\[.*?--headless\)", "--headless", r"is missing: the plan has `\$\(\[ \$rank = 0"),
    ("vllm", "nodes", SERVE, r"--master-addr \$head", "--master-addr localhost", "which every node has"),
    ("sglang", "nodes", SERVE, r"\$head:", "127.0.0.1:", "which every node has"),
    ("tensorrt-llm", "nodes", SERVE, "trtllm-llmapi-launch ", "", "no command of tensorrt-llm"),
    # The router and the names of manifests.
    ("vllm", "apart", ROUTER, r" \\\n  --decode \S+", "", "names 1 instances, the plan has 2"),
    ("vllm", "apart", ROUTER, ":8100", ":8200", "`http://127.0.0.1:8200` stands 2 times"),
    ("sglang", "apart", ROUTER, r" \\\n  --prefill \S+ 8998", "", "names 1 instances, the plan has 2"),
    ("tensorrt-llm", "apart", "scripts router.yaml", r"  - 127.0.0.1:8201\n", "", "names 1 instances, the plan has 2"),
    ("vllm", "apart", VALUES, "role: prefill", "role: decode", "is `decode`, the plan has `prefill`"),
    ("vllm", "apart", VALUES, "- '8200'", "- '8000'", "is `8000`, the plan has `8200`"),
    ("vllm", "two", VALUES, "vllm/vllm-openai", "lmsysorg/sglang", "is an image of sglang, the plan has vllm"),
])  # fmt: skip
def test_a_mistake_is_named(engine: str, name: str, place: str, before: str, after: str, expected: str) -> None:
    (problem,) = checked(engine, name, place, before, after).problems
    assert re.search(expected, problem.message), problem
    assert problem.file == place.split()[1]


def test_the_last_of_a_switch_counts() -> None:
    found = checked("vllm", "two", SERVE, SEQS, f"{SEQS} --enforce-eager --no-enforce-eager")
    assert (found.problems, found.not_judged) == ([], ["--no-enforce-eager"])
    prefixes = "--enable-prefix-caching"
    found = checked("vllm", "two", SERVE, prefixes, f"{prefixes} --no-enable-prefix-caching", prefix_hit=0.5)
    assert {problem.message for problem in found.problems} == {
        "the plan finds parts of prompts in the cache", f"is missing: the plan has `{prefixes}`"}  # fmt: skip


@pytest.mark.parametrize(("engine", "name", "place", "before", "after"), [
    ("vllm", "one", SERVE, DEVICES, "export CUDA_VISIBLE_DEVICES=6,7"),
    ("vllm", "one", SERVE, DEVICES, ""),
    ("vllm", "one", SERVE, r"--port \$port", "--port 9000"),
    ("vllm", "two", SERVE, r"port=\$\(\(8000", "port=$((9000"),
    ("vllm", "apart", "scripts prefill.sh", r"SIDE_CHANNEL_PORT=\$\(\(5600", "SIDE_CHANNEL_PORT=$((6600"),
    ("vllm", "nodes", SERVE, r"--master-addr \$head", "--master-addr 10.0.0.7"),
    ("vllm", "groups", SERVE, "-rpc-port 13345", "-rpc-port 13346"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --dtype bfloat16 --max-model-len 4096"),
    ("vllm", "two", SERVE, SEQS, f"{SEQS} --no-enable-prefix-caching"),
    ("vllm", "two", SERVE, "meta-llama/Llama-3.1-8B", "/models/llama"),
    ("vllm", "two", "dynamo dynamo.yaml", "meta-llama/Llama-3.1-8B", "/models/llama"),
    ("vllm", "two", "dynamo dynamo.yaml", "vllm-runtime:", "our-own:"),
    ("vllm", "two", "dynamo dynamo.yaml", "- --max-num-seqs", "- --enable-multimodal\n          - --max-num-seqs"),
    ("vllm", "two", VALUES, "docker.io/vllm", "registry.example.org/vllm"),
    ("vllm", "apart", VALUES, "- --secure-serving=false", "- --secure-serving=false\n        - --zap-encoder=json"),
])  # fmt: skip
def test_a_users_own_choice_is_in_order(engine: str, name: str, place: str, before: str, after: str) -> None:
    assert checked(engine, name, place, before, after).problems == []


def test_a_router_that_looks_for_another_name_is_named() -> None:
    of = checked("vllm", "two", "llm-d router.values.yaml", "llm-d.ai/guide: .*", "llm-d.ai/guide: other")
    (problem,) = of.problems
    assert re.fullmatch("is `mw-.*` and `other`: the router finds servers by one name", problem.message)


def test_a_cache_of_prefixes_is_stopped_only_where_the_plan_needs_none() -> None:
    of = ("sglang", "two", SERVE, LIMIT, f"{LIMIT} --disable-radix-cache")
    assert checked(*of).problems == []
    (problem,) = checked(*of, prefix_hit=0.5).problems
    assert problem.message == "the plan finds parts of prompts in the cache"
