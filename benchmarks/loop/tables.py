"""The measurements, as a document and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from meshwright.profiles.profilers.core_speed import CALMEST

from .cases import Case, Model
from .sample import RIVALS, Entry, Step, at_equal_speed, finalists, kendall_tau, median_error, regret, regret_interval

REACH = {"regret": 0.03, "median error": 0.12, "tau": 0.75}  # at most, at most, at least
NAIVE = ("default order", "all dp", "tp = host", "even stages")


@dataclass(frozen=True)
class Run:
    """The run of this benchmark that measured a result."""

    date: str
    # The seed draws the layouts and the order of turns.
    seed: int
    rounds: int
    # Steps of a round.
    steps: int
    # The machine and the versions.
    environment: Mapping[str, str]


@dataclass
class Result:
    """One model on one cluster."""

    case: Case
    model: Model
    # The plan's choice comes first.
    sample: list[Entry]
    # Slowness of the cores (`core_speed`) while kernels were profiled.
    profiled_at: float
    run: Run
    # Remarks on the cluster.
    notes: list[str] = field(default_factory=list)

    @property
    def measured(self) -> list[Entry]:
        return [entry for entry in self.sample if not entry.failed]

    @property
    def has_finals(self) -> bool:
        """Whether the choice and its rivals trained again after the rounds."""
        return any(entry.finals for entry in self.measured)

    def figures(self) -> dict[str, float]:
        """Regret of the choice, errors and order over the sample, and the gain over each naive choice."""
        done = self.measured
        predicted, times = _times(done)
        choice = done.index(self.sample[0]) if self.sample[0] in done else -1
        figures = {"regret": math.nan, "median error": median_error(predicted, times),
                   "tau": kendall_tau(predicted, times)}  # fmt: skip
        if choice >= 0:
            finals = finalists(done)  # the choice is the first of them, too
            figures |= {"regret": regret([entry.measured_s for entry in finals], choice),
                        "regret in rounds": regret(times, choice),
                        "regret at equal speed": regret(at_equal_speed(finals), choice),
                        "tau at equal speed": kendall_tau(predicted, at_equal_speed(done))}  # fmt: skip
            if self.has_finals:
                low, high = regret_interval(finals, choice, seed=self.run.seed)
                figures |= {"regret, low": low, "regret, high": high}
        for role in NAIVE:
            for entry in done:
                if role in entry.roles and choice >= 0:
                    figures[f"gain over {role}"] = entry.measured_s / times[choice]
                    figures[f"gain over {role}, predicted"] = entry.predicted_s / done[choice].predicted_s
        drawn = [entry for entry in done if "drawn" in entry.roles]
        if drawn:
            figures["median error of the drawn"] = median_error(*_times(drawn))
        return figures

    def reached(self) -> bool:
        figures = self.figures()
        return (figures["regret"] <= REACH["regret"] and figures["median error"] <= REACH["median error"]
                and figures["tau"] >= REACH["tau"])  # fmt: skip

    def document(self) -> dict[str, Any]:
        hosts = [{"name": host.name, "ranks": host.ranks, "cores": host.cores,
                  "link_bytes_per_s": host.link_bytes_per_s} for host in self.case.hosts]  # fmt: skip
        rows = [{"layout": entry.layout_id, "roles": entry.roles, "predicted_s": entry.predicted_s,
                 "measured_s": None if entry.failed else entry.measured_s, "failed": entry.failed or None,
                 "rounds": [_pairs(steps) for steps in entry.rounds], "finals": _pairs(entry.finals)}
                for entry in self.sample]  # fmt: skip
        return {"cluster": self.case.name, "run": asdict(self.run), "hosts": hosts,
                "model": {"name": self.model.name, **self.model.fields}, "seq_len": self.model.seq_len,
                "global_batch": self.model.global_batch, "figures": self.figures(),
                "profiled_at_slowness": self.profiled_at, "layouts": rows, "told": self.notes}  # fmt: skip


def _pairs(steps: Sequence[Step]) -> list[list[float]]:
    """Seconds and slowness of each."""
    return [[step.seconds, step.slowness] for step in steps]


def _times(entries: Sequence[Entry]) -> tuple[list[float], list[float]]:
    """Predicted and measured seconds of a step of each."""
    return [entry.predicted_s for entry in entries], [entry.measured_s for entry in entries]


def document(results: Sequence[Result]) -> dict[str, Any]:
    return {"kind": "closed-loop", "reach": REACH, "results": [result.document() for result in results]}


def tables(results: Sequence[Result]) -> str:
    """Markdown: a table per cluster and model, and one of all."""
    sections = (line for result in results for line in _section(result))
    return "\n".join([*_head(), *_summary(results), *sections]) + "\n"


def _head() -> Iterator[str]:
    yield "# Plans and what they took"
    yield ""
    yield "By `make closed-loop`: emulated hosts on one machine, profiled, planned and trained on. Best of the medians "
    yield f"of the rounds, of whose steps those {CALMEST:.0%} count during which the cores were fastest (other "
    yield "machines share them). The sample was fixed before. At equal speed: all steps, corrected by what those of "
    yield "one layout take longer where the cores are slower. Regret is measured after the rounds, in turns of the "
    yield f"choice and of the {RIVALS} others that were fastest in them: the least of many noisy times is too low. "
    yield "`in rounds`: it is that of the rounds, without such turns. In brackets: where it lies in 90% of resamples "
    yield "of these turns."
    yield ""


def _summary(results: Sequence[Result]) -> Iterator[str]:
    head = ["cluster", "model", "date", "layouts", "regret", "median error", "Kendall tau", "at equal speed: regret",
            "tau", *(f"over {role}" for role in NAIVE)]  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield (f"| to reach | | | | <= {REACH['regret']:.0%} | <= {REACH['median error']:.0%} | >= {REACH['tau']:g} | | |"
           + " |" * len(NAIVE))  # fmt: skip
    for result in results:
        figures = result.figures()
        gains = [f"{figures[f'gain over {role}']:.2f}x" if f"gain over {role}" in figures else "-" for role in NAIVE]
        cells = [result.case.name, result.model.name, result.run.date, str(len(result.measured)),
                 _regret(figures),
                 f"{figures['median error']:.1%}", f"{figures['tau']:.2f}",
                 f"{figures.get('regret at equal speed', math.nan):.1%}",
                 f"{figures.get('tau at equal speed', math.nan):.2f}", *gains]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""


def _regret(figures: Mapping[str, float]) -> str:
    """The regret and its interval; without finals it has none."""
    if "regret, low" not in figures:
        return f"{figures['regret']:.1%} in rounds"
    return f"{figures['regret']:.1%} ({figures['regret, low']:.1%} to {figures['regret, high']:.1%})"


def _section(result: Result) -> Iterator[str]:
    model, run = result.model, result.run
    yield f"## {result.case.name}, {model.name}: {model.global_batch} x {model.seq_len} tokens"
    yield ""
    yield (f"- measured {run.date}, {run.rounds} rounds of {run.steps} steps, seed {run.seed}; "
           + "; ".join(f"{name} {value}" for name, value in run.environment.items()))  # fmt: skip
    for host in result.case.hosts:
        link = f"{8e-6 * host.link_bytes_per_s:.0f} Mb/s" if host.link_bytes_per_s else "not shaped"
        yield f"- {host.name}: {host.ranks} ranks of {host.cores:g} cores, link {link}"
    yield from (f"- {line}" for line in result.notes)
    slowness = np.median([step.slowness for entry in result.sample for steps in entry.counted for step in steps])
    yield (f"- the probe that tells the cores' speed took {result.profiled_at:.2f} times its least while kernels were "
           f"profiled, {slowness:.2f} times during steps that count (medians)")  # fmt: skip
    yield ""
    yield "| layout | why | predicted s | measured s | error | rounds apart |"
    yield "|---|---|---|---|---|---|"
    for entry in result.sample:
        if entry.failed:
            yield f"| `{entry.layout_id}` | {', '.join(entry.roles)} | {entry.predicted_s:.3f} | {entry.failed} | | |"
            continue
        yield (f"| `{entry.layout_id}` | {', '.join(entry.roles)} | {entry.predicted_s:.3f} | {entry.measured_s:.3f} | "
               f"{entry.error:+.1%} | {entry.spread:.1%} |")  # fmt: skip
    yield ""
