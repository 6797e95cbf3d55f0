"""Published steps on documents of mixed lengths: a row as (model, cluster, lengths, batch, system), and its mean step.

Batches are drawn from the sample that the row names, and planned as its system does. The ledger prices the groups
(planner/batches/ledger_costs.py). No constant is fitted to these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.problem import Problem
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ...errors import InputError
from ...profiles.model.explicit_form import read_explicit_form
from ...profiles.stack.load import stack_for
from ...profiles.stack.rates import rates_for
from ..batches import one_degree
from ..batches.batch_plan import BatchPlan
from ..batches.block_placement import MASKS
from ..batches.consecutive import BUCKETS, consecutive_plan
from ..batches.costs import GroupCosts, powers_of_two
from ..batches.draws import draw
from ..batches.ledger_costs import Family, Priced, ledger_costs
from ..request.headroom import default_share
from ..request.lengths import parse_lengths, sample_names
from .block_seconds import Blocks, saved_s
from .case import read_measured
from .case_cluster import read_cluster
from .outcome import RunOutcome
from .row import Measured, RowReader

REGIME = "mixed-length"  # of the rows
_STEPS = 30  # of a run, drawn: its longest document is the longest of these
_GPT2_VOCAB = 50257
Plan = Callable[[Array, GroupCosts], BatchPlan]


@dataclass(frozen=True, kw_only=True)
class System:
    """How a system trains documents of mixed lengths."""

    stack: str  # whose rates are taken
    algorithm: str
    plan: Plan | None  # of a batch; None: one degree for all batches
    least_degree: int = 1
    any_tp: bool = False  # tensor parallelism is chosen, where a row does not state it
    balances: bool = False  # blocks of attention over all ranks, as DCP does


def _flexsp(lengths: Array, costs: GroupCosts) -> BatchPlan:
    return consecutive_plan(lengths, costs, BUCKETS)


# FlexSP runs on Hetu-Galvatron, whose ZeRO-3 is priced as DeepSpeed's; DCP on Megatron-LM, as its baseline does.
_SYSTEMS = {
    "deepspeed-ulysses": System(stack="deepspeed", algorithm="ulysses", plan=None),
    "flexsp-batchada": System(stack="deepspeed", algorithm="ulysses", plan=one_degree.adaptive, least_degree=2),
    "flexsp": System(stack="deepspeed", algorithm="ulysses", plan=_flexsp, least_degree=2),
    "megatron-lm": System(stack="megatron-lm-2024", algorithm="ring+ulysses", plan=None, any_tp=True),
    "megatron-lm (TE a2a+p2p)": System(stack="megatron-lm-2024", algorithm="ring+ulysses", plan=None),
    "dcp": System(stack="megatron-lm-2024", algorithm="ring+ulysses", plan=None, balances=True),
}


@dataclass(frozen=True, kw_only=True)
class MixedCase:
    """A published mean step on documents of mixed lengths."""

    id: str
    source: str
    quality: str
    system: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload  # `lengths` is empty where no sample has them
    dataset: str
    tp: int  # 0: not stated
    zero: int
    blocks: Blocks  # of DCP
    measured: Measured
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Priced:
    problem: Problem
    rates: Rates
    budget_bytes: float


def read_mixed(row: RowReader) -> MixedCase | None:
    """The case of a row whose fields are right; None with `row.problems` for a faulty row."""
    num_gpus, cluster = read_cluster(row, {})
    system, dataset = row.text("layout", "system"), row.text("workload", "dataset")
    longest, tokens = row.whole("workload", "max_seq_len"), row.number("workload", "tokens_per_global_batch")
    batch = row.whole("workload", "global_batch", default=max(1, round((tokens or 1) / longest)))
    model = _model(row, num_gpus)
    lengths: tuple[tuple[int, float], ...] = ()
    if dataset in sample_names():
        lengths = tuple(pair for pair in parse_lengths(dataset).items() if pair[0] <= longest)
    elif tokens:
        row.assume("documents of max_seq_len tokens (their lengths are not published with the row)")
        lengths = ((longest, 1.0),)
    blocks = _blocks(row)
    if blocks.mask != "causal" and system != "dcp":
        row.assume("mask priced as causal")
    measured, tp = read_measured(row), row.whole("layout", "tp", default=0, least=0)
    zero = row.whole("layout", "zero_stage", default=1, label="ZeRO-1 (zero_stage not stated)", least=0)
    name, source, quality = row.text("id"), row.text("source"), row.text("quality", default="B")
    if row.problems or model is None or cluster is None:
        return None
    return MixedCase(
        id=name, source=source, quality=quality, system=system, model=model, cluster=cluster,
        workload=Workload(seq_len=longest, global_batch=batch, packed=True, lengths=lengths),
        dataset=dataset, tp=tp, zero=zero, blocks=blocks, measured=measured,
        assumptions=tuple(dict.fromkeys(row.assumptions)),
    )  # fmt: skip


def _blocks(row: RowReader) -> Blocks:
    """DCP's settings, by default those of its benchmark (`run_experiments` at 942a2c7)."""
    mask = row.text("workload", "mask", default="causal")
    if mask not in MASKS:
        row.fail(("workload", "mask"), f"unknown mask {mask}", f"known: {', '.join(MASKS)}")
    imbalance, factor = row.number("layout", "comp_imbalance") or 0.1, row.number("layout", "inter_node_factor") or 4.0
    return Blocks(mask=mask, tokens=row.whole("layout", "block", default=1024), work_limit=imbalance * factor)


