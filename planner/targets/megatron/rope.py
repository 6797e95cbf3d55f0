"""Positions <-> arguments of pretrain_gpt.py, and the rotary positions that Megatron cannot build.

Read in Megatron-LM 0.16.1 to d98e8a64: models/common/embeddings (rotary and yarn_rotary_pos_embedding.py),
transformer/multi_latent_attention.py, training/argument_utils.py and gpt_builders.py.
"""

from __future__ import annotations

from dataclasses import replace

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.rope_scaling import RopeScaling
from ..option_lists import OptionList
from ..options import Facts, NoCounterpartError, Settings
from ..setup import Setup

OPTIONS = (
    "--position-embedding-type", "--max-position-embeddings", "--use-rotary-position-embeddings", "--rotary-base",
    "--rotary-percent", "--use-rope-scaling", "--rope-scaling-factor", "--rotary-seq-len-interpolation-factor",
    "--rope-type", "--rotary-scaling-factor", "--mscale", "--mscale-all-dim", "--yarn-original-max-position-embeddings",
    "--yarn-beta-fast", "--yarn-beta-slow", "--yarn-correction-range-round-to-int",
    "--no-yarn-correction-range-round-to-int",
)  # fmt: skip
_ROTARY_BASE = 10_000  # default
# Constants of RotaryEmbedding._apply_scaling except the factor, and those of MLATransformerConfig without an argument.
_LLAMA = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LATENT = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


def _is(scaling: RopeScaling, values: dict[str, float]) -> bool:
    known = {name: getattr(scaling, name) for name in values if hasattr(scaling, name)}
    return {**known, "original_max_position_embeddings": scaling.original_max_positions} == values


def cannot_rotate(model: ModelSpec, options: OptionList | None) -> dict[str, bool]:
    """Sentence -> whether it applies, for rotary positions without an argument or lost before the model."""
    scaling = model.trained_scaling
    if scaling is None:
        return {}
    bridge = options is not None and options.target in ("megatron-bridge", "nemo")
    # GPT models of pretrain_gpt.py get both since 0.19. Before, gpt_builders.py did not pass the first.
    linear = bridge or options is None or "--yarn-original-max-position-embeddings" in options.options
    kind, factor = scaling.kind, scaling.factor
    latent = model.attentions[0].is_mla
    field = "model.rope_scaling"
    by_numbers = replace(scaling, attention_factor=None).amplitude
    return {
        f"{field}: longrope has a factor for every frequency, which no argument gives": kind == "longrope",
        f"{field}: latent attention is scaled by yarn, not by {kind}": latent and kind not in ("yarn", "longrope"),
        f"{field}: llama3 has low_freq_factor 1, high_freq_factor 4 and 8192 positions before, here others":
            kind == "llama3" and not _is(scaling, _LLAMA),
        f"{field}: --rope-scaling-factor does not reach the model, whose factor is always 8, here {factor:g}":
            kind == "llama3" and factor != 8 and not bridge,
        f"{field}: linear scaling by {factor:g} is no whole number": kind == "linear" and factor % 1 > 0 and not bridge,
        f"{field}: --rotary-seq-len-interpolation-factor does not reach the model": kind == "linear" and not linear,
        f"{field}: yarn of latent attention has beta_fast 32, beta_slow 1 and 4096 positions before, here others":
            kind == "yarn" and latent and not bridge and not _is(scaling, _LATENT),
        f"{field}: yarn of latent attention rounds the range that it corrects":
            kind == "yarn" and latent and not scaling.truncate,
        f"{field}: mscale_all_dim needs mscale": latent and scaling.mscale_all_dim > 0 and not scaling.mscale,
        f"{field}: attention_factor follows from factor and mscale, here {scaling.amplitude:g} is not {by_numbers:g}":
            abs(scaling.amplitude - by_numbers) > 1e-6,
        "model.partial_rotary_factor: yarn turns whole heads": kind == "yarn" and model.partial_rotary_factor < 1,
    }  # fmt: skip


