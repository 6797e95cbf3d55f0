"""Plans at random, for the tests of emitters: legal layouts of several models and clusters, drawn with a fixed seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from meshwright.cost_models.layouts import FIELD_NAMES, FIELDS, PRECISIONS, Layout, Layouts
from meshwright.cost_models.offload_modules import OF_EXPERTS
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.space.rules import WELL_FORMED, legality
from meshwright.planner.switches.choices import goes
from meshwright.planner.switches.registry import SWITCHES
from meshwright.planner.targets.adapters import cannot_name
from meshwright.planner.targets.launch_config import LaunchConfig
from meshwright.planner.targets.registry import TARGETS

MODELS = (
    ("llama-3.1-8b", 8192, 256), ("llama-3-70b", 8192, 512), ("qwen3-30b-a3b", 4096, 512), ("mixtral-8x7b", 4096, 256),
    ("deepseek-v3", 4096, 960), ("gpt-22b", 2048, 240), ("mistral-7b", 8192, 192), ("gpt-oss-120b", 4096, 256),
)  # fmt: skip
_HYBRIDS = (("nemotron-h-56b", 8192, 192), ("nemotron-3-nano-30b-a3b", 8192, 384), ("qwen3-next-80b-a3b", 4096, 512))
# Targets with adapters, and the adapters to draw from.
_WITH_ADAPTERS = ("trl", "llama-factory", "axolotl")
_ADAPTERS = (None, "16:q,v", "8:q,k,v,o", "64:q,k,v:nf4")
# torchtitan builds only what it has registered.
OF_TARGET = {"torchtitan": (*MODELS[:3], MODELS[4], ("llama-3.2-3b", 8192, 384), ("qwen3-8b", 4096, 480)),
             **dict.fromkeys(_WITH_ADAPTERS, tuple(model for model in MODELS if model[0] != "gpt-22b")),
             "nanotron": (("llama-2-70b", 4096, 480), ("llama-2-7b", 4096, 384), ("mistral-7b-v0.3", 8192, 192),
                          ("llama-3-70b", 8192, 512), ("qwen2.5-3b", 8192, 384), ("codellama-34b", 8192, 336)),
             "maxtext": (("llama-3.1-8b", 8192, 256), ("llama-3-70b", 8192, 512), ("llama-2-7b", 4096, 384),
                         ("qwen2.5-3b", 8192, 384), ("qwen3-8b", 4096, 480), ("mistral-7b-v0.3", 8192, 192)),
             "nemo": (*MODELS[:4], *MODELS[5:7], ("qwen3-8b", 4096, 480), ("llama-2-70b", 4096, 480)),
             "megatron": (*MODELS, *_HYBRIDS), "megatron-bridge": (*MODELS, *_HYBRIDS)}  # fmt: skip
CLUSTERS = ("dgx-h100:1", "dgx-h100:2", "dgx-h100:8", "dgx-h100:16", "dgx-b200:6")
_DRAWN = 40_000
_ROUNDS = 4  # a target with few layouts needs several requests of a model
_SMALL = np.array([1, 1, 1, 1, 2, 2, 2, 3, 4, 4, 6, 8, 8, 16, 32])


def config_of(target: str) -> LaunchConfig:
    """The launch config of a target that has one."""
    config = TARGETS[target].config
    assert config is not None
    return config


@cache
def resolved(
    model: str, seq_len: int, batch: int, cluster: str, precision: str, optimizer: str, target: str,
    fixed: tuple[tuple[str, str], ...] = (), lora: str | None = None, stages: tuple[int, ...] | None = None,
) -> Resolved:  # fmt: skip
    workload: dict[str, Any] = {"seq_len": seq_len, "global_batch": batch, "precision": precision,
                                "optimizer": optimizer, "train": {"lora": lora} if lora else {}}  # fmt: skip
    request = {"model": model, "cluster": cluster, "target": target, "workload": workload, "fix": dict(fixed),
               **({"stages": list(stages)} if stages else {})}  # fmt: skip
    return resolve(request_from_dict(request))


def random_switches(resolved: Resolved, target: str, rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """A value for each switch that the target has and that is no field of a layout."""
    drawn: dict[str, str] = {}
    for name, switch in SWITCHES.items():
        values = [value for value in switch.of_target(target) if goes(switch, value, drawn, target)]
        if values and not switch.axis and switch.concerns(resolved.problem):
            drawn[name] = str(rng.choice(values))
    return tuple(drawn.items())


def random_layouts(resolved: Resolved, rng: np.random.Generator) -> Layouts:
    """Legal layouts, whoever can run them."""
    problem = resolved.problem
    n = _DRAWN * (4 if problem.model.is_moe else 1)  # rules of experts leave few
    degrees = ("tp", "cp", "pp", "ep", "etp", "vpp", "micro_batch")
    columns: dict[str, Any] = {name: rng.choice(_SMALL, n) for name in degrees}
    columns["dp"] = problem.num_gpus // np.maximum(columns["tp"] * columns["cp"] * columns["pp"], 1)
    for each in FIELDS:
        if each.choices:
            columns[each.name] = rng.integers(0, len(each.choices), n)
    columns["sequence_parallel"] = rng.integers(0, 2, n) & (columns["tp"] > 1)
    columns["precision"] = np.full(n, PRECISIONS.index(resolved.workload.precision))
    columns["zero"] = rng.integers(0, 4, n)
    share = rng.choice(np.array([1, 1, 1, 2, 4]), n)
    columns["shard"] = np.where(columns["zero"] > 0, np.maximum(columns["dp"] // share, 1), columns["dp"])
    full, selective = columns["recompute"] == 2, columns["recompute"] == 1
    columns["recompute_layers"] = np.where(full, rng.choice(np.array([0, 0, 1, 3]), n), 0)
    columns["recompute_modules"] = np.where(selective, rng.integers(1, 32, n), 0)
    # Fields that only mean something beside another one take their default where it is absent.
    columns["cp_algorithm"] = np.where(columns["cp"] > 1, columns["cp_algorithm"], 0)
    columns["vpp"] = np.where(columns["pp"] > 1, columns["vpp"], 1)
    columns["schedule"] = np.where(columns["pp"] > 1, np.where(columns["vpp"] > 1, 2, columns["schedule"]), 0)
    columns["ep_overlap"] = rng.integers(0, 2, n) & (columns["ep"] > 1)
    columns["cuda_graphs"] = np.where(rng.integers(0, 3, n) > 0, 0, columns["cuda_graphs"])
    sends = rng.integers(0, 8, n)  # layers or modules to the host, the latter mostly sets that Megatron has
    pairs = columns["offload_modules"] | np.where(columns["offload_modules"] & 8 > 0, 4, 0)
    columns["offload_modules"] = np.where(sends == 1, pairs, 0)
    alone = np.isin(sends, (2, 3, 4)) & (columns["pp"] == 1) & (columns["recompute"] == 0)
    columns["offload_layers"] = np.where(alone, rng.integers(1, problem.model.num_layers, n), 0)
    if not problem.model.is_moe:
        columns["offload_modules"] &= ~OF_EXPERTS
        columns["ep"] = columns["etp"] = np.ones(n, dtype=int)
        columns["ep_overlap"] = np.zeros(n, dtype=int)
    product = columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"]
    whole = np.flatnonzero((columns["dp"] > 0) & (product == problem.num_gpus))
    batch = Layouts({name: column[whole] for name, column in columns.items()})
    ok = np.ones(len(batch), dtype=bool)
    for rule in WELL_FORMED + legality(problem):
        ok &= rule.allows(batch, problem)
    return batch.take(ok)


@cache
def random_plans(target: str, count: int = 200, seed: int = 0) -> tuple[list[Plan], Counter[str]]:
    """(`count` different plans that `target` allows, how many legal layouts each of its rules refused on the way)."""
    rng, refused = np.random.default_rng(seed), Counter[str]()
    pool: dict[tuple[str, str], tuple[Resolved, Layout]] = {}
    for _ in range(_ROUNDS):
        for work in OF_TARGET.get(target, MODELS):
            for cluster in CLUSTERS:
                for found in _requests(target, work, cluster, rng):
                    drawn = _allowed(random_layouts(found, rng), found, target, refused)
                    rows = rng.permutation(len(drawn))[: 20 * (1 + count // 12)].tolist()
                    layouts = list({str(layout): layout for layout in map(drawn.layout, rows)}.values())
                    pool |= {(repr(found.request), str(layout)): (found, layout)
                             for layout in _varied(layouts, 1 + count // 12)}  # fmt: skip
        if len(pool) >= count:
            break
    plans = list(pool.values())
    plans = [plans[index] for index in rng.permutation(len(plans)).tolist()]
    order = _in_turn([layout for _, layout in plans], count)
    return [api.evaluate(plans[index][0].request, str(plans[index][1])) for index in order], refused


def _requests(target: str, work: tuple[str, int, int], cluster: str, rng: np.random.Generator) -> list[Resolved]:
    """A request of a target at random; one per number of stages where the framework cuts its pipelines itself."""
    several = ["bf16", "bf16", "bf16", "fp16", "fp8", "fp32"]
    precision = str(rng.choice(["bf16"] if target in ("nanotron", "maxtext") else several))
    few = ["adamw"] if precision == "fp16" else ["muon"]  # Muon does not train in fp16
    optimizer = "adamw"
    if target.startswith("megatron"):
        optimizer = str(rng.choice(["adamw", "adamw-bf16", *few]))
    elif target == "nemo" and rng.random() < 0.3:
        optimizer = "adamw-bf16"
    asked = (*work, cluster, precision, optimizer, target)
    lora = _ADAPTERS[int(rng.integers(len(_ADAPTERS)))] if target in _WITH_ADAPTERS else None
    switches = random_switches(resolved(*asked), target, rng)
    found = resolved(*asked, switches, lora)
    if cannot_name(found.model, found.workload.lora):
        found = resolved(*asked, switches)
    cut = TARGETS[target].cut
    return [found] if cut is None else [resolved(*asked, stages=cut(found.model, pp)) for pp in (1, 2, 4)]


def _allowed(drawn: Layouts, found: Resolved, target: str, refused: Counter[str]) -> Layouts:
    """The layouts that the rules of a target allow; those that a rule refuses are counted."""
    ok = np.ones(len(drawn), dtype=bool)
    for rule in TARGETS[target].rules:
        allowed = rule.allows(drawn, found.problem)
        refused[rule.name] += int((ok & ~allowed).sum())
        ok &= allowed
    return drawn.take(ok)


def nondefault(layout: Layout) -> list[str]:
    """Fields of a layout that are not at their default."""
    defaults = {**{field.name: field.default for field in FIELDS}, "sequence_parallel": 0, "shard": layout.dp}
    return [name for name in FIELD_NAMES if getattr(layout, name) != defaults[name]]


def _varied(layouts: list[Layout], count: int) -> list[Layout]:
    return [layouts[index] for index in _in_turn(layouts, count)]


def _in_turn(layouts: list[Layout], count: int) -> list[int]:
    """Indices of `count` layouts, or of all: each time the first one that has the field away from its default which the
    fewest before it have."""
    away = [nondefault(layout) for layout in layouts]
    tried = Counter(dict.fromkeys(FIELD_NAMES, 0))
    left, chosen = list(range(len(layouts))), list[int]()
    while left and len(chosen) < count:
        rarest = (name for name, _ in reversed(tried.most_common()))
        index = next((index for name in rarest for index in left if name in away[index]), left[0])
        left.remove(index)
        chosen.append(index)
        tried.update(away[index])
    return chosen


def without_whole_windows(model: ModelSpec) -> ModelSpec:
    """Windows of all positions see every token: a framework is asked for none of them at that length."""
    kinds = [replace(kind, attention=replace(kind.attention, window=None))
             if kind.attention is not None and kind.attention.window == model.max_positions else kind
             for kind in model.kinds]  # fmt: skip
    return replace(model, kinds=tuple(kinds))
