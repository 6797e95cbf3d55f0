"""Messages between stages, per micro-batch and once per step."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..quantities.stacks import message_bytes
from ..quantities.stages import EMBEDDING_COPY
from ..rates import collectives
from ..rates.rates import Rates
from ..schedule_kinds import FOLDED
from .data_parallel import group_curve


def hop_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of one stage-to-stage message."""
    return message_s(ledger, rates)[0]


def link_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] how long the link is busy with it and those of other replicas that share the link: their bytes at its
    bandwidth, without what is latency."""
    return message_s(ledger, rates)[1]


def message_s(ledger: Ledger, rates: Rates, num_bytes: Array | None = None) -> tuple[Array, Array]:
    """The same two of a message of `num_bytes` [n]; None: of the mean one."""
    x, num_bytes = ledger.layouts, message_bytes(ledger) if num_bytes is None else num_bytes
    # Stages are the outermost axis of the rank order: neighbours are world/pp ranks apart.
    curve = group_curve(rates, "pp", "p2p", x["pp"], ledger.problem.num_gpus // x["pp"])
    message_s, sending_s = collectives.seconds(curve, num_bytes), curve.s_per_byte * num_bytes
    turns = _others_turns(ledger, rates)
    return message_s if turns is None else message_s - turns * sending_s, sending_s


def _others_turns(ledger: Ledger, rates: Rates) -> Array | None:
    """[n] share of a link's time that belongs to the messages of other replicas: they take turns where they share a
    port, but ranks that keep step need all of theirs at once: those of one replica, and those that share experts. None
    where every rank has a port of its own."""
    shared_by, x = rates.levels_of("pp")[-1].shared_by, ledger.layouts
    if shared_by <= 1.0:
        return None
    in_step = np.maximum(x["tp"] * x["cp"], x["ep"] * x["etp"])
    return np.asarray(1.0 - 1.0 / np.clip(shared_by / in_step, 1.0, x["dp"]))


def messages_once_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of messages once a step: the gradient sum of a tied embedding, and the turns before that of the last
    replica. All of them begin at the same time; from then on their messages are apart."""
    turns, tied_s = _others_turns(ledger, rates), tied_embedding_s(ledger, rates)
    if turns is None:
        return tied_s
    return np.asarray(tied_s + np.where(ledger.layouts["pp"] > 1, turns * link_s(ledger, rates), 0.0))


def tied_embedding_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of the gradient sum of an embedding that the first and the last stage both hold, or those where the
    encoder and the decoder start."""
    x, problem = ledger.layouts, ledger.problem
    separate = (x["pp"] > 1) & ~FOLDED[x["schedule"]] & (ledger.vocabulary is None)
    stacks = len(problem.edges.lookups)
    tied = problem.model.tied_embeddings or problem.model.mtp_layers > 0
    shared = tied or stacks > 1
    if not (shared and problem.trains_everything and separate.any()):
        return np.zeros(len(x))
    # Each such stage holds a copy of the table and adds other gradients to it, so the copies are summed once per step.
    distance = (x["pp"] - 1) * (problem.num_gpus // x["pp"])
    table = ledger.tables.parameters["trained_dense"][EMBEDDING_COPY][ledger.key]
    num_bytes = table * problem.state_bytes.gradient
    holders = np.where(separate, stacks + tied, 1)
    return collectives.seconds(group_curve(rates, "tied", "all_reduce", holders, distance), num_bytes)
