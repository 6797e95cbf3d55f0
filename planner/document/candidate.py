"""One priced layout of a plan: its stages, seconds by term, and bytes by stage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import Partition
from ...errors import UnsupportedError
from .base import DocumentPart, without_none
from .island_use import IslandAssignment
from .layer_plan import LAYERS_OF_THEIR_OWN, LayerPlan
from .partitions import custom_partition, layout_id
from .placement import Placement

# A layout is listed for its time, its memory, few parallel axes and no offloading, or a mesh near that of a published
# run of the model. It is compared with those that the model does not tell from the fastest.
Merit = Literal["fastest", "roomiest", "simplest", "published"]
Source = Literal["measured", "fitted", "formula", "datasheet", "assumed"]


class Term(DocumentPart):
    """Seconds of one part of a step. Exposed terms sum to the step."""

    name: str
    seconds: float = Field(ge=0)
    exposed: bool
    overlaps: tuple[str, ...] = ()  # names of the terms behind which a hidden one runs
    source: Source  # of the seconds


class StageMemory(DocumentPart):
    """Bytes on the fullest GPU of a stage at its fullest moment, buffer by buffer, and their sums."""

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    gathered_bytes: float  # weights gathered from a shard group
    exchange_bytes: float  # buffers of collectives
    workspace_bytes: float
    graphs_bytes: float = 0.0  # that CUDA graphs keep beside what their kernels need anyway
    allocated_bytes: float  # the sum of all above
    reserved_bytes: float  # with the reserve of the allocator
    context_bytes: float  # of the driver, and of communication libraries
    device_bytes: float  # all together, as the driver shows it
    host_bytes: float = 0.0  # in host memory, per GPU of the stage


class Chunk(DocumentPart):
    """A run of consecutive layers on a stage."""

    stage: int
    chunk: int  # position in the order in which a micro-batch passes the chunks
    layers: tuple[int, ...]  # [first, last]; empty where it holds only the embedding or the head
    embedding: bool
    head: bool
    gpu: str
    recompute_layers: int  # the first so many are fully recomputed


class Candidate(DocumentPart):
    """One layout, priced."""

    choice: int = Field(ge=1)  # its number in the list of the plan
    layout_id: str
    layout: dict[str, Any]  # its fields; that of most layers where layers have strategies of their own
    stages: tuple[Chunk, ...]  # in the order in which a micro-batch passes them
    placement: Placement = Placement()
    step_s: float = Field(gt=0)
    closed_form_s: float | None = None  # seconds of a step by the closed form, where step_s is simulated
    step_s_low: float | None = None  # ends of the interval that measured steps of such runs fall into
    step_s_high: float | None = None
    terms: tuple[Term, ...]  # their exposed seconds sum to step_s
    memory: tuple[StageMemory, ...]  # one per stage
    mfu: float = Field(ge=0, le=1)
    hfu: float = Field(ge=0)  # with recomputation
    tokens_per_s_per_gpu: float
    cost_usd_per_mtoken: float | None = None  # None: no price is known
    days: float | None = None  # of the whole run, as the next two; None: its tokens are not given
    gpu_hours: float | None = None
    cost_usd: float | None = None
    overflow_chance: float | None = None  # of running out of memory, by published runs; None: not known
    merits: tuple[Merit, ...] = ()  # why it is listed; () for the next best, and where no reasons are given
    near_run: str | None = None  # mesh, GPUs and id of the published run that it is nearest to
    targets: dict[str, str | None]  # target -> why it cannot run the layout; None: it can
    spread: IslandAssignment | None = None  # only where the cluster has islands
    layerwise: LayerPlan | None = None  # only where layers have strategies of their own

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans of one strategy, on a uniform cluster, look as they always did."""
        fields: dict[str, Any] = handler(self)
        for name in ("spread", "layerwise", "overflow_chance", "near_run"):
            fields = without_none(fields, name)
        return {name: value for name, value in fields.items() if value or name != "merits"}

    @property
    def device_bytes(self) -> float:
        """Bytes of the fullest GPU, as the driver would show them."""
        return max(stage.device_bytes for stage in self.memory)

    def least_room(self, uniform: float) -> tuple[float, float]:
        """(bytes, limit) of the GPU that has the least room, by its own limit. uniform: the limit of all, where the
        cluster has no islands."""
        if self.spread is None:
            return self.device_bytes, uniform
        tightest = min(self.spread.islands, key=lambda use: use.memory_bytes - use.device_bytes)
        return tightest.device_bytes, tightest.memory_bytes

    @property
    def closed_s(self) -> float:
        """Seconds of a step by the closed form, by which runs are fitted and validated."""
        return self.closed_form_s or self.step_s

    def to_layout(self) -> Layout:
        return Layout.from_dict(self.layout)

    def check_uniform(self) -> None:
        """Raises UnsupportedError where layers have strategies of their own: no layout says what they do."""
        if self.layerwise is not None:
            raise UnsupportedError(
                f"layout {self.choice}, {self.layout_id}: {LAYERS_OF_THEIR_OWN}",
                hint="`launch` runs it; or choose a layout of the plan whose layers are alike",
            )

    @property
    def partition(self) -> Partition | None:
        """Its stages, where they are not those of its layout (`stages_by_layout`). Raises UnsupportedError as
        `check_uniform`."""
        self.check_uniform()
        sizes = tuple(chunk.layers[-1] - chunk.layers[0] + 1 if chunk.layers else 0 for chunk in self.stages)
        recomputed = tuple(chunk.recompute_layers for chunk in self.stages)
        return custom_partition(self.to_layout(), Partition(sizes, recomputed))


def candidate_id(candidate: Candidate) -> str:
    """The id that a candidate's parts make."""
    if candidate.layerwise is not None:
        return f"{candidate.to_layout()}-x{candidate.layerwise.digest}"
    shares = candidate.spread.shares if candidate.spread else None
    return layout_id(candidate.to_layout(), candidate.partition, shares)
