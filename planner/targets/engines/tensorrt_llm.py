"""TensorRT-LLM 1.2: `trtllm-serve` with the YAML of its LLM API. Options: tensorrt_llm/commands/serve.py; keys of the
YAML: TorchLlmArgs, KvCacheConfig and CacheTransceiverConfig of tensorrt_llm/llmapi/llm_args.py, which refuse others.
The YAML of the router: extract_disagg_cfg of tensorrt_llm/llmapi/disagg_utils.py."""

from __future__ import annotations

from typing import Any

from ....profiles.io.yaml_syntax import text_of
from .base import ROUTER_PORT, DeploymentSetup, EngineSetup, EngineTarget
from .scripts import router_script


def _config(setup: EngineSetup) -> dict[str, Any]:
    pool = setup.pool
    ranks = pool.tp * pool.attention_dp
    cache: dict[str, Any] = {"free_gpu_memory_fraction": round(setup.free_share, 3)}
    if setup.reuses_prefixes:
        cache["enable_block_reuse"] = True
    if pool.kv_cache == "fp8":
        cache["dtype"] = "fp8"
    out: dict[str, Any] = {
        "tensor_parallel_size": ranks, "pipeline_parallel_size": pool.pp, "gpus_per_node": pool.gpus_per_node,
        "max_num_tokens": pool.chunk_tokens, "max_batch_size": setup.group_sequences, "enable_chunked_prefill": True,
        "kv_cache_config": cache,
    }  # fmt: skip
    if pool.attention_dp > 1:
        out["enable_attention_dp"] = True
    if pool.ep > 1:
        out |= {"moe_expert_parallel_size": pool.ep, "moe_tensor_parallel_size": ranks // pool.ep}
    if setup.draft_tokens:
        out["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": setup.draft_tokens}
    if setup.longest is not None:
        out["max_seq_len"] = setup.longest
    if pool.role == "prefill":
        out["disable_overlap_scheduler"] = True  # instances that only prefill do not have it
    if pool.role != "both":
        longest = max(pool.chunk_tokens, setup.prompt)
        out["cache_transceiver_config"] = {"backend": setup.transfer.upper(), "max_tokens_in_buffer": longest}
    return out


def _options(setup: EngineSetup) -> list[tuple[str, ...]]:
    return [("--backend", "pytorch")]


def _script_options(setup: EngineSetup) -> list[str]:
    return ["--host 0.0.0.0", "--port $port", f'--config "$here/{setup.name}.yaml"']


def _environment(setup: EngineSetup, service: DeploymentSetup) -> dict[str, str]:
    return {}


def _router(service: DeploymentSetup) -> dict[str, str]:
    prefill, decode = (service.urls(setup) for setup in service.setups)
    config = {
        "hostname": "0.0.0.0", "port": ROUTER_PORT, "backend": "pytorch",
        "context_servers": {"num_instances": len(prefill), "urls": prefill},
        "generation_servers": {"num_instances": len(decode), "urls": decode},
    }  # fmt: skip
    words = ['exec trtllm-serve disaggregated -c "$(dirname "$0")/router.yaml"']
    return {"router.sh": router_script(service, words), "router.yaml": text_of(config)}


def _refusals(setup: EngineSetup) -> list[str]:
    if setup.draft is not None:
        return [f"speculation by {setup.draft}: only modules of the model (`mtp`) are written for this engine"]
    if setup.pool.attention_dp > 1 and setup.pool.tp > 1:
        return [f"attention_dp {setup.pool.attention_dp} with tp {setup.pool.tp}: enable_attention_dp splits attention "
                "over all ranks or none"]  # fmt: skip
    return []


TENSORRT_LLM = EngineTarget(
    name="tensorrt-llm", release="1.2", start=("trtllm-serve", "serve"), options=_options,
    script_options=_script_options, environment=_environment, router=_router, refusals=_refusals, config=_config,
    transfers=("nixl",), by_mpi=True,
)  # fmt: skip
