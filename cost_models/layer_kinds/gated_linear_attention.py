"""Linear attention whose state forgets: by fixed factors of each head (lightning attention), or by gates (GLA).

Heads have queries and keys of d_k, values of d_v, a state of d_k x d_v. Lightning attention decays by one constant per
head, has an activation behind the projection, and norms and gates the whole output (arXiv 2401.04658; MiniMax-01, arXiv
2501.08313, section 2.2). Gated linear attention makes a decay per key channel by a projection of low rank and norms
each head (arXiv 2312.06635, section 4.3). Both scans have the same products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import Scan, add_scan_and_output


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedLinearAttention(Mixer):
    """Sizes of a linear attention that forgets."""

    kind: ClassVar[str] = "gated_linear_attention"
    heads: int
    key_head_dim: int  # d_k
    value_head_dim: int  # d_v
    decay_rank: int = 0  # of the projections that make a decay per key channel, 0: fixed decays (lightning attention)
    norm_all_heads: bool = False  # whether the norm's weights are of all heads' outputs, else of one head
    chunk: int = 64  # tokens

    @property
    def keys(self) -> int:
        return self.heads * self.key_head_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_head_dim

    @property
    def projected(self) -> int:
        """Queries, keys, values and the gate of the output."""
        return 2 * self.keys + 2 * self.values


def _parameters(mixer: GatedLinearAttention, hidden: int) -> dict[str, int]:
    counts = {
        "mixer_in": hidden * mixer.projected,
        "mixer_out": mixer.values * hidden,
        "mixer_norm" if not mixer.norm_all_heads else "mixer_wide_norm":
            mixer.values if mixer.norm_all_heads else mixer.value_head_dim,
    }  # fmt: skip
    if mixer.decay_rank:
        counts |= {"mixer_decay_in": hidden * mixer.decay_rank, "mixer_decay": (mixer.decay_rank + 1) * mixer.keys}
    return counts


def _matrices(mixer: GatedLinearAttention, hidden: int) -> tuple[Matrix, ...]:
    decay = (Matrix(((mixer.decay_rank, hidden),), split=False), Matrix(((mixer.keys, mixer.decay_rank),)))
    return (
        Matrix(((mixer.keys, hidden), (mixer.keys, hidden), (mixer.values, hidden), (mixer.values, hidden))),
        Matrix(((hidden, mixer.values),)), *(decay if mixer.decay_rank else ()),
    )  # fmt: skip


def _add(builder: Builder, ops: LayerOperations, mixer: GatedLinearAttention) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, keys, values = shard.tokens, mixer.keys / shard.tp, mixer.values / shard.tp
    projected = mixer.projected / shard.tp
    builder.add_gemm(ops, "mixer in", tokens, projected, h)
    if mixer.decay_rank:
        builder.add_gemm(ops, "mixer decay down", tokens, float(mixer.decay_rank), h)
        builder.add_gemm(ops, "mixer decay up", tokens, keys, float(mixer.decay_rank))
        ops.saved.append(Saved("decays", w * tokens * (keys + mixer.decay_rank)))
    else:  # the activation of queries, keys and values
        moved = w * tokens * (2 * keys + values)
        ops.traffic.append(MemoryTraffic("activation of the mixer", 2 * moved, 3 * moved, tag("attn")))
        ops.saved.append(Saved("activated queries, keys and values", moved, tag("attn"), mask_of_modules("core_attn")))
    heads = mixer.heads / shard.tp
    scan = Scan(heads=heads, key_heads=heads, key_dim=mixer.key_head_dim, value_dim=mixer.value_head_dim,
                chunk=mixer.chunk)  # fmt: skip
    add_scan_and_output(builder, ops, scan, projected, 0.0 * keys, values, kernel=1)
    ops.saved.append(Saved("scan output", w * tokens * values, tag("attn"), mask_of_modules("core_attn")))


KIND = MixerKind(
    spec=GatedLinearAttention, parameters=_parameters, replicated=("mixer_norm", "mixer_decay_in"), matrices=_matrices,
    add=_add, heads=lambda mixer: {"heads of linear attention": (mixer.heads, False)},
    state=lambda mixer: (mixer.values * mixer.key_head_dim, 0),
    kernels=6.0,  # activation or decays, states, scores, output, gated norm, a projection more (assumed)
)  # fmt: skip
