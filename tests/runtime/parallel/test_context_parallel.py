"""Context parallelism: every algorithm trains what one process trains, alone and with every other axis, sends what the
planner counts and holds what it predicts; planted faults are noticed; what cannot be balanced is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.tables import index_keys
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.registry import TARGETS
from meshwright.runtime.job import Job, job_of, unsupported
from meshwright.runtime.model import flash
from meshwright.runtime.parallel import context_parallel, key_exchange
from meshwright.runtime.parallel.comm import Group
from meshwright.runtime.parallel.mesh import build_mesh, rank_lists
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE, compare_memory
from meshwright.runtime.rehearsal.pricing import predicted_bytes, problem_of, tables_of
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from meshwright.errors import InputError

from ..fork import TIMEOUT_S, Break, fork, peak_bytes
from ..jobs import job
from ..rehearsal.test_memory import rehearsal
from ..rehearsal.test_parity import model_for, no_reduction, parity_of
from ..test_cuda import gpu

ALONE = ["llama:cp2r-dp1-mbs2-z0-rnone", "llama:cp2g-dp1-mbs2-z0-rnone", "llama:cp2u-dp1-mbs2-z0-rnone",
         "llama:cp4r-dp1-mbs1-z0-rnone", "gpt:cp4g-dp1-mbs1-z3-rnone", "gpt:cp4u-dp1-mbs1-z1-rnone"]  # fmt: skip
PAIRS = [
    "llama:tp2-cp2r-dp1-mbs2-z0-rnone", "llama:tp2-cp2g-dp1-mbs1-z1-rnone", "gpt:tp2-cp2u-dp1-mbs1-z0-rnone",
    "llama:cp2r-pp2-dp1-mbs1-z0-rnone", "llama:cp2u-pp2-gpipe-dp1-mbs1-z0-rnone", "gpt:cp2g-pp2-vpp2-dp1-mbs1-z0-rnone",
    "llama:cp2r-dp2-mbs1-z0-rnone", "llama:cp2g-dp2-mbs1-z1-rnone", "llama:cp2u-dp2-mbs1-z2-rnone",
    "llama:cp2r-dp2-mbs1-z3-rnone", "llama:cp2g-dp4-sh2-mbs1-z3-rnone",
    "moe:cp2r-dp1-ep2-mbs1-z0-rnone", "moe:cp2u-dp2-ep4-mbs1-z3-rnone",
    "llama:cp2r-dp1-mbs1-z0-rfull", "llama:cp2g-dp1-mbs1-z0-rsel", "llama:cp2u-dp1-mbs1-z0-rsel(attn+norm+act)",
    "moe:cp2g-dp1-mbs1-z0-rsel(moe)",
]  # fmt: skip
EIGHT = ["gpt:tp2-cp2u-pp2-dp1-mbs1-z1-rsel", "moe:tp2-cp2r-dp2-ep4-mbs1-z3-rfull"]


@pytest.mark.parametrize("text", [*ALONE, *PAIRS, *(pytest.param(text, marks=pytest.mark.slow) for text in EIGHT)])
def test_trains_the_same_model(text: str) -> None:
    name, _, layout_id = text.partition(":")
    verdict = parity_of(job(layout_id, model_for(name, layout_id), stack_changes={"sharded_states": "zero"}))
    assert verdict.agrees, verdict.as_dict()
    assert verdict.least_change > LEAST_CHANGE


# ---- planted faults


def sees_the_future(trainer: Trainer, rank: int) -> None:
    """The mask of the ring without its rule for chunks that come later."""
    key_exchange._seen = lambda rank, source, lengths: iter([(slice(None), slice(None))])


def other_positions(trainer: Trainer, rank: int) -> None:
    """Tokens are dealt out zigzag, their rotary positions as if they were not."""
    cp = trainer.chunks[0].context.cp
    assert cp is not None
    first, size = cp.group.rank, cp.group.size
    object.__setattr__(cp, "positions", lambda n: torch.arange(first * n // size, (first + 1) * n // size))


def unweighted(trainer: Trainer, rank: int) -> None:
    """Outputs of two parts are averaged, whatever their log-sum-exp."""

    def add(self: flash.Total, rows: slice, out: Tensor, lse: Tensor) -> None:
        self.out[:, :, rows].lerp_(out, 0.5)
        self.lse[:, :, rows].copy_(torch.logaddexp(self.lse[:, :, rows], lse))

    flash.Total.add = add  # type: ignore[method-assign]


def lse_of_the_first_part(trainer: Trainer, rank: int) -> None:
    """The backward pass takes the log-sum-exp of a rank's own keys for that of all: only gradients are wrong."""
    before = flash.Total.add

    def add(self: flash.Total, rows: slice, out: Tensor, lse: Tensor) -> None:
        kept = self.lse.clone()
        before(self, rows, out, lse)
        self.lse = kept

    flash.Total.add = add  # type: ignore[method-assign]


