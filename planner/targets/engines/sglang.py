"""SGLang 0.5.23: `sglang serve`. Options: ServerArgs.add_cli_args. Its tp counts attention data parallelism, too, and
options are spelled out: the short ones are abbreviations of argparse."""

from __future__ import annotations

from .base import EngineTarget, Setup

_CONVERTED = frozenset({"fp8"})
_MASTER_PORT = 20000


def _options(setup: Setup) -> list[str]:
    pool, out = setup.pool, ["--port $port"]
    out.append(f"--tp-size {pool.tp * pool.attention_dp}")
    if pool.pp > 1:
        out.append(f"--pp-size {pool.pp}")
    if pool.attention_dp > 1:
        out.append(f"--attn-dp-size {pool.attention_dp}")
    if pool.ep > 1:
        out.append(f"--ep-size {pool.ep}")
    out += [f"--chunked-prefill-size {pool.chunk_tokens}", f"--max-running-requests {pool.max_sequences}",
            f"--mem-fraction-static {setup.static_share:.3f}"]  # fmt: skip
    if setup.longest is not None:
        out.append(f"--context-length {setup.longest}")
    if pool.weights in _CONVERTED:
        out.append(f"--quantization {pool.weights}")
    if pool.kv_cache == "fp8":
        out.append("--kv-cache-dtype fp8_e4m3")
    if pool.role != "both":
        out += [f"--disaggregation-mode {pool.role}", "--disaggregation-transfer-backend nixl"]
    if setup.nodes > 1:
        out += [f"--nnodes {setup.nodes}", "--node-rank $rank", f"--dist-init-addr $head:{_MASTER_PORT}"]
    return out


def _refusals(setup: Setup) -> list[str]:
    return []


SGLANG = EngineTarget(
    name="sglang", release="0.5.23", start="sglang serve --model-path", options=_options, refusals=_refusals,
    converts=_CONVERTED,
)  # fmt: skip
