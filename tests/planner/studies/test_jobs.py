"""`plan --jobs-file`: several models on one cluster, by the plans of each on some of its nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.studies.jobs import JobsPlan, plan_jobs

import meshwright as mw
from meshwright.errors import InputError, NoFeasibleLayoutError

from ...snapshots import run_here

MEMBERS = """\
cluster: dgx-h100:8
target: any
fix: {tp: 1, pp: 1, cp: 1}
jobs:
  - {name: member, count: 8, model: llama-3.2-1b, seq_len: 2048, global_batch: 64, total_tokens: 10B}
"""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "members.yaml"
    path.write_text(MEMBERS)
    return path


@pytest.fixture(scope="module")
def planned(members: Path) -> JobsPlan:
    return plan_jobs(members)


def test_members_of_an_ensemble_side_by_side(planned: JobsPlan) -> None:
    """8 models of 1B on 64 GPUs: one node each beats all nodes for each, one after another, by what data parallelism
    loses from 1 to 8 nodes (arXiv 2509.14786)."""
    one, whole = (
        mw.plan(None, model="llama-3.2-1b", cluster=f"dgx-h100:{nodes}", seq_len=2048, global_batch=64, target="any",
                fix={"tp": 1, "pp": 1, "cp": 1}).best.step_s
        for nodes in (1, 8)
    )  # fmt: skip
    efficiency = one / (8 * whole)

    assert efficiency < 1
    assert all(len(row.nodes) == 1 and row.start_s == 0 and row.target == "any" for row in planned.rows)
    assert planned.one_by_one_s is not None
    assert planned.makespan_s / planned.one_by_one_s == pytest.approx(efficiency)
    assert planned.makespan_s == pytest.approx(10e9 / (64 * 2048) * one)
    assert planned.bound_s == planned.makespan_s


def test_parts_of_the_data_cost_linearly(members: Path, planned: JobsPlan) -> None:
    """A model per part, averaged for each mixture, or a model per mixture: n or 2^n - 1 (arXiv 2410.15661)."""
    mixtures = members.with_name("mixtures.yaml")
    mixtures.write_text(MEMBERS.replace("count: 8", "count: 255"))
    assert plan_jobs(mixtures).gpu_hours / planned.gpu_hours == pytest.approx(255 / 8, rel=0.1)


def test_unlike_jobs(members: Path) -> None:
    """The larger one gets more nodes; flags win over the file."""
    path = members.with_name("unlike.yaml")
    path.write_text("""\
cluster: dgx-h100:8
target: any
seq_len: 2048
global_batch: 256
fix: {tp: 1, pp: 1, cp: 1}
jobs:
  - {name: large, model: llama-3.1-8b, total_tokens: 10B}
  - {name: small, model: llama-3.2-1b, total_tokens: 10B, count: 2}
""")
    plan = plan_jobs(path, {"cluster": "dgx-h100:4"})
    by_name = {row.name: row for row in plan.rows}

    assert set(by_name) == {"large", "small-1", "small-2"}
    assert plan.nodes == 4
    assert len(by_name["large"].nodes) > 1
    assert plan.bound_s <= plan.makespan_s <= 1.5 * plan.bound_s


def test_the_screen_and_the_file(members: Path) -> None:
    shown = run_here("plan", "--jobs-file", "members.yaml", "-o", "jobs.json", cwd=members.parent)
    assert shown.code == 0, shown.err
    assert "8 jobs on 8 nodes" in shown.out
    assert "no schedule is shorter" in shown.out
    assert json.loads((members.parent / "jobs.json").read_text())["kind"] == "jobs"
    for words, message in (((str(members),), "is a request"), (("--exclude", "0"), "--exclude"),
                           (("--allow-technique", "all"), "--allow-technique goes with one plan"),
                           (("--set", "top=3"), "--set goes with one plan")):  # fmt: skip
        refused = run_here("plan", *words, "--jobs-file", "members.yaml", cwd=members.parent)
        assert refused.code == 2
        assert message in refused.err


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("cluster: dgx-h100:2\n", ["must list the jobs"]),
        ("cluster: dgx-h100:2\njobs: []\n", ["must list the jobs"]),
        ("cluster: dgx-h100:2\njobs:\n  - {model: llama-3.2-1b}\n", ["line 3", "total_tokens", "how long the job is"]),
        ("cluster: dgx-h100:2\njobs:\n  - {modl: llama-3.2-1b, count: 0, total_tokens: 1B}\n  - null\n",
         ["unknown key `modl`", "count", "is empty"]),
        ("cluster: dgx-h100:2\njobs:\n  - {model: llama-3.2-1b, cluster: dgx-h100:1, total_tokens: 1B}\n",
         ["unknown key `cluster`"]),
        ("cluster: dgx-h100:1+dgx-a100-80gb:1\njobs:\n  - {model: llama-3.2-1b, total_tokens: 1B}\n",
         ["groups of nodes"]),
        ("cluster: dgx-h100:2\njobs:\n  - {name: a, model: llama-3.2-1b, total_tokens: 1B}\n"
         "  - {name: a, model: llama-3.1-8b, total_tokens: 1B}\n", ["two jobs are called `a`"]),
        ("cluster: dgx-h100:2\njobs:\n  - {model: lama, total_tokens: 1B}\n", ["lama"]),
        ("cluster: dgx-h100:2\njobs:\n  - {model: llama-3.2-1b, technique: dilco, total_tokens: 1B}\n",
         ["line 3, jobs[0].workload.techniques: unknown technique `dilco`"]),
        ("- 1\n", ["jobs"]),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, text: str, messages: list[str]) -> None:
    (tmp_path / "jobs.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        plan_jobs(tmp_path / "jobs.yaml")
    assert all(message in str(error.value) for message in messages), str(error.value)


@pytest.mark.slow
def test_a_job_that_fits_nowhere(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("cluster: dgx-h100:1\ntarget: any\njobs:\n"
                                        "  - {name: huge, model: llama-3.1-405b, total_tokens: 1B}\n")  # fmt: skip
    with pytest.raises(NoFeasibleLayoutError, match="huge fits nowhere: on all 1 nodes"):
        plan_jobs(tmp_path / "jobs.yaml")
