"""The plan of post-training: where every call of a step runs, by which layout, when, and its proof. JSON in base units,
as the plan of a training step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ...errors import InputError
from .base import DocumentPart, rounded
from .certificate import SpaceCount
from .plan import sealed_json

FORMAT_VERSION = "2.0"
KIND = "rl-plan"
Binds = Literal["generation", "training", "scoring", "moves", "controller"]


class EngineLayout(DocumentPart):
    """Equal instances of an engine."""

    tp: int
    pp: int
    ep: int
    attention_dp: int
    instances: int
    cache_sequences: int  # that the cache of an instance holds, short ones that start together too


class RlCall(DocumentPart):
    """One call of a step on its GPUs."""

    name: str
    kind: Literal["generate", "infer", "train"]
    role: Literal["policy", "critic", "reference", "reward"]  # of the model
    model: str
    after: tuple[str, ...]  # calls that it waits for
    first_gpu: int
    gpus: int
    layout_id: str | None  # of training and scoring
    layout: dict[str, Any] | None
    sequences: int | None = None  # of training: packed ones of an optimizer step
    seq_len: int | None = None  # their tokens
    # Of training where a rule gives each answer a degree of its own: the tokens of a rank, at most, and the ranks that
    # share an answer. Packed sequences are then those that fill the widest groups, whose layout is `layout`.
    rank_tokens: int | None = None
    degrees: tuple[int, ...] = ()
    engine: EngineLayout | None  # of generation
    start_s: float
    moves_s: float  # of it, for weights that come, and models that leave to the host or return
    end_s: float
    peak_bytes: float  # of a GPU
    resident_bytes: dict[str, float]  # of a GPU: other models that lie there meanwhile, by role


class RlCandidate(DocumentPart):
    """One placement."""

    choice: int
    placement_id: str
    lag: int  # steps that answers are older than the weights that train on them, at most; 0: all calls take turns
    step_s: float
    sync_s: float  # of its trainer: new weights to the engine
    controller_s: float  # of its trainer: data, rewards, scheduling, logs
    rollout_gpus: int
    training_gpus: int
    calls: tuple[RlCall, ...]  # with lag both sides start at 0
    tokens_per_s: float  # of prompts and answers
    tokens_per_s_per_gpu: float
    idle: float  # share of GPU seconds without a call
    binds: Binds


class RlCertificate(DocumentPart):
    """The proof: no placement of the space takes less than `lower_bound_s`, by the fastest layout of each call."""

    space: SpaceCount
    lower_bound_s: float
    gap: float
    proven: bool


class RlPlan(DocumentPart):
    """The result of `meshwright plan --workload grpo`."""

    format_version: str = FORMAT_VERSION
    kind: Literal["rl-plan"] = "rl-plan"
    tool: dict[str, str]
    request_sha256: str
    request: dict[str, Any]
    origins: dict[str, str] = Field(default_factory=dict)
    candidates: tuple[RlCandidate, ...] = Field(min_length=1)  # the fastest first
    certificate: RlCertificate
    resolved: dict[str, Any]  # models by role, cluster, stack, trainer, engine, number and lengths of answers
    warnings: tuple[str, ...] = ()
    document_sha256: str | None = None  # of all other fields, in the file only: a file that was edited is refused

    @property
    def best(self) -> RlCandidate:
        return self.candidates[0]

    def candidate(self, choice: int) -> RlCandidate:
        """Raises InputError where the plan has no placement of this number."""
        for candidate in self.candidates:
            if candidate.choice == choice:
                return candidate
        raise InputError(f"the plan has no placement {choice}",
                         hint=f"it has 1 to {len(self.candidates)}; `plan --top N` keeps more")  # fmt: skip

    def to_json(self) -> str:
        """The document as it is written to a file."""
        return sealed_json(rounded(self.model_dump(mode="json")))
