"""An engine as a target: the command of one of its instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ...document.serving_plan import ServingPool

_ROUTER = "prefill and decode are apart: a router of the engine that knows both pools must deal the requests"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """An instance to start."""

    pool: ServingPool
    model: str  # name on the Hugging Face Hub, or a path
    longest: int | None  # tokens of a sequence that the cache holds, where it holds less than the model has positions

    @property
    def gpus(self) -> int:
        """Of the instance."""
        return self.pool.gpus // self.pool.instances

    @property
    def nodes(self) -> int:
        """Of the instance."""
        return -(-self.gpus // self.pool.gpus_per_node)

    @property
    def slots(self) -> int:
        """Instances on a node; 1 where an instance has several nodes."""
        return max(self.pool.gpus_per_node // self.gpus, 1)

    @property
    def static_share(self) -> float:
        """Share of a GPU's memory for weights and cache, without buffers."""
        static = self.pool.weights_bytes + self.pool.cache_bytes
        return MEMORY_SHARE * static / (static + WORKING_BYTES)

    @property
    def group_sequences(self) -> int:
        """Sequences at once of a group of attention data parallelism, each of which has a scheduler."""
        return -(-self.pool.max_sequences // self.pool.attention_dp)


@dataclass(frozen=True, kw_only=True)
class EngineTarget:
    """An engine that files are written for."""

    name: str
    release: str  # whose options these are
    start: str  # words before the model
    # The options of an instance, each a line. $port, $rank and $head are variables of the script.
    options: Callable[[Setup], list[str]]
    # Why it cannot run an instance; empty: it can.
    refusals: Callable[[Setup], list[str]]
    converts: frozenset[str] = frozenset()  # formats of weights that it makes of a checkpoint in bf16

    def notes(self, setup: Setup) -> list[str]:
        """Manual steps for the user."""
        notes = [_ROUTER] if setup.pool.role != "both" else []
        if setup.pool.weights in ("bf16", *self.converts):
            return notes
        return [*notes, f"the plan has weights in {setup.pool.weights}: put a checkpoint in that format in place of "
                        f"{setup.model}"]  # fmt: skip