def gradients_stay_away(trainer: Trainer, rank: int) -> None:
    """What other ranks made for the keys of this one does not come home."""

    def back(self: Any, gradients: Iterable[key_exchange.PartialSum]) -> Tensor:
        return list(gradients)[0][1]  # noqa: RUF015

    key_exchange.Ring.back = back  # type: ignore[method-assign]


def over_data_ranks_only(trainer: Trainer, rank: int) -> None:
    """Gradients are summed over dp, not over dp x cp."""
    cp, dp = trainer.job.layout.cp, trainer.job.layout.dp
    all_ranks = [[d * cp + c for d in range(dp)] for c in range(cp)]
    handles = [dist.new_group(ranks) for ranks in all_ranks]
    mine = rank % cp
    wrong = Group("replicate", all_ranks[mine], rank, handles[mine], Status())
    for unit in trainer.units:
        object.__setattr__(unit.groups, "replicate", wrong)


def swapped_heads(trainer: Trainer, rank: int) -> None:
    """Ulysses: what comes back is joined in the wrong order of the ranks."""
    before = context_parallel._scatter_heads

    def dealt(tensors: Sequence[Tensor], split: int, joined: int, group: Group) -> tuple[Tensor, ...]:
        found = before(tensors, split, joined, group)
        return tuple(each.roll(each.shape[1] // 2, 1) for each in found) if joined == 1 else found

    context_parallel._scatter_heads = dealt


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("llama:cp2r-dp1-mbs1-z0-rnone", sees_the_future),
        ("llama:cp2g-dp1-mbs1-z0-rnone", sees_the_future),
        ("llama:cp2r-dp1-mbs1-z0-rnone", other_positions),
        ("gpt:cp2g-dp1-mbs1-z0-rnone", other_positions),
        ("llama:cp2r-dp1-mbs1-z0-rnone", unweighted),
        ("llama:cp2g-dp1-mbs1-z0-rnone", lse_of_the_first_part),
        ("llama:cp2r-dp1-mbs1-z0-rnone", gradients_stay_away),
        ("llama:cp2r-dp2-mbs1-z0-rnone", over_data_ranks_only),
        ("llama:cp2u-dp1-mbs1-z0-rnone", no_reduction),
        ("llama:cp2u-dp1-mbs1-z0-rnone", swapped_heads),
    ],
)
def test_planted_faults_are_noticed(text: str, broken: Break) -> None:
    name, _, layout_id = text.partition(":")
    assert not parity_of(job(layout_id, model_for(name, layout_id)), broken).agrees


# ---- bytes


@pytest.mark.parametrize(
    "text",
    [
        "llama:cp2r-dp1-mbs2-z1-rnone", "llama:cp2g-dp1-mbs2-z1-rnone", "llama:cp2u-dp1-mbs2-z1-rnone",
        "llama:cp2g-dp1-mbs1-z3-rfull", "llama:tp2-cp2u-dp1-mbs1-z1-rsel", "llama:cp2r-pp2-dp1-mbs2-z0-rnone",
        "moe:cp2r-dp1-ep2-mbs1-z1-rnone",
    ],
)  # fmt: skip
def test_peak_memory_is_within_five_percent(text: str) -> None:
    name, _, layout_id = text.partition(":")
    wanted = rehearsal(layout_id, name)
    peaks = peak_bytes(wanted)
    for row in compare_memory(peaks, [stage["allocated"] for stage in predicted_bytes(wanted)]):
        assert abs(row.difference) < 0.05, f"stage {row.stage}: {row.measured_bytes:,} measured, {row.difference:+.1%}"


