"""The plan: what `plan` found, and everything needed to use it. Downstream code reads only this and looks nothing up.

JSON: base units, names as in the code, floats of 9 significant digits. `format_version` moves its minor number when
fields are added and its major one when a reader would break.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from ...cost_models.layouts import RECOMPUTE_MODES, Layout, parse
from ...cost_models.quantities.stages import Partition, chunk_sizes, devices_of, redone_by_layout
from ...errors import FieldProblem, InputError, UnsupportedError
from .island_use import IslandAssignment, Strategy

FORMAT_VERSION = "1.3"
_WRITES_ONE = "`meshwright plan -o plan.json` writes one"
LAYERS_OF_THEIR_OWN = "its layers have strategies of their own, and here all have one"
Source = Literal["measured", "fitted", "formula", "datasheet", "assumed"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


def _without(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Without a field that says nothing: plans that it does not concern look as they always did."""
    return {key: value for key, value in found.items() if key != name or value is not None}


class Term(_Part):
    """Seconds of one part of a step. Exposed terms sum to the step; hidden ones run behind `overlaps`."""

    name: str
    seconds: float = Field(ge=0)
    exposed: bool
    overlaps: tuple[str, ...] = ()
    source: Source


class StageMemory(_Part):
    """Bytes on one GPU of a stage: buffers, their sum (allocated), with reserve (reserved), as the driver shows it."""

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    gathered_bytes: float
    exchange_bytes: float
    workspace_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    context_bytes: float
    device_bytes: float
    host_bytes: float = 0.0  # in host memory, per GPU of the stage


class Chunk(_Part):
    """A run of layers [first, last] on a stage (none: embedding- or head-only)."""

    stage: int
    chunk: int
    layers: tuple[int, ...]
    embedding: bool
    head: bool
    gpu: str
    recompute_layers: int


class GroupLinks(_Part):
    """What one kind of group finds of unequal links: how many times slower than the fastest its slowest are, in the
    plan's order of the nodes and in the order that the cluster lists them; and the seconds that each such time costs.
    """

    name: str
    per_slowness_s: float
    slowdown: float
    slowdown_listed: float


class SlowNode(_Part):
    """A node whose best link is only a `share` of the fastest, and what it sends to others in a step."""

    host: str
    share: float
    sent_bytes: float
    sent_listed_bytes: float


class NodeOrder(_Part):
    """Why the nodes stand in this order: nodes[k] holds the k-th run of logical ranks.

    network_s: seconds that the links between nodes take in a step if nothing hides them; _listed: in the order that the
    cluster lists them; least: no order takes less (equal where proven).
    """

    nodes: tuple[int, ...]
    network_s: float
    network_listed_s: float
    network_least_s: float
    proven: bool
    step_listed_s: float
    fastest_bytes_per_s: float
    slowest_bytes_per_s: float
    kinds: tuple[GroupLinks, ...]
    slow: tuple[SlowNode, ...]


class Placement(_Part):
    """Hosts as the cluster lists them and the map rank -> logical rank; None: the launcher's own order, tp fastest,
    then cp, dp, pp. order: only where links between nodes differ."""

    hosts: tuple[str, ...] = ()
    logical_of_rank: tuple[int, ...] | None = None
    order: NodeOrder | None = None

    @model_serializer(mode="wrap")
    def _without_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans on equal links look as they always did."""
        return _without(handler(self), "order")

    def problem(self, num_ranks: int, num_nodes: int) -> tuple[str, str] | None:
        """(field, what is wrong with it): hosts or ranks that are missing, or there twice."""
        hosts, logical = self.hosts, self.logical_of_rank
        if hosts and (len(hosts) != num_nodes or len(set(hosts)) < num_nodes):
            twice = sorted({host for host in hosts if hosts.count(host) > 1})
            more = f", {', '.join(twice)} twice" if twice else ""
            return "hosts", f"names {len(set(hosts))} hosts{more}, the cluster has {num_nodes} nodes"
        if logical is None or sorted(logical) == list(range(num_ranks)):
            return None
        per_node = max(num_ranks // num_nodes, 1)
        absent = [hosts[node] if hosts else f"node {node}" for node in range(-(-len(logical) // per_node), num_nodes)]
        if absent:
            return "logical_of_rank", f"maps {len(logical)} of {num_ranks} ranks: none of {', '.join(absent)}"
        lost = sorted(set(range(num_ranks)) - set(logical))
        lacks = f": {', '.join(map(str, lost))} {'is' if len(lost) == 1 else 'are'} nowhere" if lost else ""
        return "logical_of_rank", f"is not an order of the {num_ranks} ranks{lacks}"


class LayerRun(_Part):
    """A run of layers [first, last] of one strategy, as the id of the layout that has it everywhere."""

    layers: tuple[int, int]
    strategy: str


class Alike(_Part):
    """A layout of one strategy, for comparison."""

    strategy: str
    step_s: float
    device_bytes: float


class LayerPlan(_Part):
    """Strategies of their own. best_alike: the fastest plan of one strategy that the same search knows; used: what each
    strategy of some layers would be everywhere. No plan of the space takes less than lower_bound_s. pipelines: numbers
    of stages and of micro-batches; strategies: of all of these together."""

    embedding: str
    runs: tuple[LayerRun, ...]
    head: str
    best_alike: Alike | None
    used: tuple[Alike, ...]
    lower_bound_s: float
    gap: float
    pipelines: int
    strategies: int

    @property
    def digest(self) -> str:
        return layers_digest(self.embedding, self.runs, self.head)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Every strategy once, as the layout that has it everywhere."""
        ids = dict.fromkeys((self.embedding, *(run.strategy for run in self.runs), self.head))
        return tuple(parse(each) for each in ids)


