"""One plan that experts tuned by hand: a row of a file of tuned plans, as a request, a layout and its stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ...errors import InputError, UnknownNameError
from ...profiles.cluster.load import load_cluster
from ...profiles.io import registry
from ...profiles.model.load import load_model
from ..request.fields import parse_images
from ..request.schema import ImagesRequest, LoraRequest, Request, Train, WorkloadRequest
from ..targets import adapters
from ..targets.facts import layout_of
from ..targets.megatron.options import LAYOUT
from ..targets.megatron.stages import pipeline_read
from ..targets.megatron_bridge.fields import renamed
from ..targets.megatron_bridge.wan import MOCK_VIDEO
from ..targets.options import Facts, Settings, Table
from .recipe_options import arguments_of, features_of, optimizer_of
from .row import RowReader

TARGET = "megatron-bridge"
_ADAPTERS = ("lora", "peft")  # tasks that train adapters, by Bridge's name of their scheme or of all of them
TASKS = ("pretrain", "sft", *_ADAPTERS)
_TABLE = Table(LAYOUT)
# Fields of a row that state how the ends of the pipeline differ.
_ENDS = ("account_embedding", "account_loss", "first_stage_layers", "last_stage_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a plan is outside the space."""

    # Name of the rule, equal for all plans that break it.
    rule: str
    # The rule with the numbers of the plan.
    text: str


@dataclass(frozen=True, kw_only=True)
class TunedPlan:
    """A row of a file of tuned plans."""

    id: str
    # Name of the model as the file has it.
    model: str
    # One of TASKS.
    task: str
    # Name of the accelerator in the catalogue.
    gpu: str
    num_gpus: int
    # As the recipe names it: bf16, mxfp8, ...
    precision: str
    # Why it cannot be launched as written; empty if it can.
    checks: tuple[str, ...]
    # Whether the model has a tower for images, of which rows state none.
    sees: bool = False
    # Why the model cannot be described; None if it can.
    undescribed: str | None = None
    refusal: Refusal | None = None
    # What is trained, and on which cluster; None without a layout.
    request: Request | None = None
    # Tokens per sequence, which may be more than the positions of the model.
    seq_len: int = 0
    layout: Layout | None = None
    # [chunk] layers, in the order of the model; None: one chunk.
    chunks: tuple[int, ...] | None = None
    # Switches of the software, as features of a published run.
    features: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def read_tuned_plan(row: RowReader) -> TunedPlan | None:
    """The plan of one row; None, with `row.problems` filled, where something is wrong."""
    if not isinstance(row.document.data, Mapping):
        row.fail((), "must be a mapping: one plan")
        return None
    node, gpu = _node(row)
    task = row.text("task")
    if task not in TASKS:
        row.fail(("task",), f"`{task}` is none of {', '.join(TASKS)}")
    checks = row.get("checks") or []
    if not isinstance(checks, list):
        row.fail(("checks",), "must be a list of texts")
    plan = TunedPlan(
        id=row.text("id"), model=row.text("model"), task=task, gpu=gpu, num_gpus=row.whole("num_gpus"),
        precision=row.text("precision"), checks=tuple(map(str, checks)),
    )  # fmt: skip
    model = _described(row)
    if isinstance(model, str):
        return replace(plan, undescribed=model)
    plan = replace(plan, sees=model.tower is not None)
    if plan.checks:
        return plan
    if plan.sees:
        row.assume("the language model alone, since rows state no images")
    optimizer = optimizer_of(row, model)
    settings, features = arguments_of(row, optimizer), features_of(row, optimizer, model)
    _check_degrees(row)
    facts = {"model.layers": model.num_layers, "model.mtp_layers": _mtp_layers(row, model)}
    plan = replace(plan, seq_len=_tokens(row, model, video := _video(row, model)), features=features)
    if row.problems or node is None:
        return None
    try:
        plan = replace(plan, chunks=_stages(row, settings, facts))
        if row.problems:
            return None
        plan = _in_words_of_plans(row, plan, model, node, settings, facts, video)
    except InputError as error:
        text = renamed(error.message)
        plan = replace(plan, refusal=Refusal(rule=text.partition(":")[0], text=text))
    return replace(plan, assumptions=tuple(dict.fromkeys(row.assumptions)))


