"""`make fuzz`: drawn inputs over all commands, in process and as real processes.

`python -m tests.fuzz.fuzz_all --inputs 10000 --processes 500 --seed 0`; exit code 1 if anything was found. A seed gives
the same input again: `--seed N --inputs 1`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty

from . import in_process, processes
from .corpus import build
from .in_process import Finding

_Run = Callable[[int, Path, Path], list[Finding]]
_Message = tuple[int, list[Finding] | int | None]  # worker; findings, the seed that begins, or None at its end


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="inputs in process")
    parser.add_argument("--processes", type=int, default=500, help="inputs as processes of their own")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        corpus = Path(base) / "corpus"
        corpus.mkdir()
        build(corpus)
        found = fuzz(_in_process, asked.seed, asked.inputs, asked.jobs, corpus)
        found += fuzz(processes.run_seed, asked.seed, asked.processes, asked.jobs, corpus)
    print(f"{asked.inputs} inputs in process, {asked.processes} as processes: {len(found)} findings")
    for kind, number in Counter(finding.kind for finding in found).most_common():
        print(f"  {kind}: {number}")
    return 1 if found else 0


def _in_process(seed: int, corpus: Path, folder: Path) -> list[Finding]:
    return in_process.run_seed(seed, corpus, folder)[0]


def fuzz(run: _Run, seed: int, number: int, jobs: int, corpus: Path) -> list[Finding]:
    """Findings of the seeds from `seed` on, shared among processes; each finding is printed when it is made."""
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[_Message] = context.Queue()
    shares = [range(seed + job, seed + number, jobs) for job in range(jobs)]
    workers = [context.Process(target=_work, args=(run, share, corpus, queue)) for share in shares]
    for worker in workers:
        worker.start()
    found: list[Finding] = []
    running: dict[int, int] = {}
    ended, done, started = 0, 0, time.monotonic()
    while ended < len(workers) and (any(worker.is_alive() for worker in workers) or not queue.empty()):
        try:
            job, item = queue.get(timeout=1.0)
        except Empty:  # see whether all still live
            continue
        if item is None:
            ended += 1
            running.pop(job, None)
        elif isinstance(item, int):
            running[job] = item
            done += 1
            if done % 500 == 0:
                print(f"{done} of {number}, {time.monotonic() - started:.0f} s", flush=True)
        else:
            found += item
            for finding in item:
                print(finding, flush=True)
    lost = [Finding(at, "killed", [], "its process ended with it") for at in running.values()]
    for finding in lost:
        print(finding, flush=True)
    return found + lost


def _work(run: _Run, seeds: range, corpus: Path, queue: multiprocessing.Queue[_Message]) -> None:
    job = seeds.start
    with tempfile.TemporaryDirectory(prefix="fuzz-run-") as base:
        for seed in seeds:
            queue.put((job, seed))
            if found := run(seed, corpus, Path(base) / "folder"):
                queue.put((job, found))
    queue.put((job, None))
    queue.close()
    queue.join_thread()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