def layers_digest(embedding: str, runs: Sequence[LayerRun], head: str) -> str:
    """The 6 digits after `-x` in the id of a layout whose layers have strategies of their own."""
    said = [embedding, [[*run.layers, run.strategy] for run in runs], head]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:6]


class Candidate(_Part):
    """One layout, priced. closed_form_s: seconds of a step by the closed form, where step_s is simulated. layerwise:
    where layers have strategies of their own; `layout` is then that of most layers."""

    choice: int = Field(ge=1)
    layout_id: str
    layout: dict[str, Any]
    stages: tuple[Chunk, ...]
    placement: Placement = Placement()
    step_s: float = Field(gt=0)
    closed_form_s: float | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None
    terms: tuple[Term, ...]
    memory: tuple[StageMemory, ...]
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    cost_usd_per_mtoken: float | None = None
    days: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None
    targets: dict[str, str | None]
    spread: IslandAssignment | None = None  # only where the cluster has islands
    layerwise: LayerPlan | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans of one strategy, on groups that are alike, look as they always did."""
        return _without(_without(handler(self), "spread"), "layerwise")

    @property
    def device_bytes(self) -> float:
        """What the fullest GPU holds, as the driver would show it."""
        return max(stage.device_bytes for stage in self.memory)

    def to_layout(self) -> Layout:
        return Layout.from_dict(self.layout)

    def check_alike(self) -> None:
        """Raises UnsupportedError where layers have strategies of their own: no layout says what they do."""
        if self.layerwise is not None:
            raise UnsupportedError(
                f"layout {self.choice}, {self.layout_id}: {LAYERS_OF_THEIR_OWN}",
                hint="`launch` runs it; or choose a layout of the plan whose layers are alike",
            )

    @property
    def partition(self) -> Partition | None:
        """Its stages, where they are not those of its layout (`stages_by_layout`). Raises UnsupportedError as
        `check_alike`."""
        self.check_alike()
        sizes = tuple(chunk.layers[-1] - chunk.layers[0] + 1 if chunk.layers else 0 for chunk in self.stages)
        redone = tuple(chunk.recompute_layers for chunk in self.stages)
        return own_stages(self.to_layout(), Partition(sizes, redone))


def stages_by_layout(layout: Layout, num_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each chunk, as even as possible, and how many of them are fully recomputed."""
    devices = devices_of(layout)
    sizes = chunk_sizes(num_layers, len(devices))
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    redone = redone_by_layout(sizes, devices, (layout.recompute_layers or num_layers) if full else 0)
    return tuple(sizes), tuple(redone)


def own_stages(layout: Layout, partition: Partition) -> Partition | None:
    """`partition` in its one form: None where it is the layout's own, `redone` only where stages differ in it."""
    sizes, redone = stages_by_layout(layout, sum(partition.sizes))
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    if partition.sizes == sizes and (partition.redone in (None, redone) or not full):
        return None
    alike = not full or (not layout.recompute_layers and partition.redone in (None, partition.sizes))
    return Partition(partition.sizes, None if alike else partition.redone)


def layout_id(layout: Layout, partition: Partition | None, shares: tuple[int, ...] | None = None) -> str:
    """The id of a layout; with stages of its own, or uneven shares of the micro-batches, it ends in `-x` and 6 digits
    of their digest."""
    if partition is None and shares is None:
        return str(layout)
    own = [partition.sizes, partition.redone] if partition else []
    said = json.dumps([*own, shares] if shares else own)
    return f"{layout}-x{hashlib.sha256(said.encode()).hexdigest()[:6]}"


def candidate_id(candidate: Candidate) -> str:
    """The id that a candidate's parts make."""
    if candidate.layerwise is not None:
        return f"{candidate.to_layout()}-x{candidate.layerwise.digest}"
    shares = candidate.spread.shares if candidate.spread else None
    return layout_id(candidate.to_layout(), candidate.partition, shares)