def _node(row: RowReader) -> tuple[str | None, str]:
    """The usual node of the row's GPU, and the name of that."""
    name = row.text("gpu")
    try:
        entry = registry.gpu_entry(name) if name else None
    except UnknownNameError as error:
        row.fail(("gpu",), error.message, error.hint)
        entry = None
    if entry is None:
        return None, name
    number, node = row.whole("num_gpus"), entry.usual_node
    if node is None:
        row.fail(("gpu",), f"{entry.spec.name} has no usual node", "`meshwright show clusters` lists nodes")
    elif not row.problems:
        try:
            load_cluster(node, num_gpus=number)
        except InputError as error:
            row.fail(("num_gpus",), error.message, error.hint)
    return node, entry.spec.name


def _described(row: RowReader) -> ModelSpec | str:
    """The model by its Hugging Face name or the file's own; a sentence where the catalogue has neither."""
    names = [name for key in ("hf_id", "model") if (name := row.text(key, default=""))]
    for name in names:
        try:
            model, _ = load_model(name)
        except UnknownNameError:
            continue
        layers = row.whole("layers", default=model.num_layers)
        if layers != model.num_layers:
            row.fail(("layers",), f"must be {model.num_layers}, the layers of {model.name}, is {layers}")
        return model
    return f"the catalogue has no {' and no '.join(names)}"


def _video(row: RowReader, model: ModelSpec) -> ImagesRequest | None:
    """The video of a sequence of a diffusion transformer, which rows do not state: the mock latents of its recipes."""
    if model.diffusion is None:
        return None
    row.assume(f"a video of {MOCK_VIDEO}, the mock latents of Megatron-Bridge (not stated)")
    return ImagesRequest.model_validate(parse_images(MOCK_VIDEO))


def _tokens(row: RowReader, model: ModelSpec, video: ImagesRequest | None) -> int:
    """Tokens of a sequence: those of its video, or as many as the row states."""
    if video is None or model.diffusion is None:
        return row.whole("seq_len")
    return model.diffusion.tokens(video.height or 0, video.width or 0, video.num_frames or 1)


def _mtp_layers(row: RowReader, model: ModelSpec) -> int:
    return row.whole("mtp_layers", default=model.mtp_layers, least=0)


def _check_degrees(row: RowReader) -> None:
    """Degrees multiply to the GPUs, and micro-batches to the batch."""
    tp, cp, pp, dp = row.whole("tp"), row.whole("cp", default=1), row.whole("pp"), row.whole("dp")
    if not row.problems and tp * cp * pp * dp != row.whole("num_gpus"):
        text = f"tp {tp} x cp {cp} x pp {pp} x dp {dp} = {tp * cp * pp * dp}, but num_gpus is {row.whole('num_gpus')}"
        row.fail(("dp",), text, f"dp is num_gpus / (tp x cp x pp) = {row.whole('num_gpus') / (tp * cp * pp):g}")
    if row.problems or row.get("num_microbatches") is None:
        return
    number, size, batch = row.whole("num_microbatches"), row.whole("micro_batch"), row.whole("global_batch")
    if (product := number * size * dp) != batch:
        text = f"num_microbatches {number} x micro_batch {size} x dp {dp} = {product}, but global_batch is {batch}"
        row.fail(("num_microbatches",), text, f"global_batch / (micro_batch x dp) = {batch / (size * dp):g}")


