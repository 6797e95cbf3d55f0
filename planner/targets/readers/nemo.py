"""NeMo's YAML of megatron_gpt_pretraining.py: options of Megatron-Core under other names.

Source: NeMo 8cfedd72 (2025-09-20), megatron_gpt_config.yaml of its language_modeling/conf,
megatron_gpt_model.py and megatron_base_model.py (build_transformer_config) of its models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ....profiles.io.document import Document
from ..adapters import LORA
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..megatron.options import TABLE
from ..options import Facts, NoCounterpartError, Settings, remembered
from ..reading import Reading
from ..switch_options import SWITCH
from . import nemo_adapters
from .interpolation import resolved
from .reader import Reader, reads, translated

_SAME = {
    "num_layers": "--num-layers", "hidden_size": "--hidden-size", "ffn_hidden_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads", "kv_channels": "--kv-channels",
    "max_position_embeddings": "--max-position-embeddings", "layernorm_epsilon": "--norm-epsilon",
    "rotary_percentage": "--rotary-percent", "rotary_base": "--rotary-base", "encoder_seq_length": "--seq-length",
    "hidden_dropout": "--hidden-dropout",
    "attention_dropout": "--attention-dropout", "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size", "tensor_model_parallel_size": "--tensor-model-parallel-size",
    "pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "expert_model_parallel_size": "--expert-model-parallel-size", "num_moe_experts": "--num-experts",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "moe_router_topk": "--moe-router-topk", "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_expert_capacity_factor": "--moe-expert-capacity-factor",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
}  # fmt: skip
_FLAGS = {"sequence_parallel": "--sequence-parallel", "qk_layernorm": "--qk-layernorm",
          "ub_tp_comm_overlap": "--tp-comm-overlap", "moe_grouped_gemm": "--moe-grouped-gemm",
          "layernorm_zero_centered_gamma": "--apply-layernorm-1p", "qkv_bias": "--add-qkv-bias",
          "moe_pad_expert_input_to_capacity": "--moe-pad-expert-input-to-capacity",
          "scale_positional_embedding": "--use-rope-scaling",
          "optim.overlap_grad_sync": "--overlap-grad-reduce", "optim.overlap_param_sync": "--overlap-param-gather",
          }  # fmt: skip
_NORMS: Mapping[str, Settings] = {
    "layernorm": {"--normalization": "LayerNorm"}, "rmsnorm": {"--normalization": "RMSNorm"},
    "layernorm1p": {"--normalization": "LayerNorm", "--apply-layernorm-1p": True},
}  # fmt: skip
_ACTIVATIONS: Mapping[str, Settings] = {
    "gelu": {}, "swiglu": {"--swiglu": True}, "fast-swiglu": {"--swiglu": True},
    "squared-relu": {"--squared-relu": True},
}  # fmt: skip
_PRECISIONS: Mapping[str, Settings] = {
    "bf16": {"--bf16": True}, "bf16-mixed": {"--bf16": True}, "16": {"--fp16": True}, "16-mixed": {"--fp16": True},
    "32": {}, "32-true": {},
}  # fmt: skip
_POSITIONS: Mapping[str, Settings] = {name: {"--position-embedding-type": name}
                                      for name in ("rope", "learned_absolute")}  # fmt: skip
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_OPTIMIZERS = {**dict.fromkeys((*_SHARDED, "fused_adam", "adam", "adamw"), "adam"), "sgd": "sgd"}
# Options with words of their own -> words -> arguments of Megatron-LM, and the word where nothing is said.
_WORDS: Mapping[str, tuple[Mapping[str, Settings], str]] = {
    "model.normalization": (_NORMS, "layernorm"), "model.activation": (_ACTIVATIONS, "gelu"),
    "trainer.precision": (_PRECISIONS, "32"), "model.position_embedding_type": (_POSITIONS, "learned_absolute"),
    "model.optim.name": ({name: {"--optimizer": kind, "--use-distributed-optimizer": name in _SHARDED}
                          for name, kind in _OPTIMIZERS.items()}, "adam"),
}  # fmt: skip
_BOOLEANS = ("model.bias", "model.share_embeddings_and_output_weights", "model.fp8")
_ARGUMENT = {**{f"model.{name}": argument for name, argument in (_SAME | _FLAGS).items()},
             "model.bias": "--disable-bias-linear", "model.num_query_groups": "--num-query-groups",
             "model.share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
             "model.position_embedding_type": "--position-embedding-type",
             "model.normalization": "--normalization", "model.activation": "--swiglu", "trainer.precision": "--bf16",
             "model.fp8": "--fp8-format", "model.optim.name": "--use-distributed-optimizer"}  # fmt: skip
# Where fine-tuning states the length.
_FINE_TUNED = "model.data.train_ds.max_seq_length"


# Tokens by model.tokenizer.type, and the rows that their table is padded to (utils of NeMo's megatron models).
_TYPE, _UNIT = "model.tokenizer.type", "model.make_vocab_size_divisible_by"
_TOKENS = {"GPT2BPETokenizer": 50257, "gpt2": 50257}


@remembered
def to_arguments(settings: Mapping[str, Any]) -> Settings:
    """Arguments of Megatron-LM that mean the same, NeMo's defaults among them."""
    out: Settings = {argument: settings[f"model.{name}"] for name, argument in _SAME.items()
                     if settings.get(f"model.{name}") is not None}  # fmt: skip
    if _FINE_TUNED in settings:
        out.setdefault("--seq-length", settings[_FINE_TUNED])
    out |= {argument: True for name, argument in _FLAGS.items() if settings.get(f"model.{name}") is True}
    if tokens := _TOKENS.get(str(settings.get(_TYPE))):
        rows = (settings.get(_UNIT) or 128) * out.get("--tensor-model-parallel-size", 1)
        out["--padded-vocab-size"] = -(-tokens // max(rows, 1)) * rows
    for name, (meanings, default) in _WORDS.items():
        out |= meanings.get(str(settings.get(name, default)).lower(), {})
    if not settings.get("model.bias", True):
        out["--disable-bias-linear"] = True
    if not settings.get("model.share_embeddings_and_output_weights", True):
        out["--untie-embeddings-and-output-weights"] = True
    if groups := settings.get("model.num_query_groups"):
        out |= {"--group-query-attention": True, "--num-query-groups": groups}
    if settings.get("model.fp8") is True:
        out["--fp8-format"] = "hybrid"
    if settings.get("model.num_moe_experts"):
        out["--expert-tensor-parallel-size"] = settings.get("model.expert_tensor_parallel_size") or out.get(
            "--tensor-model-parallel-size", 1)  # fmt: skip
    return out


def _named(settings: Settings, facts: Facts) -> Facts:
    """Raises NoCounterpartError for a word that no argument says."""
    for name, (meanings, default) in _WORDS.items():
        if (given := str(settings.get(name, default)).lower()) not in meanings:
            known = f"known: {', '.join(meanings)}"
            raise NoCounterpartError(f"{name} `{given}` has no counterpart in a plan", hint=known)
    return {}


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without references; what only a run can tell is a doubt."""
    found, open_texts = resolved(document, root="training")
    hint = "give its value: --arg NAME=VALUE"
    for path, text in open_texts.items():
        name = ".".join(path)
        problem = FieldProblem(f"`{text}` is computed when it runs", name, document.name, document.line(path), hint)
        arguments.unclear.append(problem)
    ranks = {"num_nodes": found.at(("trainer", "num_nodes")), "gpus_per_node": found.at(("trainer", "devices"))}
    arguments.ranks |= {name: count for name, count in ranks.items() if isinstance(count, int) and count > 0}
    return found


def _modernise(arguments: Arguments) -> None:
    """Notes the form of the weights."""
    given = arguments.settings
    if not given.get("model.megatron_amp_O2") and str(given.get("trainer.precision")) not in ("32", "32-true", "None"):
        arguments.notes.append("without megatron_amp_O2 weights are in fp32: priced as mixed precision")


_KINDS = {
    **{f"model.{name}": "int" for name in _SAME}, **{f"model.{name}": "bool" for name in _FLAGS},
    **dict.fromkeys(_BOOLEANS, "bool"), **dict.fromkeys(_WORDS, "any"), "model.num_query_groups": "int",
    "model.megatron_amp_O2": "bool", "model.expert_tensor_parallel_size": "int",
    **{f"model.{name}": "float" for name in ("layernorm_epsilon", "rotary_percentage", "rotary_base", "hidden_dropout",
                                             "attention_dropout", "moe_expert_capacity_factor")},
    **{f"model.activations_checkpoint_{name}": "str" for name in ("granularity", "method")},
    "trainer.devices": "any", "trainer.num_nodes": "any", _FINE_TUNED: "int", _TYPE: "str", _UNIT: "int",
    **nemo_adapters.KINDS,
}  # fmt: skip
READER = Reader(
    name="nemo",
    framework="NeMo",
    version="2.5",
    commit="8cfedd72",
    kinds=_KINDS,
    entries=(
        reads(("precision", "workload.optimizer"), tuple(_WORDS), _named),
        *(entry for entry in translated(TABLE, to_arguments, _ARGUMENT | {
            _FINE_TUNED: "--seq-length", _TYPE: "--padded-vocab-size"})
          if entry.options or not entry.fields[0].startswith(SWITCH)),
        nemo_adapters.ENTRY,
    ),
    reading=Reading(
        changes={
            r"model\.(encoder|decoder)(\..*)?|model\.(vision|text|mm_cfg|clip)(\..*)?": "the model has another part",
            r"inference(\..*)?": "a file for generation: it does not train",
            **nemo_adapters.CHANGES,
            r"model\.(adapter_tuning|lora_tuning|p_tuning|virtual_prompt_style|language_model_path)"
            r"(\..*)?|adapter_tuning(\..*)?": "adapters in a block of its own",
            r"model\.(fsdp|cpu_offloading|drop_layers|rampup_batch_size|hybrid_.*|mamba_.*|headscale)":
                "a layout or a model that is not read",
            r"model\.(pipeline_model_parallel_split_rank|num_micro_batches_with_partial_activation_checkpoints|"
            r"activations_checkpoint_layers_per_pipeline|seq_len_interpolation_factor)":
                "a layout or positions that are not read",
        },
        harmless=(
            rf"^({nemo_adapters.HARMLESS})|"
            r"^(run|name|env_vars|share|username|password|chatbot_config|s3_|restore_from|exp_manager|defaults|hydra|tokenizer|"
            r"cluster_type|base_results|trainer|model\.(data|"
            r"optim|tokenizer|nsys|restore|mcore|resume|make_vocab|pre_process|post_process|persist|init_method|"
            r"precision|wgrad_deferral|use_te_rng|"
            r"use_scaled|ffn_dropout|apply_query|do_layer_norm|openai|normalize|attention_type|overlap_p2p|batch_p2p|"
            r"native_amp|hysteresis|fp32_residual|fp16_lm|grad_|gradient_|bias_|masked|get_attention|apply_rope|seed|"
            r"use_cpu|onnx|apex|sync_batch|transformer_engine|fp8_|reduce_amax|tp_only_amax|use_emha|ub_|use_flash|gc_|sharp|"
            r"enable_megatron|megatron_timer|dist_ckpt|fsdp_|nccl|validation|reset|cpu_offloading_|transformer_block|"
            r"skip_train|async_grad|share_token|share_decoder|moe_(aux|z|token|router_load|per_layer)|legacy|"
            r"tensor_parallel_output|rotary_inter|attention_softmax|tp_comm|defer|deterministic|external_cuda))"
        ),
        modernise=_modernise,
    ),
    prepared=_prepared,
    compared=lambda facts: on_stack("megatron-core") if LORA in facts else Compared("megatron"),
)  # fmt: skip
