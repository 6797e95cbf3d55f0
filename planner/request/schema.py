"""The shape of a request: one checked, frozen object, and its canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator

from ...cost_models.specs.workload import Lora, LoraTarget, OptimizerName, Precision, Rounding, Workload
from ...cost_models.techniques import registry as techniques
from ...errors import InputError
from ..document.plan import digest_of
from .fields import (
    LORA_DEFAULT,
    Batch,
    Bytes,
    Coefficient,
    Factor,
    Fix,
    Headroom,
    Length,
    Lengths,
    Nodes,
    Number,
    Positive,
    Price,
    Stages,
    Techniques,
    Time,
    Tokens,
    checked,
    nearest_power,
    parse_images,
    parse_lora,
    parse_spot,
)

DEFAULT_SEQ_LEN = 8192
DEFAULT_DOCUMENTS = 512  # of a step that trains each as a sequence (the batch of FlexSP, arXiv:2412.01523)
_MOST_TOKENS = 2**53  # whole numbers of a float64
DEFAULT_TOKENS_PER_STEP = 2**22  # about what models of 8B and more were trained with


class RequestPart(BaseModel):
    """A part of a request: read-only, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraRequest(RequestPart):
    """Low-rank adapters; the base weights stay frozen."""

    rank: Positive
    targets: tuple[LoraTarget, ...] = Field(default=LORA_DEFAULT, min_length=1)
    base_dtype: Literal["bf16", "int8", "nf4"] = "bf16"


class Train(RequestPart):
    """The trained parameters: all (neither field), adapters, the last layers, or both of these."""

    lora: Annotated[LoraRequest, BeforeValidator(checked(parse_lora))] | None = None
    last_layers: Positive | None = None


class ImagesRequest(RequestPart):
    """Images of a sequence, in pixels; without a size as large as the model scales them. num_frames: of a video."""

    per_sequence: Positive
    height: Positive | None = None
    width: Positive | None = None
    num_frames: Positive | None = None


class WorkloadRequest(RequestPart):
    """One training step.

    Without seq_len: 8192, or fewer if the model has no positions for them; without global_batch: the power of two of
    sequences that is nearest to 4M tokens.
    expert_capacity_factor: routed experts take this many times their even share of a rank's tokens and drop the rest.
    moe_aux_loss_coeff: of the balancing loss of each layer of experts; without it that of the model's config.
    max_len: every document of `lengths` is a sequence of its own, and longer ones are left out; global_batch counts
    documents, 512 without it. seq_len is then max_len. lengths_rule: by which the target gives degrees, if it has more
    than one rule.
    images: of every sequence, `4@1024x768`; their tokens count among those of the sequence. Without it the text model
    is planned. For a diffusion transformer the image or video (`1@480x832x81`) that it denoises. freeze_tower: the
    layers of the vision tower do not train. freeze_language: the language model does not train.
    reference: a frozen copy of the model reads every sequence before the loss, as in DPO: a forward pass more and,
    without adapters, a second set of weights. In no pipeline. reward_model: one value per token in place of logits.
    rounding: weights (none, forward, step) and inputs (none, dynamic, static) of products are rounded to fewer bits.
    mtp_layers: modules of multi-token prediction that are trained, 0: none; without it those of the model.
    source_len: tokens that the encoder of an encoder-decoder model reads; seq_len are those of its decoder.
    headroom: what a chosen layout leaves of a GPU's memory, `5%`, `4 GiB` or 0; without it what published runs needed
    beyond their prediction, or nothing beside max_memory.
    """

    kind: Literal["train"] = "train"
    seq_len: Length | None = None
    lengths: Lengths | None = None
    max_len: Length | None = None
    lengths_rule: Literal["hybrid", "dynamic"] | None = None
    packed: bool = Field(default=True, strict=True)
    global_batch: Batch | None = None
    precision: Precision = "bf16"
    optimizer: OptimizerName = "adamw"
    train: Train = Train()
    expert_capacity_factor: Factor | None = None
    moe_aux_loss_coeff: Coefficient | None = None
    mtp_layers: Number | None = None
    images: Annotated[ImagesRequest, BeforeValidator(checked(parse_images))] | None = None
    freeze_tower: bool = Field(default=False, strict=True)
    freeze_language: bool = Field(default=False, strict=True)
    reference: bool = Field(default=False, strict=True)
    reward_model: bool = Field(default=False, strict=True)
    rounding: Rounding | None = None
    source_len: Positive | None = None
    total_tokens: Tokens | None = None
    objective: Literal["step", "cost", "memory"] = "step"
    techniques: Techniques = Field(default_factory=dict)
    max_memory: Bytes | None = Field(
        default=None,
        validation_alias=AliasChoices("max_memory", "max_memory_bytes"),
        serialization_alias="max_memory_bytes",
    )
    headroom: Headroom | None = None

    @field_validator("train", mode="before")
    @classmethod
    def _all(cls, value: Any) -> Any:
        return {} if value == "all" else value


