"""`make cp-overlap`: how much of the exchange of keys and values the runtime hides, on CPUs and gloo.

Four ranks train one decoder under context parallelism, with steps in turn: as the runtime does, and with each message
over cp waited for before anything else is computed. Prints medians of both, and the share of the seconds of waiting
over cp that overlap saves, which is `cp_overlap` of the stack `meshwright`. Exits with 1 where the two send or train
something else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from measured_steps import Side, blocking, launch, ratio, train_in_turn
from meshwright.planner import api
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

RANKS, WARM_UP = 4, 2
ALGORITHMS = {"ring": "r", "allgather": "g"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="timed steps of each [10]")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size of the model [256]")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model [4]")
    parser.add_argument("--seq-len", type=int, default=4096, help="tokens of a sequence [4096]")
    parser.add_argument("--gbit", type=float, help="rate of all messages together, Gbit/s [that of the machine]")
    parser.add_argument("--verdict", help=argparse.SUPPRESS)  # file for the exit code, from the process that starts all
    asked = parser.parse_args()
    return launch(__file__, RANKS, asked.gbit) if asked.verdict is None else _rank(asked)


def _rank(asked: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    codes = [_compare(name, _job(asked, letter), asked.rounds) for name, letter in ALGORITHMS.items()]
    if dist.get_rank() == 0:
        Path(asked.verdict).write_text(str(max(codes)), encoding="utf-8")
    dist.destroy_process_group()
    return 0


def _job(asked: argparse.Namespace, letter: str) -> Job:
    """A dense Llama with as many heads of keys as of queries."""
    model = {"hidden": asked.hidden, "layers": asked.layers, "heads": asked.hidden // 64, "vocab": asked.hidden,
             "ffn_hidden": 3 * asked.hidden, "max_positions": asked.seq_len}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(json.dumps({"source": "benchmarks/cp_overlap.py", "model": model}), encoding="utf-8")
        plan = api.evaluate(None, f"cp{RANKS}{letter}-dp1-mbs1-z0-rnone", model=str(path),
                            cluster=f"{RANKS}xh100-sxm-80gb", seq_len=asked.seq_len, global_batch=1,
                            target="meshwright")  # fmt: skip
    return replace(job_of(plan, 1), dtype="bf16")


def _side(job: Job) -> Side:
    trainer = Trainer(job, build_mesh(job.layout, dist.get_rank(), Status(), 600.0), torch.device("cpu"))
    return Side("runtime", lambda index: trainer.step(index).loss, trainer.chunks)


def _compare(name: str, job: Job, rounds: int) -> int:
    ours, waits = _side(job), blocking(_side(job), "cp")
    for side in (ours, waits):
        side.count(0)
    train_in_turn((ours, waits), WARM_UP, rounds)
    if dist.get_rank() == 0:
        print(f"{name}, cp {RANKS}, {job.model.num_layers} layers of {job.model.hidden}, {job.seq_len} tokens, "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
        print(f"{'':10}{'step s':>9}{'user s':>9}{'MB sent':>10}{'waits':>8}{'waited s':>10}")
        for side in (ours, waits):
            print(f"{side.name:10}{median(side.seconds):9.3f}{median(side.user_s):9.3f}{side.sent / 1e6:10.1f}"
                  f"{side.waits:8}{median(side.waited_s):10.3f}")  # fmt: skip
        hidden = median((waited - less) / blocked for waited, less, blocked
                        in zip(waits.waited_s, ours.waited_s, waits.blocked_s, strict=True))  # fmt: skip
        print(f"median of {rounds} rounds: {ratio(ours.seconds, waits.seconds):.3f} of the seconds of blocking; of "
              f"{median(waits.blocked_s):.3f} s that rank 0 waits over cp, {hidden:.2f} are hidden", flush=True)
    return int(ours.sent != waits.sent or ours.losses != waits.losses)


if __name__ == "__main__":
    sys.exit(main())
