"""The rules of legality: masks over columns, with a message that is formatted only for displayed layouts.

A rule declares the fields that it reads. The search applies it at the first level of its tree where all of them are
bound (`LEVELS` of tree.py), so one rule excludes millions of layouts at once and the counts still sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Mask
from ...cost_models.cuda_graphs import CUDA_GRAPHS
from ...cost_models.cuda_graphs import modules_of as modules_of_graph
from ...cost_models.degrees import sequence_parts
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.layouts import (
    CP_ALGORITHMS,
    OFFLOADS,
    PRECISIONS,
    SCHEDULES,
    Layout,
    Layouts,
    encode,
)
from ...cost_models.offload_modules import OFFLOAD_MODULES
from ...cost_models.problem import Problem
from ...cost_models.schedule_kinds import CODE, FOLDED, INTERLEAVED, KINDS
from ...cost_models.specs.model import MixtureOfExperts
from ...cost_models.techniques import registry as techniques
from . import activations, splits
from .optimizer_needs import optimizer_needs

Columns = Mapping[str, NDArray[np.int64]]

BATCH = "batch"  # name of the rule that data parallelism divides the global batch
_CHUNKS = np.array([kind.chunks or 0 for kind in KINDS])  # per device, by code; 0: `vpp` of them


@dataclass(frozen=True)
class Rule:
    """`allows(columns, problem)` is True where the layout passes; `message` is formatted with the layout's fields."""

    name: str
    fields: tuple[str, ...]
    allows: Callable[[Columns, Problem], Mask]
    message: str

    def explain(self, layout: Layout, problem: Problem) -> str:
        """Why `layout` fails this rule, with the arithmetic."""
        model, workload = problem.model, problem.workload
        attention = next(iter(model.attentions), None)
        block = next((block for block in model.feed_forwards if isinstance(block, MixtureOfExperts)), None)
        values = {name: getattr(layout, name) for name in Layout.__dataclass_fields__}
        chunks, parts = (int(count) for count in sequence_parts(values))
        return self.message.format(
            **values, product=layout.num_gpus, num_gpus=problem.num_gpus, heads=attention.heads if attention else 0,
            kv_heads=attention.kv_heads if attention else 0, layers=model.num_layers, seq_len=workload.seq_len,
            global_batch=workload.global_batch, schedule_name=SCHEDULES[layout.schedule],
            algorithm=CP_ALGORITHMS[layout.cp_algorithm], offload_name=OFFLOADS[layout.offload],
            graphs_name=CUDA_GRAPHS[layout.cuda_graphs], modules_name=OFFLOAD_MODULES[layout.offload_modules],
            precision_name=PRECISIONS[layout.precision], workload_precision=workload.precision,
            experts=block.experts if block else 0, mixer_heads=splits.mixer_heads_text(problem),
            source_len=workload.source_len or 0, tower_heads=model.tower.heads if model.tower else 0,
            expert_inner=block.expert_inner if block else 0, chunks=chunks, parts=parts, split=parts // chunks,
            m=workload.global_batch / (layout.dp * layout.micro_batch), ranks=layout.tp * layout.cp * layout.dp,
            per_stage=2 if FOLDED[layout.schedule] else layout.vpp, num_stages=len(problem.stages or ()),
        )  # fmt: skip


