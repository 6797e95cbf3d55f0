"""Adapters beside frozen weights: the same as a dense model made by hand, whatever the layout; faults are noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.workload import Lora
from meshwright.planner import api
from meshwright.runtime import reference
from meshwright.runtime.data import open_source
from meshwright.runtime.job import Job
from meshwright.runtime.model.adapters import of_input, of_output
from meshwright.runtime.optimizer import MOMENTUM
from meshwright.runtime.parallel.comm import Pending
from meshwright.runtime.preparation import prepare
from meshwright.runtime.rehearsal.parity import compare, compare_memory
from meshwright.runtime.rehearsal.pricing import predicted_bytes
from meshwright.runtime.settings import Settings
from meshwright.runtime.trainer import Trainer
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader

from meshwright.errors import InputError, UnsupportedError

from ..checkpoint.test_checkpoint import trained
from ..fork import peak_bytes, run
from ..jobs import deepseek, job, llama, mixed
from ..rehearsal.test_memory import rehearsal
from ..rehearsal.test_parity import MODELS, model_for, parity_of

ALL = ("q", "k", "v", "o", "gate", "up", "down")
LORA = Lora(rank=4, targets=ALL)


def adapted(layout_id: str, name: str = "llama", **changes: Any) -> Job:
    """Weights sharded as the layout says in pipelines, too; adapters on every projection, learning fast."""
    return job(layout_id, model_for(name, layout_id), stack_changes={"sharded_states": "zero"},
               **{"lora": LORA, "learning_rate": 1.0, **changes})  # fmt: skip


AXES = [
    "dp1-mbs2-z0-rnone", "dp2-mbs1-z0-rnone", "dp2-mbs1-z1-rnone", "dp2-mbs1-z2-rnone", "dp2-mbs1-z3-rnone",
    "dp4-sh2-mbs1-z3-rnone", "tp2-dp1-mbs2-z0-rnone", "cp2u-dp1-mbs1-z0-rnone", "cp2r-dp1-mbs1-z0-rnone",
    "pp2-dp1-mbs2-z0-rnone", "pp2-gpipe-dp1-mbs1-z0-rnone", "pp2-vpp2-dp1-mbs1-z0-rnone", "pp2-zbh1-dp1-mbs1-z0-rnone",
    "pp2-zbv-vpp2-dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rfull", "dp1-mbs1-z0-rsel(attn+norm+act)", "dp1-mbs1-z0-rnone-oopt",
]  # fmt: skip
PAIRS = [
    "tp2-dp2-mbs1-z0-rnone", "tp2-dp2-mbs1-z3-rnone", "pp2-dp2-mbs1-z2-rnone", "pp2-dp2-mbs1-z3-rnone",
    "tp2-pp2-dp1-mbs1-z0-rnone", "dp2-mbs1-z3-rfull", "tp2-dp1-mbs1-z0-rsel(attn+norm+act)",
    "tp2-pp2-zbh1-dp1-mbs1-z0-rnone", "pp2-zbv-vpp2-dp2-mbs1-z1-rsel(norm)", "tp2-cp2r-dp1-mbs1-z1-rnone",
    "cp2u-dp2-mbs1-z3-rnone",
]  # fmt: skip
OTHERS = [
    "gpt:tp2-dp2-mbs1-z3-rnone", "gpt:tp2-cp2u-dp1-mbs1-z1-rnone",
    "gpt:pp2-dp1-mbs1-z0-rnone", "moe:tp2-dp1-ep2-mbs1-z3-rsel(act+moe)",
    "shared:tp2-dp2-ep2-mbs1-z3-rnone", "deepseek:tp2-dp2-ep2-mbs1-z3-rsel(norm+mla)",
    "deepseek:tp2-pp2-zbv-vpp2-dp1-ep2-mbs1-z0-rsel(act+mla)",
]  # fmt: skip


@pytest.mark.parametrize("text", [f"llama:{each}" for each in AXES + PAIRS] + OTHERS)
def test_trains_the_same_adapters(text: str) -> None:
    name, _, layout_id = text.partition(":")
    verdict = parity_of(adapted(layout_id, name))
    assert verdict.agrees, verdict.as_dict()


def test_a_stage_without_layers() -> None:
    """Nothing trains there, and its frozen embedding takes no gradient."""
    assert parity_of(adapted("pp2-dp1-mbs1-z0-rnone", sizes=[0, 4])).agrees


def test_layers_with_strategies_of_their_own() -> None:
    wanted = mixed("dp4-mbs1-z0-rnone tp2-dp2-mbs2-z3-rfull dp4-mbs1-z1-rnone tp2-dp2-mbs2-z3-rnone", llama(2),
                   lora=LORA, learning_rate=1.0)  # fmt: skip
    assert parity_of(wanted).agrees


def test_adamw_and_clipping() -> None:
    assert parity_of(adapted("tp2-dp2-mbs1-z2-rnone", optimizer="adamw", learning_rate=0.01, clip=0.1)).agrees


# ---- a dense model by hand


def dense(model: nn.Module, weights: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """W + scale B A under the name of W."""
    merged = dict(weights)
    for name in weights:
        if of_input(name) in weights:
            merged[name] = weights[name] + scale * weights[of_output(name)] @ weights[of_input(name)]
    return {name: weight for name, weight in merged.items() if name in dict(model.named_parameters())}


@pytest.mark.parametrize("targets", [("q", "v"), ALL])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixers"])  # whose mixers take no adapters
def test_a_dense_model_whose_weights_are_put_together(name: str, targets: tuple[str, ...]) -> None:
    """Gradients of A and B by the chain rule out of those of W + (alpha / r) B A; momentum and norm by hand."""
    # A rate of 1 throws a model with scaled embeddings about: rounding grows over 1e-10 in four steps.
    wanted = job("dp1-mbs2-z0-rnone", MODELS[name](2), lora=Lora(rank=4, targets=targets), lora_alpha=12.0,
                 learning_rate=0.3)  # fmt: skip
    scale = 3.0
    weights = {key: value.detach().clone() for key, value in reference.whole_model(wanted).named_parameters()}
    thin = {key for key in weights if "_lora_" in key}
    assert {key.split(".")[-1].split("_")[0] for key in thin} <= set(targets)
    model = reference.whole_model(replace(wanted, lora=None))
    momenta: dict[str, Tensor] = {}
    source = open_source(wanted.data, wanted.model.vocab, 16, wanted.global_batch, 0, 1 + wanted.model.mtp_layers)
    found = []
    for step in range(wanted.steps):
        model.load_state_dict(dense(model, weights, scale))
        model.zero_grad()
        tokens = source.batch(step)
        shifted = [tokens[:, first : first + 16] for first in range(2 + wanted.model.mtp_layers)]
        loss = model(*shifted) / wanted.tokens_per_step
        loss.backward()
        grads = {}
        for key, parameter in model.named_parameters():
            if of_input(key) in thin:
                whole = parameter.grad
                assert whole is not None
                grads[of_input(key)] = scale * weights[of_output(key)].t() @ whole
                grads[of_output(key)] = scale * whole @ weights[of_input(key)].t()
        assert set(grads) == thin
        found.append((float(loss.detach()), float(sum(grad.square().sum() for grad in grads.values()) ** 0.5)))
        for key, grad in grads.items():
            momenta[key] = MOMENTUM * momenta[key] + grad if key in momenta else grad
            weights[key] = weights[key] - wanted.learning_rate * momenta[key]
    assert compare([(s.loss, s.gradient_norm) for s in reference.train(wanted)], found).agrees


def test_predictions_are_frozen_and_have_none() -> None:
    wanted = job("dp1-mbs2-z0-rnone", deepseek(2), lora=LORA)
    names = [name for name, each in reference.whole_model(wanted).named_parameters() if each.requires_grad]
    assert names
    assert not [name for name in names if name.startswith(("predictions", "embedding", "head")) or "_lora_" not in name]


def test_nothing_changes_at_first() -> None:
    """B is zero: the first loss is that of the model without adapters, and the second one is not."""
    wanted = job("dp1-mbs2-z0-rnone", lora=LORA, learning_rate=1.0)
    steps, before = reference.train(wanted), reference.train(replace(wanted, lora=None, learning_rate=0.0))
    assert steps[0].loss == before[0].loss
    assert abs(steps[1].loss - before[1].loss) > 1e-3


# ---- planted faults


def part_of_a_gradient(trainer: Trainer, rank: int) -> None:
    """What tp ranks hold alike is not added up."""
    group = trainer.mesh["tp"]
    group.start_all_reduce = lambda *_: Pending(group)  # type: ignore[method-assign]


def trained_weight(trainer: Trainer, rank: int) -> None:
    """A frozen weight moves on one rank."""
    with torch.no_grad():
        next(iter(trainer.frozen)).parameters[0].mul_(1.001)


def other_adapter(trainer: Trainer, rank: int) -> None:
    """One rank draws another A."""
    for name, each in trainer.chunks[0].named_parameters():
        if rank == 1 and name.endswith(of_input("q")):
            with torch.no_grad():
                each.mul_(2)


def no_weights_again(trainer: Trainer, rank: int) -> None:
    """The backward pass of one part finds its frozen weights doubled where they were gathered again."""
    unit = trainer.frozen[1]
    gather = unit.gather

    def twice() -> None:
        away = unit._arriving is not None or unit.flat.untyped_storage().nbytes() == 0
        gather()
        if away and torch._C._current_graph_task_id() != -1:
            unit.flat.mul_(2)

    unit.gather = twice  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("layout_id", "broken"),
    [
        ("tp2-dp1-mbs1-z0-rnone", part_of_a_gradient), ("dp2-mbs1-z0-rnone", trained_weight),
        ("dp2-mbs1-z1-rnone", other_adapter), ("dp2-mbs1-z3-rnone", no_weights_again),
    ],
)  # fmt: skip
def test_planted_faults_are_noticed(layout_id: str, broken: Any) -> None:
    assert not parity_of(adapted(layout_id), broken).agrees


def test_only_adapters_are_held_beside_the_weights() -> None:
    """Of a rank: whole frozen weights once, and a gradient, a momentum and the weight of adapters."""
    wanted = adapted("dp1-mbs1-z0-rnone")

    def look(trainer: Trainer, rank: int) -> None:
        thin = sum(each.numel() for name, each in trainer.chunks[0].named_parameters() if "_lora_" in name)
        whole = sum(each.numel() for each in trainer.chunks[0].parameters())
        held = sum(each.numel() for each in {each.data_ptr(): each for each in trainer.tensors()}.values())
        assert held == whole + thin, (held, whole, thin)
        assert sum(each.numel() for group in trainer.optimizer.param_groups for each in group["params"]) == thin

    run(wanted, look)


# ---- memory


def adapted_rehearsal(layout_id: str, targets: tuple[str, ...]) -> Job:
    return replace(rehearsal(layout_id), lora=Lora(rank=4, targets=targets))


@pytest.mark.parametrize("targets", [("q", "v"), ALL])
@pytest.mark.parametrize(
    "layout_id",
    [
        "dp1-mbs1-z0-rnone", "dp2-mbs1-z0-rnone", "dp2-mbs1-z2-rsel(norm)", "dp4-sh2-mbs1-z3-rnone",
        "tp2-dp1-mbs1-z0-rnone", "pp2-dp1-mbs1-z0-rnone", "tp2-pp2-dp1-mbs2-z0-rnone", "dp2-mbs1-z3-rfull",
        "dp1-mbs1-z0-rsel(act)", "dp1-mbs1-z0-rnone-oopt", "tp2-cp2u-dp1-mbs1-z1-rsel(attn)",
    ],
)  # fmt: skip
def test_memory_within_five_percent(layout_id: str, targets: tuple[str, ...]) -> None:
    wanted = adapted_rehearsal(layout_id, targets)
    peaks = peak_bytes(wanted)
    for row in compare_memory(peaks, [stage["allocated"] for stage in predicted_bytes(wanted)]):
        assert abs(row.difference) <= 0.05, f"stage {row.stage}: {row.measured_bytes:,} measured, {row.difference:+.1%}"


# ---- checkpoints


@pytest.mark.parametrize(
    ("before", "after"),
    [("tp2-dp2-mbs1-z1-rnone", "pp2-dp2-mbs1-z3-rnone"), ("dp2-mbs1-z3-rfull", "tp2-dp1-mbs2-z0-rnone")],
)
def test_resumes_from_adapters_alone(before: str, after: str, tmp_path: Path) -> None:
    """Under another layout; what was saved has three numbers of each adapter's element and no frozen weight."""
    how: dict[str, Any] = {"global_batch": 8, "optimizer": "adamw", "learning_rate": 0.01}
    trained(adapted(before, **how), tmp_path, 2, resume=False)
    saved = FileSystemReader(tmp_path / "step-00000002").read_metadata().state_dict_metadata
    assert {name.split(".")[0] for name in saved} == {"weights", "exp_avg", "exp_avg_sq"}
    assert all("_lora_" in name for name in saved)
    found, steps = trained(adapted(after, **how), tmp_path, 4, resume=True)
    assert found is not None
    assert found.step == 2
    expected = reference.train(adapted("dp1-mbs1-z0-rnone", **how))
    verdict = compare([(s.loss, s.gradient_norm) for s in steps], [(s.loss, s.gradient_norm) for s in expected[2:]])
    assert verdict.agrees, verdict.as_dict()