class SpaceCount(_Part):
    """How many layouts there are and what became of them; the parts add up to `total`."""

    total: int
    by_axis: dict[str, int]
    ruled_out: dict[str, int]
    dominated: int
    out_of_memory: int
    bounded: int
    priced: int
    unvisited: int = 0
    simulated: int = 0


class Certificate(_Part):
    """What the search proves: no layout of the space is below `lower_bound_s`."""

    space: SpaceCount
    lower_bound_s: float | None
    gap: float | None
    proven: bool
    stopped: str | None = None


class Outside(_Part):
    """A faster layout, and the target that runs it in that time by its own software."""

    layout_id: str
    step_s: float
    targets: tuple[str, ...]


class TechniqueChoice(_Part):
    """A set of techniques that the search might have chosen: its best layout and that layout's value (seconds, or bytes
    where those are minimised), or why there is none."""

    names: tuple[str, ...]
    value: float | None = None
    layout_id: str | None = None
    why: str | None = None


class Profile(_Part):
    """A file of facts that the plan rests on."""

    name: str
    sha256: str


class Plan(_Part):
    """The result of `meshwright plan`. technique_choices: best first, only where techniques were left to the search."""

    format_version: str = FORMAT_VERSION
    kind: Literal["plan"] = "plan"
    tool: dict[str, str]
    request_sha256: str
    request: dict[str, Any]
    profiles: tuple[Profile, ...]
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    ranking_lead: float | None = None  # layouts within this share of each other's time cannot be told apart
    certificate: Certificate
    outside: Outside | None = None
    resolved: dict[str, Any]
    rejected: dict[str, int]
    warnings: tuple[str, ...] = ()
    technique_choices: tuple[TechniqueChoice, ...] = ()
    ways: tuple[Strategy, ...] | None = None  # the best of each way to use the islands of the cluster, fastest first
    # Causes, as in `certificate.stopped`, that cut a comparison after the search; the best layout is still proven.
    cut_short: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _without_choices(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans that had nothing to choose look as they always did."""
        fields: dict[str, Any] = _without(handler(self), "ways")
        optional = ("technique_choices", "cut_short")
        return {name: value for name, value in fields.items() if value or name not in optional}

    def with_warnings(self, texts: Iterable[str], cut_short: Iterable[str] = ()) -> Plan:
        """This plan with more warnings, after a comparison that any cause in `cut_short` cut."""
        update = {"warnings": (*self.warnings, *texts), "cut_short": (*self.cut_short, *cut_short)}
        return self.model_copy(update=update)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cut short the search, or a comparison after it."""
        return "interrupted" in (self.certificate.stopped, *self.cut_short)

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def to_json(self) -> str:
        """The document as it is written to a file."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1) + "\n"


def rounded(value: Any) -> Any:
    """Array of `value` (nested) at 9 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def read_plan(text: str, name: str) -> Plan:
    """The plan in `text` (JSON). Raises InputError naming `name` and each damaged field, or a newer format."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}", hint=_WRITES_ONE) from None
    except RecursionError:
        raise InputError(f"{name}: nested too deeply to be read", hint=_WRITES_ONE) from None
    if not isinstance(data, dict) or data.get("kind") != "plan":
        raise InputError(f"{name}: not a plan", hint=_WRITES_ONE)
    major = str(data.get("format_version", "")).partition(".")[0]
    if major != FORMAT_VERSION.partition(".")[0]:
        raise InputError(
            f"{name}: format {data.get('format_version')}, this version reads {FORMAT_VERSION}",
            hint="plan again, or use the version of meshwright that wrote it",
        )
    try:
        plan = Plan.model_validate(data)
        for candidate in plan.candidates:
            _check(candidate)
        return plan
    except ValidationError as error:
        raise InputError.of([
            FieldProblem(each["msg"].lower(), file=name, field=".".join(str(part) for part in each["loc"]))
            for each in error.errors()
        ]) from None  # fmt: skip


def _check(candidate: Candidate) -> None:
    exposed = sum(term.seconds for term in candidate.terms if term.exposed)
    if abs(exposed - candidate.step_s) > 1e-6 * candidate.step_s:
        raise InputError(
            f"candidates.{candidate.choice - 1}.step_s: {candidate.step_s:g} s, its exposed terms sum to {exposed:g} s",
            hint="the file was edited; plan again",
        )
    layout = candidate_id(candidate)
    if layout != candidate.layout_id:
        field = "stages" if candidate.layout_id.startswith(str(candidate.to_layout())) else "layout_id"
        raise InputError(
            f"candidates.{candidate.choice - 1}.{field}: the id says `{candidate.layout_id}`, the rest `{layout}`",
            hint="the file was edited; plan again",
        )


def load_plan(path: Path | str) -> Plan:
    """The plan in the file `path`. Raises InputError for a missing, damaged, edited or newer one."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint=_WRITES_ONE) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text", hint=_WRITES_ONE) from None
    return read_plan(text, str(path))
