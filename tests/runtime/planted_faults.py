"""Mistakes that a sceptic would plant in the runtime, and the small job under which each of them matters.

A fault stands for a changed line of the sources: it is planted in every process, that of the reference too. So one in a
function that both runs share shows in both, and can only be seen by what is independent of it. None is planted in what
compares: `runtime/reference.py`, `runtime/rehearsal/parity.py`, and the part of `runtime/preparation.py` for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Lora
from meshwright.runtime import optimizer as optimizers
from meshwright.runtime.job import Job
from meshwright.runtime.model import balancing, blocked, router
from meshwright.runtime.model.adapters import Adapters
from meshwright.runtime.model.balancing import Balancing
from meshwright.runtime.model.block import Block, Context
from meshwright.runtime.model.blocked import Scores
from meshwright.runtime.model.decoder import DecoderChunk, plainly
from meshwright.runtime.model.dispatch import Dispatch
from meshwright.runtime.model.embedding import TokenTable
from meshwright.runtime.model.experts import Experts
from meshwright.runtime.parallel import key_exchange, recompute
from meshwright.runtime.parallel.comm import Pending
from meshwright.runtime.parallel.pipeline import Pipeline
from meshwright.runtime.parallel.sharding import Groups, Unit, Weights, gradient_norm, squared_norm
from meshwright.runtime.trainer import Step, Trainer
from torch import Tensor

from .jobs import gpt, job, llama, moe

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def everywhere(patch: Patch, old: Any, new: Any) -> None:
    """A function of a module, for all modules that have imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("meshwright."):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    patch.setattr(module, attribute, new)


# ---- gradients


def reduced_without(patch: Patch, group: str, kind: str = "") -> None:
    """Units whose names end in `kind` reduce their gradients without one of their groups."""
    before, without = Trainer._groups, cast(dict[str, Any], {group: None})

    def groups(self: Trainer, part: str, of: str) -> Groups:
        every = before(self, part, of)
        return replace(every, **without) if f"{part} {of}".endswith(kind) else every

    patch.setattr(Trainer, "_groups", groups)


def scaled_when_reduced(patch: Patch, factor: Callable[[Unit], float]) -> None:
    before = Unit.reduce
    patch.setattr(Unit, "reduce", lambda self: before(self).mul_(factor(self)))


def gradients_averaged_over_dp(patch: Patch) -> None:
    """Gradients, which are sums by then, are divided by the ranks that add them up."""
    scaled_when_reduced(patch, lambda unit: 1 / (unit.groups.shard.size * unit.groups.replicate.size))


def gradients_averaged_over_tp(patch: Patch) -> None:
    """Gradients of weights that tp ranks replicate are divided by tp."""
    scaled_when_reduced(patch, lambda unit: 1 / (unit.groups.partial.size if unit.groups.partial else 1))


def gradients_times_micro_batches(patch: Patch) -> None:
    """The loss that is minimised is not divided by the number of micro-batches."""
    before = Pipeline._forward

    def forward(self: Pipeline, action: Any, batch: Any) -> Any:
        mean = before(self, action, batch)
        if self.chunks[action.chunk].head is not None:
            self._flights[action[1:]].root = self._flights[action[1:]].root * self.num_micro_batches
        return mean

    patch.setattr(Pipeline, "_forward", forward)


def norms_not_reduced_over_tp(patch: Patch) -> None:
    """Under sequence parallelism each tp rank keeps its own part of the gradients of norms."""
    reduced_without(patch, "partial")


def tied_embedding_not_reduced(patch: Patch) -> None:
    """First and last stage do not add up the gradients of tied embeddings."""
    reduced_without(patch, "tied")


def experts_not_reduced(patch: Patch) -> None:
    """Ranks that hold the same experts do not add up their gradients."""
    reduced_without(patch, "replicate", " expert")


