"""Rules on combinations of arguments. Megatron-LM checks them late, in validate_args and TransformerConfig."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..options import Settings
from . import document_degrees, layer_inputs, offload
from .environment import conflicts_of_fused_experts, conflicts_of_hybridep
from .hybrid import PATTERN, layers_of
from .muon import LAYER_WISE, conflicts_of_muon

EXCLUSIVE = (
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
     "--pipeline-model-parallel-layout"),
    ("--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--decoder-last-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split"),
    ("--pipeline-model-parallel-layout", "--account-for-loss-in-pipeline-split"),
    *((PATTERN, name) for name in (
        "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
        "--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split")),
    ("--bf16", "--fp16"), ("--fp8-format", "--fp4-format"), ("--use-megatron-fsdp", "--use-torch-fsdp2"),
    ("--swiglu", "--squared-relu"), ("--swiglu", "--quick-geglu"),
    ("--multi-latent-attention", "--group-query-attention"), ("--use-torch-fsdp2", "--use-distributed-optimizer"),
)  # fmt: skip
_NEEDS = (
    ("--overlap-param-gather", "--use-distributed-optimizer"),
    ("--optimizer-cpu-offload", "--use-precision-aware-optimizer"), ("--tp-comm-overlap", "--sequence-parallel"),
    ("--exp-avg-dtype", "--use-precision-aware-optimizer"), ("--num-query-groups", "--group-query-attention"),
    ("--use-megatron-fsdp", "--ckpt-format"), ("--fp8-recipe", "--fp8-format"), ("--fp8-format", "--bf16"),
    ("--delay-wgrad-compute", "--overlap-moe-expert-parallel-comm"), ("--fp8-param-gather", "--fp8-format"),
    ("--fp8-param-gather", "--use-distributed-optimizer"), ("--fp4-param-gather", "--fp4-format"),
    ("--fp4-param-gather", "--use-distributed-optimizer"),
    ("--reuse-grad-buf-for-mxfp8-param-ag", "--fp8-param-gather"),
    ("--fp4-recipe", "--fp4-format"), ("--fp4-format", "--bf16"),
    (PATTERN, "--spec"),
    ("--recompute-num-layers", "--recompute-method"), ("--expert-model-parallel-size", "--num-experts"),
)  # fmt: skip

# Only training/arguments.py requires it. The core does not: Megatron-Bridge trains with one and not the other.
_OF_THE_PARSER = (("--overlap-param-gather", "--overlap-grad-reduce"),)
# training/arguments.py:1025 requires the distributed optimizer for it.
_GATHERS_BY_ITSELF = ("--overlap-param-gather", LAYER_WISE)


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of validate_args and TransformerConfig on combinations of options."""
    of_the_parser = [(name, f"needs {other}") for name, other in _OF_THE_PARSER
                     if name in settings and other not in settings]  # fmt: skip
    if "--vocab-size" in settings and "--padded-vocab-size" in settings:
        of_the_parser.append(("--padded-vocab-size", f"takes the place of --vocab-size {settings['--vocab-size']}"))
    if "--spec" in settings and PATTERN not in settings:
        of_the_parser.append(("--spec", "builds the layers of a module, not those of the other options"))
    return of_the_parser + document_degrees.conflicts(settings) + conflicts_of_the_core(settings, environment)


def conflicts_of_the_core(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The rules of the core, which hold for every front end."""
    out = [
        (given[-1], f"cannot be given together with {given[0]}")
        for group in EXCLUSIVE
        if len(given := [name for name in group if name in settings]) > 1
    ]
    out += [
        (name, f"needs {other}")
        for name, other in _NEEDS
        if name in settings and other not in settings and (name, settings.get("--optimizer")) != _GATHERS_BY_ITSELF
    ]
    fsdp = bool(settings.get("--use-megatron-fsdp") or settings.get("--use-torch-fsdp2"))
    sharding = settings.get("--data-parallel-sharding-strategy")
    if fsdp and settings.get("--ckpt-format") == "torch":
        out.append(("--ckpt-format", "Megatron-FSDP saves as fsdp_dtensor"))
    if sharding is not None and not fsdp:
        out.append(("--data-parallel-sharding-strategy", "needs --use-megatron-fsdp"))
    if settings.get("--recompute-granularity") == "full" and "--recompute-method" not in settings:
        out.append(("--recompute-granularity", "full needs --recompute-method uniform or block"))
    if settings.get("--recompute-granularity") == "selective" and "--recompute-method" in settings:
        out.append(("--recompute-method", "is for --recompute-granularity full"))
    hybrid = "a2a+p2p" in settings.get("--cp-comm-type", ())
    sizes = settings.get("--hierarchical-context-parallel-sizes")
    if hybrid and (sizes is None or math.prod(sizes) != settings.get("--context-parallel-size", 1)):
        out.append(("--cp-comm-type", f"a2a+p2p needs --hierarchical-context-parallel-sizes with the product "
                                      f"{settings.get('--context-parallel-size', 1)}"))  # fmt: skip
    fraction = settings.get("--optimizer-offload-fraction")
    if fraction is not None and not 0 <= fraction <= 1:
        out.append(("--optimizer-offload-fraction", f"`{fraction}` is not between 0 and 1"))
    out += offload.conflicts(settings, environment) + conflicts_of_muon(settings) + layer_inputs.conflicts(settings)
    out += conflicts_of_fused_experts(settings, environment) + conflicts_of_hybridep(settings, environment)
    return out + _ignored_layers(settings) + _connections(settings, environment, fsdp)


def _ignored_layers(settings: Settings) -> list[tuple[str, str]]:
    """A problem where --num-layers differs from the pattern. validate_args uses the pattern and only warns."""
    if PATTERN not in settings or "--num-layers" not in settings:
        return []
    held = len(layers_of(str(settings[PATTERN])).replace("|", ""))
    return [("--num-layers", f"is ignored: {PATTERN} has {held} layers")] if settings["--num-layers"] != held else []


def _connections(settings: Settings, environment: Mapping[str, str], fsdp: bool) -> list[tuple[str, str]]:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = environment.get(name)
    split = settings.get("--tensor-model-parallel-size", 1) > 1 or settings.get("--context-parallel-size", 1) > 1
    if fsdp and value == "1":
        return [(name, "is 1; FSDP needs it unset or larger")]
    beside = bool(settings.get("--overlap-moe-expert-parallel-comm"))
    if split and not fsdp and not beside and value != "1" and environment.get("before_blackwell", "yes") == "yes":
        return [(name, f"is {value or 'not set'}; tp or cp needs 1 before Blackwell")]
    return []
