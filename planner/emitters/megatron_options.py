"""Plan <-> arguments of Megatron-LM's pretrain_gpt.py, both ways.

Names and meanings: Megatron-LM core_v0.16.1 to d98e8a64, training/arguments.py, core/model_parallel_config.py,
core/transformer/transformer_config.py, core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from ...cost_models.layouts import CP_ALGORITHMS
from ...cost_models.operations import ulysses_degree
from ...errors import InputError
from .megatron_model import MODEL
from .options import Entry, Facts, Settings, Table, number
from .setup import Setup

MODULES = {"attn": "core_attn", "norm": "layernorm", "act": "moe_act", "moe": "moe", "mla": "mla_up_proj"}
CP_COMM = {"ring": "p2p", "allgather": "all_gather", "ulysses": "a2a", "ring+ulysses": "a2a+p2p"}
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
_BLACKWELL = 10.0
_LAYER = {"E": "embedding", "t": "layer", "m": "mtp", "L": "loss"}


def needs_one_connection(setup: Setup) -> bool:
    """CUDA_DEVICE_MAX_CONNECTIONS=1: asserted with tp or cp before Blackwell, refused by Megatron-FSDP."""
    split = setup.layout.tp > 1 or setup.layout.cp > 1
    return split and setup.layout.zero < 2 and (setup.capability or 0.0) < _BLACKWELL


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    algorithm = CP_ALGORITHMS[setup.layout.cp_algorithm]
    out: Settings = {"--cp-comm-type": [CP_COMM[algorithm]]}
    if algorithm == "ring+ulysses":
        columns = {name: np.array([getattr(setup.layout, name)]) for name in ("cp", "tp", "cp_algorithm")}
        heads = int(ulysses_degree(setup.model, columns)[0])
        out["--hierarchical-context-parallel-sizes"] = [heads, setup.layout.cp // heads]
    return out


def _context_read(settings: Settings, facts: Facts) -> Facts:
    if facts["cp"] == 1:
        return {}
    kinds = set(settings.get("--cp-comm-type", ["p2p"]))
    meaning = {value: name for name, value in CP_COMM.items()}
    if len(kinds) > 1 or not kinds <= set(meaning):
        raise InputError(
            f"--cp-comm-type {' '.join(sorted(kinds))}: a plan has one of {', '.join(meaning)} for all layers",
            hint="name it once",
        )
    return {"cp_algorithm": meaning[kinds.pop()]}


def layer_string(sizes: list[int], mtp_layers: int) -> str:
    """`Et*19|t*20|t*20|t*19L`: layers of each chunk, in the order of the model."""
    parts = [f"t*{size}" if size > 1 else "t" * size for size in sizes]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp_layers + "L"
    return "|".join(parts)


def read_layer_string(text: str) -> list[list[str]]:
    """The layers (embedding, layer, mtp, loss) of each chunk. Raises InputError for a character that means none."""
    flat = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        flat = re.sub(pattern, lambda found: found[1] * int(found[2]), flat)
    if unknown := sorted(set(flat) - {*_LAYER, "|"}):
        raise InputError(
            f"--pipeline-model-parallel-layout `{text}`: `{unknown[0]}` is no layer",
            hint="E embedding, t layer, m multi-token prediction, L loss, | next stage",
        )
    return [[_LAYER[letter] for letter in chunk] for chunk in flat.split("|")]


def _pipeline_write(setup: Setup) -> Settings:
    layout, sizes = setup.layout, setup.chunk_sizes
    if layout.pp == 1:
        return {}
    if len(set(sizes)) > 1:
        return {"--pipeline-model-parallel-layout": layer_string(sizes, setup.model.mtp_layers)}
    return {"--num-layers-per-virtual-pipeline-stage": sizes[0]} if layout.vpp > 1 else {}


def _pipeline_read(settings: Settings, facts: Facts) -> Facts:
    pp, layers = facts["pp"], facts.get("model.layers", 0)
    if pp == 1:
        return {"vpp": 1}
    _positive(settings, "--pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage",
              "--num-virtual-stages-per-pipeline-rank")  # fmt: skip
    if (text := settings.get("--pipeline-model-parallel-layout")) is not None:
        return _custom_stages(str(text), pp, layers, facts.get("model.mtp_layers", 0))
    if (per_chunk := settings.get("--num-layers-per-virtual-pipeline-stage")) is not None:
        if layers % (pp * per_chunk):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage {per_chunk}: {layers} layers are no multiple of pp {pp} x "
                f"{per_chunk}",
                hint=f"a divisor of {layers}/{pp} layers, or --pipeline-model-parallel-layout",
            )
        vpp = layers // (pp * per_chunk)
    else:
        vpp = int(settings.get("--num-virtual-stages-per-pipeline-rank", 1))
    return {"vpp": vpp, "stages": _even_stages(settings, pp, vpp, layers)}


def _positive(settings: Settings, *options: str) -> None:
    for name in options:
        if settings.get(name, 1) < 1:
            raise InputError(f"{name} `{settings[name]}` is not 1 or more", hint="leave it out, or give a number")


def _custom_stages(text: str, pp: int, layers: int, mtp_layers: int) -> Facts:
    chunks = read_layer_string(text)
    flat = [each for chunk in chunks for each in chunk]
    counted = {kind: flat.count(kind) for kind in _LAYER.values()}
    expected = {"embedding": 1, "loss": 1, "layer": layers, "mtp": mtp_layers}
    wrong = [f"{counted[kind]} x {kind} instead of {n}" for kind, n in expected.items() if counted[kind] != n]
    if len(chunks) % pp:
        wrong.append(f"{len(chunks)} stages are no multiple of pp {pp}")
    if flat[:1] != ["embedding"] or flat[-1:] != ["loss"]:
        wrong.append("the first layer must be E and the last L")
    if wrong:
        message = f"--pipeline-model-parallel-layout {text}: {'; '.join(wrong)}"
        raise InputError(message, hint="every layer once, in order")
    return {"vpp": len(chunks) // pp, "stages": [chunk.count("layer") for chunk in chunks]}


def _even_stages(settings: Settings, pp: int, vpp: int, layers: int) -> list[int]:
    """Layers of each chunk when stages share evenly, but for what the first and last are given or account for."""
    slots_first = int(bool(settings.get("--account-for-embedding-in-pipeline-split")))
    slots_last = int(bool(settings.get("--account-for-loss-in-pipeline-split")))
    first, last = (settings.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    ends = [end for end in (first, last) if end is not None]
    middle, rest = pp - len(ends), layers + slots_first + slots_last - sum(ends)
    if rest < 0 or (middle and rest % (middle * vpp)) or (not middle and rest) or any(end % vpp for end in ends):
        raise InputError(
            f"{layers} layers do not split over pp {pp} x vpp {vpp}"
            + (f" with {' and '.join(map(str, ends))} at the ends" if ends else ""),
            hint="--decoder-first-pipeline-num-layers, or --pipeline-model-parallel-layout for any split",
        )
    share = rest // (middle * vpp) if middle else 0
    rows = [share] * pp
    if first is not None:
        rows[0] = first // vpp
    if last is not None:
        rows[-1] = last // vpp
    sizes = rows * vpp
    sizes[0] -= slots_first
    sizes[-1] -= slots_last
    return sizes


def _shards_write(setup: Setup) -> Settings:
    layout = setup.layout
    if not layout.zero:
        return {}
    out: Settings = {"--use-distributed-optimizer": True}
    if layout.zero > 1:
        out |= {
            "--use-megatron-fsdp": True, "--data-parallel-sharding-strategy": STRATEGIES[layout.zero],
            "--ckpt-format": "fsdp_dtensor", "--no-gradient-accumulation-fusion": True,
        }  # fmt: skip
    if layout.shard < layout.dp:
        out["--num-distributed-optimizer-instances"] = layout.dp // layout.shard
    return out


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    strategy = str(settings.get("--data-parallel-sharding-strategy", "no_shard"))
    fsdp = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if settings.get("--use-torch-fsdp2"):
        zero = 2 if settings.get("--torch-fsdp2-no-reshard-after-forward") else 3
    elif settings.get("--use-megatron-fsdp"):
        zero = fsdp[strategy]
    else:
        zero = int(bool(settings.get("--use-distributed-optimizer")))
    instances = int(settings.get("--num-distributed-optimizer-instances", 1))
    return {"zero": zero, "replicas": instances}


def _overlap_write(setup: Setup) -> Settings:
    ranks = setup.layout.dp * setup.layout.cp
    out: Settings = {}
    if ranks > 1 and setup.stack.dp_overlap > 0:
        out["--overlap-grad-reduce"] = True
        if setup.layout.zero:
            out["--overlap-param-gather"] = True
    if setup.layout.tp > 1 and setup.layout.sequence_parallel and setup.stack.tp_overlap > 0:
        out["--tp-comm-overlap"] = True
    return out


def _recompute_write(setup: Setup) -> Settings:
    if setup.recompute == "selective":
        names = [MODULES[name] for name in setup.recompute_modules]
        return {"--recompute-granularity": "selective", "--recompute-modules": names}
    if setup.recompute == "none":
        return {}
    layers = setup.layout.recompute_layers
    method = ("block", layers) if layers else ("uniform", 1)
    return {"--recompute-granularity": "full", "--recompute-method": method[0], "--recompute-num-layers": method[1]}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    selective = settings.get("--recompute-activations") or settings.get("--recompute-granularity") == "selective"
    if selective:
        meaning = {value: name for name, value in MODULES.items()}
        names = settings.get("--recompute-modules", ["core_attn"])
        if unknown := [name for name in names if name not in meaning]:
            raise InputError(
                f"--recompute-modules {unknown[0]} has no counterpart in a plan", hint=f"known: {', '.join(meaning)}"
            )
        return {"recompute": {"mode": "selective", "modules": [meaning[name] for name in names]}}
    if settings.get("--recompute-granularity") != "full":
        return {"recompute": {"mode": "none"}}
    if settings.get("--recompute-method") == "block":
        return {"recompute": {"mode": "full", "layers": int(settings.get("--recompute-num-layers", 1))}}
    return {"recompute": {"mode": "full"}}


def _precision_write(setup: Setup) -> Settings:
    if setup.precision == "fp8":
        recipe = "mxfp8" if (setup.capability or 0.0) >= _BLACKWELL else "tensorwise"
        return {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": recipe}
    return {} if setup.precision == "fp32" else {f"--{setup.precision}": True}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    if settings.get("--fp8-format") is not None:
        return {"precision": "fp8"}
    return {"precision": next((name for name in ("bf16", "fp16") if settings.get(f"--{name}")), "fp32")}


def _optimizer_write(setup: Setup) -> Settings:
    name = setup.workload.optimizer
    out: Settings = {"--optimizer": "sgd" if name == "sgd" else "adam"}
    if name == "adamw-bf16":
        out |= {"--exp-avg-dtype": "bf16", "--exp-avg-sq-dtype": "bf16"}
    if "opt" in setup.offload:
        out |= {"--optimizer-cpu-offload": True, "--optimizer-offload-fraction": 1.0}
        if setup.stack.offload_overlap > 0:
            out["--overlap-cpu-optimizer-d2h-h2d"] = True
    if "opt" in setup.offload or name == "adamw-bf16":
        out["--use-precision-aware-optimizer"] = True
    return out


def _optimizer_read(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get("--optimizer", "adam"))
    if name not in ("adam", "sgd"):
        raise InputError(f"--optimizer {name} has no counterpart in a plan", hint="known: adam, sgd")
    small = {"bf16", "fp16"} & {settings.get("--exp-avg-dtype"), settings.get("--exp-avg-sq-dtype")}
    found = "sgd" if name == "sgd" else "adamw-bf16" if small else "adamw"
    return {"workload.optimizer": found, "offload": "opt" if settings.get("--optimizer-cpu-offload") else "none"}


def _loss_write(setup: Setup) -> Settings:
    # The stack's logit bytes are those of a fused loss; the `te` kernel is refused by releases after 0.19.
    return {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "native"}


def _experts_write(setup: Setup) -> Settings:
    if not setup.model.is_moe:
        return {}
    out: Settings = {"--expert-model-parallel-size": setup.layout.ep, "--expert-tensor-parallel-size": setup.layout.etp}
    return out | {"--moe-token-dispatcher-type": "alltoall", "--moe-grouped-gemm": True}


def _experts_read(settings: Settings, facts: Facts) -> Facts:
    if not settings.get("--num-experts"):
        return {"ep": 1, "etp": 1}
    ep = settings.get("--expert-model-parallel-size", 1)
    return {"ep": ep, "etp": settings.get("--expert-tensor-parallel-size", facts["tp"])}  # Megatron's default is tp


def _nothing(settings: Settings, facts: Facts) -> Facts:
    return {}


LAYOUT = (
    number("tp", "--tensor-model-parallel-size", lambda s: s.layout.tp, 1),
    Entry(("sequence_parallel",), ("--sequence-parallel",),
          lambda s: {"--sequence-parallel": True} if s.layout.sequence_parallel else {},
          lambda given, facts: {"sequence_parallel": bool(given.get("--sequence-parallel")) and facts["tp"] > 1}),
    number("pp", "--pipeline-model-parallel-size", lambda s: s.layout.pp, 1),
    Entry(("vpp", "schedule", "stages"),
          ("--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage",
           "--num-virtual-stages-per-pipeline-rank", "--decoder-first-pipeline-num-layers",
           "--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
           "--account-for-loss-in-pipeline-split"), _pipeline_write, _pipeline_read),
    number("cp", "--context-parallel-size", lambda s: s.layout.cp, 1),
    Entry(("cp_algorithm",), ("--cp-comm-type", "--hierarchical-context-parallel-sizes"),
          _context_write, _context_read),
    Entry(("ep", "etp"), ("--expert-model-parallel-size", "--expert-tensor-parallel-size",
                          "--moe-token-dispatcher-type", "--moe-grouped-gemm"), _experts_write, _experts_read),
    Entry(("zero", "shard", "dp"),
          ("--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy", "--ckpt-format",
           "--no-gradient-accumulation-fusion", "--num-distributed-optimizer-instances", "--use-torch-fsdp2",
           "--torch-fsdp2-no-reshard-after-forward", "--outer-dp-sharding-strategy"), _shards_write, _shards_read),
    number("micro_batch", "--micro-batch-size", lambda s: s.layout.micro_batch),
    number("workload.global_batch", "--global-batch-size", lambda s: s.workload.global_batch),
    number("workload.seq_len", "--seq-length", lambda s: s.workload.seq_len),
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          ("--recompute-granularity", "--recompute-modules", "--recompute-method", "--recompute-num-layers",
           "--recompute-activations"), _recompute_write, _recompute_read),
    Entry(("precision",), ("--bf16", "--fp16", "--fp8-format", "--fp8-recipe"), _precision_write, _precision_read),
    Entry(("offload", "workload.optimizer"),
          ("--optimizer", "--exp-avg-dtype", "--exp-avg-sq-dtype", "--optimizer-cpu-offload",
           "--optimizer-offload-fraction", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"),
          _optimizer_write, _optimizer_read),
    Entry(("stack",), ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"),
          _overlap_write, _nothing),
    Entry(("stack",), ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"), _loss_write, _nothing),
)  # fmt: skip
TABLE = Table((*MODEL, *LAYOUT))

_EXCLUSIVE = (
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
     "--pipeline-model-parallel-layout"),
    ("--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--decoder-last-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split"),
    ("--pipeline-model-parallel-layout", "--account-for-loss-in-pipeline-split"),
    ("--bf16", "--fp16"), ("--fp8-format", "--fp4-format"), ("--use-megatron-fsdp", "--use-torch-fsdp2"),
    ("--multi-latent-attention", "--group-query-attention"), ("--use-torch-fsdp2", "--use-distributed-optimizer"),
)  # fmt: skip
_NEEDS = (
    ("--overlap-param-gather", "--overlap-grad-reduce"), ("--overlap-param-gather", "--use-distributed-optimizer"),
    ("--optimizer-cpu-offload", "--use-precision-aware-optimizer"), ("--tp-comm-overlap", "--sequence-parallel"),
    ("--exp-avg-dtype", "--use-precision-aware-optimizer"), ("--num-query-groups", "--group-query-attention"),
    ("--use-megatron-fsdp", "--ckpt-format"), ("--fp8-recipe", "--fp8-format"), ("--fp8-format", "--bf16"),
    ("--recompute-num-layers", "--recompute-method"), ("--expert-model-parallel-size", "--num-experts"),
)  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of validate_args and TransformerConfig that no single option breaks."""
    out = [
        (given[-1], f"cannot be given together with {given[0]}")
        for group in _EXCLUSIVE
        if len(given := [name for name in group if name in settings]) > 1
    ]
    out += [(name, f"needs {other}") for name, other in _NEEDS if name in settings and other not in settings]
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
    return out + _connections(settings, environment, fsdp)


def _connections(settings: Settings, environment: Mapping[str, str], fsdp: bool) -> list[tuple[str, str]]:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = environment.get(name)
    split = settings.get("--tensor-model-parallel-size", 1) > 1 or settings.get("--context-parallel-size", 1) > 1
    if fsdp and value == "1":
        return [(name, "is 1; FSDP needs it unset or larger")]
    if split and not fsdp and value != "1" and environment.get("before_blackwell", "yes") == "yes":
        return [(name, f"is {value or 'not set'}; tp or cp needs 1 before Blackwell")]
    return []
