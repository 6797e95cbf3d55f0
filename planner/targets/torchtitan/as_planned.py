"""The function of an emitted module that gives a registered model the positions and norms of the plan."""

from __future__ import annotations

import json

from ....cost_models.specs.model import ModelSpec
from ..options import Settings

_AS_PLANNED = """\
def as_planned(model_spec):
    \"\"\"Rotary positions and epsilon of norms as in the plan: a flavour has those of one release of its family.\"\"\"
    for layer in {layers}:
        layer.attention.rope = replace(
            layer.attention.rope,{values})
{mscale}        for norm in ({norms}):
            norm.eps = {epsilon}
    model_spec.model.norm.eps = {epsilon}
    return model_spec
"""


def changes_of(model: ModelSpec) -> str:
    """The text of the function that sets RoPE.Config (models/common/rope.py) and the norms of each layer."""
    scaling, latent = model.trained_scaling, model.attentions[0].is_mla
    inner = ("q_norm", "kv_norm") if latent else ("qk_norm",) if model.attentions[0].norm_parameters else ()
    norms = ["layer.attention_norm", "layer.ffn_norm", *(f"layer.attention.{name}" for name in inner)]
    values: Settings = {"theta": model.rope_theta, "scaling": "none"}
    if scaling is not None and scaling.kind == "llama3":
        values |= {"scaling": "llama", "scaling_factor": scaling.factor, "low_freq_factor": scaling.low_freq_factor,
                   "high_freq_factor": scaling.high_freq_factor,
                   "original_max_position_embeddings": scaling.original_max_positions}  # fmt: skip
    elif scaling is not None:
        values |= {"scaling": "yarn", "rope_factor": scaling.factor, "beta_fast": scaling.beta_fast,
                   "beta_slow": scaling.beta_slow, "original_seq_len": scaling.original_max_positions,
                   "truncate": scaling.truncate}  # fmt: skip
    every = "[*model_spec.model.layers, *model_spec.model.mtp_layers]"
    mscale = f"        layer.attention.mscale = {scaling.mscale_all_dim}\n" if latent and scaling is not None else ""
    lines = "".join(f"            {key}={json.dumps(value) if isinstance(value, str) else value},\n"
                    for key, value in values.items())  # fmt: skip
    return _AS_PLANNED.format(
        layers=every if model.mtp_layers else "model_spec.model.layers", values=f"\n{lines}        ",
        mscale=mscale, norms=", ".join(norms), epsilon=model.norm_epsilon,
    )  # fmt: skip
