"""Every axis alone and every pair of them trains exactly what one process trains; planted faults are noticed.

Three axes at once and the remaining combinations are in parity_all.py (`make parity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities.gradients import reductions
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.runtime import reference
from meshwright.runtime.job import Job
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.dispatch import Dispatch
from meshwright.runtime.model.layer import DecoderLayer
from meshwright.runtime.model.mixer_block import MixerBlock
from meshwright.runtime.parallel import split_backward, tensor_parallel
from meshwright.runtime.parallel.comm import Pending
from meshwright.runtime.parallel.context_parallel import ContextParallel
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.parallel.recompute import _Recipe
from meshwright.runtime.parallel.schedules import custom_order
from meshwright.runtime.preparation import for_parity
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE, STATE_TOLERANCE, Parity, compare
from meshwright.runtime.rehearsal.pricing import ledger_of
from meshwright.runtime.rehearsal.run_states import RunStates
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Step, Trainer

from meshwright.errors import InputError

from ..fork import Break, fork, run
from ..jobs import (
    deepseek,
    falcon,
    gemma,
    gpt,
    gpt_oss,
    job,
    llama,
    mixers,
    moe,
    nemotron,
    olmo2,
    qwen_next,
    shared_experts,
)  # fmt: skip
from ..planted_faults import (
    Fault,
    Plant,
    clipped_too_far,
    master_weights_in_bf16,
    no_weight_decay,
    not_clipped,
    small_gradient_off,
)

MODELS = {"llama": llama, "gpt": gpt, "moe": moe, "shared": shared_experts, "deepseek": deepseek, "gemma": gemma,
          "gpt_oss": gpt_oss, "olmo2": olmo2, "falcon": falcon, "nemotron": nemotron, "qwen_next": qwen_next,
          "mixers": mixers}  # fmt: skip


def model_for(name: str, layout_id: str) -> ModelSpec:
    return MODELS[name](8 if "vpp" in layout_id else 4)


def parity_of(wanted: Job, broken: Break | None = None) -> Parity:
    """The check of a job. In its planned dtype the reference follows the run."""
    with TemporaryDirectory() as folder:
        states = None if wanted.dtype == "fp64" else RunStates(Path(folder))
        steps = run(wanted, broken, None if states is None else states.folder)
        expected = numbers(reference.train(wanted, states))
        return compare(numbers(steps), expected, None if states is None else states.differences)


def numbers(steps: Sequence[Step]) -> list[tuple[float, float]]:
    return [(step.loss, step.gradient_norm) for step in steps]


AXES = [
    "dp1-mbs2-z0-rnone", "dp2-mbs1-z0-rnone", "dp2-mbs1-z1-rnone", "dp2-mbs1-z2-rnone", "dp2-mbs1-z3-rnone",
    "dp4-sh2-mbs1-z1-rnone", "dp4-sh2-mbs1-z3-rnone", "tp2-dp1-mbs2-z0-rnone", "pp2-dp1-mbs2-z0-rnone",
    "pp2-gpipe-dp1-mbs1-z0-rnone", "pp2-vpp2-dp1-mbs1-z0-rnone", "pp2-zbh1-dp1-mbs1-z0-rnone",
    "pp2-zbv-vpp2-dp1-mbs2-z0-rnone", "pp2-dpv-vpp2-dp1-mbs1-z0-rnone", "dp1-mbs1-z0-rfull", "dp1-mbs1-z0-rfull2",
    "dp1-mbs1-z0-rsel", "dp1-mbs1-z0-rsel(norm)", "dp1-mbs1-z0-rsel(act)", "dp1-mbs1-z0-rsel(attn+norm+act)",
    "dp2-mbs1-z3-rsel(mlp)", "tp2-pp2-dp1-mbs1-z0-rsel(norm+act+mlp)", "pp2-zbh1-dp1-mbs1-z0-rsel(mlp)",
]  # fmt: skip
PAIRS = [
    "tp2-dp2-mbs1-z0-rnone", "tp2-dp2-mbs1-z3-rnone", "pp2-dp2-mbs1-z0-rnone", "pp2-dp2-mbs1-z2-rnone",
    "pp2-dp2-mbs1-z3-rnone", "tp2-pp2-dp1-mbs1-z0-rnone", "dp2-mbs1-z3-rsel(norm+act)", "dp2-mbs1-z3-rfull",
    "tp2-dp1-mbs1-z0-rsel(attn+norm+act)", "tp2-dp1-mbs1-z0-rfull", "pp2-dp1-mbs1-z0-rfull1",
    "pp2-vpp2-dp1-mbs1-z0-rsel(norm)", "tp2-pp2-zbh1-dp1-mbs1-z0-rnone", "pp2-zbv-vpp2-dp2-mbs1-z1-rnone",
    "pp2-zbh1-dp1-mbs1-z0-rfull1", "pp2-dpv-vpp2-dp1-mbs1-z0-rsel(attn+norm+act)",
]  # fmt: skip
OTHERS = [
    "gpt:tp2-dp1-mbs1-z0-rnone", "gpt:pp2-dp1-mbs1-z0-rnone", "gpt:pp2-dp2-mbs1-z2-rnone", "gpt:dp2-mbs1-z3-rsel(act)",
    "moe:dp2-mbs1-z3-rsel(act+moe)", "moe:tp2-dp1-mbs1-z0-rnone", "moe:tp2-dp2-mbs1-z1-rnone",
    "moe:pp2-dp1-mbs1-z0-rnone",
    "moe:dp2-ep2-mbs1-z0-rnone", "moe:dp2-ep2-mbs1-z3-rsel(act+moe)", "moe:tp2-dp1-ep2-mbs1-z0-rnone",
    "gpt:pp2-zbv-vpp2-dp1-mbs1-z0-rnone", "moe:pp2-zbv-vpp2-dp1-mbs1-z0-rnone",
    "llama:dp1-mbs1-z0-rnone-oopt", "llama:tp2-dp2-mbs1-z1-rnone-oopt", "gpt:pp2-dp2-mbs1-z3-rnone-oopt",
    "moe:tp2-dp2-ep4-mbs1-z1-rnone", "moe:pp2-dp2-ep2-mbs1-z2-rnone", "shared:tp2-dp2-ep2-mbs1-z3-rnone",
    "shared:tp2-dp1-ep2-mbs1-z0-rsel(moe+shared)", "shared:pp2-dp2-mbs1-z1-rsel(norm+shared)",
    "deepseek:dp1-mbs1-z0-rsel(attn+norm+mla)", "deepseek:dp2-ep2-mbs1-z3-rnone", "deepseek:cp2u-dp1-mbs1-z0-rsel(mla)",
    "deepseek:tp2-pp2-zbv-vpp2-dp1-ep2-mbs1-z0-rsel(act+mla)",
    "gemma:dp1-mbs2-z0-rsel(attn+norm+act)", "gemma:tp2-dp2-mbs1-z3-rnone", "gemma:cp2u-dp1-mbs1-z0-rfull",
    "gemma:pp2-zbh1-dp1-mbs1-z0-rsel(norm)", "gpt_oss:tp2-dp1-ep2-mbs1-z0-rsel(attn+act+moe)",
    "gpt_oss:cp2u-dp1-mbs2-z0-rnone", "gpt_oss:pp2-dp2-ep2-mbs1-z1-rfull", "olmo2:tp2-dp1-mbs1-z0-rsel(norm)",
    "olmo2:tp2-pp2-zbh1-dp1-mbs1-z0-rnone", "falcon:tp2-dp1-mbs1-z0-rsel(norm)", "falcon:pp2-dp2-mbs1-z2-rnone",
    "nemotron:tp2-dp2-ep2-mbs1-z1-rnone", "nemotron:cp2u-pp2-dp1-mbs2-z0-rsel(norm+act)",
    "nemotron:tp2-pp2-zbh1-dp1-mbs1-z0-rfull", "nemotron:cp4u-dp1-mbs1-z3-rnone",
    "qwen_next:tp2-cp2u-dp1-mbs1-z0-rsel(attn+norm+act)", "qwen_next:dp2-ep2-mbs2-z3-rfull",
    "qwen_next:pp2-zbv-vpp2-dp1-mbs1-z0-rnone", "qwen_next:tp2-dp2-ep2-mbs1-z2-rsel(moe+shared)",
]  # fmt: skip


@pytest.mark.parametrize("text", [f"llama:{each}" for each in AXES + PAIRS] + OTHERS)
def test_trains_the_same_model(text: str) -> None:
    name, _, layout_id = text.partition(":")
    stack = {"sharded_states": "zero"}
    verdict = parity_of(job(layout_id, model_for(name, layout_id), stack_changes=stack))
    assert verdict.agrees, verdict.as_dict()
    assert verdict.least_change > LEAST_CHANGE


@pytest.mark.parametrize("layout_id", ["cp2r-dp1-mbs1-z0-rnone", "tp2-cp2g-dp1-mbs1-z1-rfull",
                                       "cp4r-dp1-mbs1-z0-rnone"])  # fmt: skip
def test_mixers_whose_tokens_are_dealt_out_as_for_a_ring(layout_id: str) -> None:
    """Without attention, whose kernel under a ring is of bf16. Over cp 4 two ranks each have the same group."""
    assert parity_of(job(layout_id, model_for("mixers", layout_id))).agrees


def test_the_three_axes_at_once() -> None:
    assert parity_of(job("tp2-pp2-dp2-mbs1-z1-rnone")).agrees


def test_uneven_stages() -> None:
    assert parity_of(job("pp2-dp1-mbs1-z0-rnone", llama(5), sizes=[4, 1])).agrees


def test_a_stage_without_layers() -> None:
    assert parity_of(job("pp2-dp1-mbs1-z0-rnone", llama(3), sizes=[0, 3])).agrees


@pytest.mark.parametrize("layout_id", ["pp2-dp2-mbs1-z3-rnone", "pp2-zbv-vpp2-dp2-mbs1-z3-rnone"])
def test_a_stack_that_keeps_states_whole_in_a_pipeline(layout_id: str) -> None:
    assert parity_of(job(layout_id, stack_changes={"sharded_states": "fsdp2"})).agrees


@pytest.mark.parametrize(("layout_id", "name"), [("pp2-dp1-mbs1-z0-rnone", "zb-h2"),
                                                 ("pp2-zbv-vpp2-dp1-mbs1-z0-rnone", "v-min")])  # fmt: skip
def test_an_order_of_ones_own(layout_id: str, name: str) -> None:
    wanted = job(layout_id)
    assert parity_of(replace(wanted, custom_order=custom_order(name, wanted))).agrees


@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 3), (3, 8), (3, 2), (3, 1)])
def test_interleaved_with_any_number_of_micro_batches(pp: int, micro_batches: int) -> None:
    """Groups of more than pp, of two sizes, and fewer micro-batches than stages."""
    wanted = job(f"pp{pp}-vpp2-dp1-mbs1-z0-rnone", llama(2 * pp), extra=micro_batches - pp)
    assert wanted.num_micro_batches == micro_batches
    assert parity_of(wanted).agrees


def test_uneven_chunks_of_a_v() -> None:
    assert parity_of(job("pp2-zbv-vpp2-dp1-mbs1-z0-rnone", llama(4), sizes=[2, 0, 1, 1])).agrees


def test_clipping() -> None:
    wanted = job("tp2-dp2-mbs1-z2-rnone", clip=0.5)
    assert parity_of(wanted).agrees


def test_adamw() -> None:
    assert parity_of(job("dp2-mbs1-z3-rnone", optimizer="adamw", learning_rate=0.01)).agrees


def test_the_layout_does_not_change_what_is_drawn() -> None:
    one, other = (reference.train(job(each, global_batch=4)) for each in ("dp2-mbs1-z0-rnone", "dp1-mbs2-z0-rnone"))
    assert compare(numbers(one), numbers(other)).agrees


def test_bf16_is_near() -> None:
    layout_id = "tp2-dp2-mbs1-z3-rnone"
    wanted = job(layout_id, dtype="bf16", optimizer="adamw", learning_rate=0.01)
    steps = run(wanted)
    expected = reference.train(job(layout_id, optimizer="adamw", learning_rate=0.01))
    for step, other in zip(steps, expected, strict=True):
        assert step.loss == pytest.approx(other.loss, rel=0.02)
        assert step.gradient_norm == pytest.approx(other.gradient_norm, rel=0.1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("text", "seed"), [
    ("llama:dp1-mbs1-z0-rfull", 0), ("llama:dp2-mbs1-z1-rnone", 1), ("llama:pp2-dp2-mbs1-z2-rnone", 2),
    ("moe:dp2-mbs1-z3-rnone", 3),
])  # fmt: skip
def test_the_planned_dtype_is_that_of_one_process(text: str, seed: int, dtype: str) -> None:
    """Gradients of weights in bf16 are summed in fp32, and their optimizer has weights in fp32.

    Not by its seeds: 8 seeds of each layout agree, of which the runs differ in single bf16 weights after some steps.
    """
    name, _, layout_id = text.partition(":")
    planned = job(layout_id, model_for(name, layout_id), dtype=dtype, optimizer="adamw", clip=1.0, seed=seed,
                  stack_changes={"sharded_states": "zero"})  # fmt: skip
    wanted = for_parity(planned, as_trained=True, planned_dtype=True)
    assert wanted.dtype == dtype
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()
    assert all(step.state is not None and 0 < step.state.relative < STATE_TOLERANCE for step in verdict.steps)


@pytest.mark.parametrize("text", ["llama:tp2-dp1-mbs1-z0-rnone", "llama:cp2r-dp1-mbs1-z0-rnone",
                                  "moe:dp2-ep2-mbs1-z0-rnone", "gpt:pp2-dp1-mbs1-z0-rnone"])  # fmt: skip
def test_the_planned_dtype_needs_the_products_of_one_process(text: str) -> None:
    name, _, layout_id = text.partition(":")
    planned = job(layout_id, model_for(name, layout_id), dtype="bf16", optimizer="adamw")
    with pytest.raises(InputError, match=r"--planned-dtype: .* in another order"):
        for_parity(planned, as_trained=True, planned_dtype=True)


@pytest.mark.parametrize(("layout_id", "model"), [
    ("dp2-mbs1-z0-rnone", llama()), ("tp2-dp2-mbs1-z1-rnone", llama()), ("pp2-dp2-mbs1-z0-rnone", llama(3)),
    ("dp2-ep2-mbs1-z0-rnone", moe()), ("tp2-dp2-ep2-mbs1-z0-rnone", shared_experts()), ("dp2-mbs1-z0-rnone", moe()),
    ("dp2-etp2-mbs1-z0-rnone", moe()),
])  # fmt: skip
def test_gradients_are_reduced_in_as_many_calls_as_the_ledger_counts(layout_id: str, model: ModelSpec) -> None:
    wanted = job(layout_id, model)

    def units(rank: int) -> tuple[int, int]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), 60.0), torch.device("cpu"))
        experts = sum(unit.name.endswith(" expert") for unit in trainer.units)
        return len(trainer.units) - experts, experts

    found = fork(wanted.world_size, units)
    dense, experts = reductions(ledger_of(wanted))
    assert (max(each[0] for each in found), max(each[1] for each in found)) == (int(dense[0]), int(experts[0]))


# ---- planted faults: each is one line of a real mistake


def no_reduction(trainer: Trainer, rank: int) -> None:
    groups = next(unit.groups for unit in trainer.units if unit.groups.replicate.size > 1)
    groups.replicate.start_all_reduce = lambda *_: Pending(groups.replicate)  # type: ignore[method-assign]


def no_expert_reduction(trainer: Trainer, rank: int) -> None:
    """The two ranks that hold the same experts do not add up their gradients."""
    group = trainer.mesh["expert_replicate"]
    group.start_all_reduce = lambda *_: Pending(group)  # type: ignore[method-assign]


def doubled(trainer: Trainer, rank: int) -> None:
    unit = trainer.units[-1]
    unit.parameters[0].register_hook(lambda grad: 2 * grad)  # type: ignore[no-untyped-call]


def no_partial_reduction(trainer: Trainer, rank: int) -> None:
    group = next(unit.groups.partial for unit in trainer.units if unit.groups.partial is not None)
    group.start_all_reduce = lambda *_: Pending(group)  # type: ignore[method-assign]


def swapped_tensor_parts(trainer: Trainer, rank: int) -> None:
    """tp rank 0 has the columns of rank 1 in one row-parallel weight, and the other way round."""
    layer = layer_of(trainer)
    assert layer.feed_forward is not None
    down = layer.feed_forward.tensor("down")
    whole = reference.whole_model(trainer.job).get_submodule("layers.0.feed_forward").get_parameter("down").detach()
    width = down.shape[1]
    other = 1 - trainer.mesh.coords.tp
    with torch.no_grad():
        down.copy_(whole[:, other * width : (other + 1) * width])


def swapped_data(trainer: Trainer, rank: int) -> None:
    """Both data-parallel ranks read the sequences of rank 0."""
    trainer.mesh = replace(trainer.mesh, coords=replace(trainer.mesh.coords, dp=0))


def swapped_shards(trainer: Trainer, rank: int) -> None:
    unit = trainer.units[1]
    unit.gather()
    mine = 1 - unit.groups.shard.rank
    unit.weights.copy_(unit.flat[mine * unit.part : (mine + 1) * unit.part].detach().clone())
    unit.release()


def dropped_layer(trainer: Trainer, rank: int) -> None:
    chunk = trainer.chunks[0]
    if trainer.mesh.coords.stage == 0:
        chunk.layers.pop(next(iter(chunk.layers.keys())))


def _reversed(batches: Any, last: int) -> Any:
    return lambda index: batches(last - index)


def swapped_micro_batches(trainer: Trainer, rank: int) -> None:
    """The last stage takes the targets of the micro-batches in the wrong order."""
    before = trainer.batch
    if trainer.mesh.coords.stage == 1:
        last = trainer.job.num_micro_batches - 1
        trainer.batch = lambda index: _reversed(before(index), last)  # type: ignore[method-assign]


def untied(trainer: Trainer, rank: int) -> None:
    for unit in trainer.units:
        if unit.groups.tied is not None:
            unit.groups.tied.all_reduce = lambda tensor, *_: tensor  # type: ignore[method-assign]


def stale_recipe(trainer: Trainer, rank: int) -> None:
    before = _Recipe.cook
    _Recipe.cook = lambda self, index: before(self, index) * 1.001  # type: ignore[method-assign]


def shared_keys_of_one_rank(trainer: Trainer, rank: int) -> None:
    """The gradient of the key part that all heads share is that of this rank's heads."""
    def own(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].chunk(ctx.group.size, 1)[ctx.group.rank], None

    tensor_parallel._GatherSum.backward = staticmethod(own)  # type: ignore[method-assign]


