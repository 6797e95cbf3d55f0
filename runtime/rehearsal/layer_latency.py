"""Fixed seconds per layer of this runtime (calls, autograd, Python), timed by `profile kernels`.

It also times both passes of a whole model, for comparison with the sum of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from ...cost_models.layouts import MODULES
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from ...planner.document.candidate import Chunk
from ..model.decoder import DecoderChunk
from ..model.dispatch import ExpertGroup
from ..parallel import split_backward
from ..parallel.comm import Group
from ..parallel.context_parallel import ContextParallel
from ..parallel.recompute import Recompute
from ..status import Status
from ..trainer import DTYPES
from .single_rank import build_chunk, free_memory, single_group

Action = Callable[[], object]
# Seconds per call: [round][action]. The actions of a round run one after another.
InTurns = Callable[[Sequence[Action]], Sequence[Sequence[float]]]
_LAYERS = 4  # layers of the timed model
_HEAD_DIM, _TOKENS, _INNER = 8, 16, 16  # of a layer with hardly any data


class Latency(NamedTuple):
    """Fixed seconds of a part of a model, independent of the size of its data."""

    forward: float  # seconds of the forward pass
    backward: float  # seconds of the backward pass


class _Mirror(Group):
    """A group of two ranks. The other rank returns what this rank sends."""

    def __init__(self) -> None:
        super().__init__("mirror", [0, 1], 0, None, Status())

    def all_to_all(self, out: Tensor, tensor: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        return out.copy_(tensor)


def parts_with_latency(model: ModelSpec) -> tuple[str, ...]:
    """The keys of the result of `latencies`."""
    layers = ("moe layer" if kind.is_moe else "layer" for kind in model.kinds)
    ulysses = ("ulysses",) if _has_even_heads(model) else ()
    dispatch = ("dispatch",) if _has_even_experts(model) else ()
    return (*dict.fromkeys(layers), "embedding", "head", "split", "weights", *ulysses, *dispatch,
            *(f"recompute {what}" for what in _dropped(model)))  # fmt: skip


def _has_even_heads(model: ModelSpec) -> bool:
    """Whether two ranks can share the heads of a layer of the last kind."""
    return model.attentions[-1].kv_heads % 2 == 0


def _has_even_experts(model: ModelSpec) -> bool:
    """Whether a layer of the last kind has experts that two ranks can share."""
    block = model.kinds[-1].feed_forward
    return isinstance(block, MixtureOfExperts) and block.experts % 2 == 0


def _dropped(model: ModelSpec) -> tuple[str, ...]:
    """Recomputation modes of a layer of the last kind, which has all modules: the whole layer, or one module."""
    kind = model.kinds[-1]
    attention, block = kind.transformer_blocks  # every layer has the other modules
    shared = isinstance(block, MixtureOfExperts) and block.shared_inner > 0
    present = {"moe": kind.is_moe, "mla": attention.is_mla, "mlp": not kind.is_moe, "shared": shared}
    return ("layer", *(module for module in MODULES if present.get(module, True)))


class _LayerTimer:
    """Times chunks of small layers of one model on one device."""

    def __init__(self, model: ModelSpec, dtype: str, device: torch.device, in_turns: InTurns) -> None:
        self.model, self.dtype, self.device, self.in_turns = model, dtype, device, in_turns

    def layers(
        self, kind: Layer, dropped: str = "", *, deals: bool = False, dispatches: bool = False
    ) -> DecoderChunk:  # fmt: skip
        return _chunk(self.model, kind, self.dtype, self.device, dropped=dropped, deals=deals, dispatches=dispatches)

    def end(self, name: str) -> DecoderChunk:
        return _chunk(self.model, self.model.kinds[0], self.dtype, self.device, end=name)

    def alone(self, chunk: DecoderChunk, layers: int = 1) -> Latency:
        rounds = self.in_turns(_passes(chunk, self.dtype, self.device))
        free_memory(chunk)
        return Latency(median(there for there, _ in rounds) / layers,
                       median(both - there for there, both in rounds) / layers)  # fmt: skip

    def beside(self, plain: DecoderChunk, other: DecoderChunk, *, splits: bool = False) -> Sequence[Sequence[float]]:
        """Rounds of the passes of both chunks. `other` is freed."""
        passes = [*_passes(plain, self.dtype, self.device), *_passes(other, self.dtype, self.device, splits=splits)]
        rounds = self.in_turns(passes)
        free_memory(other)
        return rounds


def latencies(model: ModelSpec, dtype: str, device: torch.device, in_turns: InTurns) -> dict[str, Latency]:
    """Fixed seconds by the keys of `parts_with_latency`: every kind of layer, the embedding and the head.

    Further keys are the extra seconds of a layer of the last kind: with a split backward pass (`split`), with heads
    scattered over two ranks that answer at once (`ulysses`), with experts on two such ranks (`dispatch`), and with
    recomputation (`recompute ...`; for a whole layer, beyond another forward pass). `weights` is the deferred part of a
    split backward pass (two equal numbers). These values are differences inside a round, because drift between moments
    would hide them. They may be negative by chance.
    """
    timer, result, last = _LayerTimer(model, dtype, device, in_turns), dict[str, Latency](), model.kinds[-1]
    for kind in model.kinds:
        result["moe layer" if kind.is_moe else "layer"] = timer.alone(timer.layers(kind), _LAYERS)
    for name in ("embedding", "head"):
        result[name] = timer.alone(timer.end(name))
    plain = timer.layers(last)
    rounds = timer.beside(plain, timer.layers(last), splits=True)
    later = median(both - without for *_, both, without in rounds) / _LAYERS
    result |= {"split": _more(rounds), "weights": Latency(later, later)}
    if _has_even_heads(model):
        result["ulysses"] = _more(timer.beside(plain, timer.layers(last, deals=True)))
    if _has_even_experts(model):
        result["dispatch"] = _more(timer.beside(plain, timer.layers(last, dispatches=True)))
    for dropped in _dropped(model):
        rounds = timer.beside(plain, timer.layers(last, dropped))
        result[f"recompute {dropped}"] = _more(rounds, again=dropped == "layer")
    free_memory(plain)
    return result


def _more(rounds: Sequence[Sequence[float]], *, again: bool = False) -> Latency:
    """Extra seconds of other layers over plain ones, from rounds of a forward pass and of both passes of each.

    again: subtract the second forward pass of a fully recomputed layer.
    """
    more = [(there - usual, (both - there) - (usual_both - usual) - usual * again)
            for usual, usual_both, there, both, *_ in rounds]  # fmt: skip
    forward, backward = (median(column) / _LAYERS for column in zip(*more, strict=True))
    return Latency(forward, backward)


def whole_model(model: ModelSpec, micro_batch: int, seq_len: int, dtype: str, device: torch.device) -> Action:
    """Times both passes of a micro-batch through the whole model, with the weights and gradient sums of a rank."""
    part = Chunk(stage=0, chunk=0, layers=(0, model.num_layers - 1), embedding=True, head=True, gpu="",
                 recompute_layers=0)  # fmt: skip
    chunk = build_chunk(replace(model, mtp_layers=0), part, seq_len, dtype, device)
    tokens, targets = torch.randint(model.vocab, (2, micro_batch, seq_len), device=device)
    return lambda: chunk(tokens, targets).backward()


def _chunk(
    model: ModelSpec, kind: Layer, dtype: str, device: torch.device, end: str = "", dropped: str = "", *,
    deals: bool = False, dispatches: bool = False,
) -> DecoderChunk:  # fmt: skip
    """_LAYERS small layers, or an end of a small model. Layers attend to no encoder, which the timed model lacks.

    dropped: a mode of `_dropped`. deals: whether its heads are scattered over two ranks, with sequences twice as long.
    dispatches: whether two ranks share its experts.
    """
    large, block = kind.transformer_blocks
    attention = replace(large, head_dim=_HEAD_DIM, value_head_dim=_HEAD_DIM,
                        norm_parameters=large.norm_parameters * _HEAD_DIM // large.head_dim)
    if attention.is_mla:
        rank = _INNER if attention.q_lora_rank else None
        attention = replace(attention, rope_head_dim=_HEAD_DIM // 2, kv_lora_rank=_INNER, q_lora_rank=rank)
    small = (replace(block, expert_inner=_INNER, shared_inner=_INNER if block.shared_inner else 0)
             if isinstance(block, MixtureOfExperts) else FeedForward(inner=_INNER, gated=block.gated, bias=block.bias))
    spec = replace(model, hidden=_HEAD_DIM * large.heads, vocab=_TOKENS, pattern=(0,) * _LAYERS, mtp_layers=0,
                   kinds=(replace(kind, attention=attention, feed_forward=small, cross_attention=None),))  # fmt: skip
    part = Chunk(stage=0, chunk=0, layers=() if end else (0, _LAYERS - 1), embedding=end == "embedding",
                 head=end == "head", gpu="", recompute_layers=_LAYERS if dropped == "layer" else 0)  # fmt: skip
    modules = (dropped,) if dropped in MODULES else ()
    cp = ContextParallel(_Mirror(), "ulysses") if deals else None
    experts = ExpertGroup(_Mirror(), single_group()) if dispatches else None
    return build_chunk(spec, part, _TOKENS * (1 + deals), dtype, device, Recompute(modules), cp, experts)


def _passes(chunk: DecoderChunk, dtype: str, device: torch.device, *, splits: bool = False) -> tuple[Action, ...]:
    """The forward pass, and both passes; with a split backward pass also both without weight gradients."""
    if chunk.embedding is not None:
        x = torch.zeros(1, _TOKENS, dtype=torch.long, device=device)
    else:
        x = torch.randn(1, _TOKENS, chunk.spec.hidden, dtype=DTYPES[dtype], device=device).requires_grad_()
    targets = torch.zeros(1, _TOKENS, dtype=torch.long, device=device) if chunk.head is not None else None

    def forward() -> Tensor:
        with split_backward.splitting(splits):
            return chunk(x, targets)  # type: ignore[no-any-return]

    def inputs() -> split_backward.Late:
        out = forward()
        with split_backward.put_off() as late:  # defers only in chunks with a split backward pass
            out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        x.grad = None
        return late

    def both() -> None:
        split_backward.make(inputs())

    return (forward, both, inputs) if splits else (forward, both)
