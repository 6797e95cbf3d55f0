"""nanotron's YAML.

Source: nanotron 2411b022 (2026-04-07), src/nanotron/config/parallelism_config.py, config.py, models_config.py;
parallel/context.py: tp x cp x dp x pp are all ranks.
"""

from __future__ import annotations

from ....errors import FieldProblem
from ..argv import Arguments
from ..import_format import Compared
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from .reader import Reader, reads, states, value

_P, _M, _T, _O = "parallelism.", "model.model_config.", "tokens.", "optimizer."
_DEGREES = ("dp", "pp", "tp", "context_parallel_size", "expert_parallel_size")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Engine -> schedule; without one all forward passes come before all backward passes.
_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_SIZES = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "intermediate_size": "ffn_hidden", "vocab_size": "vocab",
    "max_position_embeddings": "max_positions", "rms_norm_eps": "norm_epsilon", "rope_theta": "rope_theta",
    "tie_word_embeddings": "tied_embeddings", "attention_bias": "qkv_bias",
}  # fmt: skip
_KIND = {"rms_norm_eps": "float", "rope_theta": "float", "tie_word_embeddings": "bool", "attention_bias": "bool"}
# Of LlamaConfig and Qwen2Config alike.
_DEFAULTS = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008,
    "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip


def _degrees(settings: Settings, facts: Facts) -> Facts:
    dp, pp, tp, cp, ep = (settings.get(f"{_P}{name}") or 1 for name in _DEGREES)
    if ep > 1:
        raise NoCounterpartError(f"{_P}expert_parallel_size {ep}: its ranks are beside those of dp, tp, cp and pp")
    return {"dp": dp, "pp": pp, "tp": tp, "cp": cp, "num_gpus": dp * pp * tp * cp} | (
        {"cp_algorithm": "allgather"} if cp > 1 else {})  # fmt: skip


def _schedule(settings: Settings, facts: Facts) -> Facts:
    engine = str(settings.get(f"{_P}pp_engine") or "afab").lower()
    if engine not in _ENGINES:
        raise NoCounterpartError(f"{_P}pp_engine `{engine}` has no counterpart in a plan", hint="known: 1f1b, afab")
    return {"schedule": _ENGINES[engine] if facts["pp"] > 1 else "1f1b", "vpp": 1}


def _sequence_parallel(settings: Settings, facts: Facts) -> Facts:
    scatters = str(settings.get(f"{_P}tp_mode") or "ALL_REDUCE").upper() == "REDUCE_SCATTER"
    return {"sequence_parallel": scatters and facts["tp"] > 1}


def _batch(settings: Settings, facts: Facts) -> Facts:
    micro, steps = settings.get(f"{_T}micro_batch_size"), settings.get(f"{_T}batch_accumulation_per_replica") or 1
    return {} if micro is None else {"micro_batch": micro, "workload.global_batch": micro * steps * facts["dp"]}


def _stage(settings: Settings, facts: Facts) -> Facts:
    stage = settings.get(f"{_O}zero_stage") or 0
    if stage not in (0, 1):
        raise NoCounterpartError(f"{_O}zero_stage {stage} is none of nanotron's", hint="known: 0, 1")
    return {"zero": stage}


def _precision(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get("model.dtype") or "bfloat16").removeprefix("torch.")
    if name not in _DTYPES:
        raise NoCounterpartError(f"model.dtype `{name}` has no counterpart in a plan", hint=", ".join(_DTYPES))
    return {"precision": _DTYPES[name]}


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get(f"{_O}optimizer_factory.name") or "adamW").lower()
    if name not in ("adamw", "sgd"):
        raise NoCounterpartError(f"{_O}optimizer_factory.name `{name}` has no counterpart in a plan")
    return {"workload.optimizer": name}


def _model(settings: Settings, facts: Facts) -> Facts:
    """LlamaConfig and Qwen2Config; a vocabulary is padded to whole rows per tp rank."""
    if not any(settings.get(f"{_M}is_{kind}_config") for kind in ("llama", "qwen2")):
        raise NoCounterpartError("model.model_config: the sizes of Llama and Qwen2 are read only")
    given = {name: settings.get(f"{_M}{name}") for name in _SIZES}
    sizes: Facts = {_SIZES[name]: default if given[name] is None else given[name]
                    for name, default in _DEFAULTS.items()}  # fmt: skip
    sizes["kv_heads"] = given["num_key_value_heads"] or sizes["heads"]
    unit = int((settings.get("model.make_vocab_size_divisible_by") or 1) * facts["tp"])
    sizes["vocab"] = -(-int(sizes["vocab"]) // unit) * unit
    sizes["max_positions"] = max(int(sizes["max_positions"]), facts.get("workload.seq_len", 0))
    return {f"model.{name}": size for name, size in sizes.items()}


def _modernise(arguments: Arguments) -> None:
    """Names a stage of data that has its own sequences, and numbers that are none."""
    stages = arguments.settings.get("data_stages")
    if isinstance(stages, list) and any(isinstance(stage, dict) and stage.get("sequence_length") for stage in stages):
        arguments.gaps.append(_problem(arguments, "data_stages", "a stage of data has its own sequence_length"))
    for name in (*(f"{_P}{name}" for name in _DEGREES), f"{_T}micro_batch_size", f"{_T}batch_accumulation_per_replica"):
        if isinstance(number := arguments.settings.get(name), int) and number < 1:
            arguments.problems.append(_problem(arguments, name, f"`{number}` is not 1 or more"))


def _problem(arguments: Arguments, name: str, text: str) -> FieldProblem:
    return FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0), field=name)