class SpotRequest(RequestPart):
    """Nodes that their owner may take back. interrupted_every: mean time from one interruption of a node to the next;
    price: of a node, in place of the cluster's."""

    interrupted_every: Time
    price: Price | None = None


class BaseRequest(RequestPart):
    """A request of any kind of workload."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _places: dict[str, tuple[str, int]] = PrivateAttr(default_factory=dict)  # file and line of each field of a file

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each given field (`request.yaml, line 3`, `--seq-len`). Other fields have defaults."""
        return self._origins


class Request(BaseRequest):
    """A checked request. `model` and `cluster`: a name, a path, or the description itself; exclude: nodes of the
    cluster that are not planned on, by name or number."""

    model: str | dict[str, Any]
    cluster: str | dict[str, Any] | None = None
    gpu: str | None = None
    gpus: Positive | None = None
    exclude: Nodes = ()
    spot: Annotated[SpotRequest, BeforeValidator(checked(parse_spot))] | None = None
    workload: WorkloadRequest = WorkloadRequest()
    target: str = "meshwright"
    stack: str | dict[str, Any] | None = None
    fix: Fix = Field(default_factory=dict)
    # None: even, but groups of nodes that differ are planned one by one. Else a way of STAGES, or the given chunks.
    stages: Stages | None = None
    top: Positive = 5

    @property
    def names_target(self) -> bool:
        """Whether the target was asked for, so that no other one may take its place."""
        return "target" in self._origins or self.target != Request.model_fields["target"].default

    def for_target(self, name: str, why: str) -> Request:
        """This request for another target; `why` is the origin of the field."""
        changed = self.model_copy(update={"target": name})
        changed._origins = {**self._origins, "target": why}
        return changed

    @property
    def sha256(self) -> str:
        """Digest of the canonical form: equal requests have equal digests, wherever their values came from."""
        return digest_of(request_to_dict(self))

    def _documents(self) -> dict[int, float]:
        """Lengths of documents -> shares, without those beyond max_len."""
        work, histogram = self.workload, self.workload.lengths or {}
        if work.max_len is None:
            if work.lengths_rule is not None:
                raise InputError(f"lengths_rule {work.lengths_rule}: documents that share sequences have no degrees",
                                 hint="`--max-len 192K`, or leave out `--lengths-rule`")  # fmt: skip
            return histogram
        if not histogram or work.seq_len is not None:
            wrong = "seq_len" if histogram else "no lengths"
            hint = "`--lengths wikipedia --max-len 192K`, without `--seq-len`: every document is a sequence"
            raise InputError(f"max_len and {wrong}: it cuts off the lengths of documents", hint=hint)
        kept = {length: share for length, share in histogram.items() if length <= work.max_len}
        if not kept:
            hint = f"`--max-len {min(histogram)}`, or more"
            raise InputError(f"max_len {work.max_len} is shorter than every document", hint=hint)
        total = sum(kept.values())
        return {length: share / total for length, share in kept.items()}

    def to_workload(self, max_positions: int | None = None) -> Workload:
        """The workload in base units. `max_positions` bounds the default sequence length, not a given one.

        E[s] and E[s^2] come from the histogram. Raises InputError if a document is longer than a sequence, or tokens
        per step are no whole number of sequences.
        """
        work = self.workload
        histogram = self._documents()
        given = work.max_len or work.seq_len
        seq_len = given or max(histogram, default=min(DEFAULT_SEQ_LEN, max_positions or DEFAULT_SEQ_LEN))
        if histogram and max(histogram) > seq_len:
            raise InputError(
                f"lengths holds documents of {max(histogram)} tokens, but seq_len is {seq_len}",
                hint=f"`--seq-len {max(histogram)}`, or cut the documents",
            )
        mean = sum(length * share for length, share in histogram.items()) or None
        _check_muon(work)
        lora = work.train.lora
        only_adapters = lora is not None and work.train.last_layers is None
        return Workload(
            seq_len=seq_len,
            global_batch=_exact(_sequences(work, seq_len, mean), seq_len),
            precision=work.precision,
            optimizer=work.optimizer,
            mean_len=mean,
            mean_square_len=sum(length**2 * share for length, share in histogram.items()) or None,
            packed=work.packed,
            lengths=tuple(histogram.items()),
            lora=Lora(rank=lora.rank, targets=lora.targets, base_dtype=lora.base_dtype) if lora else None,
            trains_layers=0 if only_adapters else work.train.last_layers,
            total_tokens=work.total_tokens,
            objective=work.objective,
            max_memory_bytes=work.max_memory,
            reference=work.reference, rounding=work.rounding,
            techniques=techniques.applied(work.techniques),
        )


