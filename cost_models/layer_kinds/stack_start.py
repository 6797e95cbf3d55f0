"""The parts before the first layer of each stack of an encoder-decoder model, which stay with that layer."""

from __future__ import annotations

from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.encoder import Encoder
from ..specs.model import Layer, ModelSpec

_TAPS = 3  # of both convolutions (transformers 5.24, WhisperEncoder)
_STRIDE = 2  # of the second one


def parameters(model: ModelSpec, kind: Layer) -> dict[str, int]:
    """Elements of the convolutions, with biases, before the encoder of sound; of the norm after an encoder, before the
    decoder."""
    encoder, h = model.encoder, model.hidden
    if encoder is None or not kind.starts:
        return {}
    if not kind.encodes:
        return {"encoder_norm": h * (2 if kind.norm_bias else 1)}
    return {} if encoder.reads_text else {"frontend": _TAPS * h * (encoder.mel_bins + h) + 2 * h}


def add_start(builder: Builder, ops: LayerOperations, kind: Layer) -> None:
    """Add them to the first layer of a stack. builder: with the tokens of that stack."""
    encoder = builder.model.encoder
    if encoder is None or not kind.starts:
        return
    before = len(ops.saved)
    if not kind.encodes:
        _add_encoder_end(builder, ops, encoder)
    elif not encoder.reads_text:
        _add_convolutions(builder, ops, encoder)
    # Full recomputation of layers keeps what is beside them.
    ops.input_bytes = ops.input_bytes + sum(saved.num_bytes for saved in ops.saved[before:])


def _add_convolutions(builder: Builder, ops: LayerOperations, encoder: Encoder) -> None:
    """Both as products over the taps, each with GELU; all ranks of tensor parallelism do all of it."""
    h, w, tokens = builder.model.hidden, builder.activation_bytes, builder.shard.tokens
    frames = _STRIDE * tokens
    builder.add_gemm(ops, "frontend 1", frames, h, _TAPS * encoder.mel_bins, wide=True, has_dgrad=False)
    builder.add_gemm(ops, "frontend 2", tokens, h, _TAPS * h, wide=True)
    made = w * h * (frames + tokens)
    ops.traffic.append(MemoryTraffic("frontend activations", 2 * made, 3 * made))
    ops.traffic.append(MemoryTraffic("frontend positions", 3 * w * h * tokens, 2 * w * h * tokens))
    ops.saved.append(Saved("frontend", w * (encoder.mel_bins * frames + h * (2 * frames + tokens))))
    ops.wgrad_stash.append(w * (encoder.mel_bins * frames + h * (2 * frames + tokens)))


def _add_encoder_end(builder: Builder, ops: LayerOperations, encoder: Encoder) -> None:
    """The final norm of the encoder, whose output all layers of the decoder take, and the lookup of the target, where
    the source has one, too."""
    h, w, source = builder.model.hidden, builder.activation_bytes, builder.of_source().shard
    ops.saved.append(Saved("encoder norm", w * h * source.sp_tokens))  # what it takes; its output see stacks.py
    ops.traffic.append(builder.norm_traffic("encoder norm", h * source.sp_tokens))
    if encoder.reads_text:
        moved = 2 * w * h * builder.shard.tokens
        ops.traffic.append(MemoryTraffic("embedding", moved, 2 * moved))