def _stages(row: RowReader, settings: Settings, facts: Facts) -> tuple[int, ...] | None:
    """Layers of each chunk, as the stage string, the ends or an even split have them. Raises InputError where the row
    states no split, and the layers have no even one."""
    by_string = "--pipeline-model-parallel-layout" in settings
    place = ("pipeline_layout",) if by_string else ("vpp",) if "vpp" in row.document.data else ("pp",)
    pp, vpp = row.whole("pp"), row.whole("vpp", default=1)
    if pp == 1:
        return None
    try:
        read = pipeline_read(settings, {**facts, "pp": pp})
    except InputError as error:
        if not by_string and not any(row.get(name) for name in _ENDS):
            raise
        row.fail(place, renamed(error.message), renamed(error.hint or ""))
        return None
    if read["vpp"] != vpp:
        text = f"{pp * read['vpp']} chunks for pp {pp} x vpp {vpp} = {pp * vpp}"
        row.fail(place, text, "parts between two `|` are one chunk")
    stated = row.get("stage_layers")
    if stated is not None and stated != read["stages"]:
        row.fail(("stage_layers",), f"is {stated}, but pipeline_layout has {read['stages']}", "leave one of them out")
    return tuple(read["stages"])


def _in_words_of_plans(
    row: RowReader, plan: TunedPlan, model: ModelSpec, node: str, settings: Settings, facts: Facts,
    video: ImagesRequest | None,
) -> TunedPlan:  # fmt: skip
    """The plan with its layout and request. Raises InputError where an argument has no counterpart in plans."""
    for option in sorted(set(settings) - _TABLE.options):
        value = " ".join(map(str, settings[option] if isinstance(settings[option], list) else [settings[option]]))
        raise InputError(f"{option} {value} has no counterpart in a plan")
    if model.is_moe:
        settings = {**settings, "--num-experts": 1}  # that there are some: how many is the model's to say
        shared = max(block.shared_inner for block in model.feed_forwards if isinstance(block, MixtureOfExperts))
        facts = {**facts, "model.moe": {"shared_ffn": shared}}
    facts = {**facts, **_TABLE.read(settings, facts), "dp": row.whole("dp")}
    if row.text("variant", default="") == "hsdp":
        facts["replicas"] = _replicas(row, node)
    seq_len = min(plan.seq_len, model.max_positions)
    workload = WorkloadRequest(
        seq_len=seq_len if video is None else None, images=video, global_batch=row.whole("global_batch"),
        precision=facts["precision"], optimizer=facts["workload.optimizer"], train=_train(row, model),
        mtp_layers=_mtp_layers(row, model),
        lengths={seq_len: 1.0} if row.flag("packed") else None,
    )  # fmt: skip
    request = Request(model=model.name, cluster=node, gpus=plan.num_gpus, target=TARGET, workload=workload)
    return replace(plan, request=request, layout=layout_of(facts, plan.num_gpus))


def _replicas(row: RowReader, node: str) -> int:
    """Copies of the states under HSDP: one per domain of the fast link."""
    row.assume("HSDP shards within a domain of the fast link (its size is not stated)")
    domain = load_cluster(node, num_gpus=row.whole("num_gpus")).levels[0].size
    return row.whole("dp") // math.gcd(domain, row.whole("dp"))


def _train(row: RowReader, model: ModelSpec) -> Train:
    """The trained parameters. Adapters are those of `LoRA()` in Megatron-Bridge 067f987d.

    Raises InputError for a model whose modules of that class no plan adapts.
    """
    if row.flag("packed"):
        row.assume("packed documents are as long as the sequence (their lengths are not stated)")
    if row.text("task") not in _ADAPTERS:
        return Train()
    row.assume("adapters of rank 32 on all linear modules, the default of Megatron-Bridge (not stated)")
    facts = adapters.facts_of_core(32, "peft", adapters.ALL_OF_CORE, adapters.facts_of_model(model))
    return Train(lora=LoraRequest.model_validate(facts[adapters.LORA]))