def predictions_of_the_same_token(trainer: Trainer, rank: int) -> None:
    """They see the token that they have to predict."""
    before = DecoderChunk._predicted
    DecoderChunk._predicted = (  # type: ignore[method-assign]
        lambda self, head, module, x, tokens, targets: before(self, head, module, x, targets, targets)
    )


def copies_apart(trainer: Trainer, rank: int) -> None:
    """The stages with the two copies of the token table do not add up its gradients."""
    trainer.mesh["tied"].all_reduce = lambda tensor, *_: tensor  # type: ignore[method-assign]


def tokens_from_another_rank(trainer: Trainer, rank: int) -> None:
    """One rank takes the results of its experts for those of the next one."""
    before = Dispatch.back
    if rank == 0:
        Dispatch.back = lambda self, out: before(self, out).roll(1, 0)  # type: ignore[method-assign]


def weights_dropped(trainer: Trainer, rank: int) -> None:
    split_backward.make = lambda late: None


def weights_twice(trainer: Trainer, rank: int) -> None:
    before = split_backward.make

    def twice(late: split_backward.Late) -> None:
        again = list(late.direct)
        before(late)
        before(split_backward.Late(again))

    split_backward.make = twice


def weights_after_the_optimizer(trainer: Trainer, rank: int) -> None:
    """Those of the last micro-batch come after the new weights, and are taken for the next step's."""
    before, last = split_backward.make, trainer.job.num_micro_batches - 1
    waiting: list[split_backward.Late] = []

    def later(late: split_backward.Late) -> None:
        if f"micro-batch {last}," in trainer.mesh["world"].status.doing:
            waiting.append(late)
            return
        for each in (late, *waiting):
            before(each)
        waiting.clear()

    split_backward.make = later


