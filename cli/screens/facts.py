"""Facts that screens show of a request and its resolved form. A plan keeps both as JSON (`request`, `resolved`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.document.plan import Plan
    from ...planner.studies.tradeoffs import GpuCountsResult


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike."""

    num_nodes: int
    gpus_per_node: int
    gpu: str


@dataclass(frozen=True)
class Work:
    """The workload."""

    global_batch: int  # sequences per step
    seq_len: int  # tokens
    precision: str
    objective: str  # `step`, `cost` or `memory`
    total_tokens: float | None  # of the whole run
    lora_rank: int | None  # None: no adapters
    base_dtype: str  # of the weights below the adapters; empty without
    trains_layers: int  # the last layers, which alone are trained; 0: all are
    expert_capacity_factor: float | None
    images: str  # of a sequence, with their size; empty without
    reference: bool  # whether a frozen copy of the model scores every sequence
    reward_model: bool  # whether values take the place of logits
    source: str  # tokens of a sequence that its decoder or its denoised tokens attend to; empty without


@dataclass(frozen=True)
class Software:
    """Assumptions about the software that will run the plan."""

    name: str
    values: Mapping[str, object]
    sources: Mapping[str, str]  # of the values that have one


@dataclass(frozen=True)
class Facts:
    """The subject of a plan, a frontier or a curve of GPUs."""

    model: str
    groups: tuple[Nodes, ...]
    work: Work
    software: Software
    target: str
    memory_bytes: float  # that a layout which takes all GPUs for alike may use of each
    headroom_bytes: float  # of it that a chosen layout leaves free; 0 in plans that know none
    headroom_is_share: bool  # of any GPU's memory; else these bytes
    encoder_layers: int  # the first ones of the model; 0 without an encoder
    has_tower: bool  # whether a vision tower is beside the embedding

    def headroom_of(self, memory_bytes: float) -> float:
        """Bytes that a chosen layout leaves free of a GPU with `memory_bytes`."""
        return self.headroom_bytes * (memory_bytes / self.memory_bytes if self.headroom_is_share else 1.0)

    @classmethod
    def of(cls, result: Plan | LengthsPlan | GpuCountsResult) -> Facts:
        """The facts of a plan, or of an answer about numbers of GPUs (then of the smallest)."""
        resolved = result.resolved
        groups = resolved["cluster"]["groups"]
        stack = resolved["stack"]
        return cls(
            model=resolved["model"]["name"],
            groups=tuple(Nodes(group["num_nodes"], group["gpus_per_node"], group["gpu"]["name"]) for group in groups),
            work=_work(result.request["workload"], resolved["workload"], denoises="diffusion" in resolved["model"]),
            software=Software(
                name=stack["name"], sources=stack.get("sources", {}),
                values={name: value for name, value in stack.items() if name not in ("name", "sources")},
            ),
            target=resolved["target"],
            memory_bytes=float(resolved["memory_bytes"]),
            headroom_bytes=float(resolved.get("headroom_bytes", 0.0)),
            headroom_is_share=str(result.request["workload"].get("headroom") or "%").endswith("%"),
            encoder_layers=(resolved["model"].get("encoder") or {}).get("layers", 0),
            has_tower=bool(resolved["model"].get("tower")),
        )  # fmt: skip


def _work(requested: Mapping[str, Any], resolved: Mapping[str, Any], *, denoises: bool) -> Work:
    lora = resolved.get("lora") or {}
    return Work(
        global_batch=resolved["global_batch"], seq_len=resolved["seq_len"], precision=resolved["precision"],
        objective=resolved.get("objective", "step"), total_tokens=resolved.get("total_tokens"),
        lora_rank=lora.get("rank"), base_dtype=lora.get("base_dtype", ""),
        trains_layers=resolved.get("trains_layers") or 0,
        # The resolved workload has no field for it: it is part of the resolved model's experts.
        expert_capacity_factor=requested.get("expert_capacity_factor"),
        images=_images(resolved, denoised=denoises), reference=resolved.get("reference", False),
        reward_model=requested.get("reward_model", False),
        source=_source(resolved.get("source_len"), denoised=denoises),
    )  # fmt: skip


def _source(tokens: int | None, *, denoised: bool) -> str:
    """`512 source tokens per sequence`, or `512 tokens of text per sequence`."""
    if not tokens:
        return ""
    return f"{tokens:,} {'tokens of text' if denoised else 'source tokens'} per sequence"


def _images(workload: Mapping[str, Any], *, denoised: bool) -> str:
    """`4 images of 1,024 x 768 pixels per sequence, trained vision tower`, or `81 frames of 480 x 832 pixels`."""
    images = workload.get("images")
    if images is None:
        return ""
    number, state = images["per_sequence"], "frozen" if workload.get("freeze_tower") else "trained"
    size = f"{images['height']:,} x {images['width']:,} pixels"
    if denoised:
        frames = images.get("num_frames", 1)
        return f"{frames} frames of {size}" if frames > 1 else f"images of {size}"
    language = ", frozen language model" if workload.get("freeze_language") else ""
    return f"{number} {'image' if number == 1 else 'images'} of {size} per sequence, {state} vision tower{language}"
