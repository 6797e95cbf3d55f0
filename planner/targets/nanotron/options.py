"""Plan <-> options of nanotron's YAML.

nanotron 2411b022 (2026-04-07), src/nanotron: config/parallelism_config.py, config.py and models_config.py;
parallel/context.py (tp x cp x dp x pp are all ranks), trainer.py (init_model pads the vocabulary).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....cost_models.specs.model import FeedForward
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, always, number
from ..setup import Setup
from ..switch_options import entries_of
from .stages import sizes_of

P, M, T, OPTIMIZER = "parallelism.", "model.model_config.", "tokens.", "optimizer."
DEGREES = ("dp", "pp", "tp", "context_parallel_size", "expert_parallel_size")
ACCUMULATES, _ZERO = f"{OPTIMIZER}accumulate_grad_in_fp32", f"{OPTIMIZER}zero_stage"
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Engine -> schedule; without one all forward passes come before all backward passes.
_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_ENGINE, _TP_MODE, _RECOMPUTE = f"{P}pp_engine", f"{P}tp_mode", f"{P}recompute_layer"
_MICRO, _STEPS = f"{T}micro_batch_size", f"{T}batch_accumulation_per_replica"
LLAMA, QWEN2 = f"{M}is_llama_config", f"{M}is_qwen2_config"
_LAYERS, _VOCAB = (f"{M}{name}" for name in ("num_hidden_layers", "vocab_size"))  # fmt: skip
_HEADS, _KV_HEADS, _BIAS = (f"{M}{name}" for name in ("num_attention_heads", "num_key_value_heads", "attention_bias"))
_POSITIONS, _UNIT = f"{M}max_position_embeddings", "model.make_vocab_size_divisible_by"
_MOST_LAYERS = 10_000  # a model with more is refused


def _degrees_write(setup: Setup) -> Settings:
    return {f"{P}{name}": getattr(setup.layout, name) for name in DEGREES[:3]}


def _degrees_read(settings: Settings, facts: Facts) -> Facts:
    dp, pp, tp, cp, ep = (settings.get(f"{P}{name}") or 1 for name in DEGREES)
    if ep > 1:
        raise NoCounterpartError(f"{P}expert_parallel_size {ep}: its ranks are beside those of dp, tp, cp and pp")
    return {"dp": dp, "pp": pp, "tp": tp, "cp": cp, "num_gpus": dp * pp * tp * cp, "ep": 1, "etp": 1,
            "offload": "none"} | ({"cp_algorithm": "allgather"} if cp > 1 else {})  # fmt: skip


def _schedule_write(setup: Setup) -> Settings:
    return {_ENGINE: next(engine for engine, schedule in _ENGINES.items() if schedule == setup.schedule)}


def _schedule_read(settings: Settings, facts: Facts) -> Facts:
    """The schedule. Without a pipeline the engine afab still keeps the activations of all micro-batches."""
    engine = str(settings.get(_ENGINE) or "afab").lower()
    if engine not in _ENGINES:
        raise NoCounterpartError(f"{_ENGINE} `{engine}` has no counterpart in a plan", hint="known: 1f1b, afab")
    if facts["pp"] > 1:
        return {"schedule": _ENGINES[engine], "vpp": 1}
    steps = settings.get(_STEPS) or 1
    note = f"{_ENGINE} afab keeps the activations of all micro-batches: priced as 1f1b"
    noted = {"notes": [*facts.get("notes", []), note]} if engine == "afab" and steps > 1 else {}
    return {"schedule": "1f1b", "vpp": 1, **noted}


def _sequence_parallel_write(setup: Setup) -> Settings:
    return {_TP_MODE: "REDUCE_SCATTER" if setup.layout.sequence_parallel else "ALL_REDUCE"}


def _sequence_parallel_read(settings: Settings, facts: Facts) -> Facts:
    scatters = str(settings.get(_TP_MODE) or "ALL_REDUCE").upper() == "REDUCE_SCATTER"
    return {"sequence_parallel": scatters and facts["tp"] > 1}


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    micro, steps = settings.get(_MICRO), settings.get(_STEPS) or 1
    return {} if micro is None else {"micro_batch": micro, "workload.global_batch": micro * steps * facts["dp"]}


def _stage_read(settings: Settings, facts: Facts) -> Facts:
    stage = settings.get(_ZERO) or 0
    if stage not in (0, 1):
        raise NoCounterpartError(f"{_ZERO} {stage} is none of nanotron's", hint="known: 0, 1")
    return {"zero": stage}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get("model.dtype") or "bfloat16").removeprefix("torch.")
    if name not in _DTYPES:
        raise NoCounterpartError(f"model.dtype `{name}` has no counterpart in a plan", hint=", ".join(_DTYPES))
    return {"precision": _DTYPES[name]}


def _optimizer_read(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get(f"{OPTIMIZER}optimizer_factory.name") or "adamW").lower()
    if name not in ("adamw", "sgd"):
        raise NoCounterpartError(f"{OPTIMIZER}optimizer_factory.name `{name}` has no counterpart in a plan")
    if settings.get(ACCUMULATES) is not False:
        return {"workload.optimizer": name}
    note = f"{ACCUMULATES} is false, so that weights have no fp32 copies: priced with them"
    return {"workload.optimizer": name, "notes": [*facts.get("notes", []), note]}


def _class_read(settings: Settings, facts: Facts) -> Facts:
    """The class of the model. Each also builds the layers of the other."""
    kind = next((name for name in (QWEN2, LLAMA) if settings.get(name)), None)
    if kind is None:
        raise NoCounterpartError("model.model_config: the sizes of Llama and Qwen2 are read only")
    return {"model_class": kind}


def _attention_write(setup: Setup) -> Settings:
    attention = setup.model.attentions[0]
    return {_HEADS: attention.heads, _KV_HEADS: attention.kv_heads, _BIAS: attention.qkv_bias}


def _attention_read(settings: Settings, facts: Facts) -> Facts:
    heads = _given(settings, _HEADS, 32)
    return {"model.heads": heads, "model.kv_heads": settings.get(_KV_HEADS) or heads,
            "model.qkv_bias": _given(settings, _BIAS, False)}  # fmt: skip


def _vocab_read(settings: Settings, facts: Facts) -> Facts:
    """The vocabulary, padded to whole rows per tp rank."""
    unit = int((settings.get(_UNIT) or 1) * facts["tp"])
    return {"model.vocab": -(-int(_given(settings, _VOCAB, 32000)) // unit) * unit}


def _positions_read(settings: Settings, facts: Facts) -> Facts:
    return {"model.max_positions": max(int(_given(settings, _POSITIONS, 2048)), facts.get("workload.seq_len", 0))}


def _layers_read(settings: Settings, facts: Facts) -> Facts:
    """The layers, and the stages that nanotron cuts itself."""
    pp, layers, hidden = facts["pp"], _given(settings, _LAYERS, 32), facts["model.hidden"]
    if not 1 < pp <= layers <= _MOST_LAYERS or hidden < 1:
        return {"model.layers": layers}
    stages = sizes_of(layers=layers, hidden=hidden, inner=facts["model.ffn_hidden"], vocab=facts["model.vocab"],
                      num_stages=pp)  # fmt: skip
    return {"model.layers": layers, "stages": stages}


def _given(settings: Settings, option: str, default: Any) -> Any:
    """The value of an option; null is its default."""
    return default if settings.get(option) is None else settings[option]


def _same(field: str, name: str, default: Any, get: Callable[[Setup], Any], fact: str = "") -> Entry:
    """A field of the model under one option, always written. fact: its name in the explicit form."""
    option = f"{M}{name}"
    return Entry((field,), (option,), lambda setup: {option: get(setup)},
                 lambda settings, facts: {fact or field: _given(settings, option, default)})  # fmt: skip


def _inner(setup: Setup) -> int:
    block = setup.model.feed_forwards[0]
    return block.inner if isinstance(block, FeedForward) else 0


_MODEL = (
    Entry(("model_class",), (QWEN2, LLAMA), lambda setup: {QWEN2: True}, _class_read),
    _same("model.hidden", "hidden_size", 4096, lambda setup: setup.model.hidden),
    Entry(("model.attention",), (_HEADS, _KV_HEADS, _BIAS), _attention_write, _attention_read),
    _same("model.feed_forward", "intermediate_size", 11008, _inner, "model.ffn_hidden"),
    Entry(("model.vocab",), (_VOCAB, _UNIT), lambda setup: {_VOCAB: setup.model.vocab}, _vocab_read),
    Entry(("model.max_positions",), (_POSITIONS,),
          lambda setup: {_POSITIONS: max(setup.model.max_positions, setup.workload.seq_len)}, _positions_read),
    _same("model.norm_epsilon", "rms_norm_eps", 1e-6, lambda setup: setup.model.norm_epsilon),
    _same("model.positions", "rope_theta", 10000.0, lambda setup: setup.model.rope_theta, "model.rope_theta"),
    _same("model.tied_embeddings", "tie_word_embeddings", False, lambda setup: setup.model.tied_embeddings),
    Entry(("model.layers", "stages"), (_LAYERS,), lambda setup: {_LAYERS: setup.model.num_layers}, _layers_read),
)  # fmt: skip
TABLE = Table((
    Entry(("dp", "pp", "tp", "cp", "cp_algorithm", "num_gpus", "ep", "etp", "offload"),
          tuple(f"{P}{name}" for name in DEGREES), _degrees_write, _degrees_read),
    Entry(("schedule", "vpp"), (_ENGINE,), _schedule_write, _schedule_read),
    Entry(("sequence_parallel",), (_TP_MODE,), _sequence_parallel_write, _sequence_parallel_read),
    Entry(("recompute", "recompute_modules", "recompute_layers"), (_RECOMPUTE,),
          lambda setup: {_RECOMPUTE: setup.recompute == "full"},
          lambda given, facts: {"recompute": {"mode": "full" if given.get(_RECOMPUTE) else "none"}}),
    number("workload.seq_len", f"{T}sequence_length", lambda setup: setup.workload.seq_len),
    Entry(("micro_batch", "workload.global_batch"), (_MICRO, _STEPS),
          lambda setup: {_MICRO: setup.layout.micro_batch, _STEPS: setup.num_micro_batches}, _batch_read),
    Entry(("zero", "shard"), (_ZERO,), lambda setup: {_ZERO: setup.layout.zero}, _stage_read),
    always((ACCUMULATES, True)),
    Entry(("precision",), ("model.dtype",),
          lambda setup: {"model.dtype": next(name for name, code in _DTYPES.items() if code == setup.precision)},
          _precision_read),
    Entry(("workload.optimizer",), (f"{OPTIMIZER}optimizer_factory.name",),
          lambda setup: {f"{OPTIMIZER}optimizer_factory.name": "adamW"}, _optimizer_read),
    *_MODEL,
    *entries_of("nanotron"),
))  # fmt: skip
