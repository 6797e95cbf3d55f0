"""Checks of techniques that change what travels round a ring of context parallelism."""

from __future__ import annotations

from typing import Any

from .base import Check, Technique, chosen, priced, shown_s, single_gpus

_LLAMA_2_7B: dict[str, Any] = {"name": "llama-2-7b", "hidden": 4096, "layers": 32, "heads": 32, "ffn_hidden": 11008,
                               "vocab": 32000, "max_positions": 24_000}  # fmt: skip


def _token_ring(neutral: bool) -> float:
    """Messages of a ring, without over with it: LLaMA2-7B at 24,000 tokens, where messages are nearly all of a step."""
    asked: dict[str, Any] = {"model": _LLAMA_2_7B, "cluster": single_gpus(4, 0.01), "seq_len": 24_000,
                             "global_batch": 1, "stack": "generic"}  # fmt: skip
    plain, ring = (shown_s(priced("cp4r-dp1-mbs1-z0-rfull", technique, **asked), "cp comm, exposed")
                   for technique in (None, chosen("token-ring", neutral)))  # fmt: skip
    return plain / ring


# The paper's GPU, a P100, has as much memory.
_BERT_BASE: dict[str, Any] = {"name": "bert-base", "hidden": 768, "layers": 12, "heads": 12, "ffn_hidden": 4 * 768,
                              "vocab": 30522, "max_positions": 512, "gated_mlp": False,
                              "tied_embeddings": True}  # fmt: skip
_GPU, _MEMORY_BYTES = "v100-sxm-16gb", 16 * 2**30


def _largest_batch(layout_id: str, gpus: int, technique: Technique | None, stack: str) -> int:
    """Sequences of 512 tokens of a micro-batch whose bytes a GPU holds. layout_id: with `{}` for their number."""
    asked: dict[str, Any] = {"model": _BERT_BASE, "cluster": single_gpus(gpus, 80, _GPU), "seq_len": 512,
                             "dtype": "fp16", "stack": stack}  # fmt: skip

    def holds(batch: int) -> bool:
        candidate = priced(layout_id.format(batch), technique, global_batch=batch, **asked)
        return candidate.memory[0].device_bytes <= _MEMORY_BYTES

    low, high = 1, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _ring_self_attention(neutral: bool) -> float:
    """The largest batch on 64 GPUs over that of tensor parallelism, which the 12 heads limit to 12."""
    by_heads = _largest_batch("tp12-nosp-dp1-mbs{}-z0-rnone-fp16", 12, None, "megatron-lm")
    return _largest_batch("cp64r-dp1-mbs{}-z0-rnone-fp16", 64, chosen("ring-self-attention", neutral),
                          "generic") / by_heads  # fmt: skip


CHECKS = (
    Check(
        technique="token-ring",
        of="bytes of a ring of keys and values over its own, 7B at 24,000 tokens",
        published="2 by arithmetic: a query is half a key and its value, and links send both ways at once; the paper "
        "has no figure of it (arXiv 2412.20501)",
        low=1.9,
        high=2.0,
        value=_token_ring,
    ),
    Check(
        technique="ring-self-attention",
        of="largest batch of BERT-Base on 64 GPUs of 16 GB over that of tp 12, 512 tokens",
        published="13.7 on 64 P100 (arXiv 2105.13120, abstract)",
        low=10,
        high=13.7,
        value=_ring_self_attention,
    ),
)