def _counted(group: Group) -> Counter[str]:
    """Bytes that go through `group` from now on, as `operations.Exchange` counts them."""
    found: Counter[str] = Counter()

    def count(name: str, kind: str, which: int) -> None:
        before = getattr(group, name)

        def counted(*args: Any) -> Any:
            found[kind] += args[which].nbytes
            return before(*args)

        setattr(group, name, counted)

    for name, kind, which in (("start_all_gather", "all_gather", 0), ("start_reduce_scatter", "reduce_scatter", 1),
                              ("all_to_all", "all_to_all", 1), ("pass_on", "p2p", 0)):  # fmt: skip
        count(name, kind, which)
    return found


def _sent(wanted: Job) -> dict[str, int]:
    """Bytes of one step over cp, on rank 0."""

    def one(rank: int) -> Counter[str]:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer = Trainer(wanted, mesh, torch.device("cpu"))
        found = _counted(mesh["cp"])
        trainer.step(0)
        return found

    return dict(fork(wanted.world_size, one)[0])


def _planned(wanted: Job, again: Callable[[Any], bool]) -> dict[str, int]:
    """The same by the planner's operations; `again`: the exchanges of a forward pass that the backward pass repeats."""
    problem = problem_of(wanted)
    keys, _ = index_keys(Layouts.of([wanted.layout]))
    found: Counter[str] = Counter()
    layers = wanted.model.num_layers / wanted.layout.pp
    for exchange in tables_of(problem, keys).operations[0].exchanges:
        calls = np.asarray(exchange.forward_calls) * (1 + again(exchange)) + exchange.backward_calls
        if exchange.axis == "cp":
            found[exchange.op] += int(layers * wanted.num_micro_batches * 2 * (exchange.num_bytes * calls).item())
    return dict(+found)


@pytest.mark.parametrize("algorithm", ["r", "g", "u"])
@pytest.mark.parametrize(
    "layout_id", ["cp2{}-dp1-mbs2-z0-rnone", "tp2-cp2{}-dp1-mbs1-z1-rfull", "cp4{}-dp1-mbs1-z0-rsel"]
)
def test_sends_what_the_planner_counts(layout_id: str, algorithm: str) -> None:
    wanted = job(layout_id.format(algorithm), model_for("gpt", layout_id))
    recomputed = "rnone" not in layout_id
    expected = _planned(wanted, lambda exchange: recomputed and ("rfull" in layout_id or bool(exchange.tag)))
    assert expected
    assert _sent(wanted) == expected


# ---- kernels


