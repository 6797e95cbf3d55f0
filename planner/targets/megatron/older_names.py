"""Renames options of older Megatron-LM and of Megatron-DeepSpeed to those of today's pretrain_gpt.py.

Sources: Megatron-LM v2.5 to core_v0.8.0 and deepspeedai/Megatron-DeepSpeed 3.0, megatron/arguments.py and
megatron/training/arguments.py; bigscience-workshop/Megatron-DeepSpeed for its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..cpu_offload import FACT
from ..deepspeed.compression import without_rounding
from ..deepspeed.target import CONFIG as DEEPSPEED
from ..option_lists import Option, option_list
from ..options import Settings
from ..reading import read_facts
from . import (
    encoders,
    layer_inputs,
    llama_forks,
    megablocks,
    multimodal,
    older_hybrids,
    retrieval,
    vocabulary,
    zero_bubble,
)
from .layer_patterns import pattern_text

# The option that names DeepSpeed's JSON.
_CONFIG = "--deepspeed_config"
FLAGS = (
    layer_inputs.OLDER, layer_inputs.OF_DEEPSPEED, "--checkpoint-activations", "--no-position-embedding",
    "--fp8-hybrid", "--fp8-e4m3", "--deepspeed", "--no-pipeline-parallel", "--cpu-optimizer",
    "--deepspeed-activation-checkpointing",
    "--embed-layernorm", "--enable-expert-tensor-parallelism", "--disable-moe-token-dropping",
    "--multi-query-attention", "--moe-layer-recompute", "--use-llama2-rotary-position-embeddings",
)  # fmt: skip
NUMBERS = (
    "--model-parallel-size", "--batch-size", "--checkpoint-num-layers", "--activations-checkpoint-num-layers",
    "--num-key-value-heads", "--pad-vocab-size-to", "--topk", "--moe-expert-parallel-size", "--expert-interval",
    "--ds-sequence-parallel-size", "--n-head-kv", "--intermediate-size",
)  # fmt: skip
REALS = ("--layernorm-epsilon", "--moe-loss-coeff", "--moe-train-capacity-factor", "--zero-stage")
WORDS = ("--task", "--activations-checkpoint-method", "--glu-activation", "--attention-head-type", "--mlp-type",
         "--pp-partition-method", _CONFIG)  # fmt: skip
OLDER: Mapping[str, Option] = {
    **{name: Option(name, "flag") for name in FLAGS}, **{name: Option(name, "int") for name in NUMBERS},
    **{name: Option(name, "float") for name in REALS}, **{name: Option(name, "str") for name in WORDS},
    "--num-experts": Option("--num-experts", "int", many=True),
    **megablocks.OPTIONS,
    **llama_forks.OPTIONS,
    **multimodal.OPTIONS,
    **older_hybrids.OPTIONS,
    **retrieval.OPTIONS,
    # Forks accept more values than a release. The entry of an option checks each value.
    "--normalization": Option("--normalization", "str"), "--position-embedding-type":
        Option("--position-embedding-type", "str"),
    "--recompute-modules": Option("--recompute-modules", "str", many=True),
    "--optimizer": Option("--optimizer", "str"), "--tokenizer-type": Option("--tokenizer-type", "str"),
}  # fmt: skip
# Older name -> today's, with the same value.
_RENAMED = {
    "--model-parallel-size": "--tensor-model-parallel-size", "--batch-size": "--micro-batch-size",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--layernorm-epsilon": "--norm-epsilon", "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size", "--moe-loss-coeff": "--moe-aux-loss-coeff",
    "--n-head-kv": "--num-key-value-heads", "--intermediate-size": "--ffn-hidden-size",
    "--use-llama2-rotary-position-embeddings": "--use-rotary-position-embeddings",
    "--pad-vocab-size-to": "--padded-vocab-size", "--cpu-optimizer": "--optimizer-cpu-offload",
}  # fmt: skip
# Size of the states, fp32 by default.
_STATES = re.compile(r"--(megatron-fsdp-)?main-(grads|params)-dtype")
# ZeRO stage -> the options of today that shard the same states.
_SHARDED: Mapping[int, Settings] = {
    0: {}, 1: {"--use-distributed-optimizer": True},
    2: {"--use-distributed-optimizer": True, "--use-megatron-fsdp": True,
        "--data-parallel-sharding-strategy": "optim_grads"},
    3: {"--use-distributed-optimizer": True, "--use-megatron-fsdp": True,
        "--data-parallel-sharding-strategy": "optim_grads_params"},
}  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Rewrites the settings. An option without a counterpart becomes a gap."""
    given = arguments.settings
    for old, new in _RENAMED.items():
        if old in given:
            _put(arguments, old, {new: given[old]})
    for read in _READERS:
        read(arguments)


