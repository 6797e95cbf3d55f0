"""Models, workloads and stacks as the plain data that files hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .model import ModelSpec
from .stack import StackSpec
from .workload import Workload

# Fields that came after the first plans, with the value at which they say nothing.
_SILENT = {
    "groups": 1,
    "top_groups": 1,
    "router_scores": "softmax",
    "router_normalised": True,
    "router_scale": 1.0,
    "choice_bias": False,
    "residual": False,
    "router_factors": False,
    "branch_norms": False,
    "capacity_factor": None,
    "partial_rotary_factor": 1.0,
    "score_scale": None,
    "score_softcap": None,
    "output_norms": False,
    "parallel_blocks": False,
    "window_rope_theta": None,
    "unit_offset_norms": False,
    "embedding_scale": 1.0,
    "residual_streams": 1,
    "alternates": False,
    "layer_inputs": None,
    "augmented_rank": 0,
    "takes_keys": False,
    "sparsity": 0.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "logit_softcap": None,
    "moe_aux_loss_coeff": 0.0,
    "moe_aux_loss_per_sequence": False,
    "unmodelled": (),
    "mixer": None,
    "index": None,
    "mixer_context": "heads",
    "recomputes_scans": False,
    "masks_chosen_tokens": False,
    "activation_parameters": 0,
    "output_gate": False,
    "gates_heads": False,
    "values_from_keys": False,
    "value_norm": False,
    "rotary": True,
    "latent": None,
    "saves_fp8_activations": False,
    "weighs_activations": False,
    "splits_master_weights": False,
    "scales_tensors": False,
    "gathers_in_bf16": False,
    "sums_on_host": False,
    "splits_mtp_projection": False,
    "gathers_projections": False,
    "gathers_normed_heads": False,
    "fuses_expert_blocks": False,
    "reduces": "buckets",
    "messages_ahead": 0,
    "scatters_beside": False,
    "rings_in_torch": False,
    "ring_sends": "keys",
    "repeats_keys": False,
    "step_reductions": 0,
    "tokens_at_home": 0.0,
    "differentiates": True,
    "tower": None,
    "class_tokens": 0,
    "adapter": 0,
    "images": None,
    "freeze_tower": False,
    "freeze_language": False,
    "reference": False,
    "rounding": None,
    "projector_norm": "none",
    "projector_bias": True,
    "attention_bias": True,
    "qk_norm": False,
    "layer_scale": False,
    "start_norm": False,
    "pads_heads": False,
    "causal": True,
    "key_bias": True,
    "relative_bias": False,
    "bias_parameters": 0,
    "cross_attention": None,
    "encodes": False,
    "starts": False,
    "encoder": None,
    "source_len": None,
    "diffusion": None,
    "graph": None,
    "retrieval": None,
    "scales_scores": True,
    "modulation": None,
    "streams": 1,
    "num_frames": 1,
    "token_types": 0,
    "head_transform": False,
    "transform_norm": False,
    "pooled_classes": 0,
    "token_head": True,
    "token_labels": 0,
    "unmasks": False,
    "guided": False,
}


def spec_to_dict(spec: ModelSpec | StackSpec | Workload) -> dict[str, Any]:
    """The fields of a model, workload or stack as files hold them: without those that say nothing, which older files
    lack."""
    data = asdict(spec, dict_factory=lambda pairs: {k: v for k, v in pairs if k not in _SILENT or v != _SILENT[k]})
    for kind, layer in zip(data.get("kinds", ()), spec.kinds if isinstance(spec, ModelSpec) else (), strict=True):
        if layer.mixer is not None:
            kind["mixer"] = {"kind": layer.mixer.kind, **kind["mixer"]}
    return data
