"""The plan of a deployment that serves: its pools, their promises, its proof. JSON in base units, as the plan of a
training step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ...errors import InputError
from .base import DocumentPart, rounded
from .certificate import SpaceCount
from .plan import sealed_json

KIND = "serving-plan"
FORMAT_VERSION = "1.1"
Role = Literal["both", "prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")  # of disaggregated instances
Binds = Literal["ttft", "tpot", "queue", "cache", "nothing", "passes", "room", "sequences"]
Unit = Literal["USD/h", "GPUs", "USD", "GPU-hours", "requests/s", "requests at once"]


class TowerPieces(DocumentPart):
    """Pieces of a vision tower by where they run: the product of the pixels, each layer, what makes tokens of them."""

    device: int  # of the user
    edge: int
    instance: int

    @property
    def pieces(self) -> int:
        return self.device + self.edge + self.instance


class ServingPool(DocumentPart):
    """Equal instances of an engine."""

    role: Role
    site: str  # name of the nodes
    gpu: str
    gpus_per_node: int
    instances: int
    gpus: int  # of all instances
    tp: int
    pp: int
    ep: int
    attention_dp: int
    chunk_tokens: int  # prompt tokens of an iteration at most
    max_sequences: int  # of an instance that the engine is told to run at once
    weights: str  # number format
    kv_cache: str  # number format
    weights_bytes: float  # of a GPU
    cache_bytes: float  # of a GPU
    cache_sequences: int  # that the cache of an instance holds
    proposed_tokens: int = 0  # of an iteration, for each sequence; 0: nothing is speculated here
    speculation_pays_up_to: int | None = None  # sequences that decode at once; None: nothing is speculated here
    tower: TowerPieces | None = None  # None: no device runs a part of it


class Percentiles(DocumentPart):
    """Seconds of the simulated requests."""

    mean: float
    p50: float
    p90: float
    p99: float


class SimulatedService(DocumentPart):
    """Latencies of the simulated instances."""

    requests: int
    ttft_s: Percentiles
    tpot_s: Percentiles
    kept: float  # share of the requests that keep both promises


class ServingCandidate(DocumentPart):
    """One deployment under the load of the request, by the closed form unless it says otherwise."""

    choice: int
    deployment_id: str
    pools: tuple[ServingPool, ...]
    gpus: int
    rate: float  # requests per second
    concurrency: float  # requests at any time
    ttft_s: float  # mean
    tpot_s: float  # mean
    ttft_promised_s: float  # that `percentile` % of the requests do not exceed
    tpot_promised_s: float
    largest_load: float  # under which the promises hold: requests per second, or at once in a closed loop
    stable_load: float | None  # under which the queue does not grow; None in a closed loop
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    goodput_per_gpu: float  # `largest_load` over GPUs
    sequences: float  # that decode at once, of an instance
    prompt_load: float  # share of time that prompts take
    binds: Binds  # what breaks first beyond `largest_load`
    usd_per_hour: float | None  # rent, where it is known
    gpu_hours: float | None = None  # over the hours of a day; None: the load is one rate
    usd_per_mtoken: float | None  # of output
    simulated: SimulatedService | None = None


class TokenCounts(DocumentPart):
    """Tokens of the prompts, or of the answers, of all requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float


class ServedLengths(DocumentPart):
    """The requests that the deployment is planned for."""

    prompt: TokenCounts
    output: TokenCounts
    trace_rate: float | None  # requests per second of a trace; None: they come as a Poisson process


class HourlyService(DocumentPart):
    """The first deployment over the hours of a day, with the fewest instances that keep the promises in each."""

    rates: tuple[float, ...]  # requests per second, by hour
    instances: tuple[tuple[int, ...], ...]  # of each pool, by hour
    gpu_hours: float
    gpu_hours_at_peak: float  # if all instances ran all hours
    usd: float | None  # rent of all hours, where it is known
    usd_per_mtoken: float | None  # of output


class Separation(DocumentPart):
    """Prefill and decode on instances of their own beside both on the same ones. `..._gpus` are those for a request per
    second, where any part of an instance can be had; None: nothing keeps the promises."""

    best: str | None  # id of the cheapest disaggregated deployment
    gpus: int | None
    usd_per_hour: float | None
    gpu_hours: float | None = None  # over the hours of a day
    largest_load: float | None
    prefill_gpus: float | None
    decode_gpus: float | None
    together_gpus: float | None


class ServingCertificate(DocumentPart):
    """The proof: by the closed form no deployment of the space that keeps the promises costs less than `lower_bound`,
    in `unit`; in requests/s none carries more. USD and GPU-hours are those of all hours of a day."""

    space: SpaceCount
    lower_bound: float
    unit: Unit
    gap: float  # relative, between the bound and deployment 1, which is simpler or keeps its promises when simulated
    proven: bool  # deployment 1 has the bound
    stopped: str | None = None


class ServingTechniqueChoice(DocumentPart):
    """A set of techniques that the search might have chosen: its best deployment, or why it has none that is better."""

    names: tuple[str, ...]
    deployment_id: str | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None
    gpu_hours: float | None = None  # over the hours of a day
    largest_load: float | None = None
    why: str | None = None


class ServingPlan(DocumentPart):
    """The result of `meshwright plan --workload serve`."""

    format_version: str = FORMAT_VERSION
    kind: Literal["serving-plan"] = "serving-plan"
    tool: dict[str, str]
    request_sha256: str
    request: dict[str, Any]
    origins: dict[str, str] = Field(default_factory=dict)
    lengths: ServedLengths
    candidates: tuple[ServingCandidate, ...] = Field(min_length=1)  # the choice first
    indifference: float  # deployments this near to the best carry as much by the error of the model
    certificate: ServingCertificate
    hourly: HourlyService | None = None  # None: the load is one rate
    separation: Separation | None = None  # None: disaggregated deployments were not searched
    technique_choices: tuple[ServingTechniqueChoice, ...] = ()  # of those that were left to the search, the best first
    resolved: dict[str, Any]  # model, cluster, engine
    assumptions: tuple[str, ...] = ()  # limits that no measurement gave
    warnings: tuple[str, ...] = ()
    document_sha256: str | None = None  # of all other fields, in the file only: a file that was edited is refused

    @property
    def best(self) -> ServingCandidate:
        return self.candidates[0]

    def candidate(self, choice: int) -> ServingCandidate:
        """Deployment number `choice`. Raises InputError if there is none."""
        if not 1 <= choice <= len(self.candidates):
            raise InputError(f"the plan has no deployment {choice}",
                             hint=f"it has 1 to {len(self.candidates)}; `plan --top N` keeps more")  # fmt: skip
        return self.candidates[choice - 1]

    def to_json(self) -> str:
        """The document as it is written to a file."""
        return sealed_json(rounded(self.model_dump(mode="json")))