def test_other_adapters_do_not_go_on(tmp_path: Path) -> None:
    wanted = adapted("dp2-mbs1-z0-rnone")
    trained(wanted, tmp_path, 1, resume=False)
    with pytest.raises(RuntimeError, match=r"lora\.rank: 4 in the checkpoint, 2 now"):
        trained(replace(wanted, lora=replace(LORA, rank=2)), tmp_path, 2, resume=True)


# ---- from a plan


def planned(lora: str, folder: Path, **changes: Any) -> Path:
    """The file of a plan for our own runtime."""
    path = folder / "plan.json"
    plan = api.plan(model="llama-3.2-1b", cluster="8xrtx-4090", lora=lora, seq_len=2048, global_batch=32,
                    target="meshwright", **changes)  # fmt: skip
    path.write_text(plan.to_json())
    return path


@pytest.mark.slow
def test_a_plan_is_rehearsed(tmp_path: Path) -> None:
    """As `launch --scale-down --check-parity --lora-alpha 32` does it: rank 64 of a model of 2,048 becomes 8."""
    path = planned("64:q,v,down", tmp_path)
    wanted, _ = prepare(Settings(str(path), scale_down=True, check_parity=True, lora_alpha=32.0))
    assert (wanted.lora, wanted.lora_alpha) == (Lora(rank=8, targets=("q", "v", "down")), 32.0)
    assert parity_of(wanted).agrees


@pytest.mark.parametrize(("alpha", "lora", "words"), [(16.0, None, "trains no adapters"), (0.0, "8", "above 0")])
def test_an_alpha_that_cannot_be(alpha: float, lora: str, words: str, tmp_path: Path) -> None:
    path = planned(lora, tmp_path)
    with pytest.raises(InputError, match=words):
        prepare(Settings(str(path), lora_alpha=alpha))


def test_quantised_weights_are_not_planned_for_it() -> None:
    with pytest.raises(UnsupportedError, match="frozen weights in bf16, not in nf4"):
        planned("8:q,v:nf4", Path())
