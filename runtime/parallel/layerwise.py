"""The groups of each part's strategy, and the resharding from the previous part.

If all parts have one layout, there is one mesh and no resharding.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from ...cost_models.layouts import CP_ALGORITHMS, RECOMPUTE_MODES, Layout
from ...planner.document.candidate import Chunk
from ..job import Job, dropped_modules
from ..model.balancing import Balancing
from ..model.block import Context, Numerics
from ..model.dispatch import ExpertGroup
from .comm import Group
from .context_parallel import ContextParallel
from .encoder_stages import stages_with_copies, tokens_sent
from .mesh import Mesh
from .offload import Offload
from .recompute import Recompute
from .resharding import Cut, Resharding, block_size
from .strategies import EMBEDDING, parts_of


class Parts:
    """Meshes and contexts by the name of a part (`embedding`, `layers.3`, `head`; see `job.strategy`).

    All ranks must construct it at the same time, because all ranks create all groups.
    """

    def __init__(self, job: Job, mesh: Mesh, device: torch.device, dtype: torch.dtype, *, fused: bool) -> None:
        self.job = job
        self.offload = Offload() if job.offloads_activations else None
        self._meshes = {layout: mesh if layout == job.layout else mesh.of(layout) for layout in job.layouts}
        self._contexts = {layout: self._context(layout, device, dtype, fused) for layout in job.layouts}
        cuts = job.strategies.cuts if job.strategies is not None else ()
        copies = stages_with_copies(job)
        across = {stages: mesh.across(job.layout, stages) for stages in dict.fromkeys(copies.values())}
        self._tied = {part: across[stages] for part, stages in copies.items()}
        self._blocks = {cut: mesh.block(block_size(*cut), job.layout.pp) for cut in cuts}

    def mesh(self, part: str) -> Mesh:
        return self._meshes[self.job.strategy(part)]

    def tied(self, part: str) -> Group | None:
        """Ranks of stages that have a copy each of a part's tied weights; None where one stage has them."""
        if self.job.model.encoder is not None:
            return self._tied.get(part)
        return self.mesh(part)["tied"] if self.job.devices[0] != self.job.devices[-1] else None

    def context(self, part: str) -> Context:
        return self._contexts[self.job.strategy(part)]

    def _context(self, layout: Layout, device: torch.device, dtype: torch.dtype, fused: bool) -> Context:
        job, mesh = self.job, self._meshes[layout]
        algorithm = CP_ALGORITHMS[layout.cp_algorithm]
        cp = ContextParallel(mesh["cp"], algorithm, fused) if layout.cp > 1 else None
        entire = job.strategies is not None and RECOMPUTE_MODES[layout.recompute] == "full"
        recompute = Recompute(dropped_modules(layout), entire=entire, offload=self.offload)
        experts = ExpertGroup(mesh["ep"], mesh["etp"], job.stack.moe_imbalance)
        return Context(mesh["tp"], experts, dtype, device, Numerics.of(job.model), recompute, fused, cp,
                       job.adapters, job.balances_experts,
                       Balancing.of(job.model, job.tokens_per_step))  # fmt: skip

    def _cut(self, part: str) -> Cut:
        layout = self.job.strategy(part)
        return Cut(parts_of(layout), layout.micro_batch, self.job.seq_len // parts_of(layout))

    def shape_after(self, part: str) -> tuple[int, int, int]:
        """Shape of the activations after a part: [micro-batch, tokens, hidden]."""
        cut = self._cut(part)
        return cut.sequences, cut.length, self.job.model.hidden

    def shapes(self) -> list[tuple[int, int, int]]:
        """Shapes of the output of every chunk of the model."""
        if self.job.source_len is not None:
            sequences, _, width = self.shape_after(EMBEDDING)
            return [(sequences, tokens // self.job.layout.tp, width) for tokens in tokens_sent(self.job)]
        out, last = [], EMBEDDING
        for chunk in self.job.chunks:
            last = (self.job.parts_of(chunk) or [last])[-1]
            out.append(self.shape_after(last))
        return out

    def reshardings(self, chunk: Chunk) -> dict[str, Resharding]:
        """Part of a chunk -> resharding before it, where the previous part splits sequences differently."""
        every = [part for other in self.job.chunks for part in self.job.parts_of(other)]
        mine, out = self.job.parts_of(chunk), {}
        for before, after in pairwise(every):
            cuts = self._cut(before), self._cut(after)
            if after in mine and cuts[0].parts != cuts[1].parts:
                block = self._blocks[cuts[0].parts, cuts[1].parts]
                out[after] = Resharding(block, *cuts, self.job.model.hidden)
        return out
