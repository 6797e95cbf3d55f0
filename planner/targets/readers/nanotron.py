"""nanotron's YAML, by the table of its target. Source: nanotron 2411b022 (2026-04-07), as there."""

from __future__ import annotations

from ....errors import FieldProblem
from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..import_format import Compared
from ..nanotron.options import ACCUMULATES, DEGREES, LLAMA, OPTIMIZER, QWEN2, TABLE, M, P, T
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from .reader import Reader, reads

# Every layer of that number has no positions, in models/qwen.py alone.
_WITHOUT, _SCALED = f"{M}no_rope_layer", f"{M}rope_scaling"

# The model of models/starcoder2.py, and its options that have other names than those of Llama.
_STARCODER = f"{M}is_starcoder2_config"
_OWN = {f"{M}num_kv_heads": f"{M}num_key_value_heads", f"{M}layer_norm_epsilon": f"{M}rms_norm_eps"}
_ACTIVATION, _ONE_HEAD, _ROTARY = f"{M}activation_function", f"{M}multi_query", f"{M}use_rotary_embeddings"
_GROUPED, _WINDOW = f"{M}grouped_query", f"{M}sliding_window_size"
_OF_STARCODER = (_ACTIVATION, _GROUPED, _ONE_HEAD, _ROTARY)
_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
# Options of the model that are no whole number.
_KINDS = {LLAMA: "any", QWEN2: "any", f"{M}rms_norm_eps": "float", f"{M}rope_theta": "float",
          f"{M}tie_word_embeddings": "bool", f"{M}attention_bias": "bool"}  # fmt: skip
_FACTORY = ("adam_eps", "adam_beta1", "adam_beta2", "torch_adam_is_fused")


def _modernise(arguments: Arguments) -> None:
    """Names a stage of data that has its own sequences, and numbers that are none."""
    stages = arguments.settings.get("data_stages")
    if isinstance(stages, list) and any(isinstance(stage, dict) and stage.get("sequence_length") for stage in stages):
        arguments.gaps.append(_problem(arguments, "data_stages", "a stage of data has its own sequence_length"))
    if arguments.settings.get(_STARCODER):
        _starcoder(arguments)
    for name in (*(f"{P}{name}" for name in DEGREES), f"{T}micro_batch_size", f"{T}batch_accumulation_per_replica"):
        if isinstance(number := arguments.settings.get(name), int) and number < 1:
            arguments.problems.append(_problem(arguments, name, f"`{number}` is not 1 or more"))


def _starcoder(arguments: Arguments) -> None:
    """Gives its options the names of Llama's, with the defaults of Starcoder2Config (config/models_config.py)."""
    given = arguments.settings
    for own, name in _OWN.items():
        if own in given:
            arguments.replace(own, {name: given[own]})
    if not given.get(_GROUPED):
        given[f"{M}num_key_value_heads"] = 1
    if (given.get(_WINDOW) or 0) >= given.get(f"{T}sequence_length", 0):
        arguments.replace(_WINDOW, {})  # no window cuts
    given.setdefault(f"{M}intermediate_size", 4 * given.get(f"{M}hidden_size", 2048))
    given.setdefault(f"{M}rms_norm_eps", 1e-5)
    given.setdefault(LLAMA, True)


def _model_of_starcoder(settings: Settings, facts: Facts) -> Facts:
    """Biases everywhere, blocks of two products, and a head that is tied to the table. Behind the table's entries."""
    if not settings.get(_STARCODER):
        if others := [name for name in (*_OWN, *_OF_STARCODER) if settings.get(name)]:
            raise NoCounterpartError(f"{others[0]} of another model than {_STARCODER} has no counterpart in a plan")
        return {}
    name = str(settings.get(_ACTIVATION) or "gelu_pytorch_tanh")
    if name not in _ACTIVATIONS:
        raise NoCounterpartError(f"{_ACTIVATION} `{name}` has no counterpart in a plan")
    if facts["pp"] > 1:
        raise NoCounterpartError(f"{_STARCODER}: stages are cut by costs of its own blocks")
    if settings.get(_ROTARY) is False:
        raise NoCounterpartError(f"{_ROTARY} false: positions of another kind")
    return {"model.bias": True, "model.qkv_bias": True, "model.gated_mlp": False, "model.tied_embeddings": True,
            "model.activation": _ACTIVATIONS[name]}  # fmt: skip


def _problem(arguments: Arguments, name: str, text: str) -> FieldProblem:
    return FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0), field=name)


