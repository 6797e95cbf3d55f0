"""Describes the failure of a run: the failed rank, its action, and the collectives in which the others waited."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, MeshwrightError

State = Mapping[str, Any]
REFUSED = ("invalid_input", "unsupported", "unknown_name")  # codes of errors that the user must correct
TERMINATED = "terminated"  # code of ranks that ended cleanly on SIGTERM before their last step


class RunFailed(MeshwrightError):
    """Raised for a failed run: a rank died, hung, or raised."""

    code = "run_failed"
    exit_code = 1


class RanksFailed(RunFailed):
    """Raised where ranks died, hung or raised: training may go on from a checkpoint."""


class TorchrunKilled(RanksFailed):
    """Raised where a signal ended torchrun itself, which restarts no rank then."""


class RunTerminated(MeshwrightError):
    """Raised for a run that ended on SIGTERM, after a complete step and a save."""

    code = TERMINATED
    exit_code = 128 + signal.SIGTERM


def diagnose(
    states: Mapping[int, State], tail: Sequence[str], exit_code: int, num_ranks: int, num_nodes: int = 1,
    *, saves: bool = False,
) -> MeshwrightError:  # fmt: skip
    """The error of a failed run, from the last states of this node's `num_ranks` ranks and torchrun's last lines.

    num_nodes: number of nodes of the run. saves: whether it saves checkpoints.
    """
    refused = [state for state in states.values() if state["code"] in REFUSED]
    if refused:
        message, _, hint = str(refused[0]["failed"]).rpartition("\n")  # as the worker writes it: the hint is one line
        return InputError(message, hint=hint)
    unsaved = next((state for state in states.values() if state["code"] == RunFailed.code), None)
    if unsaved is not None:
        message, _, hint = str(unsaved["failed"]).rpartition("\n")
        return RunFailed(message, hint=hint)
    details = {"ranks": {str(rank): dict(state) for rank, state in sorted(states.items())}, "log": list(tail)[-60:]}
    raised = [state for state in states.values() if state["code"] == "exception"]
    killed = _killed(tail)
    waiting = [state for state in states.values() if state["code"] == "communication"]
    if raised:
        first = raised[0]
        message = f"rank {first['rank']} failed in step {first['step'] + 1} ({first['doing']}): {first['failed']}"
    elif killed:
        message = "\n".join(_died(rank, name, states) for rank, name in killed.items())
    elif waiting:
        message = _hung(states, num_nodes)
    elif exit_code < 0:
        message = f"torchrun was killed by {_signal_name(-exit_code)}"
    else:
        message = f"torchrun ended with exit code {exit_code}: {_last_words(tail)}"
    lines = [message, *(f"rank {s['rank']} was in {s['failed']}" for s in waiting)]
    hint = f"all {num_ranks} ranks were stopped; `--verbose` shows what they printed"
    if saves:
        hint += ", `--resume` goes on from the last checkpoint"
    if num_nodes > 1:
        hint = "the ranks of this node were stopped; the launcher of another node may name the one that failed first"
    kind = TorchrunKilled if exit_code < 0 else RanksFailed
    return kind("\n".join(lines), hint=hint, details=details)


def _killed(tail: Sequence[str]) -> dict[int, str]:
    """Ranks killed by a signal, from torchrun's summary, without those that torchrun stopped."""
    text = "\n".join(tail)
    signals = {}
    for rank, code in re.findall(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)", text):
        if int(code) < 0 and -int(code) != signal.SIGTERM:
            signals[int(rank)] = _signal_name(-int(code))
    return signals


def _signal_name(number: int) -> str:
    """Name of a signal, or its number: real-time signals between SIGRTMIN and SIGRTMAX have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(tail: Sequence[str]) -> str:
    """The exception of a rank that ended before it had a state, else the last line; torchrun prints a summary below."""
    lines = [line.strip() for line in tail if line.strip(" =-")]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line) and "ChildFailedError" not in line]
    return (raised or lines or ["no message"])[-1]


def _died(rank: int, name: str, states: Mapping[int, State]) -> str:
    state = states.get(rank)
    where = f" in step {state['step'] + 1}: {state['doing']}" if state else ""
    memory = " (as when memory runs out)" if name == "SIGKILL" else ""
    return f"rank {rank} was killed by {name}{memory}{where}"


def _hung(states: Mapping[int, State], num_nodes: int) -> str:
    """Names the ranks that did not answer: those that report no failed collective."""
    silent = [state for rank, state in sorted(states.items()) if not state["failed"]]
    # Ranks that still wait are also victims of a rank outside a collective.
    suspects = [state for state in silent if " over " not in str(state["doing"])] or silent
    if not suspects:
        return "a rank of another node ended or did not answer" if num_nodes > 1 else "a collective did not end"
    return "\n".join(
        f"rank {state['rank']} did not answer; it was last seen in step {state['step'] + 1}: {state['doing']}"
        for state in suspects
    )
