"""Bytes of the weights on a device."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Mask
from .ledger import Ledger, weighted


def shards_weights(ledger: Ledger) -> Mask:
    """[n] whether ranks keep shares of the weights between layers."""
    return np.asarray((ledger.layouts["zero"] == 3) & ~ledger.states.whole_in_pipeline)


def weight_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of all weights on the device of profile j, with the second copy that a technique keeps and the weights
    of a reference, which are sharded as those that train (TRL f2cd5771, prepare_deepspeed and prepare_fsdp)."""
    divided, plan = shards_weights(ledger), ledger.exchanges
    total: Array | float = 0.0
    # Experts are sharded over groups of their own, so each part is divided by the size of its own group.
    for part, name in enumerate(_parts(ledger)):
        whole = _with_copies(ledger, j, name)
        if ledger.store is None or not ledger.store.weights:
            all_weights = whole + _of_reference(ledger, j, name)
            total = total + all_weights / ledger.state_sharers(plan.weights_over, divided)[part]
        if plan.copied_over is not None:
            total = total + np.where(divided, whole / ledger.state_sharers(plan.copied_over, divided)[part], 0.0)
    if ledger.store is not None and ledger.store.layers_here:
        total = total + _layers_and_ends(ledger, j, ledger.store.layers_here)
    return np.asarray(total + np.zeros(len(ledger.layouts)))


def adapter_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the adapters beside the weights of the device of profile j, sharded as those are."""
    variants = ledger.problem.variants
    own = {kind: row * (kind < len(variants) and variants[kind].trains == "lora")
           for kind, row in ledger.per_kind(ledger.tables.parameters["trained_dense"]).items()}  # fmt: skip
    sharers = ledger.state_sharers(ledger.exchanges.weights_over, shards_weights(ledger))[0]
    return np.asarray(ledger.on_profile(j, own) * ledger.problem.state_bytes.weight / sharers)


def _layers_and_ends(ledger: Ledger, j: int, layers: int) -> Array:
    """[n] bytes of so many of the largest layers on the device of profile j, and of the ends of the model there."""
    tables, num_kinds = ledger.tables.parameters, ledger.problem.num_kinds
    whole = tables["dense_bytes"] + tables["experts_bytes"]
    ends = {kind: row for kind, row in ledger.per_kind(whole).items() if kind >= num_kinds}
    here = np.minimum(ledger.layers[j], layers) * ledger.largest(j, whole[:num_kinds, ledger.key])
    return np.asarray(here + weighted({kind: ledger.counts[j][kind] for kind in ends}, ends))


def stored_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the weights of a rank on profile j that a store keeps: its share, as it is at rest. Those of a
    reference are as many again."""
    return bytes_at_rest(ledger, j, np.ones(len(ledger.layouts), dtype=bool))


def bytes_at_rest(ledger: Ledger, j: int, shared: Mask) -> Array:
    """[n] bytes of the weights of a rank on profile j without copies of them: its share where they are `shared`."""
    tables, sharers = ledger.tables.parameters, ledger.state_sharers(ledger.exchanges.weights_over, shared)
    whole = (ledger.on_profile(j, ledger.per_kind(tables[f"{name}_bytes"])) for name in _parts(ledger))
    return np.asarray(sum(num_bytes / among for num_bytes, among in zip(whole, sharers, strict=False)))


def _parts(ledger: Ledger) -> tuple[str, ...]:
    return ("dense", "experts")[: 1 + ledger.problem.model.is_moe]


def _of_reference(ledger: Ledger, j: int, name: str) -> Array | float:
    """[n] bytes of the weights of a part of the reference: without quantised copies, as nothing writes them."""
    if not ledger.problem.workload.has_second_weights:
        return 0.0
    return ledger.on_profile(j, ledger.per_kind(ledger.tables.parameters[f"{name}_bytes"]))


def _with_copies(ledger: Ledger, j: int, name: str) -> Array:
    """[n] bytes of all weights of a part with their quantised copies, which may be all there is of those of layers."""
    tables = ledger.tables.parameters
    whole = ledger.on_profile(j, ledger.per_kind(tables[f"{name}_bytes"]))
    if not ledger.problem.workload.is_quantised:
        return whole
    copies = tables[f"{name}_copies_bytes"]
    both = whole + ledger.on_profile(j, ledger.per_kind(copies))
    if not ledger.problem.state_bytes.replaces_weight:
        return both
    kept = np.where(copies > 0, copies, tables[f"{name}_bytes"])
    return np.where(ledger.states.quantises_update, ledger.on_profile(j, ledger.per_kind(kept)), both)