def _put(arguments: Arguments, old: str, new: Settings) -> None:
    """Replaces an option by new ones on its line. A value given under a new name stays."""
    line, file = arguments.lines.get(old, 0), arguments.files.get(old, "")
    arguments.settings.pop(old, None)
    for name, value in new.items():
        arguments.settings.setdefault(name, value)
        arguments.lines.setdefault(name, line)
        arguments.files.setdefault(name, file)


def _gap(arguments: Arguments, name: str, text: str) -> None:
    arguments.gaps.append(FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0),
                                       field=name))  # fmt: skip


def _recompute(arguments: Arguments) -> None:
    """Renames --checkpoint-activations, which recomputes every layer, or blocks by the method."""
    given = arguments.settings
    method = given.get("--activations-checkpoint-method")
    if method is not None or given.get("--checkpoint-activations"):
        old = "--activations-checkpoint-method" if method is not None else "--checkpoint-activations"
        _put(arguments, old, {"--recompute-granularity": "full", "--recompute-method": method or "uniform"})
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
    if given.get("--attention-backend") == "auto":  # its default
        given.pop("--attention-backend")
    if str(given.get("--optimizer")).lower() in ("adamw", "fusedadam", "fusedadamw"):
        given["--optimizer"] = "adam"
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(str(given.get("--normalization", "")).lower())
    if norm:
        given["--normalization"] = norm
    elif "--normalization" in given:
        _gap(arguments, "--normalization", f"`{given.pop('--normalization')}` is no norm of a plan")
    fp8 = next((value for name, value in (("--fp8-hybrid", "hybrid"), ("--fp8-e4m3", "e4m3")) if given.get(name)), None)
    if fp8:
        _put(arguments, "--fp8-hybrid" if fp8 == "hybrid" else "--fp8-e4m3", {"--fp8-format": fp8})
    activation = given.get("--glu-activation")
    if activation == "swiglu":
        _put(arguments, "--glu-activation", {"--swiglu": True})
    elif activation is not None:
        _gap(arguments, "--glu-activation", f"`{given.pop('--glu-activation')}` has no counterpart in a plan")


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
        _gap(arguments, name, f"`{given.pop(name)}` has no counterpart in a plan")


def _attention(arguments: Arguments) -> None:
    given = arguments.settings
    heads = given.get("--num-attention-heads")
    if (groups := given.get("--num-key-value-heads")) is not None:
        new = {"--group-query-attention": True, "--num-query-groups": groups} if groups != heads else {}
        _put(arguments, "--num-key-value-heads", new)
    for name, value in (("--attention-head-type", "multiquery"), ("--multi-query-attention", True)):
        if given.get(name) == value:
            _put(arguments, name, {"--group-query-attention": True, "--num-query-groups": 1})
    given.pop("--attention-head-type", None)


def _experts(arguments: Arguments) -> None:
    """Experts of Megatron-DeepSpeed: a list of counts, 1 for a dense block, in every other layer."""
    given = arguments.settings
    counts = given.get("--num-experts")
    if isinstance(counts, list):
        given["--num-experts"] = counts[0]
        if len(set(counts)) > 1:
            _gap(arguments, "--num-experts", "layers with different numbers of experts")
    of_deepspeed = bool(given.get("--deepspeed"))
    if given.get("--num-experts", 1) < 2 and (of_deepspeed or given.get("--num-experts") == 1):
        for name in ("--num-experts", "--expert-model-parallel-size", "--moe-aux-loss-coeff", "--expert-interval",
                     "--moe-train-capacity-factor", "--moe-router-topk", "--enable-expert-tensor-parallelism",
                     "--disable-moe-token-dropping", "--mlp-type"):  # fmt: skip
            given.pop(name, None)
        return
    if not of_deepspeed:
        given.pop("--mlp-type", None)
        return
    every = given.pop("--expert-interval", 2)
    layers = given.get("--num-layers", 0)
    if every > 1 and layers:
        given["--moe-layer-freq"] = pattern_text([int((index + 1) % every == 0) for index in range(layers)])
    given.setdefault("--moe-router-topk", 1)
    tensor = given.pop("--enable-expert-tensor-parallelism", False)
    given.setdefault("--expert-tensor-parallel-size", given.get("--tensor-model-parallel-size", 1) if tensor else 1)
    capacity = given.pop("--moe-train-capacity-factor", 1.0)
    if not given.pop("--disable-moe-token-dropping", False):
        given.setdefault("--moe-expert-capacity-factor", capacity)
    if given.pop("--mlp-type", "standard") != "standard":
        _gap(arguments, "--mlp-type", "residual experts: a dense block beside the routed one")


