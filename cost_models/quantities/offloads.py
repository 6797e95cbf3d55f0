"""Tensors that `offload_layers` and `offload_modules` send to the host, and those of them still on the GPU.

Whole layers: TransformerEngine d0067d0d sends the first n of L layers, each on its way while later ones are computed,
so that L - n layers are on the GPU (pytorch/cpu_offload.py, DefaultOffloadSynchronizer), and the one that is sent last
(cpu_offload_v1.py, layer_window_map). Modules: Megatron-LM d98e8a64 sends what each saves, keeps that of the last
layer, and fetches a layer before its turn (core/pipeline_parallel/fine_grained_activation_offload.py,
post_warmup_callback and bulk_reload). `offload: act`, of all activations, is in device_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array
from .ledger import Ledger, weighted

# Layers on the GPU beside what stays there, where copies overlap with compute and where not.
_LAYERS_BESIDE, _MODULES_BESIDE = (1.0, 0.0), (2.0, 1.0)
Rows = dict[int, Array]  # kind -> [n] bytes


@dataclass(frozen=True, eq=False)
class Offloads:
    """Bytes of one micro-batch on the devices of a ledger's layouts."""

    ledger: Ledger

    @cached_property
    def any(self) -> bool:
        """Whether any row sends some of its activations."""
        x = self.ledger.layouts
        return bool(x["offload_layers"].any() or x["offload_modules"].any())

    @cached_property
    def gone(self) -> list[Array]:
        """Per profile: [n] bytes that leave the GPU."""
        return self._per_profile(0)

    @cached_property
    def sent(self) -> list[Array]:
        """Per profile: [n] bytes that are copied to the host, and back: some tensors twice. None beside `offload: act`,
        which sends all."""
        alone = ~self.ledger.states.offloads_activations
        return [np.where(alone, rows, 0.0) for rows in self._per_profile(1)]

    @cached_property
    def gone_back(self) -> list[Array]:
        """Per profile: [n] what of `gone` is on the chunk that a V comes back through. A V offloads no whole layers."""
        ledger, (plain, coded) = self.ledger, self._modules[0]
        again = {kind: plain[kind] - coded[kind] for kind in plain}
        return [weighted(back, plain) - ledger.recomputed_back(j, again) for j, back in enumerate(ledger.back)]

    def beside(self, j: int) -> Array:
        """[n] bytes of a layer or two that are on their way, beside what stays on the device of profile j."""
        ledger, kinds = self.ledger, range(self.ledger.problem.num_kinds)
        overlaps = ledger.problem.stack.offload_overlap > 0
        layers, modules = (both[0 if overlaps else 1] for both in (_LAYERS_BESIDE, _MODULES_BESIDE))
        plain, coded = self._modules[0]
        some = ledger.layouts["recompute_layers"] > 0
        none = np.zeros(len(ledger.layouts))
        of_modules = np.array([np.where(some, plain[k], coded[k]) if k in plain else none for k in kinds])
        whole = ledger.tables.saved_whole[: len(kinds), ledger.key]
        by_layers, by_modules = layers * ledger.largest(j, whole), modules * ledger.largest(j, of_modules)
        return np.asarray(np.where(ledger.layouts["offload_layers"] > 0, by_layers, by_modules))

    @property
    def modules_of_layer(self) -> Rows:
        """Kind -> [n] bytes that the modules of a layer take off the GPU where it is not recomputed."""
        return self._modules[0][0]

    @cached_property
    def _modules(self) -> list[tuple[Rows, Rows]]:
        """`gone` and `sent` by modules: kind -> [n] bytes of a layer, not recomputed and under the row's code."""
        ledger, out = self.ledger, []
        for table in ledger.tables.offloaded_by_code:
            nothing = np.zeros(len(ledger.layouts), dtype=np.int64)
            plain = table.look_up(ledger.kinds, [(0, 0)], nothing, ledger.key)
            out.append((plain, ledger.per_code(table)))
        return out

    def _per_profile(self, which: int) -> list[Array]:
        ledger, (plain, coded) = self.ledger, self._modules[which]
        again = {kind: plain[kind] - coded[kind] for kind in plain}
        of_modules = [ledger.on_profile(j, plain) - ledger.recomputed(j, again) for j in range(ledger.num_profiles)]
        return [part + self._of_layers(j) for j, part in enumerate(of_modules)]

    def _of_layers(self, j: int) -> Array:
        """[n] bytes that the first n layers of profile j save, of average kind."""
        ledger, wanted = self.ledger, self.ledger.layouts["offload_layers"]
        layers = {kind: count for kind, count in ledger.counts[j].items() if kind < ledger.problem.num_kinds}
        saved = ledger.first_layers(layers, ledger.per_kind(ledger.tables.saved_whole), wanted)
        return np.asarray(np.where(wanted > 0, saved, 0.0))


def offloads_of(ledger: Ledger) -> Offloads | None:
    """None where no row sends any: nothing of it is worked out then."""
    offloads = Offloads(ledger)
    return offloads if offloads.any else None