def _reference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """Output and gradients of attention by its definition, over all keys."""
    leaves = [each.detach().double().requires_grad_() for each in (q, k, v)]
    keys, values = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in leaves[1:])
    scores = leaves[0] @ keys.mT / q.shape[-1] ** 0.5
    out = scores.softmax(-1) @ values
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "tolerance"),
    [
        (flash.CPU, "cpu", torch.float64, 1e-14),
        (flash.CPU, "cpu", torch.bfloat16, 2e-2),
        pytest.param(flash.GPU, "cuda", torch.bfloat16, 2e-2, marks=gpu),
    ],
)
def test_two_parts_of_the_keys_are_all_of_them(
    kernel: flash.Kernel, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    q, grad = (torch.randn(2, 4, 6, 16, device=device).to(dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 10, 16, device=device).to(dtype) for _ in range(2))
    halves = [slice(0, 7), slice(7, 10)]
    total = flash.Total(*kernel.forward(q, k[:, :, halves[0]], v[:, :, halves[0]], False))
    total.add(slice(None), *kernel.forward(q, k[:, :, halves[1]], v[:, :, halves[1]], False))
    out, expected = total.out.to(dtype), _reference(q, k, v, grad)
    made = [kernel.backward(grad, q, k[:, :, half], v[:, :, half], out, total.lse, False) for half in halves]
    found = [out, made[0][0] + made[1][0], *(torch.cat([one[i] for one in made], 2) for i in (1, 2))]
    for mine, right in zip(found, expected, strict=True):
        assert torch.allclose(mine.double(), right, rtol=tolerance, atol=tolerance)


# ---- where tokens and ranks stand


@pytest.mark.parametrize("algorithm", ["ring", "allgather", "ulysses"])
def test_every_token_is_on_one_rank_and_scores_are_balanced(algorithm: str) -> None:
    groups = [Group("cp", range(4), rank, None, Status()) for rank in range(4)]
    places = [context_parallel.ContextParallel(group, algorithm).positions(32) for group in groups]
    assert torch.cat(places).sort().values.tolist() == list(range(32))
    assert all(torch.equal(place, place.sort().values) for place in places)
    scores = [int((place + 1).sum()) for place in places]
    assert len(set(scores)) == (1 if algorithm != "ulysses" else 4)


def test_cp_ranks_are_between_tp_and_dp() -> None:
    lists = rank_lists(job("tp2-cp2r-dp2-mbs1-z1-rnone").layout)
    assert lists["cp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert lists["shard"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    whole = rank_lists(job("cp2r-dp4-sh2-mbs1-z3-rnone").layout)
    assert whole["shard"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert whole["replicate"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert rank_lists(job("cp2r-dp2-mbs1-z0-rnone").layout)["replicate"] == [[0, 1, 2, 3]]


# ---- what is refused


ASKED = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "workload": {"seq_len": 65536, "global_batch": 8}}


def planned(layout_id: str, **changes: Any) -> Any:
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "seq_len": 8192, "global_batch": 16, **changes}
    return api.evaluate(None, layout_id, **asked)


@pytest.mark.parametrize(
    ("layout_id", "changes", "message"),
    [
        ("tp2-cp4r-dp1-mbs1-z1-rnone", {"seq_len": 8184}, r"8184 tokens .* 8 chunks x 2 parts of each = 16"),
        ("cp8u-dp1-mbs1-z1-rnone", {"seq_len": 8188}, r"8188 tokens .* 8 chunks x 1 parts of each = 8"),
        ("tp2-cp4u-dp1-mbs1-z1-rnone", {"model": "qwen2.5-7b"}, r"ulysses with cp 4 x tp 2 does not divide the 4 key"),
    ],
)
def test_the_planner_refuses(layout_id: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(layout_id, **changes)


@pytest.mark.parametrize(
    ("layout_id", "reason"),
    [
        ("cp4ru-dp2-mbs1-z1-rnone", "the runtime has no ring+ulysses attention yet"),
        ("cp2g-dp4-mbs1-z3-rfull-fp32", "cp 2 (allgather) needs the flash kernel: bf16"),
        ("cp2u-dp4-mbs1-z3-rfull-fp32", None),
        ("tp2-cp2r-dp2-mbs1-z3-rsel", None),
    ],
)
def test_the_target_supports_what_the_runtime_runs(layout_id: str, reason: str | None) -> None:
    resolved, layouts = resolve(request_from_dict(ASKED)), Layouts.of([parse(layout_id)])
    (said,) = TARGETS["meshwright"].supports(layouts, resolved.problem)[1]
    assert said == reason if reason is None else said is not None and reason in said


def test_the_search_weighs_all_algorithms() -> None:
    """At a length that one GPU cannot hold, the plan of our own runtime has context parallelism, and it is a job."""
    plan = api.plan(request_from_dict({**ASKED, "target": "meshwright", "fix": {"cp": 4}, "top": 3}))
    for choice, candidate in enumerate(plan.candidates, 1):
        assert candidate.to_layout().cp == 4
        assert job_of(plan, choice).layout == candidate.to_layout()


def test_the_runtime_refuses_a_plan_edited_to_an_odd_length() -> None:
    plan = planned("cp8r-dp1-mbs1-z1-rfull")
    resolved = {**plan.resolved, "workload": {**plan.resolved["workload"], "seq_len": 8200}}
    with pytest.raises(InputError) as caught:
        job_of(plan.model_copy(update={"resolved": resolved}), 1)
    assert "candidates.0.layout.cp" in caught.value.message
    assert "cp 8 makes 16 chunks, each in 1 parts: 16 do not divide the 8200 tokens" in caught.value.message


@pytest.mark.parametrize(
    ("layout_id", "reason"),
    [
        ("tp2-cp2u-dp1-mbs1-z1-rnone", "cp 2 x tp 2 does not divide the 2 key/value heads"),
        ("cp4ru-dp1-mbs1-z1-rnone", "no ring+ulysses attention yet"),
        ("cp2r-dp1-mbs1-z1-rnone-fp32", "cp 2 (ring) needs the flash kernel: bf16"),
    ],
)
def test_the_runtime_refuses(layout_id: str, reason: str) -> None:
    wanted = job(layout_id)
    found = unsupported(wanted.layout, wanted.model, Workload(seq_len=16, global_batch=8), wanted.stack)
    assert found is not None
    assert reason in found
