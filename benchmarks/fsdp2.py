"""`make fsdp2`: seconds of a training step of the runtime beside those of plain FSDP2 (torch `fully_shard`).

Four ranks on CPUs and gloo train one model in both ways, in the same processes and with steps in turn, so that other
load on the machine slows both. The model is the runtime's decoder (`runtime/model`), and both start from the same
weights. FSDP2 wraps its embedding, each layer, its head, and the whole. Both run eagerly, in the same dtypes: weights
and activations in bf16 (or fp32), gradients reduced in fp32, fused AdamW on fp32 weights. Sharding, sums and clipping
are those of the plan: ZeRO-3 reshards after each forward pass, ZeRO-2 keeps weights until the step ends.

Prints, for each ZeRO stage: medians of both and of their ratio over pairs of steps; bytes sent, CPU seconds, calls that
wait and seconds of waiting per rank and step; the largest relative difference of losses. Exits with 1 where the ratio
exceeds --most, the losses differ, or the bytes of the two do.

Messages between ranks on one machine are copies in memory, which take the cores from the compute beside them. --gbit
runs the ranks in a network namespace (Linux, root) whose loopback device has that rate, so that they wait for messages
as on a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from meshwright.planner import api
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.parallel.comm import Group, Pending
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.reference import whole_model
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import DTYPES, Trainer
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.utils._python_dispatch import TorchDispatchMode

RANKS, WARM_UP = 4, 2
MOST_RATIO, MOST_BYTES = 1.1, 1e-3  # of steps; relative difference of bytes
# Bytes of which argument of a collective, and how many times (n - 1) / n of them a rank sends.
SENT = {"_allgather_base_": (0, 1), "_reduce_scatter_base_": (1, 1), "allreduce_": (0, 2)}
# Relative difference of losses: sums in another order, in the dtype of the weights.
TOLERANCE = {"bf16": 2e-3, "fp32": 2e-5}
Step = Callable[[int], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", default="1,2,3", help="ZeRO stages, separated by commas [1,2,3]")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of weights and activations [bf16]")
    parser.add_argument("--pairs", type=int, default=10, help="timed steps of each [10]")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size of the model [256]")
    parser.add_argument("--layers", type=int, default=6, help="layers of the model [6]")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a sequence [128]")
    parser.add_argument("--micro-batches", type=int, default=2, help="micro-batches of a rank, one sequence each [2]")
    parser.add_argument("--most", type=float, default=MOST_RATIO, help=f"largest ratio of medians [{MOST_RATIO}]")
    parser.add_argument("--gbit", type=float, help="rate of all messages together, Gbit/s [that of the machine]")
    parser.add_argument("--verdict", help=argparse.SUPPRESS)  # file for the exit code, from the process that starts all
    asked = parser.parse_args()
    return _launch(asked.gbit) if asked.verdict is None else _rank(asked)


def _launch(gbit: float | None) -> int:
    """Starts the ranks under torchrun. Returns their exit code."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder, _namespace(gbit) as inside:
        verdict = Path(folder) / "verdict"
        done = subprocess.run([*inside, *words, __file__, *sys.argv[1:], "--verdict", str(verdict)], env=environment)
        return done.returncode or int(verdict.read_text(encoding="utf-8"))


