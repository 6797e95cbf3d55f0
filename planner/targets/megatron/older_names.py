"""Renames options of older Megatron-LM and of Megatron-DeepSpeed to those of today's pretrain_gpt.py.

Sources: Megatron-LM v2.5 to core_v0.8.0 and deepspeedai/Megatron-DeepSpeed 3.0, megatron/arguments.py and
megatron/training/arguments.py; bigscience-workshop/Megatron-DeepSpeed for its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from ..argv import Arguments
from ..option_lists import Option
from . import (
    deepspeed_experts,
    deepspeed_stages,
    encoders,
    engine_json,
    layer_inputs,
    llama_forks,
    megablocks,
    mindspeed,
    multimodal,
    older_hybrids,
    other_releases,
    retrieval,
    vocabulary,
    zero_bubble,
)

FLAGS = (
    layer_inputs.OLDER, layer_inputs.OF_DEEPSPEED, layer_inputs.ON_HOST, "--checkpoint-activations",
    "--no-position-embedding",
    "--fp8-hybrid", "--fp8-e4m3", "--deepspeed", "--no-pipeline-parallel", "--cpu-optimizer",
    "--deepspeed-activation-checkpointing",
    "--embed-layernorm", "--enable-expert-tensor-parallelism", "--disable-moe-token-dropping",
    "--multi-query-attention", "--moe-layer-recompute", "--use-llama2-rotary-position-embeddings",
)  # fmt: skip
NUMBERS = (
    "--model-parallel-size", "--batch-size", "--checkpoint-num-layers", "--activations-checkpoint-num-layers",
    "--num-key-value-heads", "--pad-vocab-size-to", "--topk", "--moe-expert-parallel-size", "--expert-interval",
    "--ds-sequence-parallel-size", "--rotary-position-embeddings-theta", "--n-head-kv", "--intermediate-size",
    "--virtual-pipeline-model-parallel-size",
)  # fmt: skip
REALS = ("--layernorm-epsilon", "--moe-loss-coeff", "--moe-train-capacity-factor", "--zero-stage")
WORDS = ("--task", "--layernorm-type", "--activation-func-type", "--activations-checkpoint-method", "--glu-activation",
         "--attention-head-type", "--mlp-type", deepspeed_stages.METHOD, engine_json.CONFIG)  # fmt: skip
_REPLICAS = "--data-parallel-size-arg"  # Supercomputing-System-AI-Lab/Megatron-DeepSpeed
_BALANCE, _GRANULARITY = "--moe-router-load-balancing-type", "--recompute-granularity"
# core_v0.9.0, transformer_config.py: alltoall_seq is the exchange of today with tensor parallelism apart.
_DISPATCHER, _DISPATCHERS = "--moe-token-dispatcher-type", ("allgather", "alltoall", "flex")
_BALANCES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none")
OLDER: Mapping[str, Option] = {
    **{name: Option(name, "flag") for name in FLAGS}, **{name: Option(name, "int") for name in NUMBERS},
    **{name: Option(name, "float") for name in REALS}, **{name: Option(name, "str") for name in WORDS},
    "--num-experts": Option("--num-experts", "int", many=True),
    **megablocks.OPTIONS,
    **mindspeed.OPTIONS,
    **llama_forks.OPTIONS,
    **multimodal.OPTIONS,
    **older_hybrids.OPTIONS,
    **other_releases.OPTIONS,
    **retrieval.OPTIONS,
    **vocabulary.OPTIONS,
    # Forks accept more values than a release. The entry of an option checks each value.
    "--normalization": Option("--normalization", "str"), "--position-embedding-type":
        Option("--position-embedding-type", "str"),
    "--recompute-modules": Option("--recompute-modules", "str", many=True), _GRANULARITY: Option(_GRANULARITY, "str"),
    "--optimizer": Option("--optimizer", "str"), "--tokenizer-type": Option("--tokenizer-type", "str"),
    _BALANCE: Option(_BALANCE, "str", many=True), _REPLICAS: Option(_REPLICAS, "int"),
    _DISPATCHER: Option(_DISPATCHER, "str"),
}  # fmt: skip
# Older name -> today's, with the same value.
_RENAMED = {
    "--model-parallel-size": "--tensor-model-parallel-size", "--batch-size": "--micro-batch-size",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--layernorm-epsilon": "--norm-epsilon", "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size", "--moe-loss-coeff": "--moe-aux-loss-coeff",
    "--layernorm-type": "--normalization",  # of Habana, as --activation-func-type
    "--n-head-kv": "--num-key-value-heads", "--intermediate-size": "--ffn-hidden-size",
    "--use-llama2-rotary-position-embeddings": "--use-rotary-position-embeddings",
    "--rotary-position-embeddings-theta": "--rotary-base",
    "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",  # MindSpeed-MM
    "--pad-vocab-size-to": "--padded-vocab-size", "--cpu-optimizer": "--optimizer-cpu-offload",
}  # fmt: skip
# Size of the states, fp32 by default.
_STATES = re.compile(r"--(megatron-fsdp-)?main-(grads|params)-dtype")


def modernise(arguments: Arguments) -> None:
    """Rewrites the settings. An option without a counterpart becomes a gap."""
    given = arguments.settings
    for old, new in _RENAMED.items():
        if old in given:
            arguments.replace(old, {new: given[old]})
    for read in _READERS:
        read(arguments)


def _recompute(arguments: Arguments) -> None:
    """Renames --checkpoint-activations, which recomputes every layer, or blocks by the method."""
    given = arguments.settings
    if given.get(_GRANULARITY) == "mlp":  # HabanaAI/Megatron-DeepSpeed, megatron/model/transformer.py, checkpoint_mlp
        arguments.replace(_GRANULARITY, {_GRANULARITY: "selective", "--recompute-modules": ["mlp"]})
    elif given.get(_GRANULARITY, "full") not in ("full", "selective"):
        arguments.gap(_GRANULARITY, f"`{given.pop(_GRANULARITY)}` is none of full, selective")
        arguments.open_fields.add("recompute")
    older = ("--checkpoint-activations", "--activations-checkpoint-method")
    if any(doubt.field in older for doubt in arguments.unclear):
        arguments.open_fields.add("recompute")
    method = given.get("--activations-checkpoint-method")
    if method is not None or given.get("--checkpoint-activations"):
        old = "--activations-checkpoint-method" if method is not None else "--checkpoint-activations"
        arguments.replace(old, {"--recompute-granularity": "full", "--recompute-method": method or "uniform"})
    given.pop("--checkpoint-activations", None)
    layer_inputs.modernise(arguments)
    given.pop("--deepspeed-activation-checkpointing", None)
    if given.pop("--moe-layer-recompute", None) and "--recompute-granularity" not in given:
        given |= {"--recompute-granularity": "selective", "--recompute-modules": ["moe"]}
    if given.get("--recompute-granularity") == "full":
        given.setdefault("--recompute-method", "uniform")


def _names(arguments: Arguments) -> None:
    """Renames values that forks spell differently, and drops states of the usual size."""
    given = arguments.settings
    for name in [name for name, value in given.items() if _STATES.fullmatch(name) and value == "fp32"]:
        del given[name]
    if given.get(_DISPATCHER) == "alltoall_seq":
        given[_DISPATCHER] = "alltoall"
    elif given.get(_DISPATCHER, "flex") not in _DISPATCHERS:
        arguments.gap(_DISPATCHER, f"`{given.pop(_DISPATCHER)}` is none of {', '.join(_DISPATCHERS)}")
    if given.get(_DISPATCHER) == "flex":
        given.setdefault("--moe-flex-dispatcher-backend", "deepep")  # its default
    if given.get("--attention-backend") == "auto":  # its default
        given.pop("--attention-backend")
    if other := [kind for kind in given.get(_BALANCE, ()) if kind not in _BALANCES]:
        arguments.notes.append(f"{_BALANCE} {' '.join(other)}: a fork's loss, priced without")
    if str(given.get("--optimizer")).lower() in ("adamw", "fusedadam", "fusedadamw"):
        given["--optimizer"] = "adam"
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(str(given.get("--normalization", "")).lower())
    if norm:
        given["--normalization"] = norm
    elif "--normalization" in given:
        arguments.gap("--normalization", f"`{given.pop('--normalization')}` is no norm of a plan")
    fp8 = next((value for name, value in (("--fp8-hybrid", "hybrid"), ("--fp8-e4m3", "e4m3")) if given.get(name)), None)
    if fp8:
        arguments.replace("--fp8-hybrid" if fp8 == "hybrid" else "--fp8-e4m3", {"--fp8-format": fp8})
    for name, plain in (("--glu-activation", None), ("--activation-func-type", "gelu")):
        activation = given.get(name)
        if activation in ("swiglu", plain):
            arguments.replace(name, {"--swiglu": True} if activation == "swiglu" else {})
        elif activation is not None:
            arguments.gap(name, f"`{given.pop(name)}` has no counterpart in a plan")


def _positions(arguments: Arguments) -> None:
    given = arguments.settings
    kind = given.get("--position-embedding-type")
    name = "--position-embedding-type"
    if given.get("--no-position-embedding"):
        rotary = given.get("--use-rotary-position-embeddings") or kind == "rope"
        given.pop("--no-position-embedding")
        given[name] = "rope" if rotary else "none"
    elif kind == "alibi":
        given[name] = "none"
        arguments.notes.append(f"{name} alibi: priced as attention without positions")
    elif kind in ("rotary", "absolute"):
        given[name] = {"rotary": "rope", "absolute": "learned_absolute"}[kind]
    elif kind not in (None, "learned_absolute", "rope", "yarn", "none"):
        arguments.gap(name, f"`{given.pop(name)}` has no counterpart in a plan")


def _attention(arguments: Arguments) -> None:
    given = arguments.settings
    heads = given.get("--num-attention-heads")
    if (groups := given.get("--num-key-value-heads")) is not None:
        new = {"--group-query-attention": True, "--num-query-groups": groups} if groups != heads else {}
        arguments.replace("--num-key-value-heads", new)
    for name, value in (("--attention-head-type", "multiquery"), ("--multi-query-attention", True)):
        if given.get(name) == value:
            arguments.replace(name, {"--group-query-attention": True, "--num-query-groups": 1})
    given.pop("--attention-head-type", None)


def _sequence(arguments: Arguments) -> None:
    """Ulysses of DeepSpeed, under the names of context parallelism, and the older name of the length of a decoder."""
    length = arguments.settings.get("--encoder-seq-length")
    if length and "--seq-length" not in arguments.settings and not multimodal.sees(arguments.program):
        arguments.replace("--encoder-seq-length", {"--seq-length": length})
    size = arguments.settings.get("--ds-sequence-parallel-size", 1)
    if size > 1:
        arguments.replace("--ds-sequence-parallel-size", {"--context-parallel-size": size, "--cp-comm-type": ["a2a"]})
    arguments.settings.pop("--ds-sequence-parallel-size", None)


def _replicas(arguments: Arguments) -> None:
    """The replicas that a fork of Megatron-DeepSpeed states. In a release they follow from the ranks."""
    given, ranks = arguments.settings, arguments.ranks
    sizes = [given.get(f"--{kind}-parallel-size", 1) for kind in ("tensor-model", "pipeline-model", "context")]
    stated = math.prod((given.get(_REPLICAS, 1), *sizes))
    world = ranks.get("world") or ranks.get("num_nodes", 1) * ranks.get("gpus_per_node", stated)
    if _REPLICAS in given and world == stated:
        given.pop(_REPLICAS)
        ranks.setdefault("world", stated)


def _batch(arguments: Arguments) -> None:
    if "--rampup-batch-size" in arguments.settings:
        arguments.notes.append("--rampup-batch-size: priced with the batch that it ends at")


_READERS: tuple[Callable[[Arguments], None], ...] = (
    other_releases.modernise,
    mindspeed.modernise, megablocks.modernise, llama_forks.modernise, older_hybrids.modernise, zero_bubble.modernise,
    encoders.modernise, multimodal.modernise, _recompute, _names, _positions, _attention, deepspeed_experts.modernise,
    deepspeed_stages.modernise, _sequence,
    _replicas, engine_json.modernise, _batch,
    vocabulary.modernise,
)  # fmt: skip
