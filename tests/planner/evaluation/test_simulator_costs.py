"""The simulator beside the closed form: both read the constants of a stack alike."""

from __future__ import annotations

from dataclasses import replace

from meshwright.cost_models.layouts import parse
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
