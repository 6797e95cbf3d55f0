"""Other people's recipes of Megatron-Bridge: their base configs, and options that no plan holds.

Source: Megatron-Bridge 067f987d (2026-08-22), recipes/common.py (_pretrain_common, _sft_common, _peft_common),
recipes/utils/optimizer_utils.py, recipes/utils/dataset_utils.py, models/gpt_provider.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..config_modules import HUB_MODEL
from ..megatron import not_read as megatron
from ..model_names import known_model
from ..options import Settings

_ADAM: Settings = {"optimizer.optimizer": "adam", "optimizer.use_distributed_optimizer": True}
_OF_ALL: Settings = {**_ADAM, "mixed_precision": "bf16_mixed"}
_TUNED = _OF_ALL | {"train.global_batch_size": 128, "train.micro_batch_size": 1, "dataset.seq_length": 2048}
# Function of the framework -> the options of the config or block that it returns, beside those that it is given.
BASES: Mapping[str, Settings] = {
    "_pretrain_common": _OF_ALL | {
        "train.global_batch_size": 32, "train.micro_batch_size": 2, "dataset.seq_length": 4096,
        "ddp.use_distributed_optimizer": True, "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True,
        "ddp.grad_reduce_in_fp32": True,
    },
    "distributed_fused_adam_with_cosine_annealing": _ADAM,
    "distributed_fused_adam_with_cosine_annealing_samples": _ADAM,
    "distributed_muon_with_cosine_annealing": {"optimizer.optimizer": "dist_muon"},
    "default_squad_config": {},
    "default_openmathinstruct2_config": {},
    "default_openmathinstruct2_thinking_config": {},
    "_sft_common": _TUNED,
    "_peft_common": _TUNED | {"peft": "LoRA"},
}  # fmt: skip
# Fields of the core have the names of its arguments; an older one of them is the present field of hybrids.
_BLOCKS = r"(model|ddp|optimizer|train|dist|mixed_precision|checkpoint)\.(?!mtp_hybrid_override_pattern$)"


def fields_of(arguments: Mapping[str, str], blocks: str = _BLOCKS) -> dict[str, str]:
    """Regular expressions of arguments of pretrain_gpt.py as those of fields. blocks: one of the blocks with fields."""
    return {f"{blocks}({pattern.replace('--', '').replace('-', '_')})": text for pattern, text in arguments.items()}


PRICES = fields_of(megatron.PRICES)
CHANGES: Mapping[str, str] = {
    **fields_of(megatron.CHANGES),
    r"peft\.(exclude_modules|lora_dtype)": "adapters of other modules, or in another precision",
    r"model\.(freeze_(?!language_model|vision_model|vision_projection).*|vision_(?!config|(start|end)_token_id).*|"
    r"is_vision_.*|image_(?!token_id).*|audio_.*)": "a model of images or sound",
    r"model\.cpu_offloading_weights": "weights on the host",
    r"model\.heterogeneous_block_specs": "layers that differ, by a file",
    r"train\.decrease_batch_size_if_needed|train\.rampup_batch_size": "a batch that changes",
    r"dist\.use_tp_pp_dp_mapping": "puts pipeline stages beside one another instead of replicas",
}
HARMLESS = (
    r"^(env_vars|dataset|tokenizer|checkpoint|logger|scheduler|rng|validation|profiling|straggler|ft|nvrx|dist|"
    r"train\.manual)"
)
# Fields of a model that change its sizes.
_SIZES = tuple(f"model.{name}" for name in (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "moe_ffn_hidden_size", "num_moe_experts"))  # fmt: skip
_EXPERTS = "model.num_moe_experts"


def modernise(arguments: Arguments) -> None:
    """Drops options without effect, and reads from a model of the Hub the sizes that stages and experts depend on.

    A recipe that changes the sizes of that model has a gap.
    """
    given = arguments.settings
    if given.get("model.cuda_graph_impl") == "none":
        for name in ("impl", "scope", "warmup_steps"):
            given.pop(f"model.cuda_graph_{name}", None)
    for name in [name for name, value in given.items() if name.endswith("_dtype") and value == "torch.float32"]:
        if re.search(r"\.main_(grads|params)_dtype$", name):  # their default
            del given[name]
    if "fp8" not in str(given.get("mixed_precision")):  # all layers are in one precision
        for name in [name for name in given if re.search(r"_layers_.*bf16$", name)]:
            del given[name]
    if given.get("model.moe_token_dispatcher_type") != "flex":  # the backend belongs to flex
        given.pop("model.moe_flex_dispatcher_backend", None)
    if (hub := given.get(HUB_MODEL)) is None:
        return
    arguments.gaps += [
        FieldProblem(f"another size than that of {hub}: give --model FILE", name, arguments.files.get(name, ""),
                     arguments.lines.get(name, 0)) for name in _SIZES if given.get(name) is not None]  # fmt: skip
    spec = known_model(str(hub))
    routed = next((kind.feed_forward for kind in spec.kinds if kind.is_moe), None) if spec is not None else None
    if spec is not None:
        given.setdefault("model.num_layers", spec.num_layers)
    elif given.get("model.pipeline_model_parallel_size", 1) > 1 and "model.num_layers" not in given:
        text = f"{hub} is not in the catalogue, and stages depend on its layers"
        arguments.gaps.append(FieldProblem(text, HUB_MODEL, arguments.files.get(HUB_MODEL, ""),
                                           arguments.lines.get(HUB_MODEL, 0)))  # fmt: skip
    if routed is not None or given.get("model.expert_model_parallel_size", 1) > 1:
        given[_EXPERTS] = getattr(routed, "experts", given.get("model.expert_model_parallel_size", 1))