def swapped_experts(trainer: Trainer, rank: int) -> None:
    """The ranks of an ep group hold each other's experts."""
    experts = layer_of(trainer).feed_forward
    assert experts is not None
    whole = reference.whole_model(trainer.job).get_submodule("layers.0.feed_forward").get_parameter("down").detach()
    with torch.no_grad():
        experts.tensor("down").copy_(whole[2:] if trainer.mesh["ep"].rank == 0 else whole[:2])


def chunks_out_of_order(trainer: Trainer, rank: int) -> None:
    """A mixer takes the chunks of a sequence as the ranks have them."""
    ContextParallel._chunk_order = lambda self: torch.arange(2 * self.group.size)  # type: ignore[method-assign]


def heads_of_another_rank(trainer: Trainer, rank: int) -> None:
    """The parameters of a mixer's heads are those of the heads of the next cp rank."""
    here = MixerBlock.here

    def other(self: MixerBlock, name: str, heads: int) -> torch.Tensor:
        cp = self.context.cp
        if cp is None:
            return here(self, name, heads)
        return self.tensor(name).chunk(cp.group.size)[(cp.group.rank + 1) % cp.group.size]

    MixerBlock.here = other  # type: ignore[method-assign]


def layer_of(trainer: Trainer) -> DecoderLayer:
    chunk: DecoderChunk = trainer.chunks[0]
    layer = chunk.layers["0"]
    assert isinstance(layer, DecoderLayer)
    return layer


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("llama:dp2-mbs1-z0-rnone", no_reduction),
        ("llama:dp2-mbs1-z2-rnone", doubled),
        ("llama:dp2-mbs1-z1-rnone", swapped_data),
        ("llama:dp2-mbs1-z3-rnone", swapped_shards),
        ("llama:dp4-sh2-mbs1-z3-rnone", no_reduction),
        ("llama:tp2-dp1-mbs1-z0-rnone", no_partial_reduction),
        ("llama:tp2-dp1-mbs1-z0-rnone", swapped_tensor_parts),
        ("moe:tp2-dp1-mbs1-z0-rnone", no_reduction),
        ("moe:dp2-ep2-mbs1-z0-rnone", tokens_from_another_rank),
        ("moe:tp2-dp1-ep2-mbs1-z0-rnone", swapped_experts),
        ("moe:dp4-ep2-mbs1-z0-rnone", no_expert_reduction),
        ("llama:pp2-dp1-mbs1-z0-rnone", dropped_layer),
        ("llama:pp2-vpp2-dp1-mbs1-z0-rnone", swapped_micro_batches),
        ("llama:pp2-zbh1-dp1-mbs1-z0-rnone", weights_dropped),
        ("llama:pp2-zbh1-dp1-mbs1-z0-rnone", weights_twice),
        ("llama:pp2-zbh1-dp1-mbs1-z0-rnone", weights_after_the_optimizer),
        ("gpt:pp2-dp1-mbs1-z0-rnone", untied),
        ("mixers:cp2r-dp1-mbs1-z0-rnone", chunks_out_of_order),
        ("qwen_next:cp2u-dp1-mbs1-z0-rnone", heads_of_another_rank),
        ("qwen_next:tp2-dp1-mbs1-z0-rnone", no_partial_reduction),
        ("llama:dp1-mbs1-z0-rsel(norm)", stale_recipe),
        ("deepseek:dp1-mbs1-z0-rsel(mla)", stale_recipe),
        ("deepseek:tp2-dp1-mbs1-z0-rnone", shared_keys_of_one_rank),
        ("deepseek:dp1-mbs1-z0-rnone", predictions_of_the_same_token),
        ("deepseek:pp2-dp1-mbs1-z0-rnone", copies_apart),
    ],
)
def test_planted_faults_are_noticed(text: str, broken: Break) -> None:
    name, _, layout_id = text.partition(":")
    wanted = job(layout_id, model_for(name, layout_id), stack_changes={"sharded_states": "zero"})
    verdict = parity_of(wanted, broken)
    assert not verdict.agrees


