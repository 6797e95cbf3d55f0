"""Calculon beside `meshwright plan`, both searching to the end: CPU seconds of whole processes, one core.

    python benchmarks/calculon.py DIR [-o benchmarks/calculon.json]

DIR is a checkout of https://github.com/calculon-ai/calculon, which needs psutil and pandas (`--python` names the
interpreter that has them). The model is Megatron's of 22 billion parameters, on A100 of 80 GB, one node. Calculon takes
more than twenty minutes. Both look for the fastest layout; each reports the size of its own space.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

GPUS = 8


def cpu_seconds(command: list[str], folder: Path, **variables: str) -> tuple[float, str]:
    """CPU seconds of a process and its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout + done.stderr


def calculon(checkout: Path, python: str, batch: int) -> dict[str, float]:
    """Its search for the best execution, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        words = [python, "bin/calculon", "llm-optimal-execution", "models/megatron-22B.json", str(GPUS), str(batch),
                 "float16", "systems/a100_80g.json", str(Path(folder) / "best.json"), "-c", "1"]  # fmt: skip
        seconds, printed = cpu_seconds(words, checkout, PYTHONPATH=str(checkout))
    found = re.search(r"Total executions: (\d+)", printed)
    return {"cpu_s": round(seconds, 1), "layouts": int(found[1]) if found else 0}


def ours(batch: int) -> dict[str, float]:
    """`meshwright plan` with all that its screen shows."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "meshwright", "plan", "--model", "gpt-22b", "--cluster", "dgx-a100-80gb:1",
                 "--global-batch", str(batch), "--seq-len", "2048", "--target", "megatron",
                 "-o", "plan.json"]  # fmt: skip
        seconds, _ = cpu_seconds(words, Path(folder))
        plan = json.loads((Path(folder) / "plan.json").read_text(encoding="utf-8"))
    return {"cpu_s": round(seconds, 2), "layouts": plan["certificate"]["space"]["total"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of Calculon")
    parser.add_argument("--python", default=sys.executable, help="interpreter with psutil and pandas [this one]")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step [8]; its space grows with them")
    parser.add_argument("-o", "--out", type=Path, help="file of the result, JSON")
    given = parser.parse_args()
    mine, theirs = ours(given.batch), calculon(given.checkout.resolve(), given.python, given.batch)
    result = {"date": str(datetime.now(UTC).date()), "batch": given.batch, "meshwright": mine, "calculon": theirs,
              "ratio": round(theirs["cpu_s"] / mine["cpu_s"])}  # fmt: skip
    text = json.dumps(result, indent=1)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
