"""The simulator beside the closed form: both read the constants of a stack alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.stages import Partition
from meshwright.cost_models.step.stragglers import straggler_share
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

FIELDS = {"model": "llama-3.1-405b", "cluster": "dgx-h100:2048", "target": "any"}


def test_a_share_of_the_reduction_never_hides() -> None:
    """In a deep interleaved pipeline there is room to hide all of it, and 1 - dp_overlap of it shows all the same."""
    resolved = resolve(load_request(None, FIELDS))
    layout = parse("tp8-cp4r-pp16-vpp8-dp32-sh2-mbs1-z1-rnone")
    shown_s = {}
    for share in (1.0, resolved.stack.dp_overlap):
        stack = replace(resolved.stack, dp_overlap=share)
        staged = Staged.of(replace(resolved, stack=stack), layout, simulate=True)
        shown_s[share] = staged.step_s
        reduce_s = sum(staged.costs.reduce_s[::16]) / share  # of the chunks of device 0

    assert shown_s[resolved.stack.dp_overlap] - shown_s[1.0] > 0.5 * (1 - resolved.stack.dp_overlap) * reduce_s


def test_a_stage_that_is_done_early_hides_its_reductions_behind_the_others() -> None:
    """Nothing hides, so a pipeline of two stages ends with the later of two times, worked out by hand: of the first
    stage, which computes last, and of the last one, which is done a backward pass and a message before."""
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": "dgx-h100", "target": "megatron"}))
    resolved = replace(resolved, stack=replace(resolved.stack, dp_overlap=1e-9, dp_gather_overlap=1e-9))
    staged = Staged.of(resolved, parse("pp2-dp4-mbs1-z1-rnone"), Partition((12, 20)), simulate=True)
    costs = staged.costs
    sent_s = [1e9 * (reduced + gathered) for reduced, gathered in zip(costs.reduce_s, costs.gather_s, strict=True)]
    done_s = staged.timeline.compute_end_s
    assert done_s[0] - done_s[1] > costs.input_s[0]
    assert sent_s[1] > sent_s[0]
    ready_s = max(done + sent for done, sent in zip(done_s, sent_s, strict=True))
    assert staged.step_s == pytest.approx(ready_s + max(costs.optimizer_s), rel=1e-6)
    assert staged.step_s < (done_s[0] + max(sent_s) + max(costs.optimizer_s)) * (1 - 1e-4)


def test_a_drawn_step_without_a_pipeline_has_the_sums_of_every_pass() -> None:
    """Copies of FSDP2's shards sum their gradients behind each micro-batch: the drawn step grows by as much as the
    closed form, that of one micro-batch and that under a pipeline by nothing."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:4", "target": "torchtitan", "global_batch": "128"}
    resolved = resolve(load_request(None, asked))
    assert resolved.stack.sums_every_pass
    once = replace(resolved, stack=replace(resolved.stack, sums_every_pass=False))
    for layout, grows in (("dp32-sh8-mbs1-z3-rfull", True), ("dp32-sh8-mbs4-z3-rfull", False),
                          ("pp2-dp16-sh8-mbs1-z3-rfull", False)):  # fmt: skip
        often, rarely = (Staged.of(of, parse(layout)) for of in (resolved, once))
        more_s = often.closed_s - rarely.closed_s
        assert (more_s > 0.01 * rarely.closed_s) == grows
        drawn_s = often.timeline.makespan_s - rarely.timeline.makespan_s
        assert drawn_s * (1 + straggler_share(often.ledger)) == pytest.approx(more_s, rel=1e-6)
