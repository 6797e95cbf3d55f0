"""vLLM 0.32: `vllm serve`. Options: its argument parser (vllm.entrypoints.launchers.cli_args.make_arg_parser). Its
router for disaggregated prefill: vllm-project/router 811db12b, src/main.rs."""

from __future__ import annotations

import json

from ....cost_models.serving.pool import MEMORY_SHARE
from .base import BOOTSTRAP_PORT, ROUTER_PORT, DeploymentSetup, EngineSetup, EngineTarget
from .scripts import router_script

# Formats that vLLM converts 16-bit weights to as it loads them; others need a checkpoint in them.
_CONVERTED = frozenset({"fp8"})
# vllm/envs.py: the port of the first rank of an instance; each rank takes the next.
_NIXL_PORT = {"prefill": 5600, "decode": 5700}
_RPC_PORT = 13345  # of the ranks of attention data parallelism on several nodes


def kv_transfer(setup: EngineSetup) -> str:
    """The connector of an instance, as JSON (vllm/config/kv_transfer.py)."""
    if setup.transfer == "mooncake":
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[setup.pool.role]
        return json.dumps({"kv_connector": "MooncakeConnector", "kv_role": role}, separators=(",", ":"))
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, separators=(",", ":"))


def _options(setup: EngineSetup) -> list[tuple[str, ...]]:
    pool = setup.pool
    out: list[tuple[str, ...]] = [("--tensor-parallel-size", str(pool.tp))]
    if pool.pp > 1:
        out.append(("--pipeline-parallel-size", str(pool.pp)))
    if pool.attention_dp > 1:
        out.append(("--data-parallel-size", str(pool.attention_dp)))
    if pool.ep > 1:
        out.append(("--enable-expert-parallel",))
    out += [("--max-num-batched-tokens", str(pool.chunk_tokens)), ("--max-num-seqs", str(setup.group_sequences)),
            ("--gpu-memory-utilization", f"{MEMORY_SHARE:g}")]  # fmt: skip
    if setup.draft_tokens:
        # vllm/config/speculative.py: SpeculativeMethod, `draft_model` and `mtp`.
        method = {"method": "draft_model", "model": setup.draft} if setup.draft else {"method": "mtp"}
        config = json.dumps({**method, "num_speculative_tokens": setup.draft_tokens}, separators=(",", ":"))
        out.append(("--speculative-config", config))
    if setup.reuses_prefixes:
        out.append(("--enable-prefix-caching",))
    if setup.longest is not None:
        out.append(("--max-model-len", str(setup.longest)))
    if pool.weights in _CONVERTED:
        out.append(("--quantization", pool.weights))
    if pool.kv_cache == "fp8":
        out.append(("--kv-cache-dtype", "fp8"))
    if pool.role != "both":
        out.append(("--kv-transfer-config", kv_transfer(setup)))
    return out


def _script_options(setup: EngineSetup) -> list[str]:
    if setup.nodes > 1 and setup.pool.attention_dp > 1:
        # vLLM's guide on data parallel deployment: the first node has the server and the first ranks.
        ranks = setup.pool.gpus_per_node // (setup.pool.tp * setup.pool.pp)
        return ["--port $port", f"--data-parallel-size-local {ranks}", "--data-parallel-address $head",
                f"--data-parallel-rpc-port {_RPC_PORT}",
                f"$([ $rank = 0 ] || echo --headless --data-parallel-start-rank $((rank * {ranks})))"]
    nodes = [f"--nnodes {setup.nodes}", "--node-rank $rank", "--master-addr $head",
             "$([ $rank = 0 ] || echo --headless)"]  # fmt: skip
    return ["--port $port", *(nodes if setup.nodes > 1 else [])]


def _environment(setup: EngineSetup, service: DeploymentSetup) -> dict[str, str]:
    if setup.transfer == "mooncake":
        return {"VLLM_MOONCAKE_BOOTSTRAP_PORT": f"$(({BOOTSTRAP_PORT} + slot))"}
    host = "127.0.0.1" if service.one_node else "${VLLM_NIXL_SIDE_CHANNEL_HOST:-$(hostname -I | cut -d ' ' -f 1)}"
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": f"$(({_NIXL_PORT[setup.pool.role]} + slot * {setup.gpus}))"}  # fmt: skip


def _cpu_environment(setup: EngineSetup) -> dict[str, str]:
    """vllm/envs.py: GiB of the cache of a rank, and the cores of each, which a script lists for the sockets from
    $gpu on."""
    sockets = f"$(seq $gpu $((gpu + {setup.gpus - 1})))"
    return {"VLLM_CPU_KVCACHE_SPACE": str(int(setup.pool.cache_bytes / 2**30)),
            "VLLM_CPU_OMP_THREADS_BIND": f"$(for socket in {sockets}; do cores $socket; done | paste -sd '|')"}


def _router(service: DeploymentSetup) -> dict[str, str]:
    prefill, decode = service.setups
    ports = [f" {BOOTSTRAP_PORT + slot}" if prefill.transfer == "mooncake" else ""
             for _, slot in service.addresses(prefill)]  # fmt: skip
    words = ["exec vllm-router --vllm-pd-disaggregation", f"--kv-connector {prefill.transfer}",
             *(f"--prefill http://{url}{port}" for url, port in zip(service.urls(prefill), ports, strict=True)),
             *(f"--decode http://{url}" for url in service.urls(decode)), "--policy round_robin",
             f"--host 0.0.0.0 --port {ROUTER_PORT}"]  # fmt: skip
    return {"router.sh": router_script(service, words)}


def _refusals(setup: EngineSetup) -> list[str]:
    pool = setup.pool
    if setup.nodes > 1 and pool.attention_dp > 1 and pool.tp * pool.pp > pool.gpus_per_node:
        return [f"attention data parallelism over several nodes, of ranks of {pool.tp * pool.pp} GPUs: a node holds "
                f"{pool.gpus_per_node}"]  # fmt: skip
    return []


VLLM = EngineTarget(
    name="vllm", release="0.32", start=("vllm", "serve"), options=_options, script_options=_script_options,
    environment=_environment, router=_router, refusals=_refusals, converts=_CONVERTED,
    cpu_environment=_cpu_environment,
)  # fmt: skip
