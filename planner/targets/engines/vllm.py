"""vLLM 0.32: `vllm serve`. Options: its argument parser (vllm.entrypoints.launchers.cli_args.make_arg_parser)."""

from __future__ import annotations

from ....cost_models.serving.pool import MEMORY_SHARE
from .base import EngineTarget, Setup

# Formats that vLLM converts 16-bit weights to as it loads them; others need a checkpoint in them.
_CONVERTED = frozenset({"fp8"})


def _options(setup: Setup) -> list[str]:
    pool, out = setup.pool, ["--port $port"]
    out.append(f"--tensor-parallel-size {pool.tp}")
    if pool.pp > 1:
        out.append(f"--pipeline-parallel-size {pool.pp}")
    if pool.attention_dp > 1:
        out.append(f"--data-parallel-size {pool.attention_dp}")
    if pool.ep > 1:
        out.append("--enable-expert-parallel")
    out += [f"--max-num-batched-tokens {pool.chunk_tokens}", f"--max-num-seqs {setup.group_sequences}",
            f"--gpu-memory-utilization {MEMORY_SHARE:g}"]  # fmt: skip
    if setup.longest is not None:
        out.append(f"--max-model-len {setup.longest}")
    if pool.weights in _CONVERTED:
        out.append(f"--quantization {pool.weights}")
    if pool.kv_cache == "fp8":
        out.append("--kv-cache-dtype fp8")
    if pool.role != "both":
        out.append("--kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}'")
    if setup.nodes > 1:
        out += [f"--nnodes {setup.nodes}", "--node-rank $rank", "--master-addr $head",
                "$([ $rank = 0 ] || echo --headless)"]  # fmt: skip
    return out


def _refusals(setup: Setup) -> list[str]:
    if setup.nodes > 1 and setup.pool.attention_dp > 1:
        return ["attention data parallelism over several nodes: its ranks have addresses of their own"]
    return []


VLLM = EngineTarget(
    name="vllm", release="0.32", start="vllm serve", options=_options, refusals=_refusals, converts=_CONVERTED
)
