"""`make fsdp2`: seconds of a training step of the runtime beside those of plain FSDP2 (torch `fully_shard`).

Four ranks on CPUs and gloo train one model in both ways, in the same processes and with steps in turn, so that other
load on the machine slows both. The model is the runtime's decoder (`runtime/model`), and both start from the same
weights. FSDP2 wraps its embedding, each layer, its head, and the whole. Both run in the same dtypes: weights and
activations in bf16 (or fp32), gradients reduced in fp32, fused AdamW on fp32 weights. Sharding, sums and clipping are
those of the plan: ZeRO-3 reshards after each forward pass, ZeRO-2 keeps weights until the step ends. Both run eagerly,
and again with each layer compiled by the same function.

Prints, for each ZeRO stage and setting: medians of both and of their ratio over pairs of steps; bytes sent, user CPU
seconds, calls that wait and seconds of waiting per rank and step; the largest relative difference of losses. Exits with
1 where the ratio exceeds --most, the losses differ, or the bytes of the two do.

Messages between ranks on one machine are copies in memory, which take the cores from the compute beside them. --gbit
runs the ranks in a network namespace (Linux, root) whose loopback device has that rate, so that they wait for messages
as on a cluster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measured_steps import Side, blocking, launch, ratio, train_in_turn
from meshwright.planner import api
from meshwright.runtime.compiling import check_compiler, compile_layers
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.reference import whole_model
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import DTYPES, Trainer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

RANKS, WARM_UP = 4, 2
MOST_RATIO, MOST_BYTES = 1.1, 1e-3  # of steps; relative difference of bytes
# Relative difference of losses: sums in another order, in the dtype of the weights.
TOLERANCE = {"bf16": 2e-3, "fp32": 2e-5}
SETTINGS = ("eager", "compiled")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", default="1,2,3", help="ZeRO stages, separated by commas [1,2,3]")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="of both, separated by commas [eager,compiled]")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of weights and activations [bf16]")
    parser.add_argument("--pairs", type=int, default=10, help="timed steps of each [10]")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size of the model [256]")
    parser.add_argument("--layers", type=int, default=6, help="layers of the model [6]")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a sequence [128]")
    parser.add_argument("--micro-batches", type=int, default=2, help="micro-batches of a rank, one sequence each [2]")
    parser.add_argument("--most", type=float, default=MOST_RATIO, help=f"largest ratio of medians [{MOST_RATIO}]")
    parser.add_argument("--gbit", type=float, help="rate of all messages together, Gbit/s [that of the machine]")
    parser.add_argument("-o", "--output", help="file for the results as JSON [none]")
    parser.add_argument("--verdict", help=argparse.SUPPRESS)  # file for the exit code, from the process that starts all
    asked = parser.parse_args()
    if unknown := set(asked.settings.split(",")) - set(SETTINGS):
        parser.error(f"--settings {', '.join(sorted(unknown))}: it is one of {', '.join(SETTINGS)}")
    return launch(__file__, RANKS, asked.gbit) if asked.verdict is None else _rank(asked)


def _rank(asked: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = list(itertools.product(map(int, asked.zero.split(",")), asked.settings.split(",")))
    if "compiled" in asked.settings:
        check_compiler()
    rows = [_compare(_job(asked, zero), asked, setting) for zero, setting in cases]
    if dist.get_rank() == 0:
        Path(asked.verdict).write_text(str(max(_exceeds(row, asked.most) for row in rows)), encoding="utf-8")
        if asked.output is not None:
            document = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "torch": torch.__version__,
                        "cores": len(os.sched_getaffinity(0)), "ranks": RANKS, "gbit": asked.gbit,
                        "rows": rows}  # fmt: skip
            Path(asked.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
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


def _compare(job: Job, asked: argparse.Namespace, setting: str) -> dict[str, Any]:
    """Trains in all ways in turn and prints the result. Returns it as a row of the JSON file."""
    sides = [_runtime(job), _fsdp2(job), blocking(_runtime(job))]
    for side in sides:
        side.count(0)
        if setting == "compiled":
            compile_layers(side.chunks)
    train_in_turn(sides, WARM_UP, asked.pairs)
    row = _row(job, sides, setting)
    if dist.get_rank() == 0:
        _print(row, sides)
    return row


def _row(job: Job, sides: list[Side], setting: str) -> dict[str, Any]:
    ours, theirs, blocking = sides
    return {
        "zero": job.layout.zero, "setting": setting, "dtype": job.dtype, "layers": job.model.num_layers,
        "hidden": job.model.hidden, "seq_len": job.seq_len, "micro_batches": job.num_micro_batches,
        "rounds": len(ours.seconds), "load": os.getloadavg()[0], "sides": [side.row() for side in sides],
        "of_fsdp2": ratio(ours.seconds, theirs.seconds), "user_of_fsdp2": ratio(ours.user_s, theirs.user_s),
        "of_blocking": ratio(ours.seconds, blocking.seconds),
        "losses_differ": max(abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=True)),
        "bytes_differ": abs(ours.sent / theirs.sent - 1.0),
    }  # fmt: skip


def _print(row: dict[str, Any], sides: list[Side]) -> None:
    print(f"ZeRO-{row['zero']}, {row['setting']}, {row['dtype']}, {row['layers']} layers of {row['hidden']}, "
          f"{row['micro_batches']} x {row['seq_len']} tokens a rank, load {row['load']:.1f}")  # fmt: skip
    print(f"{'':10}{'step s':>9}{'user s':>9}{'MB sent':>10}{'waits':>8}{'waited s':>10}{'loss':>10}")
    for side in map(Side.row, sides):
        print(f"{side['name']:10}{side['step_s']:9.3f}{side['user_s']:9.3f}{int(side['sent_bytes']) / 1e6:10.1f}"
              f"{side['waits']:8}{side['waited_s']:10.3f}{side['loss']:10.5f}")  # fmt: skip
    print(f"median of {row['rounds']} rounds: {row['of_fsdp2']:.3f} of the seconds of FSDP2, "
          f"{row['user_of_fsdp2']:.3f} of its user CPU, {row['of_blocking']:.3f} of the seconds of blocking")
    print(f"losses differ by {row['losses_differ']:.1e}", flush=True)


def _exceeds(row: dict[str, Any], most: float) -> int:
    """1 where the runtime takes too long, or the two did not train the same with the same messages."""
    return int(row["of_fsdp2"] > most or row["losses_differ"] > TOLERANCE[row["dtype"]]
               or row["bytes_differ"] > MOST_BYTES)  # fmt: skip


def _runtime(job: Job) -> Side:
    trainer = Trainer(job, build_mesh(job.layout, dist.get_rank(), Status(), 600.0), torch.device("cpu"))
    return Side("runtime", lambda index: trainer.step(index).loss, trainer.chunks)


def _fsdp2(job: Job) -> Side:
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
        batch, total = batches.batch(index), torch.zeros((), dtype=torch.float64)
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

    return Side("FSDP2", step, [model])


if __name__ == "__main__":
    sys.exit(main())
