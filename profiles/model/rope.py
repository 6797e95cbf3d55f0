"""Rotary positions in a config: their base, the share of a head that they turn, and how they are scaled.

Older configs have it in `rope_theta`, `partial_rotary_factor` and `rope_scaling`, newer ones in `rope_parameters`,
where kinds of layers may differ: then that of the layers that see all tokens is taken. The explicit form is the older
one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.rope_scaling import RopeScaling
from ...errors import did_you_mean, nearest
from .fields import Fields

_KINDS: tuple[str, ...] = get_args(get_type_hints(RopeScaling)["kind"])
# mrope is the usual rotation wherever there is only text (Qwen2-VL, arXiv 2409.12191); proportional turns a share of a
# head by the frequencies of the whole one (Gemma 4, which its family calls unmodelled).
_UNSCALED = ("default", "mrope", "proportional")
_NUMBERS = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")


def rope_fields(f: Fields) -> Fields | None:
    """The block of the config on rotary positions, if it has one."""
    nested = f.part("rope_parameters")
    return f.part("rope_scaling") if nested is None else nested.part("full_attention") or nested


def rope_theta(f: Fields, part: Fields | None) -> float | None:
    if part is not None and part.has("rope_theta"):
        return part.positive("rope_theta")
    if isinstance(f.get("rope_theta"), list):
        return of_layers(f, "rope_theta", "full_attention")
    return f.positive("rope_theta", "rotary_emb_base")


def of_layers(f: Fields, name: str, kind: str) -> float | None:
    """The number of the layers of a kind, out of a list with one for each layer (Step-3.5); None: there is no list."""
    numbers, words = f.get(name), f.get("layer_types")
    if not isinstance(numbers, list):
        return None
    place = words.index(kind) if isinstance(words, list) and kind in words else 0
    number = numbers[place] if place < len(numbers) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        f.problem(name, f"must have a number above 0 for each layer, layer {place} has {number!r}")
        return None
    return float(number)


def window_rope_theta(f: Fields, default: float) -> float:
    """The base in the layers with a window, which never scale theirs."""
    nested = f.part("rope_parameters")
    part = None if nested is None else nested.part("sliding_attention")
    if part is None:
        return f.positive("rope_local_base_freq") or default
    if part.get("rope_type") not in (None, "default"):
        part.problem("rope_type", f"`{part.get('rope_type')}`: there is no formula for windows with scaled positions")
    theta = part.positive("rope_theta") or default
    f.absorb(part)
    return theta


def with_rope(f: Fields, part: Fields | None, spec: ModelSpec) -> ModelSpec:
    """`spec` with the scaling of its positions and the share of a head that they turn, where they are rotary. Without a
    block it keeps its scaling."""
    share = _share(f, part, spec)
    scaling = spec.rope_scaling if part is None else _scaling(f, part, spec.max_positions)
    return spec if spec.rope_theta is None else replace(spec, rope_scaling=scaling, partial_rotary_factor=share)


def _share(f: Fields, part: Fields | None, spec: ModelSpec) -> float:
    """The share of a head that turns; that of the family where the config has none."""
    name, head = "partial_rotary_factor", next(iter(spec.attentions), None)
    share = (part if part is not None and part.has(name) else f).positive(name)
    if head is None or head.is_mla:  # rope_head_dim is the part of a head that turns, and all of it does
        return 1.0
    share = spec.partial_rotary_factor if share is None else share
    width = int(head.head_dim * share)
    if f.sound and share != 1 and (share > 1 or width < 2 or width % 2):
        f.problem(name, f"{share:g} of a head of {head.head_dim} is not an even number of 2 to {head.head_dim}")
    return share


def _scaling(f: Fields, part: Fields, max_positions: int) -> RopeScaling | None:
    kind = "longrope" if part.has("short_factor") else part.get("rope_type", "type") or "default"
    if kind in _KINDS:
        return _read(f, part, kind, max_positions)
    if kind not in _UNSCALED:
        part.problem("rope_type" if part.has("rope_type") else "type",
                     f"`{kind}` is none of {', '.join(('default', *_KINDS))}",
                     did_you_mean(nearest(str(kind), _KINDS)))  # fmt: skip
    return None


def _read(f: Fields, part: Fields, kind: Any, max_positions: int) -> RopeScaling:
    """Defaults are those of transformers (5.23, modeling_rope_utils.py)."""
    original = None
    if kind in ("yarn", "longrope", "llama3"):
        holder = f if f.has("original_max_position_embeddings") else part
        original = holder.count("original_max_position_embeddings", default=max_positions)
    factor = part.positive("factor")
    if factor is None and kind in ("yarn", "longrope"):
        factor = max_positions / (original or max_positions)
    elif factor is None:
        part.problem("factor", f"is missing, and {kind} needs it")
    given = {name: value for name in _NUMBERS if (value := part.positive(name)) is not None}
    mscale, all_dim = part.number("mscale", 0.0), part.number("mscale_all_dim", 0.0)
    return RopeScaling(
        kind=kind, factor=factor or 1.0, original_max_positions=original, truncate=part.flag("truncate", True),
        mscale=mscale if all_dim else 0.0, mscale_all_dim=all_dim, **given,  # alone, mscale changes nothing
    )  # fmt: skip
