"""The blocks that the model families are built from: attention, windows, and decoders without and with experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from .fields import Fields

_MAX_LAYERS = 10_000  # a typo, not a model: the pattern holds one entry per layer


def window_size(f: Fields, name: str, default: int | None) -> int | None:
    """The window in field `name`: an explicit null means full attention, an absent field the family's default."""
    return f.optional_count(name) if name in f.data else default


def attention_of(
    f: Fields,
    hidden: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    bias: tuple[bool, bool] = (False, False),
    head_norms: bool = False,
) -> Attention:
    """Grouped-query attention; kv_heads defaults to heads, head_dim to hidden / heads. bias: (qkv, output).

    head_norms: one norm of head_dim elements each for queries and keys (Qwen 3, Gemma 3).
    """
    heads = heads or f.count("num_attention_heads", "n_head")
    groups = kv_heads or f.count("num_key_value_heads", default=heads)
    if f.sound and heads % groups:
        f.problem("num_key_value_heads", f"{heads} heads are not divisible by {groups} key/value heads")
    width = f.count("head_dim", default=head_dim or max(1, hidden // heads))
    if f.sound and head_dim is None and not f.has("head_dim") and hidden % heads:
        f.problem("num_attention_heads", f"hidden size {hidden} is not divisible by {heads} heads, and no head_dim",
                  hint="give `head_dim`, or a number of heads that divides it")  # fmt: skip
    return Attention(
        heads=heads,
        kv_heads=groups,
        head_dim=width,
        value_head_dim=width,
        qkv_bias=bias[0],
        output_bias=bias[1],
        norm_parameters=2 * width if head_norms else 0,
    )


def num_layers_of(f: Fields) -> int:
    return f.count("num_hidden_layers", "n_layer", maximum=_MAX_LAYERS)


def windows_of(f: Fields, layers: int, size: int | None, slides: Callable[[int], bool]) -> list[int | None]:
    """The attention window per layer: `layer_types` where given, else layers for which `slides` holds."""
    kinds = f.words("layer_types", layers, ("full_attention", "sliding_attention", "chunked_attention"))
    if kinds is None:
        return [size if slides(index) else None for index in range(layers)]
    return [None if kind == "full_attention" else size for kind in kinds]


def assemble(
    f: Fields,
    family: str,
    layers: Sequence[Layer],
    *,
    hidden: int,
    tied: bool,
    max_positions: int,
    vocab: int | None = None,
    norm_bias: bool = False,
    dropout: bool = False,
) -> ModelSpec:
    """A ModelSpec with equal layers joined into kinds, in order of first use."""
    kinds = tuple(dict.fromkeys(layers))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    return ModelSpec(
        name="",
        family=family,
        hidden=hidden,
        vocab=f.count("vocab_size") if vocab is None else f.count("vocab_size", default=vocab),
        kinds=kinds,
        pattern=tuple(numbers[layer] for layer in layers),
        max_positions=max_positions,
        tied_embeddings=f.flag("tie_word_embeddings", tied),
        norm_bias=norm_bias,
        dropout=dropout,
    )


def dense_model(
    f: Fields,
    family: str,
    attention: Attention,
    hidden: int,
    *,
    ffn: FeedForward | None = None,
    windows: Sequence[int | None] = (),
    num_norms: int = 2,
    norm_bias: bool = False,
    tied: bool = False,
    dropout: bool = False,
    max_positions: int | None = None,
    vocab: int | None = None,
    output_norms: bool = False,
    parallel: bool = False,
) -> ModelSpec:
    """Layers that are equal but for their windows; `ffn` defaults to SwiGLU of intermediate_size."""
    block = ffn or FeedForward(inner=f.count("intermediate_size"))
    layer = Layer(attention=attention, feed_forward=block, num_norms=num_norms, norm_bias=norm_bias,
                  output_norms=output_norms, parallel_blocks=parallel)  # fmt: skip
    layers = [
        replace(layer, attention=replace(attention, window=window)) for window in windows or [None] * num_layers_of(f)
    ]
    positions = max_positions or f.count("max_position_embeddings", default=2048)
    return assemble(f, family, layers, hidden=hidden, tied=tied, max_positions=positions, vocab=vocab,
                     norm_bias=norm_bias, dropout=dropout)  # fmt: skip


def expert_model(
    f: Fields,
    family: str,
    attention: Attention,
    hidden: int,
    moe: MixtureOfExperts,
    *,
    dense: FeedForward | None,
    is_moe: Sequence[bool],
    windows: Sequence[int | None] = (),
    balancing: float = 0.001,
) -> ModelSpec:
    """Decoder with experts in the layers that `is_moe` marks and `dense` in the others.

    balancing: `router_aux_loss_coef` where the config has none, by the family's class in transformers.
    """
    layers = []
    for index, routed in enumerate(is_moe):
        block = moe if routed or dense is None else dense
        window = windows[index] if windows else None
        layers.append(Layer(attention=replace(attention, window=window), feed_forward=block))
    if f.sound and moe.top_k > moe.experts:
        f.problem("num_experts_per_tok", f"{moe.top_k} experts per token, but there are only {moe.experts}")
    positions = f.count("max_position_embeddings", default=2048)
    spec = assemble(f, family, layers, hidden=hidden, tied=False, max_positions=positions)
    return with_balancing(f, spec, moe, sum(is_moe), balancing)


def with_balancing(
    f: Fields, spec: ModelSpec, moe: MixtureOfExperts, num_moe: int, default: float = 0.001
) -> ModelSpec:
    """The balancing loss of each of `num_moe` layers. transformers multiplies its coefficient by a mean over layers of
    loads that are not over the experts of a token (load_balancing_loss_func)."""
    in_each_layer = f.number("router_aux_loss_coef", default) * moe.top_k / max(num_moe, 1)
    return replace(spec, moe_aux_loss_coeff=in_each_layer)
