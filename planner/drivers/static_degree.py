"""One degree for all documents of a run, for frameworks that give none its own: the plan of one layout, and the reason.

Documents are packed into sequences that hold the longest one, a power of two of them with the tokens of a mean step.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..document.lengths_plan import LengthsPlan
from ..document.plan import Plan
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..search.executors import opened
from .even_stages import plan_even_stages
from .watch import Watch

_MULTIPLE = 256  # of which the tokens of a sequence are one, so that degrees divide it


def static_plan(plan: LengthsPlan, framework: str) -> tuple[Plan, str]:
    """The fastest layout that `framework` trains, and why it is one of a single degree, with both steps.

    Raises UnsupportedError and NoFeasibleLayoutError as a plan without `--max-len`.
    """
    resolved = packed(resolve(request_from_dict(plan.request).for_target(framework, "--to")), plan.longest)
    with opened() as pool:
        made = plan_even_stages(resolved, Watch(None, None, pool))
    own = plan.policy("per sequence").mean_s
    reason = (f"{resolved.target.framework} has one context-parallel degree for all documents of a run: "
              f"{made.best.step_s:.3g} s per step in packs of {resolved.workload.seq_len:,} tokens, {own:.3g} s with a "
              f"degree for each document, which `meshwright launch` trains")  # fmt: skip
    return made, reason


def packed(resolved: Resolved, longest: int) -> Resolved:
    """The request with its documents packed into sequences that hold `longest` tokens."""
    workload = resolved.workload
    tokens = round(workload.global_batch * (workload.mean_len or longest))
    packs = 1 << max(0, math.floor(math.log2(tokens / longest)))
    seq_len = math.ceil(max(tokens / packs, longest) / _MULTIPLE) * _MULTIPLE
    # Positions begin again with every document, but frameworks ask for as many as a sequence has tokens.
    model = replace(resolved.model, max_positions=max(resolved.model.max_positions, seq_len))
    return replace(resolved, model=model, workload=replace(workload, seq_len=seq_len, global_batch=packs))
