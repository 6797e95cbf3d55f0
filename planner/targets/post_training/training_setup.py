"""A call of post-training that trains, as the options of a framework of training know it."""

from __future__ import annotations

from dataclasses import replace

from ....cost_models.layouts import Layout
from ....cost_models.quantities.even_stages import chunk_sizes
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...document.candidate import Candidate, Chunk
from ...document.placement import Placement
from ...document.rl_plan import RlCall
from ..setup import Setup
from .setup import RlSetup, layout_of


def trained_model(model: ModelSpec) -> ModelSpec:
    """A model as post-training trains it: without prediction modules, and without a loss that balances experts."""
    return replace(model, mtp_layers=0, mtp_pattern=(), moe_aux_loss_coeff=0.0)


def training_setup(setup: RlSetup, call: RlCall) -> Setup:
    """A call that trains. Reading what only the plan of a training step knows raises AttributeError."""
    layout, model = layout_of(call), trained_model(setup.models[call.role])
    nodes, per_node = setup.pool(call)
    work = Workload(seq_len=call.seq_len or 0, global_batch=call.sequences or 0, optimizer=setup.optimizer)
    candidate = Candidate.model_construct(
        choice=setup.candidate.choice, layout_id=call.layout_id or "", layout=layout.as_dict(),
        stages=_chunks(layout, model.num_layers, setup.gpu), placement=Placement(), spread=None, layerwise=None,
    )  # fmt: skip
    return Setup(
        plan_id=setup.plan_id, tool=setup.tool, choice=setup.candidate.choice, candidate=candidate, layout=layout,
        model=model, workload=work, stack=setup.stack, switches={}, nodes=setup.nodes, capability=setup.capability,
        gpu_memory_bytes=setup.gpu_memory_bytes, num_nodes=nodes, gpus_per_node=per_node, domain=per_node,
    )  # fmt: skip


def _chunks(layout: Layout, layers: int, gpu: str) -> tuple[Chunk, ...]:
    """Even stages, in the order of the model."""
    sizes = chunk_sizes(layers, layout.pp * layout.vpp)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        Chunk(stage=i % layout.pp, chunk=i, layers=(start, start + size - 1) if size else (), embedding=i == 0,
              head=i == len(sizes) - 1, gpu=gpu, recompute_layers=layout.recompute_layers)
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )  # fmt: skip
