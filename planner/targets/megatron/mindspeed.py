"""Renames options of MindSpeed and MindSpeed-LLM, which train Megatron-Core on Ascend, to those of pretrain_gpt.py.

Sources: Ascend/MindSpeed 028de58c (2026-07-21), mindspeed/arguments.py and mindspeed/features_manager;
Ascend/MindSpeed-LLM c77308a1, mindspeed_llm/features_manager and mindspeed_llm/core/transformer (blocks that are dense,
layers without work).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..adapters import LORA, facts_of_core
from ..argv import Arguments
from ..option_lists import Option
from ..options import Entry, Facts, Settings
from .layer_patterns import pattern_text, stages_text

_RENAMED = {
    "--low-freq-factor": "--rope-low-freq-factor", "--high-freq-factor": "--rope-high-freq-factor",
    "--original-max-position-embeddings": "--rope-original-max-positional-embeddings",
    "--rope-scaling-mscale": "--mscale", "--rope-scaling-mscale-all-dim": "--mscale-all-dim",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim", "--qk-nope-head-dim": "--qk-head-dim",
    "--multi-head-latent-attention": "--multi-latent-attention", "--moe-intermediate-size": "--moe-ffn-hidden-size",
    "--n-group": "--moe-router-num-groups", "--topk-group": "--moe-router-group-topk",
    "--routed-scaling-factor": "--moe-router-topk-scaling-factor", "--shared-expert-gate": "--moe-shared-expert-gate",
}  # fmt: skip
_ALGORITHM, _DEGREE = "--context-parallel-algo", "--ulysses-degree-in-cp"
_ALGORITHMS = {"megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "hybrid_cp_algo": "a2a+p2p",
               "kvallgather_cp_algo": "all_gather"}  # fmt: skip
_LAYERS, _IDLE, _DENSE, _SHARED = "--num-layer-list", "--noop-layers", "--first-k-dense-replace", "--n-shared-experts"
_EXTENDS, _SCALING = "--moe-tp-extend-ep", "--rope-scaling-type"
_ADAPTERS = ("--lora-r", "--lora-target-modules", "--qlora")
_STAGE = "--stage"
# Sequences as long as they are, where a plan has the longest.
_UNPADDED = ("--no-pad-to-seq-lengths", "--variable-seq-lengths", "--use-packed-seq-params")
# Kernels, and memory that they save, which no plan has.
_ASIDE = ("--reuse-fp32-param", "--use-ascend-mc2", "--use-ascend-coc", "--moe-alltoall-overlap-comm",
          "--moe-allgather-overlap-comm", "--lora-fusion", "--use-pft", "--use-uneven-all-to-all",
          "--moe-use-legacy-grouped-gemm")  # fmt: skip
_KINDS = {
    **dict.fromkeys(("--multi-head-latent-attention", "--shared-expert-gate", _EXTENDS, "--qlora", *_UNPADDED, *_ASIDE),
                    "flag"),
    **dict.fromkeys((_DEGREE, _DENSE, _SHARED, "--lora-r", "--qk-rope-head-dim", "--qk-nope-head-dim", "--n-group",
                     "--moe-intermediate-size", "--topk-group"), "int"),
    **dict.fromkeys(("--low-freq-factor", "--high-freq-factor", "--original-max-position-embeddings",
                     "--rope-scaling-mscale", "--rope-scaling-mscale-all-dim", "--routed-scaling-factor"), "float"),
    **dict.fromkeys((_ALGORITHM, _LAYERS, _IDLE, _SCALING, _STAGE), "str"),
}  # fmt: skip
OPTIONS: Mapping[str, Option] = {
    **{name: Option(name, kind) for name, kind in _KINDS.items()},
    "--lora-target-modules": Option("--lora-target-modules", "str", many=True),
}
# Options of it that say nothing about layout, model or batch.
HARMLESS = (
    r"^--(use-cp-send-recv-overlap|kv-head-repeat-before-uly-alltoall|lora-(alpha|load|ckpt-filter)|norm-topk-prob|"
    r"seq-aux|moe-permutation-async-comm|shape-order|attention-mask-type|neat-pack|padded-samples|"
    r"enable-recompute-layers-per-pp-rank|mla-(mm-split|fa-without-pad|fa-divide-qk)|optimize-(vpp-)?send-recv-comm|"
    r"router-gating-in-fp32|topk-softmax-in-fp32|(rope-scaling-)?beta-(fast|slow)|ai-framework|rope-scaling-original-max-position-embeddings|"
    r"is-instruction-dataset|megatron-cp-in-bnsd|cp-window-size|npu-deterministic|jit-compile|add-rmsnorm-offset)$"
)


def modernise(arguments: Arguments) -> None:
    """Rewrites the settings of a script of MindSpeed."""
    for old, new in _RENAMED.items():
        if old in arguments.settings:
            arguments.replace(old, {new: arguments.settings[old]})
    for read in (_context, _stages, _idle, _positions, _experts, _notes):
        read(arguments)


def _context(arguments: Arguments) -> None:
    """The kind of context parallelism."""
    given = arguments.settings
    ranks, degree = given.get("--context-parallel-size", 1), given.pop(_DEGREE, 1)
    kind = str(given.get(_ALGORITHM, ""))
    if kind in _ALGORITHMS:
        new: Settings = {"--cp-comm-type": [_ALGORITHMS[kind]]} if ranks > 1 else {}
        if kind == "hybrid_cp_algo" and ranks > 1 and degree in (1, ranks):
            new = {"--cp-comm-type": ["p2p" if degree == 1 else "a2a"]}
        arguments.replace(_ALGORITHM, new)
    elif given.pop(_ALGORITHM, None) is not None and ranks > 1:
        arguments.gap(_ALGORITHM, f"`{kind}`: no plan has this exchange of keys")


def _stages(arguments: Arguments) -> None:
    """--num-layer-list: the layers of each stage."""
    given = arguments.settings
    sizes = str(given.get(_LAYERS, "")).split(",")
    if all(size.strip().isdigit() for size in sizes):
        arguments.replace(_LAYERS, {"--pipeline-model-parallel-layout": stages_text([int(size) for size in sizes])})


def _idle(arguments: Arguments) -> None:
    """--noop-layers: places in the pipeline whose layers do nothing."""
    given = arguments.settings
    listed, layers, pp = given.get(_IDLE), given.get("--num-layers", 0), given.get("--pipeline-model-parallel-size", 1)
    if listed is None:
        return
    places = str(listed).split(",")
    size = given.pop("--num-layers-per-virtual-pipeline-stage", layers // max(pp, 1))
    if not all(place.strip().isdigit() for place in places) or size < 1 or layers % size:
        return
    idle = {int(place) for place in places}
    if max(idle) >= layers:
        return
    chunks = [sum(place not in idle for place in range(start, start + size)) for start in range(0, layers, size)]
    given["--num-layers"] = sum(chunks)
    arguments.replace(_IDLE, {"--pipeline-model-parallel-layout": stages_text(chunks)} if pp > 1 else {})


def _positions(arguments: Arguments) -> None:
    """--rope-scaling-type: positions of Llama 3 or YaRN; others stay a gap."""
    given = arguments.settings
    kind, factor = given.get(_SCALING), given.get("--rope-scaling-factor", 1.0)
    if kind == "llama3":
        arguments.replace(_SCALING, {"--rope-factor": given.pop("--rope-scaling-factor", 8.0)})
    elif kind == "yarn" and given.get("--multi-latent-attention"):
        given.pop("--rope-scaling-factor", None)
        arguments.replace(_SCALING, {"--rope-type": "yarn", "--rotary-scaling-factor": factor})


def _experts(arguments: Arguments) -> None:
    """Dense blocks in front, shared experts by their number, and experts over ranks of tensor parallelism."""
    given = arguments.settings
    layers, dense = given.get("--num-layers", 0), given.get(_DENSE)
    if dense is not None and str(given.get("--moe-layer-freq", 1)) not in ("1", "-1"):
        arguments.gap(_DENSE, "dense blocks in front and between those with experts")
    elif dense is not None and not -1 <= dense < layers:
        arguments.gap(_DENSE, f"`{dense}` leaves no block with experts of {layers}")
    elif dense is not None:
        given.pop("--moe-layer-freq", None)
        arguments.replace(_DENSE, {"--moe-layer-freq": pattern_text([int(index >= dense) for index in range(layers)])})
    if (number := given.get(_SHARED)) is not None:
        width = given.get("--moe-ffn-hidden-size", given.get("--ffn-hidden-size", 0))
        arguments.replace(_SHARED, {"--moe-shared-expert-intermediate-size": number * width} if number else {})
    if given.get(_EXTENDS):
        ranks = given.get("--tensor-model-parallel-size", 1) * given.get("--expert-model-parallel-size", 1)
        given |= {"--expert-model-parallel-size": ranks, "--expert-tensor-parallel-size": 1}
        given.pop(_EXTENDS)


def _notes(arguments: Arguments) -> None:
    """Sentences for what is priced as without, and the stage of fine-tuning, which is that of texts alone."""
    given = arguments.settings
    aside = [name for name in _ASIDE if given.pop(name, None)]
    if aside:
        arguments.notes.append(f"{', '.join(aside)}: priced as without")
    unpadded = [name for name in _UNPADDED if given.pop(name, None)]
    if unpadded:
        arguments.notes.append(f"{unpadded[0]}: every sequence is priced at its full length")
    if given.get(_STAGE) == "sft":
        given.pop(_STAGE)


def _adapters(settings: Settings, facts: Facts) -> Facts:
    """Adapters, on 4-bit weights with --qlora."""
    option = "--lora-target-modules"
    if not settings.get(option):
        return {}
    out = facts_of_core(settings.get("--lora-r", 16), option, settings[option], facts)
    if settings.get("--qlora"):
        out[LORA] |= {"base_dtype": "nf4"}
    return out


ENTRY = Entry((LORA,), _ADAPTERS, lambda setup: {}, _adapters)
