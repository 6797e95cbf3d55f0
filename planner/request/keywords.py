"""The fields of a request as keyword arguments and flags: flat names, their types, and their place in the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from ...cost_models.specs.workload import OptimizerName, Precision
from ...profiles.io.document import FieldPath


class RequestFields(TypedDict, total=False):
    """Keywords of `plan` and `evaluate`. All but `model`, and either `cluster` or `gpu` and `gpus`, may be left out;
    None means the same. Quantities take text with a unit."""

    model: str | Path | Mapping[str, Any] | None
    """A catalogue name, a config.json or its folder, a model file, or the description itself."""
    cluster: str | Path | Mapping[str, Any] | None
    """Nodes by name and number (`dgx-h100:2`), several groups joined by `+`, a cluster file, or the description."""
    gpu: str | None
    """The GPUs: with `gpus` in place of `cluster`, else instead of those that the nodes usually have."""
    gpus: int | None
    """How many GPUs there are."""
    exclude: str | Sequence[str | int] | None
    """Nodes of the cluster that are not planned on: names of its hosts (`gpu-[03-05]`), numbers from 0 (`0-2,7`), or a
    file with the output of `sinfo`, whose nodes that are not idle are left out [none]."""
    spot: str | Mapping[str, Any] | None
    """Nodes that may be taken back: mean time between interruptions of a node, and its price: `50h:15USD/h` [none]."""
    target: str | None
    """The framework that runs the plan [meshwright]; `any` for a plan that no framework limits."""
    stack: str | Path | Mapping[str, Any] | None
    """The software versions, by name or as a file [those of the target]."""
    fix: str | Sequence[str] | Mapping[str, Any] | None
    """Fields of the layout that are given: `{"tp": 8}` or `["tp=8"]`."""
    stages: str | Sequence[int] | None
    """`even` divides the layers evenly, by the closed form; `own` simulates the finalists and gives the best pipelines
    stages of their own (slower); else the chunks in the order of the model: their layers, `[3, 4, 4, 3]`, or their
    parts, `Et*3|(t*4|)*2t*3L` [`even`, but groups of nodes that differ are planned one by one, where `even` takes all
    for the weakest]."""
    top: int | None
    """How many layouts the plan lists [5]."""
    workload: Mapping[str, Any] | None
    """The whole workload as in a request file; the keywords below replace single fields of it."""

    seq_len: int | str | None
    """Tokens per sequence [8192, or as many positions as the model has if they are fewer]."""
    global_batch: int | str | Mapping[str, Any] | None
    """Sequences per step, or tokens: `4M tokens` [2^n, about 4M tokens]; with `max_len` documents, or tokens [512]."""
    lengths: str | Path | Mapping[int, float] | None
    """Document lengths: tokens -> share, a file, or the name of a sample [every document fills a sequence]."""
    max_len: int | str | None
    """Longest document, `192K`: each is a sequence with a degree of its own, longer ones are left out [packed]."""
    lengths_rule: Literal["hybrid", "dynamic"] | None
    """With `max_len`: the rule of the target that gives degrees, `dynamic` for Megatron's dev branch [hybrid]."""
    packed: bool | None
    """Whether several documents share a sequence; else they are padded [True]."""
    precision: Precision | None
    """Data type of matrix products [bf16]."""
    dtype: Precision | None
    """The same as `precision`."""
    optimizer: OptimizerName | None
    """The optimizer, with the data type of its states [adamw]."""
    train: str | Mapping[str, Any] | None
    """Trained parameters: `all`, or a mapping of `lora` and `last_layers` [all]."""
    lora: int | str | Mapping[str, Any] | None
    """Low-rank adapters: `16`, `16:q,v` or `16:q,v:nf4` (rank, projections, data type of the frozen weights)."""
    train_layers: int | None
    """Only the last so many layers train."""
    expert_capacity_factor: float | str | None
    """Routed experts take this many times their even share of a rank's tokens and drop the rest [no token dropped]."""
    moe_aux_loss_coeff: float | str | None
    """Factor of the balancing loss of each layer of experts, 0: none [that of the model's config]."""
    images: int | str | Mapping[str, Any] | None
    """Images of every sequence: `4@1024x768` (height x width in pixels) [none: the text model]; the image or video
    (`1@480x832x81`) that a diffusion transformer denoises."""
    source_len: int | None
    """Tokens that the encoder of an encoder-decoder model reads, `seq_len` are those of its decoder [as many]."""
    freeze_tower: bool | None
    """Whether the layers of the vision tower do not train; what projects their output does [False]."""
    freeze_language: bool | None
    """Whether the language model does not train: the projector alone, and the vision tower if it trains [False]."""
    reference: bool | None
    """Whether a frozen copy of the model scores every sequence before the loss, as in DPO [False]."""
    reward_model: bool | None
    """Whether a reward model is trained: one value per token in place of logits [False]."""
    rounding: Mapping[str, Any] | None
    """Tensors that are rounded in training, `{"weights": "forward", "inputs": "dynamic"}` [nothing]."""
    mtp_layers: int | None
    """Modules of multi-token prediction that are trained, 0: none [those of the model]."""
    total_tokens: int | float | str | None
    """Tokens of the whole run, for days and cost: `15T`."""
    objective: Literal["step", "cost", "memory"] | None
    """Minimise seconds per step, dollars per token, or bytes on the fullest GPU [step]."""
    max_memory: int | str | None
    """Limit on the bytes of each GPU: `70 GiB` [the memory of the GPU]."""
    headroom: int | str | None
    """Memory of each GPU that the chosen layout leaves free: `5%`, `4 GiB`, 0 for none [what published runs needed
    beyond their prediction; none beside `max_memory`]."""
    technique: str | Sequence[str] | Mapping[str, Any] | None
    """Techniques to train by, with their knobs: `diloco:period=50`."""


# Flat name -> place in the request. A test compares the names with those of RequestFields.
FLAT: dict[str, FieldPath] = {
    **{name: (name,) for name in ("model", "cluster", "gpu", "gpus", "exclude", "spot", "target", "stack", "fix",
                                     "stages", "top", "workload")},
    **{
        name: ("workload", name)
        for name in ("seq_len", "global_batch", "precision", "optimizer", "lengths", "max_len", "lengths_rule",
                     "packed", "total_tokens", "train", "expert_capacity_factor", "moe_aux_loss_coeff", "mtp_layers",
                     "images", "freeze_tower", "freeze_language", "reference", "reward_model", "rounding", "source_len",
                     "objective", "max_memory", "headroom")
    },
    "dtype": ("workload", "precision"),
    "technique": ("workload", "techniques"),
    "lora": ("workload", "train", "lora"),
    "train_layers": ("workload", "train", "last_layers"),
}  # fmt: skip
