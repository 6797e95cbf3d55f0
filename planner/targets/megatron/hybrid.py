"""Models whose layers are one block each, of Mamba-2, attention or feed-forward <-> arguments of pretrain_hybrid.py.

Read in Megatron-LM core_v0.18.0 to d98e8a64: hybrid_builders.py, core/models/hybrid/hybrid_layer_allocation.py,
core/ssm/mamba_mixer.py.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ....cost_models.layer_kinds.mamba2 import Mamba2
from ....cost_models.layouts import MODULES, PRECISIONS
from ....cost_models.problem import Problem
from ....cost_models.quantities.layer_operations import name_of
from ....cost_models.specs.model import Layer, ModelSpec
from ....errors import InputError
from ...space.rules import Columns, Rule
from ..option_lists import OptionList, is_before
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup
from .delta_net import replaces_attention

PATTERN = "--hybrid-layer-pattern"
_FLAG = "--is-hybrid-model"  # initial weights of layers of one block
# Symbol -> its word in the explicit form.
_WORDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}
_SPEC = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
# Sizes of a mixer with an argument: field -> argument.
_SIZES = {"heads": "--mamba-num-heads", "head_dim": "--mamba-head-dim", "groups": "--mamba-num-groups",
          "state": "--mamba-state-dim"}  # fmt: skip
# Sizes of a mixer without an argument: their defaults in MambaMixer.
FIXED = {"conv_kernel": 4, "chunk": 128, "conv_bias": True, "in_bias": False, "out_bias": False, "gated_norm": True}


def is_hybrid(model: ModelSpec) -> bool:
    return not all(kind.is_transformer or replaces_attention(kind) for kind in model.kinds)


def _letter(kind: Layer) -> str | None:
    """The symbol of a layer of one block; None for any other layer."""
    blocks = {"M": isinstance(kind.mixer, Mamba2), "*": kind.attention is not None and not kind.attention.is_mla,
              "E": kind.is_moe, "-": kind.feed_forward is not None and not kind.is_moe}  # fmt: skip
    given = sum(block is not None for block in (kind.mixer, kind.attention, kind.feed_forward))
    letters = [letter for letter, there in blocks.items() if there]
    return letters[0] if given == 1 and letters else None


def layers_of(text: str) -> str:
    """The part of a pattern with the layers of the model, `|` between stages."""
    return text.partition("/")[0]


def _symbols_of(text: str) -> tuple[str, list[str]]:
    """The symbols of the layers and of each prediction module. Raises InputError for a symbol that no plan has."""
    layers, *modules = text.split("/")
    letters = layers.replace("|", "")
    if unknown := sorted(set("".join([letters, *modules])) - set(_WORDS)):
        hint = f"a plan has the symbols {', '.join(_WORDS)}, | between stages, and / before each prediction module"
        raise NoCounterpartError(f"{PATTERN} {text}: `{unknown[0]}` has no counterpart in a plan", hint=hint)
    if len(set(modules)) > 1 or "" in modules:
        raise InputError(f"{PATTERN} {text}: prediction modules {', '.join(modules)} are not the same layers",
                         hint="such as MEM*/*E/*E")  # fmt: skip
    return letters, modules


def cannot_mix(model: ModelSpec, options: OptionList | None) -> list[str]:
    """One sentence per reason why the layers of a hybrid model have no symbol or no argument."""
    other = [name_of(kind) for kind in model.kinds if _letter(kind) is None]
    mixers = {mixer for mixer in model.mixers if isinstance(mixer, Mamba2)}
    differ = [f"{name} {getattr(mixer, name)}, not {value}" for mixer in mixers for name, value in FIXED.items()
              if getattr(mixer, name) != value]  # fmt: skip
    symbols = "its symbols are layers of one block of Mamba-2, attention, feed-forward or experts"
    reasons = {
        f"model.kinds: {symbols}, not {', '.join(dict.fromkeys(other))}": bool(other),
        "model.kinds.mixer: all mixers have the same sizes": len(mixers) > 1,
        f"model.kinds.mixer: pretrain_hybrid.py has no argument for {', '.join(differ)}": bool(differ),
        "model.kinds: hybrid models are written with layers of attention and of feed-forward":
            not model.attentions or not model.feed_forwards,
        "model.kinds.rotary: attention has rotary positions in all layers or in none":
            len({attention.rotary for attention in model.attentions}) > 1,
        "model.kinds: pretrain_hybrid.py is there from Megatron-LM 0.18 on":
            is_before(options, "megatron", "0.18"),
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def _write(setup: Setup) -> Settings:
    mixer = next((mixer for mixer in setup.model.mixers if isinstance(mixer, Mamba2)), None)
    if not is_hybrid(setup.model):
        return {}
    of_module = setup.model.mtp_pattern or setup.model.pattern[-1:]
    letters, module = ("".join(_letter(setup.model.kinds[kind]) or "" for kind in kinds)
                       for kinds in (setup.model.pattern, of_module))  # fmt: skip
    bounds = pairwise(accumulate(setup.chunk_sizes, initial=0))
    stages = "|".join(letters[first:end] for first, end in bounds)
    out: Settings = {PATTERN: stages + f"/{module}" * setup.model.mtp_layers, "--spec": _SPEC, _FLAG: True}
    return out | {argument: getattr(mixer, size) for size, argument in _SIZES.items() if mixer is not None}


def _read(settings: Settings, facts: Facts) -> Facts:
    if (text := settings.get(PATTERN)) is None:
        return {}
    letters, modules = _symbols_of(str(text))
    if "*" not in letters:
        raise NoCounterpartError(f"{PATTERN} {text} has no layer of attention, models that are read have one")
    # The defaults of TransformerConfig.
    width = settings.get("--mamba-head-dim", 64)
    usual = {"heads": 2 * facts.get("model.hidden", 0) // width, "head_dim": width, "groups": 8, "state": 128}
    mixer = {size: settings.get(argument, usual[size]) for size, argument in _SIZES.items()}
    out: Facts = {"model.layers": len(letters), "model.pattern": [_WORDS[letter] for letter in letters]}
    if modules:
        out |= {"model.mtp_layers": len(modules), "model.mtp_pattern": [_WORDS[letter] for letter in modules[0]]}
    if "M" in letters:
        out["model.mixers"] = {_WORDS["M"]: {"kind": Mamba2.kind, "chunk": FIXED["chunk"], **mixer}}
    return out


def stages_read(text: str, pp: int) -> Facts:
    """Chunks of a pattern. A pattern without separators is split evenly."""
    sizes = [len(segment) for segment in layers_of(text).split("|")]
    if len(sizes) == 1 and sizes[0] % pp == 0:
        sizes = [sizes[0] // pp] * pp
    if len(sizes) % pp:
        raise InputError(f"{PATTERN} {text} has {len(sizes)} stages, no multiple of pp {pp}",
                         hint="separate stages by |")  # fmt: skip
    return {"vpp": len(sizes) // pp, "stages": sizes}


def _in_fp8(columns: Columns, problem: Problem) -> Mask:
    # MambaMixer and GatedDeltaNet assert it for their first projection. TransformerEngine needs it for all.
    mixers = [mixer for mixer in problem.model.mixers if isinstance(mixer, Mamba2 | GatedDeltaNet)]
    odd = any(mixer.projected % 16 for mixer in mixers)
    return np.asarray((columns["precision"] != PRECISIONS.index("fp8")) | (not odd))


def _beside_another(columns: Columns, problem: Problem) -> Mask:
    # core/models/hybrid/hybrid_model.py lacks build_schedule_plan, which combined_1f1b.py calls.
    return np.asarray((columns["ep_overlap"] == 0) | (not is_hybrid(problem.model)))


def _layers_on_host(columns: Columns, problem: Problem) -> Mask:
    # core/models/hybrid/hybrid_block.py does not enter get_cpu_offload_context as TransformerBlock does.
    return np.asarray((columns["offload_layers"] == 0) | (not is_hybrid(problem.model)))


def _attention_only(columns: Columns, problem: Problem) -> Mask:
    # core/ssm/mamba_mixer.py recomputes nothing; core/ssm/gated_delta_net recomputes only a norm (gdn_norm_out).
    again = columns["recompute_modules"] & 1 << MODULES.index("attn") > 0
    return np.asarray(~again | (not problem.model.mixers))


def hybrid_rules(target: str) -> tuple[Rule, ...]:
    """Rules of the core for Mamba-2 and gated DeltaNet, in addition to those of all frameworks that split heads."""
    return (
        Rule(f"{target}: mixers in fp8", ("precision",), _in_fp8,
             "the first projection of a mixer has no multiple of 16 columns, which fp8 needs"),
        Rule(f"{target}: hybrids and ep_overlap", ("ep_overlap",), _beside_another,
             "--overlap-moe-expert-parallel-comm: HybridModel does not compute beside the messages of experts"),
        Rule(f"{target}: hybrids and offload_layers", ("offload_layers",), _layers_on_host,
             "--cpu-offloading-num-layers: HybridModel offloads no layers ({offload_layers})"),
        Rule(f"{target}: hybrids and recompute", ("recompute_modules",), _attention_only,
             "--recompute-modules core_attn does not compute scans again, which plans count with it"),
    )  # fmt: skip


ENTRY = Entry(("model.pattern", "model.mixers"), (PATTERN, "--spec", _FLAG, *_SIZES.values()), _write, _read)