def _compared(facts: Facts) -> Compared:
    """Layouts of its own degrees: no target writes for it yet, and it has neither virtual stages nor ZeRO above 1."""
    return Compared("any", {"fix": {"vpp": 1, "ep": 1, "cp": facts["cp"], "zero": facts["zero"], "offload": "none",
                                    "schedule": facts["schedule"]}})  # fmt: skip


_FACTORY = ("name", "adam_eps", "adam_beta1", "adam_beta2", "torch_adam_is_fused")
READER = Reader(
    name="nanotron",
    framework="nanotron",
    version="0.5",
    commit="2411b022",
    kinds={
        **{f"{_P}{name}": "int" for name in _DEGREES}, f"{_P}pp_engine": "str", f"{_P}tp_mode": "str",
        f"{_P}recompute_layer": "bool", f"{_T}sequence_length": "int", f"{_T}micro_batch_size": "int",
        f"{_T}batch_accumulation_per_replica": "int", f"{_O}zero_stage": "int", "model.dtype": "str",
        **{f"{_O}optimizer_factory.{name}": "any" for name in _FACTORY}, f"{_O}optimizer_factory.name": "str",
        "model.make_vocab_size_divisible_by": "int",
        **{f"{_M}{name}": _KIND.get(name, "int") for name in _SIZES}, f"{_M}is_llama_config": "any",
        f"{_M}is_qwen2_config": "any",
        f"{_P}tp_linear_async_communication": "any", f"{_P}tp_recompute_allgather": "any",
        f"{_P}domino.num_input_batches": "any",
    },
    entries=(
        reads(("dp", "pp", "tp", "cp", "cp_algorithm", "num_gpus", "ep"), tuple(f"{_P}{name}" for name in _DEGREES),
              _degrees),
        states(ep=1, etp=1, offload="none"),
        reads(("schedule", "vpp"), (f"{_P}pp_engine",), _schedule),
        reads(("sequence_parallel",), (f"{_P}tp_mode",), _sequence_parallel),
        reads(("recompute", "recompute_modules", "recompute_layers"), (f"{_P}recompute_layer",),
              lambda given, facts: {"recompute": {"mode": "full" if given.get(f"{_P}recompute_layer") else "none"}}),
        value("workload.seq_len", f"{_T}sequence_length"),
        reads(("micro_batch", "workload.global_batch"),
              (f"{_T}micro_batch_size", f"{_T}batch_accumulation_per_replica"), _batch),
        reads(("zero", "shard"), (f"{_O}zero_stage",), _stage),
        reads(("precision",), ("model.dtype",), _precision),
        reads(("workload.optimizer",), (f"{_O}optimizer_factory.name",), _optimizer),
        reads(tuple(f"model.{name}" for name in _SIZES.values()),
              (*(f"{_M}{name}" for name in _SIZES), f"{_M}is_llama_config", f"{_M}is_qwen2_config",
               "model.make_vocab_size_divisible_by"), _model),
    ),
    reading=Reading(
        changes={
            rf"{_M}(moe_config|sliding_window_size|no_rope_layer|rope_scaling|rope_seq_len_interpolation_factor)":
                "layers that differ from those of Llama",
            rf"{_M}is_(mamba|starcoder2|gpt).*_config|{_M}(ssm_cfg|d_model)": "another kind of model",
            rf"{_P}(moe_layer_recompute|domino).*": "recomputation or messages that no plan has",
        },
        harmless=r"^(model\.(init_method|ddp_bucket|model_config\.(_|bos|eos|pad|hidden_act|initializer|pretraining|use_|"
                 r"rope_interleaved|z_loss|log_attn|ring_attn|flex|fused_|residual|dtype|rms_norm$))|optimizer\.|general|"
                 r"logging|lighteval|tokenizer|checkpoints|data_stages|profiler|s3_upload|metrics|tokens\.)",
        modernise=_modernise,
    ),
    compared=_compared,
)  # fmt: skip
