"""The step of a graph network: the whole graph once, in as many chunks as are asked for."""

from __future__ import annotations

from ...cost_models.specs.graph import Graph
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ...cost_models.techniques.registry import TECHNIQUES
from ...errors import InputError
from .model_changes import NO_FROZEN_COPY
from .schema import Request

GNNPIPE = "gnnpipe"
_MULTIPLE = 64  # vertices of a chunk, so that ranks can part them


def workload_of_graph(model: ModelSpec, graph: Graph, request: Request) -> Workload:
    """The workload of a step over all vertices: a sequence for each chunk, one without `gnnpipe`.

    Chunks are filled to a multiple of 64 vertices. Raises InputError for what is not priced.
    """
    work = request.workload
    _check_priced(model, request)
    knobs = work.techniques.get(GNNPIPE)
    chunks = 1 if knobs is None else int(TECHNIQUES[GNNPIPE].settings(knobs)["chunks"])
    if chunks * _MULTIPLE > graph.vertices:
        raise InputError(f"{GNNPIPE}: {chunks} chunks of the {graph.vertices:,} vertices of {model.name} are less than "
                         f"{_MULTIPLE} each", hint=f"`--technique {GNNPIPE}:chunks={graph.vertices // _MULTIPLE}`, or "
                         "fewer")  # fmt: skip
    length = -(-graph.vertices // (chunks * _MULTIPLE)) * _MULTIPLE
    sized = work.model_copy(update={"seq_len": length, "global_batch": chunks})
    return request.model_copy(update={"workload": sized}).to_workload()


def _check_priced(model: ModelSpec, request: Request) -> None:
    work = request.workload
    reasons = {
        "seq_len: its step is the whole graph": work.seq_len is not None,
        f"global_batch: its step is the whole graph, in the chunks of `--technique {GNNPIPE}`":
            work.global_batch is not None,
        "source_len: it has no encoder": work.source_len is not None,
        "images: it sees none": work.images is not None,
        "optimizer muon is not priced for it": work.optimizer == "muon",
        "adapters are not priced for it": work.train.lora is not None,
        "train_layers is not priced for it": work.train.last_layers is not None,
        "lengths: its step is the whole graph": bool(work.lengths),
        "mtp_layers: it has none": bool(work.mtp_layers),
        "freeze_tower: it has none": work.freeze_tower,
        "freeze_language: it has no vision tower that would train": work.freeze_language,
        NO_FROZEN_COPY: work.reference,
        "reward_model: it has no logits in whose place values would be": work.reward_model,
    }
    if asked := [reason for reason, applies in reasons.items() if applies]:
        raise InputError(f"{model.name}, a graph network: {'; '.join(asked)}", hint="leave it out")