def router_of_one_rank(patch: Patch) -> None:
    """The router learns from the tokens of the first tp rank alone."""
    before = Experts.__init__

    def init(self: Experts, context: Context, spec: MixtureOfExperts, hidden: int) -> None:
        before(self, context, spec, hidden)
        self.tensor("router").register_hook(lambda grad: grad * float(context.group.rank == 0))  # type: ignore[no-untyped-call]

    patch.setattr(Experts, "__init__", init)


def shard_of_the_next_rank(patch: Patch) -> None:
    """Each rank updates its shard with the gradient of the next rank's."""
    before = Unit._scattered

    def scattered(self: Unit, is_last: bool) -> Iterator[Pending]:
        if self._whole is not None:
            self._whole = self._whole.roll(self.part)
        return before(self, is_last)

    patch.setattr(Unit, "_scattered", scattered)


def gradient_sums_in_bf16(patch: Patch) -> None:
    """Where weights are bf16, gradients are summed over micro-batches in bf16."""
    before = Unit._taker

    def taker(self: Unit, index: int) -> Callable[[Tensor], None]:
        take = before(self, index)

        def rounded(parameter: Tensor) -> None:
            take(parameter)
            if parameter.dtype == torch.bfloat16:
                self.gradient.copy_(self.gradient.bfloat16())

        return rounded

    patch.setattr(Unit, "_taker", taker)


def small_gradient_off(patch: Patch) -> None:
    """The gradient of the first norm of each layer is 0.1 % too large."""
    before = Unit.reduce

    def reduce(self: Unit) -> Tensor:
        part = before(self)
        if self.name.startswith("layers."):
            norm = self.sizes.index(min(self.sizes))
            part[sum(self.sizes[:norm]) :][: self.sizes[norm]].mul_(1.001)
        return part

    patch.setattr(Unit, "reduce", reduce)


# ---- updates


def updated_by(patch: Patch, clip: Callable[[Trainer, list[Tensor], float], None], steps: int = 1) -> None:
    """`Trainer.update` with another way to clip, or more steps of the optimizer."""

    def update(self: Trainer) -> float:
        with torch.no_grad():
            parts = [unit.reduce() for unit in self.units]
            norm = gradient_norm(self.units, parts, self.mesh["world"], self.device)
            clip(self, parts, norm)
        for unit in self.units:
            unit.hand_over()
        for _ in range(steps):
            self.optimizer.step()
        for unit in self.units:
            unit.updated()
        return norm

    patch.setattr(Trainer, "update", update)


def clipped_by_each_rank(patch: Patch) -> None:
    """Each rank clips by the norm of the gradients that it holds."""

    def clip(self: Trainer, parts: list[Tensor], norm: float) -> None:
        mine = float(torch.stack([squared_norm(part) for part in parts]).sum().sqrt())
        optimizers.clip_(parts, mine, self.job.clip)

    updated_by(patch, clip)


def clipped_by_the_largest_element(patch: Patch) -> None:
    """Gradients are clipped by their largest element instead of their norm."""

    def clip(self: Trainer, parts: list[Tensor], norm: float) -> None:
        largest = torch.stack([part.abs().max() for part in parts]).max()
        everyone = self.mesh["world"].all_reduce(largest, torch.distributed.ReduceOp.MAX)
        optimizers.clip_(parts, 10 * float(everyone), self.job.clip)

    updated_by(patch, clip)


def not_clipped(patch: Patch) -> None:
    """Gradients are never clipped."""
    updated_by(patch, lambda self, parts, norm: None)


def clipped_too_far(patch: Patch) -> None:
    """The function that scales gradients down does it twice."""
    before = optimizers.clip_

    def clip(gradients: Any, norm: float, limit: float | None) -> None:
        every = list(gradients)
        before(every, norm, limit)
        before(every, norm, limit)

    everywhere(patch, before, clip)


def optimizer_steps_twice(patch: Patch) -> None:
    """The optimizer takes two steps with one gradient."""
    updated_by(patch, lambda self, parts, norm: optimizers.clip_(parts, norm, self.job.clip), steps=2)


