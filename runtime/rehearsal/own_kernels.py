"""What `profile kernels` times on a device that only this runtime trains on: its own operations, and its own layers.

The makers take the place of torch's fused kernels in `profiles/profilers/runners.py`, where the runtime runs something
else. `latencies` times layers that have hardly any data: what is left is what calls, autograd and Python take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...cost_models.layouts import MODULES
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from ...planner.document.plan import Chunk
from ..model.blocks import ACTIVATIONS, Context, Norm, gated, rotate
from ..model.decoder import DecoderChunk, materialise
from ..model.experts import ExpertGroup
from ..parallel import split_backward
from ..parallel import tensor_parallel as tp
from ..parallel.comm import Group
from ..parallel.context_parallel import ContextParallel
from ..parallel.recompute import Recompute
from ..parallel.sharding import Gatherer, Groups, Unit, squared_norm
from ..status import Status
from ..trainer import DTYPES, optimizer_of

Action = Callable[[], object]
# Seconds of a call of each, time and again: [round][action]. In a round they run one after the other.
InTurns = Callable[[Sequence[Action]], Sequence[Sequence[float]]]
_LAYERS = 4  # of the model whose layers are timed
_HEAD_DIM, _TOKENS, _INNER = 8, 16, 16  # of a layer with hardly any data


class Kernel(Protocol):
    """As profiles.profilers.kernels.Kernel."""

    @property
    def direction(self) -> str: ...
    def __getitem__(self, dim: str) -> int: ...


ActionFactory = Callable[[Kernel, torch.dtype, torch.device], Action]


def _alone() -> Group:
    return Group("world", [0], 0, None, Status())


class _Mirror(Group):
    """Two ranks, of which the other answers with what it gets."""

    def __init__(self) -> None:
        super().__init__("cp", [0, 1], 0, None, Status())

    def all_to_all(self, out: Tensor, tensor: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        return out.copy_(tensor)


def _context(dtype: torch.dtype, device: torch.device, activation: str = "silu", epsilon: float = 1e-5) -> Context:
    alone = _alone()
    return Context(alone, ExpertGroup(alone, alone), dtype, device, epsilon, activation, fused=device.type == "cuda")


def _either(kernel: Kernel, forward: Callable[[], Tensor], *inputs: Tensor) -> Action:
    """The forward pass, or the backward pass alone from a graph that is kept."""
    if kernel.direction == "forward":
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=device).requires_grad_()


def _norm(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    norm = Norm(_context(dtype, device), kernel["hidden"], bool(kernel["bias"]))
    for parameter in norm.parameters():
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        parameter.data.fill_(1.0)
    x = _random(kernel["tokens"], kernel["hidden"], dtype=dtype, device=device)
    return _either(kernel, lambda: norm(x), x, *norm.parameters())


def _rotary(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    x = _random(1, kernel["tokens"], kernel["heads"], kernel["head_dim"], dtype=dtype, device=device)
    cos, sin = (torch.randn(kernel["tokens"], kernel["head_dim"] // 2, dtype=dtype, device=device) for _ in range(2))
    return _either(kernel, lambda: rotate(x, cos, sin), x)


def _activation(activation: str) -> ActionFactory:
    def make(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
        inputs = [_random(kernel["tokens"], kernel["inner"], dtype=dtype, device=device)
                  for _ in range(1 + kernel["gated"])]  # fmt: skip
        if kernel["gated"]:
            return _either(kernel, lambda: gated(activation, *inputs), *inputs)
        return _either(kernel, lambda: ACTIVATIONS[activation](*inputs), *inputs)

    return make


def _loss(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    logits = _random(1, kernel["tokens"], kernel["vocab"], dtype=dtype, device=device)
    targets = torch.randint(kernel["vocab"], (1, kernel["tokens"]), device=device)
    alone = _alone()

    def forward() -> Tensor:
        return tp.cross_entropy(logits, targets, 0, alone)

    if kernel.direction == "forward":
        return forward
    return lambda: torch.autograd.grad(forward(), logits)


def _update(optimizer: str) -> ActionFactory:
    """Norm of the gradient, the optimizer's step, the weights in the compute dtype, and gradients back to zero."""

    def make(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
        master = torch.nn.Parameter(torch.randn(kernel["parameters"], device=device))
        gradient = torch.randn(kernel["parameters"], device=device)
        weights = torch.empty(kernel["parameters"], dtype=dtype, device=device)
        stepped = optimizer_of(optimizer, [master], 1e-4, fused=device.type == "cuda")

        @torch.no_grad()
        def update() -> None:
            master.grad = gradient
            float(squared_norm(gradient))
            gradient.mul_(0.5)  # clipped
            stepped.step()
            if weights.dtype != master.dtype:
                weights.copy_(master)
            gradient.zero_()

        return update

    return make


# Kinds whose backward pass uses up what the forward pass kept: each is timed behind its own forward pass.
WITH_FORWARD = ("loss",)


def makers(activation: str, optimizer: str) -> Mapping[str, ActionFactory]:
    """By kind of kernel: what the runtime runs that torch's fused kernels are not."""
    return {"norm": _norm, "rotary": _rotary, "activation": _activation(activation), "loss": _loss,
            "update": _update(optimizer)}  # fmt: skip


class Latency(NamedTuple):
    """Seconds that a part of a model takes whatever its data: forward and backward."""

    forward: float
    backward: float


def parts_with_latency(model: ModelSpec) -> tuple[str, ...]:
    """Names of what `latencies` times."""
    layers = ("moe layer" if kind.is_moe else "layer" for kind in model.kinds)
    dealt = ("ulysses",) if _has_even_heads(model) else ()
    return (*dict.fromkeys(layers), "embedding", "head", "split", "weights", *dealt,
            *(f"recompute {what}" for what in _dropped(model)))  # fmt: skip


def _has_even_heads(model: ModelSpec) -> bool:
    """Whether two ranks can share the heads of a layer of the last kind."""
    return model.kinds[-1].attention.kv_heads % 2 == 0


def _dropped(model: ModelSpec) -> tuple[str, ...]:
    """What can be recomputed of a layer of the last kind, which has all that there is: everything, or its modules."""
    kind = model.kinds[-1]
    own = {"moe": kind.is_moe, "mla": kind.attention.is_mla}
    return ("layer", *(module for module in MODULES if own.get(module, True)))


def latencies(model: ModelSpec, dtype: str, device: torch.device, in_turns: InTurns) -> dict[str, Latency]:
    """By `parts_with_latency`: every kind of layer, the embedding and the head; and what a layer of the last kind takes
    more where its backward pass is split (`split`), its heads are dealt out to two ranks that answer at once
    (`ulysses`), or something is recomputed (`recompute ...`; of all of it, more than another forward pass). That is
    told by differences, which times of another moment would hide, and which may be negative by chance. So is what of a
    split backward pass is left for later (`weights`, both numbers the same)."""

    def built(kind: Layer, dropped: str = "", *, deals: bool = False) -> DecoderChunk:
        return _chunk(model, kind, dtype, device, dropped=dropped, deals=deals)

    def alone(chunk: DecoderChunk, layers: int = 1) -> Latency:
        rounds = in_turns(_passes(chunk, dtype, device))
        _let_go(chunk)
        return Latency(median(there for there, _ in rounds) / layers,
                       median(both - there for there, both in rounds) / layers)  # fmt: skip

    def beside_plain(other: DecoderChunk, *, splits: bool = False) -> Sequence[Sequence[float]]:
        rounds = in_turns([*_passes(plain, dtype, device), *_passes(other, dtype, device, splits=splits)])
        _let_go(other)
        return rounds

    found, last = {}, model.kinds[-1]
    for kind in model.kinds:
        found["moe layer" if kind.is_moe else "layer"] = alone(built(kind), _LAYERS)
    for name in ("embedding", "head"):
        found[name] = alone(_chunk(model, model.kinds[0], dtype, device, end=name))
    plain = built(last)
    rounds = beside_plain(built(last), splits=True)
    later = median(both - without for *_, both, without in rounds) / _LAYERS
    found |= {"split": _more(rounds), "weights": Latency(later, later)}
    if _has_even_heads(model):
        found["ulysses"] = _more(beside_plain(built(last, deals=True)))
    for what in _dropped(model):
        found[f"recompute {what}"] = _more(beside_plain(built(last, what)), again=what == "layer")
    _let_go(plain)
    return found


def _more(rounds: Sequence[Sequence[float]], *, again: bool = False) -> Latency:
    """What other layers take more than plain ones, of rounds of a forward pass and of both passes of each. again: the
    forward pass that a whole recomputed layer runs again is left out."""
    more = [(there - usual, (both - there) - (usual_both - usual) - usual * again)
            for usual, usual_both, there, both, *_ in rounds]  # fmt: skip
    forward, backward = (median(each) / _LAYERS for each in zip(*more, strict=True))
    return Latency(forward, backward)


def whole(model: ModelSpec, micro_batch: int, seq_len: int, dtype: str, device: torch.device) -> Action:
    """Both passes of a micro-batch through all of the model, with weights and sums of gradients as a rank has them."""
    part = Chunk(stage=0, chunk=0, layers=(0, model.num_layers - 1), embedding=True, head=True, gpu="",
                 recompute_layers=0)  # fmt: skip
    chunk = _built(replace(model, mtp_layers=0), part, seq_len, dtype, device)
    tokens, targets = torch.randint(model.vocab, (2, micro_batch, seq_len), device=device)
    return lambda: chunk(tokens, targets).backward()


def _chunk(
    model: ModelSpec, kind: Layer, dtype: str, device: torch.device, end: str = "", dropped: str = "", *,
    deals: bool = False,
) -> DecoderChunk:  # fmt: skip
    """_LAYERS small layers, or an end of a small model. dropped: what is recomputed, as `_dropped` has it; deals:
    whether its heads are dealt out to two ranks, of sequences twice as long."""
    attention = replace(kind.attention, head_dim=_HEAD_DIM, value_head_dim=_HEAD_DIM)
    if attention.is_mla:
        rank = _INNER if attention.q_lora_rank else None
        attention = replace(attention, rope_head_dim=_HEAD_DIM // 2, kv_lora_rank=_INNER, q_lora_rank=rank)
    block = kind.feed_forward
    small = (replace(block, expert_inner=_INNER, shared_inner=_INNER if block.shared_inner else 0)
             if isinstance(block, MixtureOfExperts) else FeedForward(inner=_INNER, gated=block.gated, bias=block.bias))
    spec = replace(model, hidden=_HEAD_DIM * kind.attention.heads, vocab=_TOKENS, pattern=(0,) * _LAYERS, mtp_layers=0,
                   kinds=(replace(kind, attention=attention, feed_forward=small),))  # fmt: skip
    part = Chunk(stage=0, chunk=0, layers=() if end else (0, _LAYERS - 1), embedding=end == "embedding",
                 head=end == "head", gpu="", recompute_layers=_LAYERS if dropped == "layer" else 0)  # fmt: skip
    modules = (dropped,) if dropped in MODULES else ()
    cp = ContextParallel(_Mirror(), "ulysses") if deals else None
    return _built(spec, part, _TOKENS * (1 + deals), dtype, device, Recompute(modules), cp)


def _built(
    spec: ModelSpec, part: Chunk, seq_len: int, dtype: str, device: torch.device, recompute: Recompute | None = None,
    cp: ContextParallel | None = None,
) -> DecoderChunk:  # fmt: skip
    """A chunk of a rank that is alone, with weights."""
    plain = _context(DTYPES[dtype], device, spec.activation, spec.norm_epsilon)
    context = replace(plain, recompute=recompute or plain.recompute, cp=cp)
    chunk = DecoderChunk(context, spec, part, seq_len)
    materialise(chunk, 0)
    chunk.run = Gatherer({module: [_unit(module, device)] for _, module in chunk.parts()})
    return chunk


def _let_go(chunk: DecoderChunk) -> None:
    """The memory of weights and gradients, of many experts half a gigabyte: hooks of autograd keep them reachable."""
    gatherer = chunk.run
    units = [unit for each in gatherer.units_of.values() for unit in each] if isinstance(gatherer, Gatherer) else []
    held = [parameter.grad for parameter in chunk.parameters()] + [unit.flat for unit in units]
    for tensor in (*held, *(unit.gradient for unit in units if isinstance(unit, Unit))):
        if tensor is not None:
            tensor.untyped_storage().resize_(0)


def _unit(part: torch.nn.Module, device: torch.device) -> Unit:
    alone = _alone()
    return Unit("", list(part.parameters()), Groups(alone, alone, None, None, 1), 0, device, lambda: None)


def _passes(chunk: DecoderChunk, dtype: str, device: torch.device, *, splits: bool = False) -> tuple[Action, ...]:
    """The forward pass, and both; where the backward pass is split, also both without the gradients of weights."""
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
        with split_backward.put_off() as late:  # puts off nothing but where it is told to split
            out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        x.grad = None
        return late

    def both() -> None:
        split_backward.make(inputs())

    return (forward, both, inputs) if splits else (forward, both)