def write(setup: Setup) -> Settings:
    model = setup.model
    if not any(attention.rotary for attention in model.attentions) and not model.learned_positions:
        return {"--position-embedding-type": "none", "--max-position-embeddings": model.max_positions}
    kind = "learned_absolute" if model.learned_positions else "rope"
    longest = max(model.max_positions, setup.workload.seq_len)  # of stretched positions
    out: Settings = {"--position-embedding-type": kind, "--max-position-embeddings": longest}
    if model.learned_positions:
        return out
    if model.rope_theta not in (None, _ROTARY_BASE):
        out["--rotary-base"] = round(model.rope_theta or _ROTARY_BASE)
    if model.partial_rotary_factor < 1:
        out["--rotary-percent"] = model.partial_rotary_factor
    return out | _scaling_write(model.trained_scaling, model.attentions[0].is_mla)


def _scaling_write(scaling: RopeScaling | None, latent: bool) -> Settings:
    if scaling is None:
        return {"--rotary-scaling-factor": 1.0} if latent else {}  # MLAModelProvider of Bridge would take 40
    if scaling.kind == "llama3":
        return {"--use-rope-scaling": True, "--rope-scaling-factor": scaling.factor}
    if scaling.kind == "linear":
        return {"--rotary-seq-len-interpolation-factor": round(scaling.factor)}
    both = scaling.mscale > 0 and scaling.mscale_all_dim > 0
    out: Settings = {"--rotary-scaling-factor": scaling.factor, "--mscale": scaling.mscale if both else 1.0,
                     "--mscale-all-dim": scaling.mscale_all_dim if both else 0.0}  # fmt: skip
    if latent:
        return {"--rope-type": "yarn", **out}
    rounds = "--yarn-correction-range-round-to-int" if scaling.truncate else "--no-yarn-correction-range-round-to-int"
    return {
        "--position-embedding-type": "yarn", **out, "--yarn-beta-fast": scaling.beta_fast,
        "--yarn-beta-slow": scaling.beta_slow,
        "--yarn-original-max-position-embeddings": scaling.original_max_positions, rounds: True,
    }  # fmt: skip


def read(settings: Settings, facts: Facts) -> Facts:
    kind = settings.get("--position-embedding-type", "learned_absolute")
    if settings.get("--use-rotary-position-embeddings"):
        kind = "rope"
    longest = max(settings.get("--max-position-embeddings", 0), settings.get("--seq-length", 0))
    out: Facts = {"model.learned_positions": kind == "learned_absolute"}
    if longest:
        out["model.max_positions"] = longest
    if kind == "learned_absolute":
        return out
    if kind == "none":
        return out | {"model.rope_theta": None}
    out["model.rope_theta"] = float(settings.get("--rotary-base", _ROTARY_BASE))
    if (share := settings.get("--rotary-percent", 1.0)) != 1:
        out["model.partial_rotary_factor"] = share
    scaling = _scaling_read(settings, yarn=kind == "yarn")
    return out | ({"model.rope_scaling": scaling} if scaling else {})


def _scaling_read(settings: Settings, *, yarn: bool) -> Facts:
    """Reads YaRN into the names of the explicit form."""
    latent = bool(settings.get("--multi-latent-attention"))
    factor = settings.get("--rotary-scaling-factor", 1.0)
    if latent or yarn:
        if factor == 1 or (latent and settings.get("--rope-type") == "rope"):
            return {}
        out = {"type": "yarn", "factor": factor, **(_LATENT if latent else _plain_yarn(settings))}
        mscale, all_dim = settings.get("--mscale", 1.0), settings.get("--mscale-all-dim", 0.0)
        if not all_dim and mscale != 1:
            raise NoCounterpartError(
                f"--mscale {mscale} has no counterpart in a plan", hint="give --mscale-all-dim beside it"
            )
        return out | ({"mscale": mscale, "mscale_all_dim": all_dim} if all_dim else {})
    if settings.get("--use-rope-scaling"):
        return {"type": "llama3", "factor": settings.get("--rope-scaling-factor", 8.0), **_LLAMA}
    linear = settings.get("--rotary-seq-len-interpolation-factor")
    return {"type": "linear", "factor": linear} if linear else {}


def _plain_yarn(settings: Settings) -> Facts:
    """The defaults of YarnRotaryEmbedding."""
    return {
        "beta_fast": settings.get("--yarn-beta-fast", 32.0), "beta_slow": settings.get("--yarn-beta-slow", 1.0),
        "original_max_position_embeddings": settings.get("--yarn-original-max-position-embeddings", 4096),
        "truncate": not settings.get("--no-yarn-correction-range-round-to-int"),
    }  # fmt: skip
