"""Checks of techniques that change what a model learns from a token."""

from __future__ import annotations

from typing import Any

from .base import Check, chosen, priced

# Width -> width of the feed-forward block, and parameters without the embedding of 1, 2, 4 and 8 streams
# (QwenLM/ParScale cd6acb48, its parametric fit). Widths of blocks follow from the parameters of one stream: 36 layers,
# 16 heads, 2 of keys and values, as Qwen2.5-3B, on which its code builds.
_TRAINED = {
    896: (4864, (535813376, 538195842, 540577412, 545340552)),
    1024: (5504, (693753856, 696738818, 699722756, 705690632)),
    1280: (6912, (1088376320, 1092762882, 1097148164, 1105918728)),
    1536: (8320, (1571472384, 1577522690, 1583571460, 1595669000)),
    2048: (11008, (2774773760, 2784937986, 2795100164, 2815424520)),
    2560: (13824, (4353203200, 4368529922, 4383854084, 4414502408)),
}
_VOCAB, _STREAMS = 151936, (1, 2, 4, 8)


def _parameters(hidden: int, inner: int, streams: int, neutral: bool) -> float:
    """Parameters without the embedding, out of the bytes of weights on a GPU that has all of them."""
    model = {"name": "parscale", "hidden": hidden, "layers": 36, "heads": 16, "kv_heads": 2, "ffn_hidden": inner,
             "vocab": _VOCAB, "max_positions": 2048, "qkv_bias": True, "tied_embeddings": True}  # fmt: skip
    asked: dict[str, Any] = {"model": model, "seq_len": 2048, "global_batch": 1, "gpus": 1, "gpu": "b200",
                             "stack": "generic"}  # fmt: skip
    step = priced("dp1-mbs1-z0-rnone", chosen("parscale", neutral, streams=streams), **asked)
    return step.memory[0].weights_bytes / 2 - _VOCAB * hidden


def _parscale(neutral: bool) -> float:
    """The largest difference from a published number of parameters."""
    return max(abs(_parameters(hidden, inner, streams, neutral) - published)
               for hidden, (inner, trained) in _TRAINED.items()
               for streams, published in zip(_STREAMS, trained, strict=True))  # fmt: skip


CHECKS = (
    Check(
        technique="parscale",
        of="largest difference from the parameters of 6 models with 1, 2, 4 and 8 streams, without embeddings",
        published="0 of 535,813,376 to 4,414,502,408 (QwenLM/ParScale, its parametric fit); a plan has 9 digits of its "
        "bytes, 5 bytes of 9.6 GB",
        low=0,
        high=2.5,
        value=_parscale,
    ),
)