def _without_positions(settings: Settings, facts: Facts) -> Facts:
    every = settings.get(_WITHOUT)
    if not every:
        return {}
    if not settings.get(QWEN2) or every < 0:
        raise NoCounterpartError(f"{_WITHOUT} `{every}`: every layer of a number of Qwen2 alone can have no positions")
    return {"model.no_rope_layer_interval": every}


def _scaled(settings: Settings, facts: Facts) -> Facts:
    """Rotary positions as a config.json of transformers scales them, in forks."""
    block = settings.get(_SCALED)
    if not isinstance(block, dict):
        return {}
    kind = block.get("rope_type", block.get("type"))
    if kind not in ("llama3", "linear", "default"):
        raise NoCounterpartError(f"{_SCALED} `{kind}`: other rotary positions")
    rest = {name: each for name, each in block.items() if name not in ("rope_type", "type")}
    return {} if kind == "default" else {"model.rope_scaling": {"type": kind, **rest}}


def _compared(facts: Facts) -> Compared:
    """Layouts of its target, or any with its degrees where the target plans no such model or training."""
    plain = facts["precision"] == "bf16" and facts["workload.optimizer"] == "adamw"
    if plain and not {"model.no_rope_layer_interval", "model.bias", "model.rope_scaling"} & facts.keys():
        return Compared("nanotron")
    fixed = {"vpp": 1, "ep": 1, "cp": facts["cp"], "zero": facts["zero"], "offload": "none",
             "schedule": facts["schedule"]}  # fmt: skip
    return Compared("any", {"fix": fixed, "stack": "nanotron"})


READER = Reader(
    name="nanotron",
    framework="nanotron",
    version="0.5",
    commit="2411b022",
    kinds={
        **{f"{P}{name}": "int" for name in DEGREES}, f"{P}pp_engine": "str", f"{P}tp_mode": "str",
        f"{P}recompute_layer": "bool", f"{T}sequence_length": "int", f"{T}micro_batch_size": "int",
        f"{T}batch_accumulation_per_replica": "int", f"{OPTIMIZER}zero_stage": "int", ACCUMULATES: "bool",
        **{f"{OPTIMIZER}optimizer_factory.{name}": "any" for name in _FACTORY},
        f"{OPTIMIZER}optimizer_factory.name": "str",
        "model.dtype": "str", "model.make_vocab_size_divisible_by": "int",
        **{name: _KINDS.get(name, "int") for name in sorted(TABLE.options) if name.startswith(M)},
        f"{P}tp_linear_async_communication": "any", f"{P}tp_recompute_allgather": "any",
        f"{P}domino.num_input_batches": "any", _WITHOUT: "int",
        _STARCODER: "any", **dict.fromkeys((_GROUPED, _ONE_HEAD, _ROTARY), "bool"), _ACTIVATION: "str", _WINDOW: "int",
        f"{M}num_kv_heads": "int", _SCALED: "any", f"{M}layer_norm_epsilon": "float",
    },
    entries=(
        *TABLE.entries, reads(("model.rope_scaling",), (_SCALED,), _scaled),
        reads(("model.no_rope_layer_interval",), (_WITHOUT,), _without_positions),
        reads(("model.feed_forward", "model.attention", "model.tied_embeddings"),
              (_STARCODER, *_OWN, *_OF_STARCODER), _model_of_starcoder),
    ),
    reading=Reading(
        changes={
            rf"{M}(moe_config|sliding_window_size|rope_seq_len_interpolation_factor)":
                "layers that differ from those of Llama",
            rf"{M}is_(mamba|gpt).*_config|{M}(ssm_cfg|d_model)": "another kind of model",
            rf"{P}(moe_layer_recompute|domino).*": "recomputation or messages that no plan has",
        },
        harmless=r"^(model\.(init_method|ddp_bucket|model_config\.(_|bos|eos|pad|hidden_act|initializer|pretraining|use_|"
                 r"rope_interleaved|z_loss|scale_att|attention_softmax|multi_query|(attn|embd|resid)_pdrop|global_attn|"
                 r"log_attn|ring_attn|flex|fused_|residual|dtype|rms_norm$))|optimizer\.|general|"
                 r"logging|lighteval|tokenizer|checkpoints|data_stages|profiler|s3_upload|metrics|tokens\.)",
        modernise=_modernise,
    ),
    # config/config.py: yaml.load by SafeLoader, for which the last of two keys counts.
    document=lambda path, text, given: read_document(path, text, last_counts=True),
    compared=_compared,
)  # fmt: skip
