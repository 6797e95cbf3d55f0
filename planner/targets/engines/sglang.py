"""SGLang 0.5.23: `sglang serve`. Options: ServerArgs.add_cli_args. Its tp counts attention data parallelism, too, and
options are spelled out: the short ones are abbreviations of argparse. Its router for disaggregated prefill is the
package sglang-router (sgl-model-gateway, bindings/python: --pd-disaggregation, --prefill URL BOOTSTRAP_PORT)."""

from __future__ import annotations

from .base import BOOTSTRAP_PORT, ROUTER_PORT, DeploymentSetup, EngineSetup, EngineTarget
from .scripts import router_script

# Its prefix cache has no option that starts it: it is on unless --disable-radix-cache stops it.
_CONVERTED = frozenset({"fp8"})
_MASTER_PORT = 20000
# Two batches of an iteration, the messages of one beside the products of the other: what it has of both.
_TECHNIQUES = {
    "nanoflow": (("--enable-two-batch-overlap",),),
    "tokenweave": (("--enable-two-batch-overlap",), ("--enable-flashinfer-allreduce-fusion",)),
}


def _options(setup: EngineSetup) -> list[tuple[str, ...]]:
    pool = setup.pool
    out: list[tuple[str, ...]] = [("--tp-size", str(pool.tp * pool.attention_dp))]
    if pool.pp > 1:
        out.append(("--pp-size", str(pool.pp)))
    if pool.attention_dp > 1:
        out.append(("--attn-dp-size", str(pool.attention_dp)))
    if pool.ep > 1:
        out.append(("--ep-size", str(pool.ep)))
    # The groups share the option (`shares_chunk` of the engine).
    out += [("--chunked-prefill-size", str(pool.chunk_tokens * pool.attention_dp)),
            ("--max-running-requests", str(pool.max_sequences)),
            ("--mem-fraction-static", f"{setup.static_share:.3f}")]  # fmt: skip
    if setup.longest is not None:
        out.append(("--context-length", str(setup.longest)))
    if setup.sees:  # off by default for Gemma 3 and Llama 4 (srt/server_args.py)
        out.append(("--enable-multimodal",))
    if pool.weights in _CONVERTED:
        out.append(("--quantization", pool.weights))
    if pool.kv_cache == "fp8":
        out.append(("--kv-cache-dtype", "fp8_e4m3"))
    if setup.draft_tokens:
        # docs.sglang.io, advanced_features/speculative_decoding: STANDALONE takes a smaller model, EAGLE the module.
        draft = [("--speculative-draft-model-path", setup.draft)] if setup.draft else []
        out += [("--speculative-algorithm", "STANDALONE" if setup.draft else "EAGLE"), *draft,
                ("--speculative-num-steps", str(setup.draft_tokens)), ("--speculative-eagle-topk", "1"),
                ("--speculative-num-draft-tokens", str(setup.draft_tokens + 1))]  # fmt: skip
    out += [option for name in setup.techniques for option in _TECHNIQUES.get(name, ())]
    if pool.role != "both":
        out += [("--disaggregation-mode", pool.role), ("--disaggregation-transfer-backend", setup.transfer)]
    return out


def _script_options(setup: EngineSetup) -> list[str]:
    out = ["--host 0.0.0.0", "--port $port"]
    if setup.pool.role == "prefill":
        out.append(f"--disaggregation-bootstrap-port $(({BOOTSTRAP_PORT} + slot))")
    if setup.nodes > 1:
        out += [f"--nnodes {setup.nodes}", "--node-rank $rank", f"--dist-init-addr $head:{_MASTER_PORT}"]
    return out


def _environment(setup: EngineSetup, service: DeploymentSetup) -> dict[str, str]:
    """A staging buffer where the pools split heads differently (llm-d d5f76180, guides/pd-disaggregation)."""
    return {"SGLANG_DISAGG_STAGING_BUFFER": "1"} if service.unlike_tp else {}


def _router(service: DeploymentSetup) -> dict[str, str]:
    prefill, decode = service.setups
    ports = [BOOTSTRAP_PORT + slot for _, slot in service.addresses(prefill)]
    words = ["exec python3 -m sglang_router.launch_router --pd-disaggregation",
             *(f"--prefill http://{url} {port}" for url, port in zip(service.urls(prefill), ports, strict=True)),
             *(f"--decode http://{url}" for url in service.urls(decode)), "--policy round_robin",
             f"--host 0.0.0.0 --port {ROUTER_PORT}"]  # fmt: skip
    return {"router.sh": router_script(service, words)}


def _refusals(setup: EngineSetup) -> list[str]:
    return []


SGLANG = EngineTarget(
    name="sglang", release="0.5.23", start=("sglang", "serve", "--model-path"), options=_options,
    script_options=_script_options, environment=_environment, router=_router, refusals=_refusals, converts=_CONVERTED,
    techniques=_TECHNIQUES,
)  # fmt: skip
