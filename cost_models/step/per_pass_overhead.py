"""The overhead of a pass beyond its layers on a measured device (`latency` of its profile); 0 for others."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..quantities.shards import ulysses_degree
from ..quantities.stacks import message_bytes
from ..quantities.stages import EMBEDDING, HEAD
from ..rates.rates import Rates
from ..schedule_kinds import FOLDED, SPLITS_BACKWARD

_NOTHING, _INFINITE = (0.0, 0.0), (np.inf, np.inf)
_NAMES = ("split", "ulysses", "dispatch", "message")


def per_pass_overhead_s(ledger: Ledger, rates: Rates) -> Array:
    """[2, J, n] seconds per micro-batch, forward and backward: `split` for every layer in schedules whose backward pass
    comes in two parts, `ulysses` for every one that scatters its heads, `dispatch` for every one whose experts are on
    several ranks, `message` and that of its bytes for every one that a stage sends to another or receives."""
    # A split backward pass, a scatter of heads or of tokens and a message each cost launches and synchronisation beside
    # the operations of the ledger.
    measured = (np.array(rates.latency_s.get(name, _NOTHING))[:, None, None] for name in _NAMES)
    split, ulysses, dispatch, message = measured
    layers = np.array(ledger.layers)
    bytes_s = message_bytes(ledger) / np.array(rates.passes.get("message", _INFINITE))[:, None, None]
    total_s = split * np.where(SPLITS_BACKWARD[ledger.layouts["schedule"]], layers, 0.0)
    total_s = total_s + (message + bytes_s) * _messages(ledger)
    if ulysses.any():
        scatters_heads = ulysses_degree(ledger.problem.model, ledger.layouts) > 1
        total_s = total_s + ulysses * np.where(scatters_heads, layers, 0.0)
    if dispatch.any():
        sends_tokens = ledger.layouts["ep"] * ledger.layouts["etp"] > 1
        total_s = total_s + dispatch * np.where(sends_tokens, _expert_layers(ledger), 0.0)
    return np.asarray(total_s * np.array([ledger.problem.forward_passes, 1])[:, None, None])


def _expert_layers(ledger: Ledger) -> Array:
    """[J, n] layers with experts on a device."""
    kinds = [number for number, kind in enumerate(ledger.problem.model.kinds) if kind.is_moe]
    none = np.zeros(len(ledger.layouts))
    return np.array([sum((counts.get(number, none) for number in kinds), none) for counts in ledger.counts])


def is_measured(rates: Rates) -> bool:
    """Whether any of it was."""
    return not rates.latency_s.keys().isdisjoint(_NAMES)


def _messages(ledger: Ledger) -> Array:
    """[J, n] that a stage sends and receives per micro-batch and direction: two for each of its chunks, but none at the
    ends of the model, nor where a V turns (there by the mean over all stages)."""
    x, kinds, none = ledger.layouts, ledger.splits.counts.shape[2], np.zeros(len(ledger.layouts))
    pp = x["pp"].astype(np.float64)
    ends = np.array([counts.get(kinds + EMBEDDING, none) + counts.get(kinds + HEAD, none) for counts in ledger.counts])
    number = np.where(FOLDED[x["schedule"]], 2.0 * x["vpp"] - 4.0 / pp, 2.0 * x["vpp"] - ends)
    return np.asarray(np.where(pp > 1, number, 0.0))