def other_adamw(patch: Patch, change: Callable[[torch.optim.Optimizer], None]) -> None:
    """The function that makes all optimizers makes another AdamW."""
    before = optimizers.optimizer_of

    def optimizer_of(name: str, *arguments: Any, **how: Any) -> torch.optim.Optimizer:
        optimizer = before(name, *arguments, **how)
        if name == "adamw":
            change(optimizer)
        return optimizer

    everywhere(patch, before, optimizer_of)


def no_bias_correction(patch: Patch) -> None:
    """AdamW's moments start as if they had seen a hundred steps of zeros."""

    def late(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                zeros = torch.zeros_like(parameter)
                optimizer.state[parameter] = {"step": torch.tensor(100.0), "exp_avg": zeros,
                                              "exp_avg_sq": zeros.clone()}  # fmt: skip

    other_adamw(patch, late)


def no_weight_decay(patch: Patch) -> None:
    """AdamW has no weight decay."""

    def without(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0

    other_adamw(patch, without)


def master_weights_in_bf16(patch: Patch) -> None:
    """Where weights are bf16, the optimizer's copy of them is rounded to bf16 after each step."""
    before = Unit.updated

    def updated(self: Unit) -> None:
        if self.flat.dtype == torch.bfloat16:
            with torch.no_grad():
                self.master.copy_(self.master.bfloat16())
        before(self)

    patch.setattr(Unit, "updated", updated)


def stale_gathered_weights(patch: Patch) -> None:
    """ZeRO-3 keeps the gathered rows of the embedding, and uses them in the next steps."""
    before = Weights.release
    patch.setattr(Weights, "release", lambda self: None if self.name.startswith("embedding") else before(self))


# ---- data, losses and positions


def loss_averaged_over_dp(patch: Patch) -> None:
    """The loss that is shown is divided by dp once more."""
    before = Trainer.step

    def step(self: Trainer, index: int, **how: Any) -> Step:
        result = before(self, index, **how)
        return replace(result, loss=result.loss / self.job.layout.dp)

    patch.setattr(Trainer, "step", step)


def data_shifted_by_one(patch: Patch) -> None:
    """The second dp rank reads its tokens one further."""
    before = Trainer._share

    def share(self: Trainer, tokens: Tensor, part: str) -> Any:
        return before(self, tokens.roll(-1, 1) if self.mesh.coords.dp == 1 else tokens, part)

    patch.setattr(Trainer, "_share", share)


def rotary_positions_off(patch: Patch) -> None:
    """The last cp rank turns its queries and keys one token too far."""
    before = Context.positions

    def positions(self: Context, seq_len: int) -> Tensor:
        last = self.cp is not None and self.cp.group.rank == self.cp.group.size - 1
        return before(self, seq_len) + int(last)

    patch.setattr(Context, "positions", positions)


# ---- attention over cp


def second_hop_of_the_ring(patch: Patch) -> None:
    """The ring's second hop brings the keys and values of the first once more."""
    before = key_exchange.Ring.parts

    def parts(self: Any, local: Tensor) -> Iterator[key_exchange.PartialSum]:
        kept = local
        for hop, (source, part) in enumerate(before(self, local)):
            yield source, kept if hop == 2 else part
            kept = part

    patch.setattr(key_exchange.Ring, "parts", parts)


def causal_mask_off_by_one(patch: Patch) -> None:
    """The first query of a late chunk does not see the keys of the ranks behind."""
    before = key_exchange._seen

    def seen(rank: int, source: int, lengths: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        for rows, columns in before(rank, source, lengths):
            yield (rows if source <= rank else slice(rows.start + 1, rows.stop)), columns

    everywhere(patch, before, seen)


# ---- pipelines and recomputation


def gradients_of_the_middle_rounded(patch: Patch) -> None:
    """Stages in the middle send gradients on in bf16."""
    before = Pipeline._send

    def send(self: Pipeline, tensor: Tensor, direction: str, action: Any) -> None:
        middle = 0 < self.mesh.coords.stage < max(self.devices)
        rounded = tensor.bfloat16().to(tensor.dtype) if middle and direction == "backward" else tensor
        before(self, rounded, direction, action)

    patch.setattr(Pipeline, "_send", send)


def chunks_in_the_wrong_order(patch: Patch) -> None:
    """The two chunks of each stage run each other's layers."""
    before = Pipeline.__init__

    def init(self: Pipeline, *arguments: Any) -> None:
        before(self, *arguments)
        first, second = self.chunks
        first.layers, second.layers = second.layers, first.layers
        first.run = second.run = plainly

    patch.setattr(Pipeline, "__init__", init)


def recomputed_with_other_weights(patch: Patch) -> None:
    """A layer that is recomputed has weights that are 0.1 % larger then."""
    before = DecoderChunk._plain

    def plain(self: DecoderChunk, layer: torch.nn.Module) -> Callable[[Tensor], Tensor]:
        forward, weight, runs = before(self, layer), next(layer.parameters()), [0]

        def run(x: Tensor) -> Tensor:
            runs[0] += 1
            if runs[0] == 1:
                return forward(x)
            weight.data.mul_(1.001)
            out = forward(x)
            weight.data.div_(1.001)
            return out

        return run

    def whole(self: DecoderChunk, layer: torch.nn.Module) -> Callable[[Tensor], Tensor]:
        function = plain(self, layer)
        return lambda x: recompute.whole(function, x)

    patch.setattr(DecoderChunk, "_whole", whole)


# ---- experts and adapters


def router_bias_ignored(patch: Patch) -> None:
    """The router has no bias."""
    before = Block.maybe
    patch.setattr(Block, "maybe", lambda self, name: None if name == "router_bias" else before(self, name))


def ties_of_the_router(patch: Patch) -> None:
    """The router compares its scores in bf16, where many are equal."""
    before = router._eligible
    patch.setattr(router, "_eligible", lambda spec, scores: before(spec, scores).bfloat16())


def other_tokens_dropped(patch: Patch) -> None:
    """An expert that is full takes its first tokens instead of those with the largest weights."""
    def within(weights: Tensor, chosen: Tensor, experts: int, capacity: int) -> tuple[Tensor, Tensor]:
        table = weights.new_zeros(len(weights), experts).scatter(1, chosen, weights).t()
        source = (table > 0).int().sort(dim=1, descending=True, stable=True).indices[:, :capacity]
        return table.gather(1, source).flatten(), source.flatten()

    everywhere(patch, router.within_capacity, within)


def results_in_wrong_rows(patch: Patch) -> None:
    """The first ep rank takes the result of each token for that of the next."""
    before = Dispatch.back

    def back(self: Dispatch, out: Tensor) -> Tensor:
        rows = before(self, out)
        return rows.roll(1, 0) if self.group.ep.rank == 0 else rows

    patch.setattr(Dispatch, "back", back)


def balancing_loss_of_one_rank(patch: Patch) -> None:
    """The second rank has no balancing loss."""
    before = Balancing.loss

    def loss(self: Balancing, *arguments: Any) -> Tensor:
        second = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
        return before(self, *arguments) * (0.0 if second else 1.0)

    patch.setattr(Balancing, "loss", loss)


def loads_not_summed_over_cp(patch: Patch) -> None:
    """The loads of experts are those of the tokens of one cp rank."""
    before = balancing.loads
    everywhere(patch, before, lambda chosen, experts, dtype, groups: before(chosen, experts, dtype, groups[:1]))


def loads_of_single_sequences(patch: Patch) -> None:
    """The loads of experts are those of a sequence instead of a micro-batch."""
    before = Balancing.loss
    patch.setattr(Balancing, "loss", lambda self, *arguments: before(replace(self, per_sequence=True), *arguments))


def balancing_loss_twice_when_recomputed(patch: Patch) -> None:
    """A layer that is recomputed adds its balancing loss in both forward passes."""
    before = DecoderChunk._whole

    def whole(self: DecoderChunk, layer: torch.nn.Module) -> Callable[[Tensor], Tensor]:
        for block in layer.modules():
            if isinstance(block, Experts) and block.context.balancing == self.context.balancing is not None:
                twice = replace(self.context.balancing, per_token=2 * self.context.balancing.per_token)
                block.context = replace(block.context, balancing=twice)
        return before(self, layer)

    patch.setattr(DecoderChunk, "_whole", whole)


def balancing_loss_times_micro_batches(patch: Patch) -> None:
    """The balancing loss is the sum over micro-batches, not their mean."""
    before = Balancing.of.__func__  # type: ignore[attr-defined]
    patch.setattr(Balancing, "of", classmethod(lambda cls, model, tokens: before(cls, model, model.max_positions)))


def adapters_not_scaled(patch: Patch) -> None:
    """What adapters add is not divided by their rank."""
    before = Adapters.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Adapters], lora: Lora, alpha: float | None) -> Adapters:
        adapters: Adapters = before(cls, lora, alpha)
        return replace(adapters, scale=float(lora.rank if alpha is None else alpha))

    patch.setattr(Adapters, "of", classmethod(of))


def adapters_added_twice(patch: Patch) -> None:
    """The product of B that is added to a weight's product is twice as large."""
    before = Block._widened
    patch.setattr(Block, "_widened", lambda self, *arguments: 2 * before(self, *arguments))


# ---- what single families have


def window_ignored(patch: Patch) -> None:
    """Windows do not cut."""
    patch.setattr(Scores, "cuts", lambda self, length: False)


def softcap_ignored(patch: Patch) -> None:
    """Scores are not capped."""
    before = blocked._scores
    patch.setattr(blocked, "_scores",
                  lambda q, k, part, how, *beside: before(q, k, part, replace(how, softcap=None), *beside))  # fmt: skip


def sinks_ignored(patch: Patch) -> None:
    """Sinks take no share of the softmax."""
    before = blocked.blocked
    everywhere(patch, before, lambda q, k, v, how, sinks=None, bias=None, padding=None:
               before(q, k, v, None, how, bias, padding))  # fmt: skip


def embeddings_not_scaled(patch: Patch) -> None:
    """Embeddings are not multiplied by the model's factor."""
    before = TokenTable.look_up

    def look_up(self: TokenTable, tokens: Tensor) -> Tensor:
        self.scale = 1.0
        return before(self, tokens)

    patch.setattr(TokenTable, "look_up", look_up)


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    plant: Plant  # its docstring is the sentence
    layout_id: str = ""  # of the small job; none where a family is compared
    model: Callable[[], ModelSpec] = llama  # of the small job
    changes: Mapping[str, Any] = field(default_factory=dict)  # options of the small job
    family: str | None = None  # a case of test_families: blocks that the reference shares are compared there

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", " ")

    @property
    def job(self) -> Job:
        """As planned: bf16, AdamW, gradients that are clipped."""
        how = {"dtype": "bf16", "optimizer": "adamw", "learning_rate": 3e-4, "clip": 1.0, **self.changes}
        return job(self.layout_id, self.model(), stack_changes={"sharded_states": "zero"}, **how)


def balanced() -> ModelSpec:
    """Mixtral with a balancing loss."""
    return replace(moe(), moe_aux_loss_coeff=0.1)


def capped() -> ModelSpec:
    """Mixtral whose experts take fewer tokens than choose them."""
    model = moe()
    block = model.kinds[0].feed_forward
    if not isinstance(block, MixtureOfExperts):
        raise TypeError("no experts")
    return replace(model, kinds=(replace(model.kinds[0], feed_forward=replace(block, capacity_factor=0.75)),))


_LORA = {"lora": Lora(rank=4, targets=("q", "k", "v", "o"))}
FAULTS = (
    Fault(gradients_averaged_over_dp, "dp2-mbs1-z1-rnone"),
    Fault(gradients_averaged_over_tp, "tp2-dp1-mbs1-z0-rnone"),
    Fault(gradients_times_micro_batches, "pp2-dp1-mbs1-z0-rnone"),
    Fault(norms_not_reduced_over_tp, "tp2-dp1-mbs1-z0-rnone"),
    Fault(tied_embedding_not_reduced, "pp2-dp1-mbs1-z0-rnone", gpt),
    Fault(experts_not_reduced, "dp4-ep2-mbs1-z0-rnone", moe),
    Fault(router_of_one_rank, "tp2-dp1-mbs1-z0-rnone", moe),
    Fault(shard_of_the_next_rank, "dp2-mbs1-z2-rnone"),
    Fault(gradient_sums_in_bf16, "dp1-mbs1-z0-rnone"),
    Fault(small_gradient_off, "dp2-mbs1-z0-rnone"),
    Fault(clipped_by_each_rank, "dp2-mbs1-z1-rnone"),
    Fault(clipped_by_the_largest_element, "dp2-mbs1-z1-rnone"),
    Fault(not_clipped, "dp2-mbs1-z1-rnone"),
    Fault(clipped_too_far, "dp2-mbs1-z1-rnone"),
    Fault(optimizer_steps_twice, "dp2-mbs1-z1-rnone"),
    Fault(no_bias_correction, "dp2-mbs1-z1-rnone"),
    Fault(no_weight_decay, "dp2-mbs1-z1-rnone"),
    Fault(master_weights_in_bf16, "dp2-mbs1-z1-rnone"),
    Fault(stale_gathered_weights, "dp2-mbs1-z3-rnone"),
    Fault(loss_averaged_over_dp, "dp2-mbs1-z0-rnone"),
    Fault(data_shifted_by_one, "dp2-mbs1-z0-rnone"),
    Fault(rotary_positions_off, "cp2r-dp1-mbs1-z0-rnone"),
    Fault(second_hop_of_the_ring, "cp3r-dp1-mbs1-z0-rnone", changes={"seq_len": 24}),
    Fault(causal_mask_off_by_one, "cp2r-dp1-mbs1-z0-rnone"),
    Fault(gradients_of_the_middle_rounded, "pp3-dp1-mbs1-z0-rnone"),
    Fault(chunks_in_the_wrong_order, "pp2-vpp2-dp1-mbs1-z0-rnone"),
    Fault(recomputed_with_other_weights, "dp1-mbs1-z0-rfull"),
    Fault(results_in_wrong_rows, "dp2-ep2-mbs1-z0-rnone", moe),
    Fault(other_tokens_dropped, "tp2-dp1-mbs1-z0-rnone", capped),
    Fault(balancing_loss_of_one_rank, "dp2-mbs1-z1-rnone", balanced),
    Fault(loads_not_summed_over_cp, "cp2r-dp1-mbs1-z0-rnone", balanced),
    Fault(loads_of_single_sequences, "dp1-mbs2-z0-rnone", balanced),
    Fault(balancing_loss_twice_when_recomputed, "dp1-mbs1-z0-rfull", balanced),
    Fault(balancing_loss_times_micro_batches, "pp2-dp1-mbs1-z0-rnone", balanced),
    Fault(adapters_not_scaled, "tp2-dp1-mbs1-z0-rnone", changes=_LORA),
    Fault(adapters_added_twice, "tp2-dp1-mbs1-z0-rnone", changes=_LORA),
    Fault(router_bias_ignored, family="gpt_oss"),
    Fault(ties_of_the_router, family="deepseek_v3"),
    Fault(window_ignored, family="mistral"),
    Fault(softcap_ignored, family="gemma2"),
    Fault(sinks_ignored, family="gpt_oss"),
    Fault(embeddings_not_scaled, family="gemma"),
)
