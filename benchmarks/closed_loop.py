"""`make closed-loop`: is a plan that was made from measurements the best on the cluster that was measured?

Emulates small clusters on this machine (network namespaces, shaped links, a CPU quota per rank), profiles each by
`meshwright profile`, plans on that profile, and trains the plan beside a sample of other layouts that was fixed before:
the predicted best, naive choices and some drawn by seed. Predicted and measured step times go to OUT.json and OUT.md.

    python benchmarks/closed_loop.py -o /tmp/results           # needs root, iproute2 and control groups
    python benchmarks/closed_loop.py --quick                   # one cluster, 8 layouts
    python benchmarks/closed_loop.py --clusters mine.yaml --only slow-link --keep /tmp/profiles
    python benchmarks/closed_loop.py --only slow-link -o /tmp/results   # keeps the other clusters of these results
    python benchmarks/closed_loop.py --merge /tmp/one.json -o /tmp/results   # runs nothing
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch._dynamo  # the optimizer imports it: once here, and not in every rank
import yaml
from loop import choices, profiling, sample, self_test, stored, tables, trials
from loop.cases import Case, Model, read_cases
from loop.emulated import CannotEmulate, Emulated, StepFailed, emulated, missing
from meshwright.profiles.profilers import environment

from meshwright._version import __version__
from meshwright.errors import InputError

CASES = Path(__file__).with_name("closed_loop.yaml")
PORT = 29500
QUICK_BEST, QUICK_MOST = 4, 8
FIRST_STEPS = 5  # of a process, without quotas and not timed


@dataclass(frozen=True)
class Effort:
    """How much is trained."""

    rounds: int
    # Turns of a round; in each, every layout trains sample.TURN steps.
    turns: int
    # Turns of the choice and its rivals, after the rounds.
    finals: int
    # Layouts of a sample, at most.
    most: int
    # Layouts of it that are the predicted best.
    best: int
    # Layouts of it that are drawn by seed.
    drawn: int


FULL = Effort(3, 5, 30, sample.MOST, sample.BEST, sample.DRAWN)
QUICK = Effort(2, 5, 10, QUICK_MOST, QUICK_BEST, 2)


def main(argv: Sequence[str]) -> int:
    given = _arguments(argv)
    effort = QUICK if given.quick else FULL
    run = tables.Run(datetime.now(UTC).date().isoformat(), given.seed, effort.rounds, effort.turns * sample.TURN,
                     _environment())  # fmt: skip
    try:
        if given.merge:
            results = [result for path in given.merge for result in stored.read(path)]
            _write(stored.renewed(_kept(given.out), results), given.out)
            return 0
        if lacks := missing():
            return _refuse(f"this machine cannot emulate a cluster: it lacks {lacks}")
        cases = _wanted(read_cases(given.clusters), given.only, quick=given.quick)
        results = _kept(given.out) if given.only else []
        for result in _results(cases, effort, run, given.keep):
            results = stored.renewed(results, [result])
            _write(results, given.out)
    except (InputError, CannotEmulate) as error:
        return _refuse(str(error), getattr(error, "hint", ""))
    except (StepFailed, trials.TrialFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return 130
    print(tables.tables(results))
    return 0


def _kept(out: Path | None) -> list[tables.Result]:
    """The results that OUT.json has so far."""
    return [] if out is None or not out.with_suffix(".json").exists() else stored.read(out.with_suffix(".json"))


def _write(results: Sequence[tables.Result], out: Path | None) -> None:
    """Writes the results so far, so that a run that is stopped has its first clusters."""
    if out is not None:
        text = json.dumps(tables.document(results)) + "\n"
        out.with_suffix(".json").write_text(text, encoding="utf-8")
        out.with_suffix(".md").write_text(tables.tables(results), encoding="utf-8")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--out", type=Path, help="write OUT.json and OUT.md, too")
    parser.add_argument("--clusters", type=Path, default=CASES, metavar="FILE", help="what to emulate")
    parser.add_argument("--only", action="append", default=[], metavar="CLUSTER",
                        help="of the file's clusters; OUT keeps its results of the others")  # fmt: skip
    parser.add_argument("--merge", action="append", type=Path, default=[], metavar="FILE.json",
                        help="run nothing: put these results into OUT")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one cluster and model, 8 layouts, 2 rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the layouts that are drawn, and of the order of turns")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep profiles, plans and logs there")
    given = parser.parse_args(argv)
    if given.merge and given.out is None:
        parser.error("--merge needs -o OUT, which it puts results into")
    return given


def _wanted(cases: list[Case], only: Sequence[str], *, quick: bool) -> list[Case]:
    if unknown := [name for name in only if name not in {case.name for case in cases}]:
        raise InputError(f"no cluster `{unknown[0]}`", hint=f"the file has {', '.join(case.name for case in cases)}")
    wanted = [case for case in cases if case.name in only or not only]
    return [Case(wanted[0].name, wanted[0].hosts, wanted[0].models[:1])] if quick else wanted


def _refuse(message: str, hint: str = "") -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"\nhint: {hint}", file=sys.stderr)
    return 2


def _results(cases: Sequence[Case], effort: Effort, run: tables.Run, keep: Path | None) -> Iterator[tables.Result]:
    with ExitStack() as stack:
        top = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshwright-loop-")))
        for case in cases:
            folder = top / case.name
            folder.mkdir(parents=True)
            with emulated(case.hosts) as cluster:
                yield from _case(cluster, case, effort, run, folder)


def _case(cluster: Emulated, case: Case, effort: Effort, run: tables.Run, folder: Path) -> Iterator[tables.Result]:
    log = _Log(case.name)
    speeds = self_test.run(cluster, folder / "self-test")
    if refusal := self_test.refusal(speeds):
        raise CannotEmulate(refusal)
    log(self_test.summary(speeds))
    cluster.quotas.start_following(speeds.probe_s)
    links = profiling.links(cluster, folder, PORT)
    slow = (yaml.safe_load(links.read_text(encoding="utf-8"))["measured"]).get("slow", [])
    log("links", *slow)
    for model in case.models:
        result = _result(cluster, case, model, links, effort, run, log)
        result.notes = [self_test.summary(speeds), *(f"profiled: {link}" for link in slow), *result.notes]
        yield result


def _result(
    cluster: Emulated, case: Case, model: Model, links: Path, effort: Effort, run: tables.Run, log: _Log
) -> tables.Result:
    """Profiles and plans one model on measured links, and trains the sample."""
    began = time.perf_counter()
    devices = profiling.kernels(cluster, model, links.parent, PORT)
    profiled_at = cluster.tickers.usual_slowness(began, time.perf_counter())
    log(f"{model.name}: kernels of {', '.join(f'{speed:g} cores' for speed in case.speeds)}")
    file = profiling.cluster_file(case, model, links, devices)
    cluster.lift()
    options = choices.find(case, model, file)
    picked = sample.chosen(options.best[: effort.best], options.naive, options.others, seed=run.seed,
                           drawn=effort.drawn, most=effort.most)  # fmt: skip
    log(f"{model.name}: {len(picked)} layouts, the best predicted to take {picked[0].predicted_s:.3f} s")
    _train(cluster, model, picked, effort, run.seed, file.parent / f"trials-{model.name}", log)
    return tables.Result(case, model, picked, profiled_at, run, choices.avoided(options.best[0]))


def _train(
    cluster: Emulated, model: Model, picked: Sequence[sample.Entry], effort: Effort, seed: int, outputs: Path,
    log: _Log,
) -> None:  # fmt: skip
    """Trains the layouts in turns. Their steps, or why they failed, are added to the entries."""
    outputs.mkdir()
    choices.separate(picked, outputs)
    with ExitStack() as stack:
        stack.enter_context(trials.meeting_point(cluster, PORT, outputs))
        built: dict[str, tuple[sample.Entry, trials.Trial]] = {}
        for number, entry in enumerate(picked):
            started = stack.enter_context(
                trials.trial(cluster, entry, number, PORT, outputs / str(number), balances=model.has_experts))
            try:
                started.wait_until_built()
                built[entry.layout_id] = entry, started
            except trials.TrialFailed as error:
                entry.failed = str(error).splitlines()[-1]
                log(f"{entry.layout_id}: {entry.failed}")
        for _, started in built.values():  # the first steps of a process take up to twice as long
            started.train(FIRST_STEPS)
        log(f"{model.name}: {len(built)} layouts are built")
        cluster.limit()
        chance = random.Random(seed)
        for _ in range(effort.rounds):
            for entry, _ in built.values():
                entry.rounds.append([])
            for name in trials.turns(list(built), effort.turns, chance):
                entry, started = built[name]
                entry.rounds[-1] += _steps(started, sample.TURN, cluster)
            for entry, _ in built.values():
                log(f"{model.name}: {entry.layout_id}: {entry.medians[-1]:.3f} s, predicted {entry.predicted_s:.3f} s")
        for name in trials.turns([entry.layout_id for entry in sample.rivals(picked)], effort.finals, chance):
            entry, started = built[name]
            entry.finals += _steps(started, sample.TURN, cluster)
        for entry in sample.finalists(sample.rivals(picked)):
            log(f"{model.name}: finals: {entry.layout_id}: {entry.measured_s:.3f} s")


def _steps(started: trials.Trial, number: int, cluster: Emulated) -> list[sample.Step]:
    """Trains some steps: their seconds, and how slow the cores were."""
    return [sample.Step(end - start, cluster.tickers.slowness(start, end)) for start, end in started.train(number)]


class _Log:
    """Lines on stderr: seconds since the start, and the cluster."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, time.monotonic()

    def __call__(self, *lines: str) -> None:
        for line in lines:
            print(f"[{time.monotonic() - self.started:4.0f} s] {self.name}: {line}", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    """The machine and the versions."""
    about = environment.environment(torch.device("cpu"))
    return {"meshwright": __version__, "torch": about["torch"], "python": about["python"],
            "kernel": platform.release(), "CPU": about["device"]}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
