"""Plans post-training: the layouts of all calls, their placement and its proof, the document."""

from __future__ import annotations

import math
from dataclasses import replace

from ..._version import __version__
from ...cost_models.quantities.params import total_parameters
from ...cost_models.specs.documents import spec_to_dict
from ...cost_models.units import GIB
from ...errors import NoFeasibleLayoutError, UnsupportedError
from ...profiles.cluster.document import cluster_to_dict
from ..document.base import rounded
from ..document.certificate import SpaceCount
from ..document.plan import digest_of
from ..document.rl_plan import RlCertificate, RlPlan
from ..request.reinforcement import RlRequest, RlWorkload
from ..targets.post_training.base import RlTarget
from ..workflows.candidates import candidate
from ..workflows.graph import graph_of
from ..workflows.prices import Prices
from ..workflows.problem import RlProblem
from ..workflows.resolve import rl_problem_of
from ..workflows.schedule import owners_of
from ..workflows.search import TOLERANCE, PlacementResult
from ..workflows.splits import Answer, search_all

_WEIGHTS = 2.0  # bytes of a parameter


def plan_rl(request: RlRequest) -> RlPlan:
    """The fastest placement of the calls of a step.

    Raises InputError for what does not fit together, UnsupportedError for a step that the target does not run,
    NoFeasibleLayoutError where a call fits on no GPUs.
    """
    rl, warnings = rl_problem_of(request)
    work = rl.work
    graph, prices = graph_of(work), Prices(rl)
    lags = tuple(sorted({0, min(work.lag, 1), work.lag}))
    if rl.target is not None:
        warnings += _limited(rl, rl.target, lags)
    answer = search_all(prices, graph, rl.resolved.budget_bytes, lags)
    if not answer.found:
        raise _no_place(prices, work)
    if work.lengths_rule is not None:
        warnings += _one_degree(rl, answer.found[0])
    listed = tuple(candidate(found, rl, n) for n, found in enumerate(answer.found[: request.top], 1))
    canonical = rounded(request.model_dump(mode="json"))
    lengths = rl.lengths
    return RlPlan(
        tool={"name": "meshwright", "version": __version__}, request_sha256=digest_of(canonical), request=canonical,
        origins=request.origins, candidates=listed, certificate=_certificate(answer, request.target),
        resolved={
            "models": {role: rounded(spec_to_dict(model)) for role, model in rl.models.items()},
            "cluster": rounded(cluster_to_dict(rl.cluster)),
            "stack": rounded(spec_to_dict(rl.resolved.stack)), "engine": rl.engine,
            "trainer": rl.resolved.target.name,
            "answers": rounded({"mean": lengths.mean, "p90": lengths.quantile(0.9),
                                "longest": lengths.longest(work.answers), "per_step": work.answers}),
            "factors": {"training": prices.constants.training, "copies": prices.constants.copies},
        },
        warnings=warnings,
    )  # fmt: skip


def _limited(rl: RlProblem, target: RlTarget, lags: tuple[int, ...]) -> tuple[str, ...]:
    """Warnings of lags that the target does not run. Raises UnsupportedError where it runs none."""
    reasons = {lag: target.cannot_run(rl.step, lag) for lag in lags}
    if all(reasons.values()):
        raise UnsupportedError("\n".join([f"{target} cannot run this step", *reasons[lags[0]]]),
                               hint="plan without `--target` for placements of any framework")  # fmt: skip
    return tuple(f"{target} cannot run lag {lag}: {'; '.join(texts)}" for lag, texts in reasons.items() if texts)


def _one_degree(rl: RlProblem, best: PlacementResult) -> tuple[str, ...]:
    """A warning where one degree for all answers trains faster on the GPUs of a placement."""
    trained = next(it for it in best.placed if it.call.name == "train")
    work = rl.work.model_copy(update={"lengths_rule": None})
    prices = Prices(replace(rl, work=work, stays=best.lag > 0))
    option = prices.of(trained.call, trained.mesh.gpus)
    if option is None or option.seconds >= trained.option.seconds:
        return ()
    return (f"one context-parallel degree for all answers trains faster, in {option.seconds:.3g} s by {option.layout}, "
            f"in place of {trained.option.seconds:.3g} s: leave out `--lengths-rule`",)  # fmt: skip


def _certificate(answer: Answer, target: str | None) -> RlCertificate:
    tally, best = answer.tally, answer.found[0].step_s
    ruled_out = {target: tally.ruled_out} if target is not None else {}
    space = SpaceCount(
        total=tally.total, by_axis={}, ruled_out=ruled_out, dominated=tally.equal, bounded=tally.bounded,
        out_of_memory=tally.out_of_memory, priced=tally.priced, unvisited=tally.unvisited,
    )  # fmt: skip
    bound = min(best, tally.lower_bound_s)
    gap = best / bound - 1.0
    return RlCertificate(space=space, lower_bound_s=bound, gap=gap, proven=not tally.unvisited or gap <= TOLERANCE)


def _no_place(prices: Prices, work: RlWorkload) -> NoFeasibleLayoutError:
    """The first call that fits on no GPUs, with its arithmetic."""
    rl, gpus = prices.rl, prices.rl.cluster.num_gpus
    memory = rl.resolved.memory_bytes
    runs = f" that {rl.target} runs" if rl.target is not None else ""
    for call in graph_of(work):
        if prices.of(call, gpus) is not None:
            continue
        weights = total_parameters(rl.models[call.role]) * _WEIGHTS
        room = f"{weights / GIB:,.1f} GiB of weights over {gpus} GPUs of {memory / GIB:,.1f} GiB"
        if call.kind == "generate":
            text = (f"the KV cache holds no answer: {room} leave no room for {work.input} + {math.ceil(work.output)} "
                    f"tokens in any layout of {rl.engine}{runs}")  # fmt: skip
        elif call.kind == "infer":
            text = f"the {call.role} model has no place: {room}"
        else:
            rule = " with degrees by answer (ZeRO-1, no stages)" if work.lengths_rule is not None else ""
            text = (f"the {call.role} cannot be trained{rule}{f' in any layout{runs}' if runs else ''}: {room} leave "
                    "no room for gradients, optimizer and activations")  # fmt: skip
        return NoFeasibleLayoutError(text, hint="more GPUs, GPUs with more memory, or a smaller model")
    return NoFeasibleLayoutError("all calls fit alone, but not beside each other" + _beside(prices),
                                 hint="more GPUs, or nodes with more memory")


def _beside(prices: Prices) -> str:
    """The least that the models keep on all GPUs, and the host memory that they may leave for."""
    rl, gpus, kept = prices.rl, prices.rl.cluster.num_gpus, dict[str, float]()
    for role, call in owners_of(graph_of(rl.work)).items():
        option = prices.of(call, gpus)
        if option is not None:
            kept[role] = min(it.kept_bytes + it.host_bytes for it in (option, *option.leaner)) / GIB
    if math.isinf(prices.host_bytes):
        return ""
    parts = " + ".join(f"{role} {gib:.1f}" for role, gib in kept.items())
    return (f": of each GPU {parts} = {sum(kept.values()):.1f} GiB leave for the host while others have it, and its "
            f"part of host memory has {prices.host_bytes / GIB:.1f} GiB for them")  # fmt: skip
