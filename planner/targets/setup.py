"""Setup: one layout of a plan with its model, batch, cluster and software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...cost_models.degrees import interleaving_group
from ...cost_models.layouts import OFFLOADS, PRECISIONS, RECOMPUTE_MODES, SCHEDULES, Layout, modules_of
from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import capability_of
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.workload import Workload
from ...errors import InputError, UnsupportedError
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..document.specs import model_of, stack_of, workload_of


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents with a degree each, which the framework chooses by their lengths."""

    # The name of its rule (planner/batches/degree_rules.py).
    rule: str = "hybrid"
    # Tokens of a rank, above which a document has a larger degree.
    rank_tokens: int
    # Tokens of which the length of a document is a multiple.
    multiple: int
    # Documents of a step.
    per_step: int
    # Predicted seconds of a step, mean.
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One candidate of a plan, unpacked."""

    # The first 12 digits of the digest of the request.
    plan_id: str
    # `meshwright 1.2.3`, the writer of the files.
    tool: str
    # The number of the candidate, from 1.
    choice: int
    candidate: Candidate
    layout: Layout
    model: ModelSpec
    workload: Workload
    stack: StackSpec
    # Switches of the software that are not fields of the layout.
    switches: Mapping[str, str]
    # The nodes in words: `8 x 8 h100-sxm-80gb`.
    nodes: str
    # CUDA compute capability of the GPU (9.0 for sm_90); None for a GPU without one and for mixed GPUs.
    capability: float | None
    # The memory of the smallest GPU in use.
    gpu_memory_bytes: float
    num_nodes: int
    gpus_per_node: int
    # GPUs joined by the fastest link: one node, or the nodes of the plan in one rack.
    domain: int
    # None where all documents have the degree of the layout.
    documents: Documents | None = None

    @cached_property
    def problem(self) -> Problem:
        partition = self.candidate.partition if self.candidate.layerwise is None else None
        return Problem(self.model, self.workload, self.stack, self.layout.num_gpus, self.gpus_per_node,
                       domain=self.domain, stages=partition.sizes if partition is not None else None)  # fmt: skip

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.candidate.step_s if self.documents is None else self.documents.step_s

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The distinct layouts of its layers: one, or several where layers have their own strategies."""
        layerwise = self.candidate.layerwise
        return (self.layout,) if layerwise is None else layerwise.layouts

    @property
    def schedule(self) -> str:
        return SCHEDULES[self.layout.schedule]

    @property
    def recompute(self) -> str:
        return RECOMPUTE_MODES[self.layout.recompute]

    @property
    def recompute_modules(self) -> tuple[str, ...]:
        return modules_of(self.layout.recompute_modules) if self.recompute == "selective" else ()

    @property
    def offload(self) -> tuple[str, ...]:
        """The tensors in host memory: any of opt (optimizer states) and act (activations)."""
        return () if not self.layout.offload else tuple(OFFLOADS[self.layout.offload].split("+"))

    @property
    def precision(self) -> str:
        return PRECISIONS[self.layout.precision]

    @property
    def chunk_sizes(self) -> list[int]:
        """Layers of every chunk in the order of the model."""
        return [chunk.layers[1] - chunk.layers[0] + 1 if chunk.layers else 0 for chunk in self.candidate.stages]

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.workload.global_batch // (self.layout.dp * self.layout.micro_batch)

    @property
    def gpu(self) -> str:
        """The name of the GPU; "" where the nodes have several kinds."""
        return "" if "+" in self.nodes else self.nodes.split()[-1]

    @property
    def nodes_per_rack(self) -> int:
        """Number of nodes joined by the fastest link; 1 where that link stays inside a node."""
        return max(self.domain // self.gpus_per_node, 1)

    @property
    def interleaving_group(self) -> int | None:
        """Consecutive micro-batches of a chunk; None where the pipeline is not interleaved."""
        if self.schedule != "interleaved":
            return None
        return int(interleaving_group(self.layout.pp, self.num_micro_batches))

    @classmethod
    def of(cls, plan: Plan, choice: int, name: str = "plan", *, layerwise: bool = False) -> Setup:
        """Candidate `choice` of a plan. name: the file, for messages.

        Raises InputError for a missing choice and for a damaged plan. Raises UnsupportedError for nodes with different
        numbers of GPUs, and for layers with their own strategies unless the caller allows them.
        """
        from ..._version import __version__

        if not 1 <= choice <= len(plan.candidates):
            raise InputError(f"{name} has no layout {choice}", hint=f"it has 1 to {len(plan.candidates)}")
        candidate = plan.candidates[choice - 1]
        if not layerwise:
            candidate.check_uniform()
        layout = candidate.to_layout()
        nodes, capability, gpu_memory_bytes, num_nodes, gpus_per_node = _nodes(plan, candidate, layout)
        return cls(
            plan_id=plan.request_sha256[:12], tool=f"meshwright {__version__}", choice=choice, candidate=candidate,
            layout=layout, model=model_of(plan.resolved, name), workload=workload_of(plan.resolved, name),
            stack=stack_of(plan.resolved, name), switches=plan.resolved.get("switches", {}), nodes=nodes,
            capability=capability, gpu_memory_bytes=gpu_memory_bytes, num_nodes=num_nodes, gpus_per_node=gpus_per_node,
            domain=domain_of(plan, num_nodes * gpus_per_node, gpus_per_node),
            documents=Documents(**told) if (told := plan.resolved.get("documents")) else None,
        )  # fmt: skip


def _nodes(plan: Plan, candidate: Candidate, layout: Layout) -> tuple[str, float | None, float, int, int]:
    """The nodes in words, compute capability, memory of the smallest GPU, number of nodes and GPUs per node, for the
    groups in use."""
    groups = plan.resolved["cluster"]["groups"]
    gpus = [(str(group["gpu"]["name"]), int(group["num_nodes"]) * int(group["gpus_per_node"])) for group in groups]
    if candidate.spread is not None:
        groups = [groups[index] for index in dict.fromkeys(use.group for use in candidate.spread.islands)]
        gpus = [(use.gpu, use.num_gpus) for use in candidate.spread.islands]
    sizes = {int(group["gpus_per_node"]) for group in groups}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"nodes of {' and '.join(map(str, sorted(sizes)))} GPUs: launchers start the same number of ranks on each",
            hint="plan for one kind of node",
        )
    gpus_per_node = sizes.pop()
    if layout.num_gpus % gpus_per_node:
        raise InputError(f"{layout} uses {layout.num_gpus} GPUs, a node has {gpus_per_node}", hint="plan again")
    of_kind = {kind: sum(number for name, number in gpus if name == kind) for kind, _ in gpus}
    nodes = " + ".join(f"{number // gpus_per_node} x {gpus_per_node} {kind}" for kind, number in of_kind.items())
    capabilities = {capability_of(str(group["gpu"].get("arch", ""))) for group in groups}
    capability = capabilities.pop() if len(capabilities) == 1 else None
    gpu_memory_bytes = min(float(group["gpu"]["memory_bytes"]) for group in groups)
    return nodes, capability, gpu_memory_bytes, layout.num_gpus // gpus_per_node, gpus_per_node


def domain_of(plan: Plan, num_gpus: int, gpus_per_node: int) -> int:
    """The number of used GPUs in the innermost level of the network."""
    levels = plan.resolved["cluster"].get("levels", ())
    return min(int(levels[0]["size"]), num_gpus) if levels else gpus_per_node