def _model(row: RowReader, num_gpus: int) -> ModelSpec | None:
    """The model; without grouped heads it has as many as GPUs, which Ulysses splits over all of them."""
    given = row.part("model")
    data = {key: value for key, value in given.items() if key not in ("name", "note") and value is not None}
    data["max_positions"] = row.whole("workload", "max_seq_len")
    if "vocab" not in data:
        data["vocab"] = _GPT2_VOCAB
        row.assume("vocabulary of GPT-2 (not stated)")
    if given.get("gated_mlp") is False:
        data |= {"bias": True, "learned_positions": True}
    hidden, heads = row.whole("model", "hidden"), row.whole("model", "heads")
    if "kv_heads" not in data and heads % num_gpus and hidden % num_gpus == 0:
        data |= {"heads": num_gpus, "kv_heads": num_gpus, "head_dim": hidden // num_gpus}
        row.assume("as many heads as GPUs: Ulysses splits them")
    try:
        return read_explicit_form(data, row.text("model", "name"))[0]
    except InputError as error:
        for problem in error.problems:
            row.fail(("model", *problem.field.split(".")), problem.message, error.hint)
        return None


def outcome(case: MixedCase) -> RunOutcome:
    """The prediction of a mean step beside its measurement."""
    refused = step_s = None
    try:
        step_s = mean_step_s(case)
    except InputError as error:
        refused = error.message
    return RunOutcome(
        id=case.id, source=case.source, hardware=case.cluster.gpu.name, regime=REGIME, stack=case.system,
        family=case.system, group=None, core=False, quality=case.quality, scored=case.quality != "C",
        memory_scored=False, step_s=step_s, measured_step_s=case.measured.step_s, peak_memory_bytes=None,
        measured_peak_memory_bytes=case.measured.peak_memory_bytes, memory_kind=case.measured.memory_kind,
        refused=refused, tp_pp=case.tp, micro_batch=0, layout="", assumptions=case.assumptions,
    )  # fmt: skip


def mean_step_s(case: MixedCase) -> float:
    """Mean seconds of a step. Raises InputError where the system or the lengths are not known, or memory is short."""
    system = _SYSTEMS.get(case.system)
    if system is None:
        raise InputError(f"no planner for the system {case.system}; known: {', '.join(_SYSTEMS)}")
    if not case.workload.lengths:
        raise InputError(f"the lengths of {case.dataset} are not known; samples: {', '.join(sample_names())}")
    multiple = 2 * case.cluster.num_gpus
    drawn = draw(case.workload.lengths, case.workload.global_batch, _STEPS)
    batches = [np.ceil(lengths / multiple) * multiple for lengths in drawn]
    longest = max(float(lengths.max()) for lengths in batches)
    means = [_mean_s(case, system, *able, batches, longest) for able in _able(case, system, longest)]
    if not means:
        raise InputError(f"a document of {longest:,.0f} tokens does not fit on {case.cluster.num_gpus} GPUs")
    return min(means)


def _mean_s(
    case: MixedCase, system: System, priced: Priced, family: Family, costs: GroupCosts, batches: list[Array],
    longest: float,
) -> float:  # fmt: skip
    if system.plan is not None:
        return float(np.mean([system.plan(lengths, costs).step_s for lengths in batches]))
    if system.balances and family.recompute != "none":
        raise InputError("DCP is not priced with recomputation, and without it the activations do not fit")
    degree = int(costs.degrees[-1]) if system.balances else one_degree.static_degree(batches, costs, longest)
    steps = [plan.step_s for lengths in batches if (plan := one_degree.with_degree(lengths, costs, degree))]
    if system.balances:
        distinct = {tuple(lengths.tolist()): lengths for lengths in batches}
        saved = {key: saved_s(priced, family, costs, lengths, case.blocks) for key, lengths in distinct.items()}
        steps = [step_s - saved[tuple(lengths.tolist())] for step_s, lengths in zip(steps, batches, strict=True)]
    return float(np.mean(steps))


def _able(case: MixedCase, system: System, longest: float) -> Iterator[tuple[Priced, Family, GroupCosts]]:
    """Families and their costs by tensor-parallel degree, each with the least recomputation under which all ranks hold
    the longest."""
    rates = rates_for(case.cluster, stack_for(system.stack)[0], "bf16")
    problem = Problem(case.model, case.workload, rates.stack, case.cluster.num_gpus, case.cluster.gpus_per_node)
    priced = _Priced(problem, rates, case.cluster.gpu.memory_bytes * (1 - default_share()))
    layers = len(case.model.pattern)
    tps = powers_of_two(case.cluster.gpus_per_node).tolist() if system.any_tp else [max(case.tp, 1)]
    for tp in tps:
        for mode, layers in (("none", 0), *(("full", layers * part // 8) for part in range(1, 8)), ("full", 0)):
            family = Family(tp, system.algorithm, mode, case.zero, layers)
            costs = ledger_costs(priced, family)
            if costs is not None and costs.longest >= longest:
                yield priced, family, costs.from_degree(system.least_degree)
                break