def _check_muon(work: WorkloadRequest) -> None:
    """Raises InputError for what is not priced with Muon."""
    if work.optimizer != "muon":
        return
    if work.train.lora is not None:
        raise InputError("optimizer muon: adapters are not priced with it", hint="`--optimizer adamw`, or no adapters")
    if work.techniques:
        names = ", ".join(work.techniques)
        raise InputError(f"optimizer muon: {names} is not priced with it", hint="`--optimizer adamw`, or without it")


def _exact(global_batch: int, seq_len: int) -> int:
    """The batch, if floating point counts its tokens one by one."""
    if global_batch * seq_len > _MOST_TOKENS:
        most, name = _MOST_TOKENS // seq_len, "global_batch" if seq_len <= _MOST_TOKENS else "seq_len"
        hint = f"at most {most:,} sequences can be counted" if most else "give a shorter sequence"
        raise InputError(f"{name}: {global_batch:,} x {seq_len:,} tokens a step are more than 2^53", hint=hint)
    return global_batch


def _sequences(work: WorkloadRequest, seq_len: int, mean: float | None) -> int:
    """Global batch in sequences. Padded sequences hold `mean` useful tokens: their number is rounded."""
    given = work.global_batch
    if isinstance(given, int):
        return given
    if given is None:
        return DEFAULT_DOCUMENTS if work.max_len else nearest_power(DEFAULT_TOKENS_PER_STEP / seq_len)
    tokens = given["tokens"]
    if (work.max_len or not work.packed) and mean is not None:
        return max(1, round(tokens / mean))
    if tokens % seq_len:
        near = nearest_power(tokens / seq_len)
        raise InputError(
            f"global_batch: {tokens:,.0f} tokens are {tokens / seq_len:,.2f} sequences of {seq_len}",
            hint=f"give sequences: `--global-batch {near}` is {near * seq_len:,} tokens",
        )
    return int(tokens // seq_len)


def request_to_dict(request: Request) -> dict[str, Any]:
    """Canonical form: all fields, base units, nothing about where values came from; without what came after the first
    plans and is not asked for, so that their digests stay."""
    data = request.model_dump(mode="json", by_alias=True)
    for name in ("max_len", "lengths_rule", "expert_capacity_factor", "moe_aux_loss_coeff", "mtp_layers", "headroom",
                 "images", "freeze_tower", "freeze_language", "reference", "reward_model", "rounding",
                 "source_len"):  # fmt: skip
        if data["workload"][name] in (None, False):
            del data["workload"][name]
    for name in ("exclude", "spot", "stages"):
        if not data[name]:
            del data[name]
    return data


def request_from_dict(data: Mapping[str, Any]) -> Request:
    """The inverse of `request_to_dict`: bare numbers are base units here."""
    return Request.model_validate(data, context={"canonical": True})
