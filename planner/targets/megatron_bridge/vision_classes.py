"""Classes of Megatron-Bridge for models that see: names, their tower's sizes, and where their defaults differ.

Read in Megatron-Bridge 51885cf1, models/qwen_vl/{qwen25_vl_provider,modeling_qwen25_vl,qwen3_vl_provider,
qwen35_vl_provider}.py, models/qwen_vl/modelling_qwen3_vl/{model,transformer_config,rope}.py and training/vlm_step.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....cost_models.specs.vision import VisionTower
from ..megatron.delta_net import FREQUENCY, VARIANT

# Field of a class of sizes -> that of VisionTower, in all of them.
_FIELDS = {
    "depth": "layers", "hidden_size": "hidden", "num_heads": "heads", "intermediate_size": "inner",
    "patch_size": "patch", "in_channels": "channels", "temporal_patch_size": "frames", "spatial_merge_size": "merge",
}  # fmt: skip
# The spec that reads the config per layer, for layers with gated DeltaNet in the place of attention.
VARIANT_SPEC = "get_transformer_block_with_experimental_attention_variant_spec"
# Argument of pretrain_gpt.py -> its field, its value where a class leaves the field alone, and the field's value where
# GPTModelProvider does.
Defaults = Mapping[str, tuple[str, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class SeeingClass:
    """A class, and its twin with experts if there is one."""

    model: str  # whose tower it builds
    tower: str  # its model_type
    takes: Callable[[VisionTower], bool]
    activation: str  # of the tower
    names: Mapping[bool, str]  # whether layers have experts -> name
    module: str  # of megatron.bridge.models
    # Whether layers have experts -> class of the tower's sizes in transformers, and its module in transformers.models.
    sizes: Mapping[bool, tuple[str, str]]
    fields: Mapping[str, str]  # of `sizes` -> of VisionTower
    sections: tuple[int, ...]  # of rotary positions, by itself
    step: str  # module of megatron.bridge with its forward_step
    processor: str  # on the hub, that cuts images into patches; those of all sizes are equal
    last_token: int  # of those that stand for images and videos (video_token_id)
    defaults: Mapping[bool, Defaults] = field(default_factory=dict)
    frozen: bool = False  # the twin with experts freezes all but the projector by itself
    virtual_stages: bool = True
    context: bool = True  # images are encoded before the tokens of a sequence are dealt out
    spec: str | None = None  # of its layers, by itself; None: layers of attention
    alike: bool = True  # all layers of the language model are of one kind, and predict no further tokens

    def imports(self, *, routed: bool) -> str:
        """The line that imports the class of its sizes."""
        name, module = self.sizes[routed]
        return f"from transformers.models.{module} import {name}\n"

    @property
    def step_import(self) -> str:
        return f"from megatron.bridge.{self.step} import forward_step\n"


_QK_NORM, _BASE = "--qk-layernorm", "--rotary-base"
_TURNS: Defaults = {"--position-embedding-type": ("model.position_embedding_type", "rope", "learned_absolute")}
_QWEN3: Defaults = {
    **_TURNS, "--attention-dropout": ("model.attention_dropout", 0.0, 0.1),
    _QK_NORM: ("model.qk_layernorm", True, False), _BASE: ("model.rotary_base", 5_000_000, 10_000),
}  # fmt: skip
_DISPATCH: Defaults = {
    "--moe-token-dispatcher-type": ("model.moe_token_dispatcher_type", "alltoall", "allgather"),
    "--moe-permute-fusion": ("model.moe_permute_fusion", True, False),
}  # fmt: skip
_QWEN35: Defaults = {
    **_TURNS, "--attention-dropout": ("model.attention_dropout", 0.0, 0.1),
    "--hidden-dropout": ("model.hidden_dropout", 0.0, 0.1),
    "--normalization": ("model.normalization", "RMSNorm", "LayerNorm"),
    "--swiglu": ("model.gated_linear_unit", True, False),
    "--disable-bias-linear": ("model.add_bias_linear", True, True),
    _QK_NORM: ("model.qk_layernorm", True, False), _BASE: ("model.rotary_base", 10_000_000, 10_000),
    "--rotary-percent": ("model.rotary_percent", 0.25, 1.0),
    "--apply-layernorm-1p": ("model.layernorm_zero_centered_gamma", True, False),
    "--attention-output-gate": ("model.attention_output_gate", True, False),
    VARIANT: ("model.experimental_attention_variant", "gated_delta_net", None),
    FREQUENCY: ("model.linear_attention_freq", "4", None), "--kv-channels": ("model.kv_channels", 256, None),
}  # fmt: skip
_QWEN35_DENSE: Defaults = {
    "--num-query-groups": ("model.num_query_groups", 4, None),
    "--linear-num-value-heads": ("model.linear_num_value_heads", 48, 32),
}  # fmt: skip
_QWEN35_ROUTED: Defaults = {
    "--num-query-groups": ("model.num_query_groups", 2, None),
    "--linear-num-value-heads": ("model.linear_num_value_heads", 64, 32),
    "--moe-shared-expert-gate": ("model.moe_shared_expert_gate", True, False),
    "--moe-router-load-balancing-type": ("model.moe_router_load_balancing_type", "global_aux_loss", "aux_loss"),
    "--moe-grouped-gemm": ("model.moe_grouped_gemm", True, False),
}  # fmt: skip
_OF_QWEN3 = {**_FIELDS, "num_position_embeddings": "positions", "out_hidden_size": "output"}
_OF_QWEN35 = "qwen3_5.configuration_qwen3_5", "qwen3_5_moe.configuration_qwen3_5_moe"
CLASSES = (
    SeeingClass(
        model="Qwen3-VL", tower="qwen3_vl", takes=lambda tower: tower.merger == "mlp" and bool(tower.taps),
        activation="gelu_tanh", names={False: "Qwen3VLModelProvider", True: "Qwen3VLMoEModelProvider"},
        module="qwen_vl.qwen3_vl_provider",
        sizes=dict.fromkeys((False, True), ("Qwen3VLVisionConfig", "qwen3_vl.configuration_qwen3_vl")),
        fields={**_OF_QWEN3, "deepstack_visual_indexes": "taps"},
        sections=(24, 20, 20), step="models.qwen_vl.qwen3_vl_step", processor="Qwen/Qwen3-VL-8B-Instruct",
        last_token=151_656, defaults={False: _QWEN3, True: {**_QWEN3, **_DISPATCH}}, frozen=True, virtual_stages=False,
    ),
    SeeingClass(
        model="Qwen2.5-VL", tower="qwen2_5_vl", takes=lambda tower: tower.merger == "mlp" and tower.gated,
        activation="silu", names={False: "Qwen25VLModelProvider"}, module="qwen_vl.qwen25_vl_provider",
        sizes={False: ("Qwen2_5_VLVisionConfig", "qwen2_5_vl.configuration_qwen2_5_vl")},
        fields={**_FIELDS, "out_hidden_size": "output", "window_size": "window", "fullatt_block_indexes": "whole"},
        sections=(16, 24, 24), step="training.vlm_step", processor="Qwen/Qwen2.5-VL-7B-Instruct", last_token=151_656,
        defaults={False: _TURNS}, context=False,
    ),
    SeeingClass(
        model="Qwen3.5", tower="qwen3_5",
        takes=lambda tower: tower.merger == "mlp" and tower.positions > 0 and not tower.taps,
        activation="gelu_tanh", names={False: "Qwen35VLModelProvider", True: "Qwen35VLMoEModelProvider"},
        module="qwen_vl.qwen35_vl_provider",
        sizes={False: ("Qwen3_5VisionConfig", _OF_QWEN35[0]), True: ("Qwen3_5MoeVisionConfig", _OF_QWEN35[1])},
        fields=_OF_QWEN3, sections=(11, 11, 10), step="models.qwen_vl.qwen3_vl_step",
        processor="Qwen/Qwen3.5-35B-A3B", last_token=248_057, alike=False, spec=VARIANT_SPEC,
        defaults={False: {**_QWEN35, **_QWEN35_DENSE}, True: {**_QWEN35, **_QWEN35_ROUTED, **_DISPATCH}},
    ),
)  # fmt: skip
BY_NAME: Mapping[str, SeeingClass] = {name: each for each in CLASSES for name in each.names.values()}


def class_of(tower: VisionTower | None) -> SeeingClass | None:
    """The class that builds a tower."""
    return None if tower is None else next((each for each in CLASSES if each.takes(tower)), None)
