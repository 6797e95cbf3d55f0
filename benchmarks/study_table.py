"""`make study-table`: what a question about a plan costs, each figure beside what it has to reach.

Run on one core. The studies are the commands of examples/studies/, one after another in a folder of their own.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.studies.what_if import what_if

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "examples" / "studies"
ASKED: dict[str, Any] = {"model": "llama-3.1-70b", "cluster": "dgx-h100:128", "global_batch": 2048,
                         "target": "megatron"}  # fmt: skip


def seconds_of(plan: Plan, side: int, *, replan: bool) -> float:
    """CPU seconds of a sweep over two numbers of the hardware, `side` values of each."""
    points = (f"gpu.peak=x0.5..x2:{side}", f"cluster.links.inter_node.bandwidth=100Gb/s..1.6Tb/s:{side}")
    started = time.process_time()
    what_if(plan, vary=points, replan=replan)
    return time.process_time() - started


def report_bytes(plan: Plan) -> int:
    """Size of the page that `meshwright report` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(plan.to_json(), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "meshwright", "report", str(path), "-o", f"{folder}/report.html"],
                       check=True, capture_output=True)  # fmt: skip
        return (Path(folder) / "report.html").stat().st_size


def study_seconds(study: Path) -> float:
    """Seconds of all commands of a study. Raises CalledProcessError where one fails."""
    commands = re.findall(r"^meshwright (.+)$", study.read_text(encoding="utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        started = time.perf_counter()
        for command in commands:
            words = [sys.executable, "-m", "meshwright", *shlex.split(command)]
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-studies", action="store_true")
    parser.add_argument("--side", type=int, default=20, help="values of each of the two numbers")
    given = parser.parse_args()
    side = given.side
    plan = api.plan(None, **ASKED)
    rows = [
        (f"{side} x {side} sweep, re-planned, 70B on 1,024 GPUs", f"{seconds_of(plan, side, replan=True):.1f} s",
         "60 s of 20 x 20"),
        (f"{side**2} re-pricings of the held layout", f"{seconds_of(plan, side, replan=False):.2f} s", "1 s of 400"),
        ("report.html", f"{report_bytes(plan) / 1e6:.2f} MB", "3 MB"),
    ]
    for study in () if given.without_studies else sorted(STUDIES.glob("*.md")):
        rows.append((f"study {study.stem}, wall time", f"{study_seconds(study):.0f} s", "120 s"))
    for what, took, reach in rows:
        print(f"{what:48} {took:>10}   to reach {reach}")


if __name__ == "__main__":
    main()