@pytest.mark.parametrize(("plant", "tensor"), [(small_gradient_off, "exp_avg_sq."),
                                               (master_weights_in_bf16, "weights.")])  # fmt: skip
def test_faults_of_fp32_states_show_in_the_planned_dtype(plant: Plant, tensor: str) -> None:
    """By the states after the first step: a small gradient that is 0.1 % off hardly moves the norm of all."""
    wanted = for_parity(Fault(plant, "dp2-mbs1-z0-rnone").job, as_trained=True, planned_dtype=True)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        first = parity_of(wanted).first_difference
    assert first is not None
    assert first.step == 1
    assert first.norm_difference < 1e-4
    assert first.state is not None
    assert first.state.name.startswith(tensor)
    assert first.state.relative > 1e-3


@pytest.mark.parametrize("plant", [not_clipped, clipped_too_far, no_weight_decay])
def test_faults_of_the_update_need_the_check_as_trained(plant: Plant) -> None:
    """All others are in `make planted-faults`."""
    planned = Fault(plant, "dp2-mbs1-z1-rnone").job
    plain, as_trained = (for_parity(planned, as_trained=flag) for flag in (False, True))
    assert (as_trained.optimizer, as_trained.clip, as_trained.dtype) == ("adamw", planned.clip, "fp64")
    assert parity_of(as_trained).agrees
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        assert parity_of(plain).agrees
        assert not parity_of(as_trained).agrees
