"""Plan <-> fields of torchtitan's Trainer.Config, in its two forms of the batch.

Names: torchtitan 0.3.0 (local_batch_size, seq_len) and b5bcd76c (tokens per microbatch), config/configs.py, trainer.py,
distributed/pipeline_parallel.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from ....cost_models.quantities.params import total_parameters
from ....cost_models.specs.model import ModelSpec
from ....errors import InputError
from ....profiles.model.load import catalogued
from .. import cpu_offload
from ..facts import EVERY
from ..option_lists import OptionList, Registered
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, number
from ..setup import Setup
from ..switch_options import entries_of
from . import flux, optimizers

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
             "dualpipe-v": "DualPipeV"}  # fmt: skip
# Data type of weights, gradients and states. Plans keep its default, float32.
_DTYPE = "training.dtype"
# Micro-batches of an optimizer step, an option of forks (YerevaNN/YNNtitan 8c3fea00, train.py).
ACCUMULATION = "training.gradient_accumulation_steps"
_RESHARD = {2: "never", 3: "always"}


def registered(model: ModelSpec, options: OptionList) -> Registered | None:
    """The model of torchtitan with the shapes of `model`: layers, width and parameters agree, MTP modules aside."""
    parameters = total_parameters(replace(model, mtp_layers=0))
    sizes = (model.num_layers, model.hidden, parameters)
    return next((known for known in options.models if (known.layers, known.hidden, known.parameters) == sizes), None)


def _shards_write(setup: Setup) -> Settings:
    layout = setup.layout
    shard = layout.shard if layout.zero else 1
    out: Settings = {"parallelism.data_parallel_replicate_degree": layout.dp // shard}
    out["parallelism.data_parallel_shard_degree"] = shard
    return out | ({"parallelism.fsdp_reshard_after_forward": _RESHARD[layout.zero]} if layout.zero else {})


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    replicas = settings.get("parallelism.data_parallel_replicate_degree", 1)
    shard = settings.get("parallelism.data_parallel_shard_degree", -1)
    policy = settings.get("parallelism.fsdp_reshard_after_forward", "default")
    if shard == 1 and facts["cp"] == 1 and policy == "default":
        return {"zero": 0, "dp": replicas, "replicas": 1}
    # `default` reshards except in a pipeline (distributed/fsdp.py).
    zero = {"never": 2, "always": 3}.get(policy, 2 if facts["pp"] > 1 else 3)
    return {"zero": zero, "replicas": replicas} | ({"dp": replicas * shard} if shard > 0 else {})


def _pipeline_write(setup: Setup) -> Settings:
    if setup.layout.pp == 1:
        return {}
    parts, start = [], 0
    for size in setup.chunk_sizes:
        parts.append([f"layers.{index}" for index in range(start, start + size)])
        start += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {"parallelism.pipeline_parallel_schedule": SCHEDULES[setup.schedule],
            "parallelism.module_fqns_per_model_part": parts}  # fmt: skip


def _pipeline_read(settings: Settings, facts: Facts) -> Facts:
    pp = facts["pp"]
    if pp == 1:
        return {"vpp": 1}
    name = settings.get("parallelism.pipeline_parallel_schedule", "1F1B")
    meaning = {value: key for key, value in SCHEDULES.items()}
    if name not in meaning:
        raise NoCounterpartError(f"parallelism.pipeline_parallel_schedule `{name}` has no counterpart in a plan",
                         hint=f"known: {', '.join(meaning)}")  # fmt: skip
    out: Facts = {"schedule": meaning[name]}
    parts = settings.get("parallelism.module_fqns_per_model_part")
    if parts is not None:
        return out | _stages(parts, pp, facts.get("model.layers"))
    single = meaning[name] in ("1f1b", "gpipe")
    per_stage = settings.get("parallelism.pipeline_parallel_layers_per_stage")
    if per_stage and not single and facts.get("model.layers"):
        first, last = (f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
        stages = -(-(facts["model.layers"] + settings.get(first, 1) + settings.get(last, 1)) // per_stage)
        return out | {"vpp": max(1, stages // pp)}
    return out | {"vpp": 1 if single else 2}


def _stages(parts: list[list[str]], pp: int, layers: int | None) -> Facts:
    """Layers of each part. Raises InputError unless every module appears once, in order."""
    where = "parallelism.module_fqns_per_model_part"
    flat = [name for part in parts for name in part]
    numbers = [int(name.rsplit(".", 1)[1]) for name in flat if name.startswith("layers.")]
    wrong = []
    if len(parts) % pp:
        wrong.append(f"{len(parts)} parts are no multiple of pp {pp}")
    expected = list(range(layers if layers is not None else len(numbers)))
    if numbers != expected:
        astray = next((index for index, pair in enumerate(zip_longest(numbers, expected)) if pair[0] != pair[1]), 0)
        wrong.append(f"{len(numbers)} layers instead of {len(expected)}, out of order at the {astray}th")
    ends = [name for name in flat if not name.startswith("layers.")]
    if ends != ["tok_embeddings", "norm", "lm_head"] or flat[:1] != ["tok_embeddings"] or flat[-1:] != ["lm_head"]:
        wrong.append(f"`{', '.join(ends)}` beside the layers instead of tok_embeddings first, norm and lm_head last")
    if wrong:
        raise InputError(f"{where}: {'; '.join(wrong)}", hint="every module once, in the order of the model")
    return {"vpp": len(parts) // pp, "stages": [sum(name.startswith("layers.") for name in part) for part in parts]}


def _sequences_write(setup: Setup) -> Settings:
    """The batch of 0.3.0. A pipeline splits the local batch into micro-batches; without one it is a micro-batch."""
    layout, batch = setup.layout, setup.workload.global_batch
    out: Settings = {"training.seq_len": setup.workload.seq_len, "training.global_batch_size": batch}
    if layout.pp == 1:
        return {"training.local_batch_size": layout.micro_batch} | out
    local = batch // layout.dp
    out |= {"training.local_batch_size": local, "parallelism.pipeline_parallel_microbatch_size": layout.micro_batch}
    return out


def _sequences_read(settings: Settings, facts: Facts) -> Facts:
    local = settings.get("training.local_batch_size", 8)
    size = settings.get("parallelism.pipeline_parallel_microbatch_size", 1)
    out: Facts = {"workload.seq_len": settings.get("training.seq_len", 2048)}
    out["micro_batch"] = local if facts["pp"] == 1 else size
    batch = settings.get("training.global_batch_size", -1)
    steps = settings.get(ACCUMULATION, 1)
    return out | ({"workload.global_batch": batch} if batch > 0 else {"batch_per_rank": local * steps})


def _tokens_write(setup: Setup) -> Settings:
    """The batch after 0.3.0: sizes in tokens, and the number of micro-batches of a pipeline."""
    layout, length = setup.layout, setup.workload.seq_len
    out: Settings = {
        "training.num_tokens_per_microbatch_per_dp_rank": layout.micro_batch * length,
        "training.num_tokens_per_train_step": setup.workload.global_batch * length,
        "training.max_context_length": length,
    }  # fmt: skip
    return out | ({"parallelism.num_pp_microbatches": setup.num_micro_batches} if layout.pp > 1 else {})


def _tokens_read(settings: Settings, facts: Facts) -> Facts:
    length = settings.get("training.max_context_length", 2048)
    tokens = settings.get("training.num_tokens_per_microbatch_per_dp_rank", 16384)
    step, micro = settings.get("training.num_tokens_per_train_step", -1), max(tokens // length, 1)
    out: Facts = {"workload.seq_len": length, "micro_batch": micro}
    if step > 0:
        return out | {"workload.global_batch": step // length}
    count = settings.get("parallelism.num_pp_microbatches", 1) if facts["pp"] > 1 else 1
    return out | {"batch_per_rank": micro * count}


def _precision_write(setup: Setup) -> Settings:
    if setup.precision == "fp8":
        return {"converters": "float8"}
    return {"training.mixed_precision_param": "float32"} if setup.precision == "fp32" else {}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    if (weights := settings.get(_DTYPE, "float32")) != "float32":
        raise NoCounterpartError(f"{_DTYPE} `{weights}`: weights and moments have no copy in fp32, those of plans do")
    if "float8" in str(settings.get("converters", "")).lower():
        return {"precision": "fp8"}
    return {"precision": "fp32" if settings.get("training.mixed_precision_param") == "float32" else "bf16"}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    mode = settings.get("activation_checkpoint", "selective")  # torchtitan's default
    if mode == "selective":
        note = "activation_checkpoint selective keeps products and attention: priced as recomputing norm and act"
        modules = {"mode": "selective", "modules": ["norm", "act"]}
        return {"recompute": modules, "notes": [*facts.get("notes", []), note]}
    if str(mode).isdigit():
        return {"recompute": {"mode": "full", EVERY: int(mode)}}
    return {"recompute": {"mode": mode}}


def _graphs_write(setup: Setup) -> Settings:
    # CUDA graphs are on by default. They reject pipelines, and experts that wait for the host.
    # FluxTrainer has none.
    without = setup.layout.pp > 1 or setup.layout.ep > 1 or setup.model.diffusion is not None
    return {"training.disable_cuda_graphs": True} if without else {}


def _model_entry(options: OptionList) -> Entry:
    """`model_spec` stands for the model that Python builds, which the release registers."""

    def write(setup: Setup) -> Settings:
        model = registered(setup.model, options)
        return {} if model is None else {"model_spec": model.name}

    def read(settings: Settings, facts: Facts) -> Facts:
        known = {model.name: model for model in options.models}
        named = settings.get("model_spec")
        model = known.get(str(named))
        if model is None and named:
            note = f"model {named} is not registered by this release: the one of --model is taken"
            known_too = catalogued(str(named)) or catalogued(str(named).replace("/", "-"))
            notes = facts.get("notes", []) + ([note] if known_too is None else [])
            return {"notes": notes, "registered": str(named)}
        return {} if model is None else {"model.layers": model.layers, "registered": model.name}

    return Entry(("model",), ("model_spec",), write, read)


def _batch_entry(options: OptionList) -> Entry:
    """The entry of the batch. Releases after 0.3.0 count it in tokens."""
    fields = ("micro_batch", "workload.global_batch", "workload.seq_len")
    if "training.num_tokens_per_train_step" in options.options:
        return Entry(fields, (
            "training.num_tokens_per_microbatch_per_dp_rank", "training.num_tokens_per_train_step",
            "training.max_context_length", "parallelism.num_pp_microbatches",
        ), _tokens_write, _tokens_read)  # fmt: skip
    return Entry(fields, (
        "training.local_batch_size", "training.seq_len", "training.global_batch_size",
        "parallelism.pipeline_parallel_microbatch_size", ACCUMULATION,
    ), _sequences_write, _sequences_read)  # fmt: skip


_SEQUENCE_PARALLEL = "parallelism.enable_sequence_parallel"
# `converters` and `activation_checkpoint` stand for what Python builds.
_PARALLELISM = (
    number("tp", "parallelism.tensor_parallel_degree", lambda s: s.layout.tp, 1),
    Entry(("sequence_parallel",), (_SEQUENCE_PARALLEL,),
          lambda s: {_SEQUENCE_PARALLEL: bool(s.layout.sequence_parallel)} if s.layout.tp > 1 else {},
          lambda given, facts: {"sequence_parallel": facts["tp"] > 1 and given.get(_SEQUENCE_PARALLEL, True)}),
    number("pp", "parallelism.pipeline_parallel_degree", lambda s: s.layout.pp, 1),
    Entry(("schedule", "vpp", "stages"),
          ("parallelism.module_fqns_per_model_part", *(f"parallelism.pipeline_parallel_{name}" for name in (
              "schedule", "layers_per_stage", "first_stage_less_layers", "last_stage_less_layers"))),
          _pipeline_write, _pipeline_read),
    number("cp", "parallelism.context_parallel_degree", lambda s: s.layout.cp, 1),
    Entry(("cp_algorithm",), (), lambda s: {},
          lambda given, facts: {"cp_algorithm": "allgather"} if facts["cp"] > 1 else {}),
    Entry(("dp", "shard", "zero"),
          ("parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree",
           "parallelism.fsdp_reshard_after_forward"), _shards_write, _shards_read),
    number("ep", "parallelism.expert_parallel_degree", lambda s: s.layout.ep, 1),
    Entry(("etp",), (), lambda s: {}, lambda given, facts: {"etp": 1}),
)  # fmt: skip
_MEMORY_AND_PRECISION = (
    Entry(("recompute", "recompute_modules", "recompute_layers"), ("activation_checkpoint",),
          lambda s: {"activation_checkpoint": s.recompute}, _recompute_read),
    Entry(("precision",), ("training.mixed_precision_param", _DTYPE, "converters"), _precision_write, _precision_read),
    cpu_offload.entry("training.enable_cpu_offload"),
    optimizers.ENTRY,
    Entry((), ("training.disable_cuda_graphs",), _graphs_write, lambda given, facts: {}),
)  # fmt: skip


def table(options: OptionList) -> Table:
    """The table of a release. The batch is read after the pipeline degree, because its meaning depends on it."""
    return Table((_model_entry(options), *_PARALLELISM, _batch_entry(options), flux.ENTRY, *_MEMORY_AND_PRECISION,
                  *entries_of("torchtitan", options)))  # fmt: skip
