"""`make memory-table`: predicted beside measured memory of 40 random stages, each of a layout that is really trained.

Layouts are drawn from one seed out of all that the runtime trains, on models of every kind of layer that it has. A
layout that the planner or the runtime refuses is drawn again, and the number of those is printed; a layout that was
trained is never left out. Training is the check that users have: `meshwright launch --scale-down --check-parity`, with
torchrun, one process per rank. Measured is the fullest rank of a stage.

Exits with 1 where a stage has less predicted than it holds by more than 5 %, the mean of all differences is over 2 %,
or a run does not train the model that one process trains.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.cost_models.layouts import Layout, parse
from meshwright.planner import api
from meshwright.runtime.preparation import prepare
from meshwright.runtime.rehearsal.parity import StageMemory
from meshwright.runtime.rehearsal.scale_axes import AXES
from meshwright.runtime.settings import Settings

from meshwright.errors import MeshwrightError

SEED, STAGES = 20261125, 40
MOST_UNDER, MOST_MEAN = 0.05, 0.02
DENSE = ("falcon-40b", "gemma-2-9b", "gemma-3-4b", "gpt-neox-20b", "gpt2-medium", "granite-3.1-8b", "llama-3.1-8b",
         "llama-3.2-1b", "mistral-7b", "olmo-2-7b", "opt-1.3b", "phi-4", "qwen2.5-0.5b", "qwen3-8b",
         "starcoder2-7b")  # fmt: skip
MOE = ("deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b", "moonlight-16b-a3b", "qwen1.5-moe-a2.7b",
       "qwen3-30b-a3b")  # fmt: skip
RANKS = (1, 2, 2, 4, 4, 4, 4, 4, 8)
SCHEDULES = ("", "-gpipe", "-vpp2", "-zbh1", "-zbv-vpp2", "-dpv-vpp2")
MODULES = ("attn", "norm", "act", "moe", "mla")
OFFLOADS = ("", "", "", "-oopt", "-oact", "-oopt+act")


@dataclass(frozen=True)
class Drawn:
    """What is trained."""

    model: str  # of the catalogue
    layout: Layout  # with the ranks that are started
    as_trained: bool  # with AdamW and clipping, else with SGD


def draw(source: random.Random) -> Drawn:
    """A layout of up to 8 ranks; it may be one that nothing trains."""
    ranks, is_moe = source.choice(RANKS), source.random() < 0.4
    degrees = {axis: 1 for axis in ("tp", "cp", "pp", "dp")}
    while math.prod(degrees.values()) < ranks:
        degrees[source.choice(tuple(degrees))] *= 2
    zero = source.randrange(4)
    words = [f"tp{degrees['tp']}-" if degrees["tp"] > 1 else ""]
    words.append(f"cp{degrees['cp']}{source.choice('rgu')}-" if degrees["cp"] > 1 else "")
    words.append(f"pp{degrees['pp']}{source.choice(SCHEDULES)}-" if degrees["pp"] > 1 else "")
    shard = source.choice(_divisors(degrees["dp"])) if zero else degrees["dp"]
    words.append(f"dp{degrees['dp']}" + (f"-sh{shard}" if shard < degrees["dp"] else ""))
    if is_moe:
        ep = source.choice(_divisors(degrees["tp"] * degrees["cp"] * shard))
        etp = source.choice(_divisors(degrees["tp"] * degrees["cp"] * shard // ep))
        words.append((f"-ep{ep}" if ep > 1 else "") + (f"-etp{etp}" if etp > 1 else ""))
    modules = [module for module in MODULES if source.random() < 0.4]
    some = f"rsel({'+'.join(modules)})" if modules else "rnone"
    recompute = source.choice(("rnone", "rfull", "rfull1", "rsel", some))
    words.append(f"-mbs{source.choice((1, 2))}-z{zero}-{recompute}{source.choice(OFFLOADS)}")
    model = source.choice(MOE if is_moe else DENSE)
    return Drawn(model, parse("".join(words)), source.random() < 0.5)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def plan_of(drawn: Drawn, path: Path) -> list[str]:
    """Writes the plan; the flags that keep its ranks in a rehearsal. Raises MeshwrightError for what nothing trains."""
    layout = drawn.layout
    sequences = layout.dp * layout.micro_batch * 2 * layout.pp
    plan = api.evaluate(
        None, str(layout), model=drawn.model, cluster=f"{layout.num_gpus}xb200", seq_len=1024,
        global_batch=sequences, target="meshwright",
    )  # fmt: skip
    path.write_text(plan.to_json(), encoding="utf-8")
    kept = [f"{axis}={getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 2]
    job, _ = prepare(Settings(str(path), scale_down=True, keep_axes=",".join(kept)))
    if job.world_size != layout.num_gpus:
        raise RuntimeError(f"{layout} is rehearsed as {job.layout}")
    return [word for axis in kept for word in ("--keep", axis)]


def layouts(source: random.Random, path: Path, refused: Counter[str]) -> Iterator[tuple[Drawn, list[str]]]:
    """Layouts that can be trained, with their flags; the plan is in `path`. `refused` counts all others by reason."""
    while True:
        drawn = draw(source)
        try:
            flags = plan_of(drawn, path)
        except MeshwrightError as error:
            refused[error.message.splitlines()[0]] += 1
        else:
            yield drawn, flags


def trained(drawn: Drawn, flags: Sequence[str], plan: Path) -> tuple[list[StageMemory], bool]:
    """The memory of every stage, and whether the run trained what one process trains."""
    report = plan.with_name("report.json")
    words = [*flags, *(["--as-trained"] if drawn.as_trained else [])]
    command = [sys.executable, "-m", "meshwright", "launch", str(plan), "--scale-down", "--check-parity",
               "--steps", "2", "--report", str(report), "--force", *words]  # fmt: skip
    report.unlink(missing_ok=True)
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"{drawn.model} {drawn.layout}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    document = json.loads(report.read_text(encoding="utf-8"))
    rows = [StageMemory(row["stage"], row["measured_bytes"], row["predicted_bytes"]) for row in document["memory"]]
    return rows, document["parity"]["agrees"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the drawing [{SEED}]")
    parser.add_argument("--stages", type=int, default=STAGES, help=f"to measure at the least [{STAGES}]")
    asked = parser.parse_args()
    stages: list[StageMemory] = []
    refused: Counter[str] = Counter()
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        for drawn, flags in layouts(random.Random(asked.seed), path, refused):
            rows, agrees = trained(drawn, flags, path)
            for row in rows:
                print(f"{drawn.model:18} {drawn.layout!s:45} stage {row.stage}  {row.measured_bytes:11,} measured  "
                      f"{row.predicted_bytes:13,.0f} predicted  {row.difference:+6.1%}", flush=True)  # fmt: skip
            if not agrees:
                print(f"{drawn.model} {drawn.layout} does NOT train what one process trains", flush=True)
            differ += not agrees
            stages += rows
            if len(stages) >= asked.stages:
                break
    return _verdict([row.difference for row in stages], refused, differ)


def _verdict(differences: Sequence[float], refused: Counter[str], differ: int) -> int:
    mean = sum(map(abs, differences)) / len(differences)
    print(f"{refused.total()} drawn layouts are refused, for {len(refused)} reasons")
    print(f"{len(differences)} stages: mean {mean:.1%} (at most {MOST_MEAN:.0%}), worst under {min(differences):+.1%} "
          f"(at most -{MOST_UNDER:.0%}), worst over {max(differences):+.1%}")  # fmt: skip
    return int(mean > MOST_MEAN or min(differences) < -MOST_UNDER or differ > 0)


if __name__ == "__main__":
    sys.exit(main())