@contextmanager
def _namespace(gbit: float | None) -> Iterator[list[str]]:
    """Words before a command that runs it where the loopback device has a rate; none without a rate."""
    if gbit is None:
        yield []
        return
    name = f"fsdp2-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{gbit}gbit",
                        "burst", "1mb", "latency", "100ms"], check=True)  # fmt: skip
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _rank(asked: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    codes = [_compare(_job(asked, int(zero)), asked) for zero in asked.zero.split(",")]
    if dist.get_rank() == 0:
        Path(asked.verdict).write_text(str(max(codes)), encoding="utf-8")
    dist.destroy_process_group()
    return 0


def _job(asked: argparse.Namespace, zero: int) -> Job:
    """A dense Llama on data parallelism."""
    model = {"hidden": asked.hidden, "layers": asked.layers, "heads": asked.hidden // 64,
             "kv_heads": asked.hidden // 128, "vocab": 16 * asked.hidden, "ffn_hidden": 3 * asked.hidden,
             "max_positions": asked.seq_len}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(json.dumps({"source": "benchmarks/fsdp2.py", "model": model}), encoding="utf-8")
        plan = api.evaluate(None, f"dp{RANKS}-mbs1-z{zero}-rnone", model=str(path), cluster=f"{RANKS}xh100-sxm-80gb",
                            seq_len=asked.seq_len, global_batch=RANKS * asked.micro_batches,
                            target="meshwright")  # fmt: skip
    return replace(job_of(plan, 1), dtype=asked.dtype)


@dataclass
class Side:
    """One of the two ways, and its measured steps."""

    name: str
    step: Step  # trains on the batch of an index; returns the loss
    seconds: list[float] = field(default_factory=list)  # of each step
    cpu_s: list[float] = field(default_factory=list)  # of each step, summed over ranks
    losses: list[float] = field(default_factory=list)
    sent: int = 0  # bytes that a rank sends in a step
    waits: int = 0  # calls of a rank that wait for messages in a step
    waited_s: list[float] = field(default_factory=list)  # seconds of a rank in such calls, of each step

    def train(self, index: int) -> None:
        """Takes and times a step."""
        dist.barrier()
        started, cpu = time.perf_counter(), time.process_time()
        with waiting() as waits:
            self.losses.append(self.step(index))
        cpu_s = torch.tensor([time.process_time() - cpu, sum(waits)], dtype=torch.float64)
        seconds = time.perf_counter() - started
        dist.all_reduce(cpu_s)
        self.waits = len(waits)
        self.seconds.append(seconds)
        self.cpu_s.append(float(cpu_s[0]))
        self.waited_s.append(float(cpu_s[1]) / RANKS)

    def forget(self) -> None:
        """Drops the times of the warm-up."""
        for times in (self.seconds, self.cpu_s, self.waited_s):
            times.clear()


def _compare(job: Job, asked: argparse.Namespace) -> int:
    sides = [Side("runtime", _runtime(job)), Side("FSDP2", _fsdp2(job)), Side("blocking", _blocking(_runtime(job)))]
    for index in range(WARM_UP):
        for side in sides:
            with Sent() as sent:
                side.train(index)
            side.sent = sent.num_bytes
    for side in sides:
        side.forget()
    for index in range(WARM_UP, WARM_UP + asked.pairs):
        for side in sides if index % 2 else reversed(sides):
            side.train(index)
    return _report(job, sides, asked.most) if dist.get_rank() == 0 else 0


def _report(job: Job, sides: list[Side], most: float) -> int:
    ours, theirs, blocking = sides
    ratio, of_blocking = (median(a / b for a, b in zip(ours.seconds, other.seconds, strict=True))
                          for other in (theirs, blocking))  # fmt: skip
    difference = max(abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=True))
    print(f"ZeRO-{job.layout.zero}, {job.dtype}, {job.model.num_layers} layers of {job.model.hidden}, "
          f"{job.num_micro_batches} x {job.seq_len} tokens a rank, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"{'':10}{'step s':>9}{'CPU s':>9}{'MB sent':>10}{'waits':>8}{'waited s':>10}{'loss':>10}")
    for side in sides:
        print(f"{side.name:10}{median(side.seconds):9.3f}{median(side.cpu_s):9.3f}{side.sent / 1e6:10.1f}"
              f"{side.waits:8}{median(side.waited_s):10.3f}{side.losses[-1]:10.5f}")  # fmt: skip
    print(f"median of {len(ours.seconds)} rounds: {ratio:.3f} of FSDP2 (at most {most:g}), "
          f"{of_blocking:.3f} of blocking")  # fmt: skip
    print(f"losses differ by {difference:.1e}", flush=True)
    more_bytes = abs(ours.sent / theirs.sent - 1.0)
    return int(ratio > most or difference > TOLERANCE[job.dtype] or more_bytes > MOST_BYTES)


def _runtime(job: Job) -> Step:
    trainer = Trainer(job, build_mesh(job.layout, dist.get_rank(), Status(), 600.0), torch.device("cpu"))
    return lambda index: trainer.step(index).loss


def _blocking(step: Step) -> Step:
    """The same step, where each collective is waited for before anything else is computed."""
    before = Group._start

    def start(*arguments: Any) -> Pending:
        pending = before(*arguments)
        pending.wait()
        return pending

    def blocking(index: int) -> float:
        Group._start = start  # type: ignore[method-assign, assignment]
        try:
            return step(index)
        finally:
            Group._start = before  # type: ignore[method-assign]

    return blocking


def _fsdp2(job: Job) -> Step:
    """The same decoder under `fully_shard`, trained as FSDP2's documentation does, with the sums of the runtime."""
    model, mesh = whole_model(job).float(), init_device_mesh("cpu", (RANKS,))
    batches = Trainer(job, build_mesh(job.layout, dist.get_rank(), Status(), 600.0), torch.device("cpu"))
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.dtype], reduce_dtype=torch.float32)
    for _, part in model.parts():
        fully_shard(part, mesh=mesh, reshard_after_forward=job.layout.zero == 3, mp_policy=policy)
    if model.head is not None:
        register_fsdp_forward_method(model.head, "loss")
    fully_shard(model, mesh=mesh, reshard_after_forward=job.layout.zero == 3, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if isinstance(model.embedding, FSDPModule):
        model.embedding.set_unshard_in_backward(False)  # the gradient of a lookup needs no row
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)  # fmt: skip

    def step(index: int) -> float:
        batch, total = batches._micro_batches(index), torch.zeros((), dtype=torch.float64)
        for number in range(job.num_micro_batches):
            last = number + 1 == job.num_micro_batches
            if isinstance(model, FSDPModule):  # gathers and reductions once per step, where the runtime has them so
                model.set_reshard_after_backward(last or job.layout.zero == 3)
                model.set_requires_gradient_sync(last or job.layout.zero > 1)
            loss = model(*batch(number)) / job.tokens_per_step
            loss.backward()
            total += loss.detach().double()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total)

    return step


class Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that this rank sends in collectives, by ring algorithms."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = str(func.name()).partition("::")
        if namespace == "c10d" and name in SENT:
            index, times = SENT[name]
            tensors: list[Tensor] = [args[index]] if isinstance(args[index], Tensor) else list(args[index])
            self.num_bytes += times * (RANKS - 1) * sum(tensor.nbytes for tensor in tensors) // RANKS
        elif namespace == "c10d" and name != "barrier":
            raise RuntimeError(f"{name} is not counted")
        return func(*args, **(kwargs or {}))


@contextmanager
def waiting() -> Iterator[list[float]]:
    """Seconds of every wait of this rank for messages."""
    seconds, before = [], dist.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return before(work, *args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        dist.Work.wait = before  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
