"""The step of a graph network: the whole graph once, in as many chunks as are asked for."""

from __future__ import annotations

from ...cost_models.specs.graph import Graph
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ...cost_models.techniques.registry import TECHNIQUES
from ...errors import InputError
from .model_changes import check_without_tokens
from .schema import Request, WorkloadRequest

GNNPIPE = "gnnpipe"
_MULTIPLE = 64  # vertices of a chunk, so that ranks can part them


def workload_of_graph(model: ModelSpec, graph: Graph, request: Request) -> Workload:
    """The workload of a step over all vertices: a sequence for each chunk, one without `gnnpipe`.

    Chunks are filled to a multiple of 64 vertices. Raises InputError for what is not priced.
    """
    work = request.workload
    _check_priced(model, work)
    knobs = work.techniques.get(GNNPIPE)
    chunks = 1 if knobs is None else int(TECHNIQUES[GNNPIPE].settings(knobs)["chunks"])
    if chunks * _MULTIPLE > graph.vertices:
        raise InputError(f"{GNNPIPE}: {chunks} chunks of the {graph.vertices:,} vertices of {model.name} are less than "
                         f"{_MULTIPLE} each", hint=f"`--technique {GNNPIPE}:chunks={graph.vertices // _MULTIPLE}`, or "
                         "fewer")  # fmt: skip
    length = -(-graph.vertices // (chunks * _MULTIPLE)) * _MULTIPLE
    sized = work.model_copy(update={"seq_len": length, "global_batch": chunks})
    return request.model_copy(update={"workload": sized}).to_workload()


def _check_priced(model: ModelSpec, work: WorkloadRequest) -> None:
    check_without_tokens(f"{model.name}, a graph network", work, {
        "seq_len: its step is the whole graph": work.seq_len is not None,
        f"global_batch: its step is the whole graph, in the chunks of `--technique {GNNPIPE}`":
            work.global_batch is not None,
        "source_len: it has no encoder": work.source_len is not None,
        "images: it sees none": work.images is not None,
        "lengths: its step is the whole graph": bool(work.lengths),
    })  # fmt: skip