def micro_batches(columns: Columns, problem: Problem) -> NDArray[np.int64]:
    """Micro-batches per pipeline, rounded down where the batch does not divide."""
    return np.asarray(problem.workload.global_batch // (columns["dp"] * columns["micro_batch"]))


def _world(x: Columns, problem: Problem) -> Mask:
    return np.asarray(x["tp"] * x["cp"] * x["pp"] * x["dp"] == problem.num_gpus)


def _fold(x: Columns, problem: Problem) -> Mask:
    return np.asarray(x["tp"] * x["cp"] * x["dp"] % (x["ep"] * x["etp"]) == 0)


def _expert_sequence(x: Columns, problem: Problem) -> Mask:
    unshared = problem.model.is_moe and not problem.stack.drops_duplicate_tokens
    return np.asarray((x["tp"] == 1) | (x["sequence_parallel"] > 0) | (not unshared))


def _expert_shards(x: Columns, problem: Problem) -> Mask:
    ranks = x["shard"] * x["cp"] * x["tp"]
    return np.asarray((x["zero"] == 0) | (ranks % (x["ep"] * x["etp"]) == 0))


def _num_chunks(x: Columns) -> NDArray[np.int64]:
    return np.asarray(x["pp"] * np.where(FOLDED[x["schedule"]], 2, x["vpp"]))


def _layers(x: Columns, problem: Problem) -> Mask:
    return np.asarray((x["pp"] <= problem.most_chunks) | (problem.stages is not None))


def _graphs(x: Columns, problem: Problem) -> Mask:
    dense = any(not isinstance(block, MixtureOfExperts) for block in problem.model.feed_forwards)
    mamba = any(isinstance(mixer, Mamba2) for mixer in problem.model.mixers)
    has = {"attn": bool(problem.model.attentions), "mamba": mamba, "mlp": dense}
    known = [all(has.get(module, problem.model.is_moe) for module in modules_of_graph(name)) for name in CUDA_GRAPHS]
    return np.array(known)[x["cuda_graphs"]]


def _chunks(x: Columns, problem: Problem) -> Mask:
    return np.asarray((_num_chunks(x) <= problem.most_chunks) | (problem.stages is not None))


def _stages(x: Columns, problem: Problem) -> Mask:
    return np.asarray((problem.stages is None) | (_num_chunks(x) == len(problem.stages or ())))


def _batch(x: Columns, problem: Problem) -> Mask:
    return np.asarray(problem.workload.global_batch % (x["dp"] * x["micro_batch"]) == 0)


def _dualpipe_batch(x: Columns, problem: Problem) -> Mask:
    # The DualPipe project rejects fewer, because the phases of its order need 2 pp micro-batches.
    return np.asarray((x["schedule"] != CODE["dualpipe-v"]) | (micro_batches(x, problem) >= 2 * x["pp"]))


def _compares_on_whole_ranks(x: Columns, problem: Problem) -> Mask:
    return np.asarray((x["tp"] * x["cp"] * x["pp"] == 1) | (problem.model.retrieval is None))


def _whole_samples(x: Columns, problem: Problem) -> Mask:
    retrieval = problem.model.retrieval
    return np.asarray(x["micro_batch"] % (1 if retrieval is None else retrieval.sequences) == 0)


def _no_pipeline_of_reference(x: Columns, problem: Problem) -> Mask:
    return np.asarray((x["pp"] == 1) | (not problem.workload.reference))


MESH = ("tp", "cp", "pp", "dp")
RULES: tuple[Rule, ...] = (
    Rule("gpus", MESH, _world,
         "tp {tp} x cp {cp} x pp {pp} x dp {dp} = {product}, but the cluster has {num_gpus} GPUs"),
    Rule("heads", ("tp",), splits.heads, "tp {tp} does not divide the {heads} attention heads"),
    Rule("kv heads", ("tp",), splits.kv_heads, "tp {tp} and the {kv_heads} key/value heads do not divide one another"),
    Rule("heads of the vision tower", ("tp",), splits.tower_heads,
         "tp {tp} does not divide the {tower_heads} heads of the vision tower"),
    Rule("retrieval", ("tp", "cp", "pp"), _compares_on_whole_ranks,
         "tp {tp} x cp {cp} x pp {pp}: the vectors of queries and texts are compared on ranks with whole encoders"),
    Rule("samples of retrieval", ("micro_batch",), _whole_samples,
         "micro batch {micro_batch} is no whole number of queries with their texts"),
    Rule("reference", ("pp",), _no_pipeline_of_reference,
         "pp {pp}: the pass of a frozen reference through a pipeline is not priced"),
    Rule("mixer heads", ("tp", "cp"), splits.mixer_heads,
         "tp {tp} x cp {cp} does not divide the heads of the layers' mixers: {mixer_heads}"),
    Rule("cp algorithm", ("cp", "cp_algorithm"), splits.has_keys,
         "cp_algorithm {algorithm} is of attention, and the model has none"),
    Rule("index of keys", ("cp", "cp_algorithm"), splits.gathers_keys,
         "cp_algorithm {algorithm}: an index chooses among the keys of all tokens, so ranks gather them (allgather)"),
    Rule("feed-forward", ("tp",), splits.ffn, "tp {tp} does not divide the feed-forward width"),
    Rule("thresholds", ("tp",), splits.whole_rows,
         "tp {tp}: thresholds of gates need the mean of all of a token, and no exchange of it is priced"),
    Rule("one stage", ("pp",), splits.one_stage,
         "pp {pp}: keys of earlier layers and embeddings of each layer are sent to no other stage"),
    Rule("sequence", ("tp", "sequence_parallel", "cp", "cp_algorithm"), splits.sequence,
         "{seq_len} tokens do not split over cp {cp} ({algorithm}) and tp {tp}: "
         "{chunks} chunks x {split} parts of each = {parts} does not divide them"),
    Rule("source", ("tp", "sequence_parallel"), splits.source,
         "sequence parallelism over tp {tp} does not divide the {source_len} tokens that the encoder reads"),
    Rule("keys of the source", ("cp",), splits.whole_source,
         "cp {cp}: cross attention takes the keys of the whole source, and no exchange of them is priced"),
    Rule("stacks", ("schedule", "vpp"), splits.one_way,
         "{schedule_name} gives stages several chunks, but stages of an encoder and of a decoder are unlike"),
    Rule("ulysses", ("tp", "cp", "cp_algorithm"), splits.ulysses,
         "{algorithm} with cp {cp} x tp {tp} does not divide the {kv_heads} key/value heads"),
    Rule("layers", ("pp",), _layers,
         "pp {pp} is more than the {layers} layers, a stage for the embedding and one for the head"),
    Rule(BATCH, ("dp", "micro_batch"), _batch,
         "global batch {global_batch} is not a multiple of dp {dp} x micro batch {micro_batch}"),
    Rule("experts", ("ep", "etp"), splits.experts,
         "ep {ep} does not divide the {experts} experts, or etp {etp} their width {expert_inner}"),
    Rule("expert folding", ("tp", "cp", "dp", "ep", "etp"), _fold,
         "ep {ep} x etp {etp} does not divide the {ranks} ranks of a stage (tp {tp} x cp {cp} x dp {dp})"),
    Rule("expert sequence", ("tp", "sequence_parallel"), _expert_sequence,
         "experts with tp {tp} need sequence parallelism, or the technique duplicate-token-dropping"),
    Rule("expert overlap", ("ep", "ep_overlap"), lambda x, p: np.asarray((x["ep"] > 1) | (x["ep_overlap"] == 0)),
         "ep_overlap needs tokens that travel: ep {ep}"),
    Rule("graphs", ("cuda_graphs",), _graphs, "cuda_graphs {graphs_name}: the model has no such module"),
    Rule("chunks", ("pp", "schedule", "vpp"), _chunks,
         "pp {pp} x {per_stage} chunks are more than the {layers} layers, one for the embedding and one for the head"),
    Rule("stages", ("pp", "schedule", "vpp"), _stages,
         "pp {pp} x {per_stage} chunks, and the stages of the request are {num_stages}"),
    Rule("dualpipe", ("pp", "dp", "micro_batch", "schedule"), _dualpipe_batch,
         "dualpipe-v needs at least 2 x pp {pp} micro-batches, and there are {m:g}"),
    Rule("expert shards", ("tp", "cp", "ep", "etp", "zero", "shard"), _expert_shards,
         "shard {shard} x cp {cp} x tp {tp} is not a multiple of ep {ep} x etp {etp}: expert shards would straddle"),
    Rule("offload modules", ("offload_modules",), activations.offload_modules,
         "offload_modules {modules_name}: the model has no such module, or the ranks have no GPU"),
    Rule("offloaded once", ("offload_layers", "offload_modules"), activations.offloaded_once,
         "offload_layers {offload_layers} or offload_modules {modules_name}, not both"),
    Rule("offload", ("offload",), lambda x, p: np.asarray((x["offload"] == OFFLOADS.index("none")) | (not p.on_host)),
         "offload {offload_name} moves tensors to host memory, where a CPU rank has all of its own already"),
)  # fmt: skip


def _schedule_shape(x: Columns, problem: Problem) -> Mask:
    chunks = np.where(INTERLEAVED[x["schedule"]], x["vpp"] > 1, x["vpp"] == _CHUNKS[x["schedule"]])
    alone = (x["vpp"] == 1) & (x["schedule"] == CODE["1f1b"])
    return np.asarray(np.where(x["pp"] > 1, chunks, alone))


def _shard_shape(x: Columns, problem: Problem) -> Mask:
    # Without ranks to shard over, a ZeRO stage is often given out of habit and has no effect.
    sharded = (x["dp"] % x["shard"] == 0) & ((x["shard"] * x["cp"] > 1) | (x["dp"] * x["cp"] == 1))
    return np.asarray(np.where(x["zero"] > 0, sharded, x["shard"] == x["dp"]))


# Layouts that the space never forms. Only a layout given by its id can break these rules.
WELL_FORMED: tuple[Rule, ...] = (
    Rule("schedule and chunks", ("pp", "schedule", "vpp"), _schedule_shape,
         "schedule {schedule_name} with pp {pp} and vpp {vpp}: interleaved has vpp > 1, V schedules 2, all others 1"),
    Rule("shards", ("dp", "cp", "zero", "shard"), _shard_shape,
         "shard {shard} with dp {dp}, cp {cp}, z{zero}: it divides dp and shards something, or is dp without ZeRO"),
    Rule("modules", ("recompute_modules",), activations.modules_shape, "the model has no such module to recompute"),
    Rule("recomputed layers", ("pp", "recompute_layers"), activations.layers_shape,
         "{recompute_layers} recomputed layers are not fewer than those of a stage ({layers} layers, pp {pp})"),
    # Checks of Megatron Core (core/transformer/transformer_config.py). No other framework has this offload.
    Rule("offloaded layers", ("pp", "recompute", "offload_layers"), activations.offloaded_shape,
         "{offload_layers} offloaded layers need pp 1, no recomputation and fewer than all {layers} layers"),
    Rule("dense experts", ("ep", "etp"), lambda x, p: np.asarray(p.model.is_moe | (x["ep"] * x["etp"] == 1)),
         "ep {ep} x etp {etp}, but the model has no experts"),
    Rule("sequence parallelism", ("tp", "sequence_parallel"),
         lambda x, p: np.asarray((x["tp"] > 1) | (x["sequence_parallel"] == 0)), "sequence parallelism needs tp > 1"),
    Rule("precision", ("precision",),
         lambda x, p: np.asarray(x["precision"] == PRECISIONS.index(p.workload.precision)),
         "the layout is in {precision_name}, the workload in {workload_precision}: end it with "
         "`-{workload_precision}`, or give `--dtype {precision_name}`"),
)  # fmt: skip


def fixed(field: str, value: int, text: str, *, stages_alone: bool = False) -> Rule:
    """The rule of `--fix field=value`.

    A ZeRO stage fixed without ranks to shard over has no effect, because the space then has z0 (but `stages_alone`).
    """
    if field == "zero" and not stages_alone:
        fields = ("dp", "cp", field)
        return Rule(f"--fix {text}", fields, lambda x, p: np.asarray((x[field] == value) | (x["dp"] * x["cp"] == 1)),
                    f"{text} was fixed")  # fmt: skip
    return Rule(f"--fix {text}", (field,), lambda x, p: np.asarray(x[field] == value), f"{text} was fixed")


def legality(problem: Problem) -> tuple[Rule, ...]:
    """All rules of legality of a problem: RULES, and the requirements of its techniques and its optimizer."""
    needs = [(used.name, need) for used, _ in techniques.of(problem.workload.techniques) for need in used.needs]
    needs += [(problem.workload.optimizer, need) for need in optimizer_needs(problem)]
    return RULES + tuple(Rule(name, need.fields, need.allows, f"{name} needs {need.text}") for name, need in needs)


def broken_rules(layout: Layout, problem: Problem) -> list[Rule]:
    """All rules that `layout` fails."""
    columns = Layouts.of([layout])
    return [rule for rule in WELL_FORMED + legality(problem) if not bool(rule.allows(columns, problem)[0])]


def violations(layout: Layout, problem: Problem) -> list[str]:
    """Messages of all rules that `layout` fails."""
    return [rule.explain(layout, problem) for rule in broken_rules(layout, problem)]


def only(target: str, field: str, values: Sequence[object], message: str) -> Rule:
    """The rule that `field` is one of `values`."""
    codes = np.array([encode(field, value) for value in values])[:, None]

    def allows(columns: Columns, problem: Problem) -> Mask:
        return np.asarray((columns[field] == codes).any(axis=0))

    return Rule(f"{target}: {field}", (field,), allows, message)
