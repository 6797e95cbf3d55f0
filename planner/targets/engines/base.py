"""An engine as a target, an instance of it, and the ways to start a deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ....profiles.model.load import published_in
from ...document.serving_plan import ServingPool

# How caches get from instances that prefill to those that decode.
TRANSFERS = ("nixl", "mooncake")
FIRST_PORT = {"both": 8000, "prefill": 8100, "decode": 8200}
ROUTER_PORT = 8000
# Instances that prefill have a server there, which tells those that decode where caches lie (default of SGLang and of
# VLLM_MOONCAKE_BOOTSTRAP_PORT).
BOOTSTRAP_PORT = 8998


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """An instance to start."""

    pool: ServingPool
    model: str  # name on the Hugging Face Hub, or a path
    longest: int | None  # tokens of a sequence that the cache holds, where it holds less than the model has positions
    prompt: int  # tokens of the longest
    transfer: str = "nixl"  # of TRANSFERS
    draft_tokens: int = 0  # that a draft proposes; 0: no speculation
    draft: str | None = None  # its name; None: a module of the model
    reuses_prefixes: bool = False  # the plan finds parts of prompts in the cache
    techniques: tuple[str, ...] = ()
    on_cpus: bool = False  # its devices are sockets
    sees: bool = False  # requests have images

    @property
    def name(self) -> str:
        """Name of the files of the pool."""
        return "serve" if self.pool.role == "both" else self.pool.role

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.pool.gpus // self.pool.instances

    @property
    def nodes(self) -> int:
        """Nodes of the instance."""
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
    def free_share(self) -> float:
        """Share for the cache of the memory that the weights leave."""
        memory = (self.pool.weights_bytes + self.pool.cache_bytes + WORKING_BYTES) / MEMORY_SHARE
        return self.pool.cache_bytes / (memory - self.pool.weights_bytes)

    @property
    def group_sequences(self) -> int:
        """Sequences at once of a group of attention data parallelism, each of which has a scheduler."""
        return -(-self.pool.max_sequences // self.pool.attention_dp)


@dataclass(frozen=True, kw_only=True)
class DeploymentSetup:
    """A deployment to start."""

    deployment_id: str
    engine: EngineTarget
    setups: tuple[EngineSetup, ...]  # one for each pool

    @property
    def disaggregated(self) -> bool:
        """Prefill and decode are on instances of their own."""
        return len(self.setups) > 1

    @property
    def one_node(self) -> bool:
        """All instances fit on one node."""
        pools = [setup.pool for setup in self.setups]
        return len({pool.site for pool in pools}) == 1 and sum(pool.gpus for pool in pools) <= pools[0].gpus_per_node

    @property
    def unlike_gpus(self) -> bool:
        """The pools are on GPUs of different kinds."""
        return len({setup.pool.gpu for setup in self.setups}) > 1

    @property
    def unlike_tp(self) -> bool:
        """The pools split the heads of the cache in different ways."""
        return len({setup.pool.tp for setup in self.setups}) > 1

    def addresses(self, setup: EngineSetup) -> list[tuple[str, int]]:
        """Host and place on its node of every instance of a pool; hosts of several nodes have made-up names."""
        if self.one_node:
            return [("127.0.0.1", slot) for slot in range(setup.pool.instances)]
        return [(f"{setup.name}-node{number // setup.slots * setup.nodes}", number % setup.slots)
                for number in range(setup.pool.instances)]  # fmt: skip

    def urls(self, setup: EngineSetup) -> list[str]:
        """`host:port` of every instance of a pool."""
        return [f"{host}:{FIRST_PORT[setup.pool.role] + slot}" for host, slot in self.addresses(setup)]


@dataclass(frozen=True, kw_only=True)
class EngineTarget:
    """An engine that files are written for."""

    name: str
    release: str  # whose options these are
    start: tuple[str, ...]  # words before the model
    # The options of an instance, each one or two words, whatever starts it.
    options: Callable[[EngineSetup], list[tuple[str, ...]]]
    # Further options of a script, as bash: addresses and nodes. $slot, $port, $rank and $head are variables of it.
    script_options: Callable[[EngineSetup], list[str]]
    # Variables of an instance of a disaggregated deployment: name -> value as bash.
    environment: Callable[[EngineSetup, DeploymentSetup], dict[str, str]]
    # The files that start its router: name -> text.
    router: Callable[[DeploymentSetup], dict[str, str]]
    # Why it cannot run an instance; empty: it can.
    refusals: Callable[[EngineSetup], list[str]]
    # The YAML of an instance, where options are in a file.
    config: Callable[[EngineSetup], dict[str, Any]] | None = None
    converts: frozenset[str] = frozenset()  # formats of weights that it makes of a checkpoint in bf16
    transfers: tuple[str, ...] = TRANSFERS
    # Techniques that it has -> its options for them.
    techniques: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    # Variables of an instance on sockets: name -> value as bash; None: the engine runs on no CPUs.
    cpu_environment: Callable[[EngineSetup], dict[str, str]] | None = None
    by_mpi: bool = False  # MPI starts an instance over several nodes, one process for each GPU

    def notes(self, setup: EngineSetup) -> list[str]:
        """Manual steps for the user."""
        notes = ["sockets need vLLM's build for CPUs (docs.vllm.ai, installation, CPU)"] if setup.on_cpus else []
        published = published_in(setup.model)
        if published == setup.pool.weights or (published is None and setup.pool.weights in ("bf16", *self.converts)):
            return notes
        return [*notes, f"the plan has weights in {setup.pool.weights}: put a checkpoint in that format in place of "
                f"{setup.model}"]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServingLauncher:
    """A way to start the instances of a deployment."""

    name: str
    files: Callable[[DeploymentSetup], dict[str, str]]  # name -> text
    refusals: Callable[[DeploymentSetup], list[str]]  # why it cannot; empty: it can
    notes: Callable[[DeploymentSetup], list[str]]  # manual steps for the user
    next_step: Callable[[DeploymentSetup], str]  # the command that starts the first
