"""Several models on one cluster: how many nodes each trains on, side by side or one after another.

Ensembles (pre-training under infinite compute, arXiv 2509.14786) and models of parts of the data that are averaged
later (modular training and merging, arXiv 2410.15661) are such jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...errors import FieldProblem, InputError, MeshwrightError, NoFeasibleLayoutError
from ...profiles.io.document import Document
from ...profiles.io.facts import Facts
from ...profiles.io.reader import read_document
from .. import api
from ..document.plan import Plan
from ..request.keywords import FLAT
from ..request.load import Request, changed_request, load_request
from ..request.resolve import resolve
from .base import Progress
from .packing import Packing, pack

FORMAT_VERSION = "1.1"
_OF_JOB = ("name", "count")


class JobRow(BaseModel):
    """A job of the schedule."""

    model_config = ConfigDict(frozen=True)

    name: str
    nodes: tuple[int, ...]  # numbers from 0
    start_s: float
    end_s: float
    target: str  # by which it trains
    layout_id: str
    step_s: float
    steps: float


class JobsPlan(BaseModel):
    """All jobs on the cluster."""

    model_config = ConfigDict(frozen=True)

    format_version: str = FORMAT_VERSION
    kind: str = "jobs"
    cluster: str
    nodes: int
    rows: tuple[JobRow, ...]  # in the order of the file
    makespan_s: float
    bound_s: float  # on the makespan of any schedule of jobs on these numbers of nodes
    one_by_one_s: float | None  # each on all nodes, one after another; None: one of them has no layout there
    gpu_hours: float
    # By name of the file: seconds by number of nodes.
    times_s: dict[str, dict[int, float]]


@dataclass(frozen=True)
class _Job:
    """A job of the file, with the plans that were made for it by number of nodes."""

    name: str
    count: int
    request: Request
    steps: float  # of the run


def plan_jobs(
    path: Path | str, overrides: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> JobsPlan:
    """The schedule of the jobs in `path`: `jobs`, each with fields of a request, `name` and `count`; fields beside
    `jobs` hold for all of them. overrides: the same by keyword, which win.

    Raises InputError with all problems of the file at once, and NoFeasibleLayoutError for a job that no number of nodes
    of the cluster trains.
    """
    jobs = _read(read_document(Path(path)), dict(overrides or {}))
    cluster = resolve(jobs[0].request).cluster
    if len(cluster.groups) > 1:
        raise InputError(f"{cluster.name} has {len(cluster.groups)} groups of nodes, and jobs are placed on nodes that "
                         "are alike", hint="a file for each group")  # fmt: skip
    numbers = _numbers(cluster.num_nodes)
    known: dict[str, dict[int, Plan]] = {}
    made: list[dict[int, Plan]] = []
    for index, job in enumerate(jobs):
        if progress is not None:
            progress(index, len(jobs), job.name)
        key = job.request.sha256
        if key not in known:
            known[key] = _plans(job, cluster.num_nodes, numbers)
        made.append(known[key])
    each = [(job, plans) for job, plans in zip(jobs, made, strict=True) for _ in range(job.count)]
    times = [{number: job.steps * plan.best.step_s for number, plan in plans.items()} for job, plans in each]
    packing = pack(times, cluster.num_nodes)
    whole = [time.get(cluster.num_nodes) for time in times]
    busy_s = sum(len(placed.nodes) * (placed.end_s - placed.start_s) for placed in packing.placed)
    return JobsPlan(
        cluster=cluster.name, nodes=cluster.num_nodes, rows=_rows(each, packing), makespan_s=packing.makespan_s,
        bound_s=packing.bound_s, one_by_one_s=None if None in whole else sum(s for s in whole if s is not None),
        gpu_hours=busy_s / 3600 * cluster.gpus_per_node,
        times_s={job.name: {number: job.steps * plan.best.step_s for number, plan in plans.items()}
                 for job, plans in zip(jobs, made, strict=True)},
    )  # fmt: skip


def _rows(each: Sequence[tuple[_Job, dict[int, Plan]]], packing: Packing) -> tuple[JobRow, ...]:
    """The rows of all jobs; those that a job of the file stands for are numbered."""
    rows, numbered = [], dict.fromkeys((job.name for job, _ in each), 0)
    for (job, plans), placed in zip(each, packing.placed, strict=True):
        numbered[job.name] += 1
        plan = plans[len(placed.nodes)]
        name = f"{job.name}-{numbered[job.name]}" if job.count > 1 else job.name
        rows.append(JobRow(
            name=name, nodes=placed.nodes, start_s=placed.start_s, end_s=placed.end_s, target=plan.resolved["target"],
            layout_id=plan.best.layout_id, step_s=plan.best.step_s, steps=job.steps,
        ))  # fmt: skip
    return tuple(rows)


def _numbers(nodes: int) -> list[int]:
    """Numbers of nodes that a job may have: powers of two, and all."""
    return sorted({1 << k for k in range(nodes.bit_length()) if 1 << k <= nodes} | {nodes})


def _read(document: Document, overrides: dict[str, Any]) -> list[_Job]:
    facts, allowed = Facts(document), set(FLAT) - {"workload", "exclude"}
    facts.keys((), {*allowed, "jobs"})
    listed = document.at(("jobs",)) if isinstance(document.data, Mapping) else None
    if not isinstance(listed, list) or not listed:
        facts.fail(("jobs",), "must list the jobs", "`jobs: [{name: small, count: 8, model: llama-3.2-1b}]`")
        listed = []
    shared = {key: value for key, value in (document.data if isinstance(document.data, Mapping) else {}).items()
              if key != "jobs"}  # fmt: skip
    jobs: list[_Job] = []
    for index, fields in enumerate(listed):
        path = ("jobs", index)
        if not facts.keys(path, {*allowed, *_OF_JOB} - {"cluster", "gpu", "gpus"}):
            if fields is None:
                facts.fail(path, "is empty")
            continue
        count = facts.whole((*path, "count")) if "count" in fields else 1
        if not fields.get("total_tokens", overrides.get("total_tokens") or shared.get("total_tokens")):
            facts.fail((*path, "total_tokens"), "is missing: how long the job is", "`total_tokens: 100B`")
        if facts.problems or count is None:
            continue
        asked = {**shared, **{key: value for key, value in fields.items() if key not in _OF_JOB}, **overrides}
        try:
            request = load_request(None, asked)
            workload = resolve(request).workload
        except InputError as error:
            problems = error.problems or (FieldProblem(error.message, hint=error.hint),)
            facts.problems += [_of_job(index, problem, document) for problem in problems]
            continue
        jobs.append(_Job(str(fields.get("name", f"job-{index + 1}")), count, request,
                         float(workload.total_tokens or 0.0) / workload.tokens_per_step))  # fmt: skip
    names = [job.name for job in jobs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        facts.fail(("jobs",), f"two jobs are called `{name}`", "`count` repeats a job")
    facts.finish()
    return jobs


def _of_job(index: int, problem: FieldProblem, document: Document) -> FieldProblem:
    """The problem at the place of its job, unless it is in a file of its own."""
    if problem.file:
        return problem
    field = ".".join(filter(None, (f"jobs[{index}]", problem.field)))
    return problem._replace(field=field, file=document.name, line=document.line(("jobs", index)))


def _plans(job: _Job, nodes: int, numbers: list[int]) -> dict[int, Plan]:
    """Number of nodes -> the plan there. Raises NoFeasibleLayoutError where there is none."""
    plans: dict[int, Plan] = {}
    last: MeshwrightError | None = None
    for number in numbers:
        left_out = [str(node) for node in range(number, nodes)]
        request = changed_request(job.request, {("exclude",): left_out}) if left_out else job.request
        try:
            plans[number] = api.plan(request)
        except NoFeasibleLayoutError as error:
            last = error
    if not plans:
        reason = last.message.splitlines()[0] if last else "no layout"
        raise NoFeasibleLayoutError(f"{job.name} fits nowhere: on all {nodes} nodes {reason}",
                                    hint=last.hint if last else "")  # fmt: skip
    return plans