def _stages(arguments: Arguments) -> None:
    """Megatron-DeepSpeed's own pipeline: whether it is used, and the partition of its layers."""
    given = arguments.settings
    if given.pop("--no-pipeline-parallel", None):
        given["--pipeline-model-parallel-size"] = 1
    method = str(given.pop("--pp-partition-method", "")).strip("'\"")
    if given.get("--pipeline-model-parallel-size", 1) == 1 or not method:
        return
    if method == "type:transformer|embedding":
        given |= {"--account-for-embedding-in-pipeline-split": True, "--account-for-loss-in-pipeline-split": True}
    elif method not in ("type:transformer", "uniform", "parameters"):
        _gap(arguments, "--pp-partition-method", f"`{method}` is no division of a plan")


def _sequence(arguments: Arguments) -> None:
    """Ulysses of DeepSpeed, under the names of context parallelism."""
    size = arguments.settings.get("--ds-sequence-parallel-size", 1)
    if size > 1:
        _put(arguments, "--ds-sequence-parallel-size", {"--context-parallel-size": size, "--cp-comm-type": ["a2a"]})
    arguments.settings.pop("--ds-sequence-parallel-size", None)


def _zero(arguments: Arguments) -> None:
    """The ZeRO stage, from the JSON of --deepspeed_config if it is given, or else from --zero-stage."""
    given = arguments.settings
    deepspeed, stage = given.pop("--deepspeed", None), given.pop("--zero-stage", None)
    config = str(given.pop(_CONFIG, ""))
    arguments.unclear = [doubt for doubt in arguments.unclear if doubt.field != _CONFIG]
    if not deepspeed:
        return
    if (path := _json_of(arguments.texts, config)) is not None:
        stage = _read_json(arguments, path)
    elif stage is None:
        _gap(arguments, _CONFIG, "the ZeRO stage is in this file: give it as a further FILE")
        arguments.open_fields |= {"zero", "shard", "offload"}
        return
    elif config:
        note = f"ZeRO stage {stage:g} is that of --zero-stage: the JSON of --deepspeed_config is not here"
        arguments.notes.append(note)
    _put(arguments, "--zero-stage", _SHARDED.get(int(stage), {}))
    arguments.notes.append("the engine is DeepSpeed: its messages are priced as those of Megatron's own optimizer")


def _json_of(texts: Mapping[str, str], name: str) -> str | None:
    """The path of DeepSpeed's JSON; None where it is missing or still a template."""
    own = re.split(r"[/\\]", name)[-1]
    for path, text in texts.items():
        if re.split(r"[/\\]", path)[-1] == own or (path.endswith(".json") and '"zero_optimization"' in text):
            try:
                data = json.loads(text)
            except ValueError:
                continue
            if isinstance(data, dict):
                return path
    return None


def _read_json(arguments: Arguments, path: str) -> int:
    """The ZeRO stage of DeepSpeed's JSON. Its offload goes to the settings, its gaps and problems to those here."""
    options, _ = option_list("deepspeed")
    inner = DEEPSPEED.import_files({path: arguments.texts[path]}, options, ())
    facts = without_rounding(read_facts(inner, DEEPSPEED.table(options)), inner)
    arguments.problems += inner.problems_under(_CONFIG)
    arguments.gaps += inner.gaps
    for name in facts.get(FACT, {}):
        _gap(arguments, _CONFIG, f"{name}, which is no technique of Megatron")
    if facts.get("offload") == "opt":
        arguments.settings.setdefault("--optimizer-cpu-offload", True)
    curriculum = json.loads(arguments.texts[path]).get("curriculum_learning")
    if isinstance(curriculum, dict) and curriculum.get("enabled"):
        arguments.notes.append("curriculum_learning: priced at the length that sequences grow to")
    return int(facts.get("zero", 0))


def _batch(arguments: Arguments) -> None:
    if "--rampup-batch-size" in arguments.settings:
        arguments.notes.append("--rampup-batch-size: priced with the batch that it ends at")


_READERS: tuple[Callable[[Arguments], None], ...] = (
    megablocks.modernise, llama_forks.modernise, older_hybrids.modernise, zero_bubble.modernise, encoders.modernise,
    multimodal.modernise, _recompute, _names, _positions, _attention, _experts, _stages, _sequence, _zero, _batch,
    vocabulary.modernise,
)  # fmt: skip
