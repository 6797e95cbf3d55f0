"""Traces the memory of a rank without a GPU: its real modules, schedule and optimizer run on tensors without data.

One process acts as one rank of the real world size. torch's fake process group completes every collective at once, and
tensors of torch's meta device have a shape and a storage size but no memory. Every storage is tracked, and the live
ones at the peak are counted by kind, with the names of `device_memory.BUFFERS`.

Kernels that keep other tensors on the meta device than on a GPU are replaced: attention by the flash kernel's operator,
which keeps query, key, value, output and log-sum-exp, and RMSNorm by one that keeps its input and a number per row. The
trace does not see the CUDA context, NCCL's buffers, workspaces inside kernels and fragmentation, which the planner
counts separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from ...cost_models.degrees import interleaving_group
from ...errors import UnsupportedError
from ..job import Job
from ..model import grouped
from ..model.decoder import DecoderChunk
from ..parallel import host
from ..parallel.mesh import build_mesh
from ..parallel.pipeline import AHEAD
from ..parallel.strategies import HEAD
from ..status import Status
from ..techniques.registry import EXCHANGES
from ..trainer import Trainer
from .memory import PeakMemory
from .replay import replayed_scans
from .traced import Trace

Watch = Callable[[str], object]
# Stands in for a number read from a tensor without data. 2 exceeds every clipping norm, so that gradients are clipped.
ANY_NUMBER = 2.0
_ATEN = torch.ops.aten
_CPU, _META = torch.device("cpu"), torch.device("meta")
# The fake group takes every tensor, but torch offers it for devices with memory only.
dist.Backend.backend_capability[dist.Backend.FAKE] = [_META.type]


def trace(job: Job, stage: int, *, gpu: bool = True, watch: Watch = lambda doing: None) -> Trace:
    """Traces the second step of the first rank of `stage`.

    gpu: use the kernels of a GPU, else those of a CPU. watch: called with each part of the model that the rank runs.
    Raises UnsupportedError for a technique under which a rank waits for what the others do.
    """
    if job.technique is not None and not EXCHANGES[job.technique[0]].traceable:
        raise UnsupportedError(f"{job.technique[0]}: replicas agree on who is fast, and a dry run has one rank alone",
                               hint="`launch --scale-down` compares memory with a real run")  # fmt: skip
    rank = stage * (job.world_size // job.layout.pp)
    dist.init_process_group("fake", rank=rank, world_size=job.world_size, store=FakeStore())
    try:
        return _trace(_shortened(job, stage) if gpu else job, rank, gpu, watch)
    finally:
        dist.destroy_process_group()


def _shortened(job: Job, stage: int) -> Job:
    """Fewer micro-batches with the same peak.

    The stage still reaches its largest number of resident micro-batches, a backward pass between two forward passes,
    and the receives posted meanwhile.
    """
    layout, number = job.layout, job.num_micro_batches
    if layout.pp > 1 and (job.schedule == "gpipe" or job.custom_order is not None):
        return job
    if layout.pp > 1 and job.splits_backward:  # full after 2 pp micro-batches, and drained by the last ones
        return replace(job, global_batch=min(number, 3 * layout.pp) * layout.dp * layout.micro_batch)
    rounds = layout.pp > 1 and layout.vpp > 1
    least = _interleaved_alike(layout.pp, number) if rounds else layout.pp - stage + 1 + AHEAD
    return replace(job, global_batch=min(number, least) * layout.dp * layout.micro_batch)


def _interleaved_alike(pp: int, number: int) -> int:
    """The fewest micro-batches with two full groups and a last group, of the same lengths as for `number`."""
    group = int(interleaving_group(pp, number))
    alike = range(2 * group + number % group, number, group)
    return next((fewer for fewer in alike if int(interleaving_group(pp, fewer)) == group), number)


def _trace(job: Job, rank: int, gpu: bool, watch: Watch) -> Trace:
    status = Status(rank=rank)
    mesh = build_mesh(job.layout, rank, status, timeout_s=60.0)
    with _META, _no_products(), _kernels(gpu), _fused_optimizers():
        trainer = Trainer(job, mesh, _META, _NoData(job), fused=gpu)
        tracer = _Tracer(job, trainer, status, watch)
        with tracer.following(), replayed_scans(tracer):
            # The states of the optimizer exist from the second step on.
            trainer.update()
            tracer.begin()
            trainer.step(0)
    buffers = {kind: num_bytes for kind, num_bytes in tracer.at_peak.items() if num_bytes}
    return Trace(mesh.coords.stage, rank, buffers, tracer.peak_doing)


class _Tracer(PeakMemory):  # type: ignore[no-untyped-call]
    """Tracks a trainer and labels its tensors by kind."""

    def __init__(self, job: Job, trainer: Trainer, status: Status, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self.status, self.part, self.peak_doing = status, "", ""
        self._vocab = trainer.parts.context(HEAD).part(job.model.vocab)[1]
        for unit in trainer.units:
            with host.memory(unit.states_on_host):
                self.label("optimizer", [unit.master])
            self.label("gradients", [unit.gradient])
            unit._this_micro_batch = self._owning("gathered", unit._this_micro_batch)  # type: ignore[method-assign]
        self.label("optimizer", [state.flat for state in trainer.exchange.states() if not state.on_host])
        for gathered in (*trainer.units, *trainer.frozen):
            self.label("weights", [gathered.weights])
            if gathered.zero == 3:
                self.label("gathered", [gathered.flat])
        for chunk in trainer.chunks:
            chunk.run = _Parts(self, chunk)
        self.kind = "optimizer"

    def enter(self, part: str) -> None:
        """Marks that a part of the model runs."""
        self.part = part
        self._watch(f"{self.status.doing}: {part}")

    def begin(self) -> None:
        """Marks the start of forward and backward passes."""
        self.peak, self.kind = 0, "activations"

    def _owning(self, kind: str, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def made() -> Tensor:
            tensor = make()
            self.label(kind, [tensor])
            return tensor

        return made

    def _change(self, num_bytes: int, kind: str) -> None:
        before = self.peak
        super()._change(num_bytes, kind)
        if self.peak > before:
            self.peak_doing = f"{self.status.doing}{self.part and ': '}{self.part}"

    def kind_of(self, tensor: Tensor) -> str:
        if self.status.doing == "updating weights" or self.kind == "optimizer":
            return self.kind
        if self.part.startswith(("head", "predictions")) and tensor.dim() > 1 and tensor.shape[-1] == self._vocab:
            return "logits"
        return "activations" if self.status.doing.startswith("forward") else "workspace"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ATEN._local_scalar_dense.default:
            return ANY_NUMBER
        if func is _ATEN._to_copy.default and (kwargs or {}).get("device") == _CPU:  # of `tolist`
            return torch.full(args[0].shape, ANY_NUMBER, dtype=args[0].dtype, device=_CPU)
        if func is _ATEN._fused_sgd_.default:  # makes no tensor, and torch has it for tensors with data only
            return None
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Parts:
    """Reports to the tracer which part of the model runs."""

    def __init__(self, tracer: _Tracer, chunk: DecoderChunk) -> None:
        self.tracer, self.run = tracer, chunk.run
        self.names = {part: name for name, part in chunk.parts()}

    def __call__(self, module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        name, tracer = self.names.get(module, "embedding"), self.tracer  # another chunk's token table has no name here
        tracer.enter(name)
        out = self.run(module, function, x)
        if out.requires_grad:
            out.register_hook(lambda grad: tracer.enter(name))  # type: ignore[no-untyped-call]
        return out


class _NoData:
    """Tokens of this rank without values; all tokens of the stage for layer-wise strategies."""

    def __init__(self, job: Job) -> None:
        ranks = job.layout.dp if job.strategies is None else 1
        self.shape = job.global_batch // ranks, job.row_len + 1 + job.model.mtp_layers

    def digests(self) -> Mapping[str, str]:
        return {}

    def batch(self, step: int) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.int64)


@contextmanager
def _no_products() -> Iterator[None]:
    """Skips the products of single experts, which are thousands and allocate no tensors."""
    before = grouped.multiply
    grouped.multiply = lambda products: None
    try:
        yield
    finally:
        grouped.multiply = before


@contextmanager
def _kernels(gpu: bool) -> Iterator[None]:
    """Makes attention and RMSNorm keep the same tensors as the kernels of a GPU, or of a CPU.

    They are replaced by name, because a TorchFunctionMode is off during recomputation in a backward pass.
    """
    before = F.scaled_dot_product_attention, F.rms_norm
    F.scaled_dot_product_attention = _flash_attention if gpu else _cpu_attention  # type: ignore[assignment]
    F.rms_norm = _rms_norm if gpu else before[1]  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.rms_norm = before


@contextmanager
def _fused_optimizers() -> Iterator[None]:
    """Lets fused optimizers update tensors without data."""
    before = optimizer._get_fused_kernels_supported_devices  # type: ignore[attr-defined]
    optimizer._get_fused_kernels_supported_devices = lambda: [_META.type]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        optimizer._get_fused_kernels_supported_devices = before  # type: ignore[attr-defined]


def _cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, enable_gqa: bool = False
) -> Any:
    if q.shape[-1] != v.shape[-1]:  # latent attention, for which the CPU has no flash kernel
        return _ATEN._scaled_dot_product_attention_math(q, k, v, attn_mask, 0.0, is_causal, enable_gqa=enable_gqa)[0]
    return _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=attn_mask)[0]


def _flash_attention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Any:
    if q.shape[-1] != v.shape[-1]:  # latent attention: the memory-efficient kernel, which keeps the same tensors
        return _ATEN._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[0]
    return _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor, eps: float) -> Any:
    return _FusedNorm.apply(x, weight)  # type: ignore[no-untyped-call]


class _FusedNorm(torch.autograd.Function):
    """The outputs and kept tensors of aten::_fused_rms_norm on CUDA."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)
