"""The placement of weights, gradients, optimizer states and activations, and whether a rank has them unsharded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array, Mask
from ..layouts import OFFLOADS, OPEN_STATES, OPTIMIZER_ON_HOST, Layouts
from ..problem import Problem
from .stores import Store


@dataclass(frozen=True, eq=False)
class StatePlacement:
    """Masks over a batch of layouts."""

    problem: Problem
    layouts: Layouts  # [n]
    m: Array  # [n] micro-batches per pipeline and step
    store: Store | None  # what of the states is on a drive or on another node

    @property
    def open(self) -> bool:
        """Whether they are those of a bound of several layouts (Layouts)."""
        return OPEN_STATES in self.layouts.columns

    @cached_property
    def offloads_optimizer(self) -> Mask:
        return np.isin(self.layouts["offload"], OPTIMIZER_ON_HOST)

    @property
    def stores_optimizer(self) -> bool:
        return self.store is not None and self.store.optimizer

    @cached_property
    def away(self) -> Mask:
        """[n] whether the optimizer's states are off the GPU."""
        return np.asarray(self.offloads_optimizer | self.stores_optimizer)

    @cached_property
    def quantises_update(self) -> Mask:
        """[n] whether an update may write quantised weights: that of a distributed optimizer on the GPU (Megatron Core
        d98e8a64, DistributedOptimizer)."""
        return np.asarray((self.layouts["zero"] > 0) & (~self.offloads_optimizer | self.open))

    @cached_property
    def sums_on_host(self) -> Mask:
        """[n] whether gradients are summed up in buffers on the host (StackSpec.sums_on_host)."""
        whole = (self.layouts["zero"] < 3) | self.whole_gradients
        return np.asarray(self.offloads_optimizer & ~whole & self.problem.stack.sums_on_host)

    @cached_property
    def offloads_activations(self) -> Mask:
        return np.isin(self.layouts["offload"], (OFFLOADS.index("act"), OFFLOADS.index("opt+act")))

    @cached_property
    def whole_in_pipeline(self) -> Mask:
        """[n] whether weights and gradients stay whole in a step under any ZeRO stage (StackSpec.sharded_states)."""
        return np.asarray((self.layouts["pp"] > 1) & self.problem.stack.is_fsdp2)

    @cached_property
    def whole_gradients(self) -> Mask:
        """[n] whether gradients stay whole over the micro-batches of a step under any ZeRO stage."""
        no_sync = self.problem.stack.sharded_states == "fsdp2-no-sync"
        return np.asarray(self.whole_in_pipeline | ((self.m > 1) & no_sync))

    @cached_property
    def reduces_once(self) -> Mask:
        """[n] whether gradients are scattered once per step and not for every micro-batch."""
        zero = self.layouts["zero"]
        return np.asarray((zero == 1) | ((zero >= 2) & self.whole_gradients))

    @cached_property
    def whole_gradient_bytes(self) -> Array:
        """[n] bytes per parameter of a whole gradient, as it is summed and reduced."""
        states = self.problem.state_bytes
        return np.where(self.layouts["zero"] >= 2, states.sharded_sum, states.gradient)

    @property
    def sums_gradients(self) -> bool:
        """Whether every rank gets the sum of all gradients, of which it needs a part (StackSpec.layer_wise_layout)."""
        return self.problem.workload.optimizer == "muon" and not self.problem.stack.layer_wise_layout

    @cached_property
    def gathers_once(self) -> Mask:
        """[n] whether weights are gathered once per step, after the update."""
        zero, zero_2 = self.layouts["zero"], not self.problem.stack.is_fsdp2
        return np.asarray((zero == 1) | ((zero >= 2) & self.whole_in_pipeline) | ((zero == 2) & zero_2))

    @cached_property
    def separate_experts(self) -> Mask:
        """[n] whether other ranks share the states of routed experts than those of the other weights: they then have
        buffers and collectives of their own. Experts that every rank has whole are among the weights of their layer."""
        x = self.layouts
        return np.asarray((x["tp"] > 1) | (x["ep"] * x["etp"] > 1))
