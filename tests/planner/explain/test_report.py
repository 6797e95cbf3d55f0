"""The report: everything of the plan is on it, it is one file, and its numbers are the plan's."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from meshwright.cli.pages.pictures import memory_bars
from meshwright.cli.pages.report import report_page
from meshwright.cli.text import duration
from meshwright.planner.document.placement import Placement
from meshwright.planner.document.plan import Plan
from meshwright.planner.explain.rank_map import Seat, rank_map
from meshwright.planner.explain.report import Report, report
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.what_if import what_if

import meshwright as mw

from ...snapshots import check, run_here

VOID = {"meta", "link", "rect", "br", "input"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mw.plan(model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64, fix={"pp": 4, "zero": 1})


@pytest.fixture(scope="module")
def made(plan: Plan) -> Report:
    return report(plan)


@pytest.fixture(scope="module")
def page(plan: Plan, made: Report) -> str:
    return report_page(plan, made)


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def test_it_shows_the_plan(plan: Plan, page: str) -> None:
    shown = text_of(page)
    for each in plan.candidates:
        assert each.layout_id in shown
    for term in plan.best.terms:
        assert term.name in shown
    assert f"{plan.best.step_s:.3g} s" in shown
    for profile in plan.profiles:
        assert profile.name in shown
    assert plan.request_sha256[:16] in shown


def test_it_is_one_whole_file(page: str) -> None:
    class Nesting(HTMLParser):
        open: list[str] = []  # noqa: RUF012  # one parser per test

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in VOID:
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in VOID:
                assert self.open.pop() == tag

    parser = Nesting()
    parser.feed(page.replace("'/>", "'>"))
    assert parser.open == []
    assert not re.search(r"(?:src|href)=[\"'](?!data:)|@import|url\(|https?://", page.split("<body>")[0])
    assert len(page.encode()) < 3_000_000
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(", page)


def test_no_time_is_shown_as_nothing(plan: Plan, page: str) -> None:
    bars = page.split("<h2>Where the")[1]
    shown = re.findall(r'<span class="n">([\d.]+) (?:s|ms|us)</span>', bars)
    assert len(shown) == sum(term.exposed for term in plan.best.terms)
    assert all(float(each) > 0 for each in shown)


def test_what_a_user_wrote_cannot_become_markup(plan: Plan, made: Report) -> None:
    resolved = {**plan.resolved, "model": {**plan.resolved["model"], "name": "a&b<i>"}}
    written = plan.model_copy(update={"warnings": ("<script>alert(1)</script>",), "resolved": resolved})
    page = report_page(written, made)
    assert "<script>alert" not in page
    assert "a&amp;b&lt;i&gt;" in page


def test_commands_in_sentences_are_code(plan: Plan, made: Report) -> None:
    page = report_page(plan.model_copy(update={"warnings": ("a <b>: plan with `--target x`",)}), made)
    assert "<li>a &lt;b&gt;: plan with <code>--target x</code></li>" in page.replace("\n", "")


def test_the_picture_is_the_simulation(plan: Plan, made: Report) -> None:
    pipeline = made.pipeline
    assert pipeline is not None
    layout = plan.best.to_layout()
    (window,) = pipeline.windows
    micro_batches = 64 // (layout.dp * layout.micro_batch)
    assert pipeline.num_micro_batches == micro_batches
    # A forward and a backward of every chunk and micro-batch, none overlapping another on its stage. A schedule may
    # split the backward in two.
    passes = 3 if any(operation.letter == "W" for operation in window.operations) else 2
    assert len(window.operations) == passes * layout.pp * max(layout.vpp, 1) * micro_batches
    for stage in range(layout.pp):
        mine = sorted((op.start_s, op.end_s) for op in window.operations if op.stage == stage)
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(mine))
        busy = sum(end - start for start, end in mine)
        assert pipeline.idle[stage] == pytest.approx(1 - busy / pipeline.makespan_s, abs=1e-6)


def test_passes_that_run_together_share_their_row() -> None:
    overlapped = mw.evaluate(None, "pp4-dpv-vpp2-dp4-mbs1-z1-rnone", model="llama-3.1-8b", cluster="dgx-h100:2",
                             global_batch=128)  # fmt: skip
    pipeline = report(overlapped).pipeline
    assert pipeline is not None
    (window,) = pipeline.windows
    assert all(op.start_s < op.end_s for op in window.operations)
    upper, lower = ([(op.stage, op.start_s, op.end_s) for op in window.operations if op.half == half]
                    for half in ("upper", "lower"))  # fmt: skip
    assert upper == lower != []


def test_a_long_step_is_drawn_in_part() -> None:
    large = mw.evaluate(None, "tp8-pp8-dp2-mbs1-z1-rfull", model="llama-3.1-70b", cluster="dgx-h100:16",
                        global_batch=1024)  # fmt: skip
    pipeline = report(large).pipeline
    assert pipeline is not None
    first, last = pipeline.windows
    assert first.start_s == 0
    assert first.end_s < last.start_s < last.end_s <= pipeline.makespan_s
    assert sum(len(window.operations) for window in pipeline.windows) < 6200


def seats(of: Report) -> list[Seat]:
    return [seat for row in of.rank_map.rows for node in row.nodes for seat in node.seats]


def test_seats_cover_every_coordinate_once(plan: Plan, made: Report) -> None:
    layout = plan.best.to_layout()
    assert [seat.rank for seat in seats(made)] == list(range(16))
    assert len({(s.tp, s.cp, s.dp, s.pp) for s in seats(made)}) == 16
    assert [row.stages for row in made.rank_map.rows] == [(0, 1), (2, 3)]
    assert [seat.pp for seat in seats(made)] == [rank // (16 // layout.pp) for rank in range(16)]
    assert [link.num_gpus for link in made.rank_map.links] == [8, 16]


def test_the_map_follows_the_placement(plan: Plan) -> None:
    swapped = (*range(8, 16), *range(8))
    placement = Placement(hosts=("a", "b"), logical_of_rank=swapped)
    resolved = resolve(request_from_dict(plan.request))
    rows = rank_map(resolved.cluster, plan.best.to_layout(), placement).rows
    assert [(row.stages, row.nodes[0].name) for row in rows] == [((0, 1), "b"), ((2, 3), "a")]


def test_the_grid_has_the_prices_of_what_if(plan: Plan, made: Report) -> None:
    grid = made.price_grid
    assert len(grid.seconds) == len(grid.factors) ** len(grid.knobs)
    index = 0
    for factor in (2.0, 0.5, 1.0, 4.0):  # the last knob varies fastest
        index = index * len(grid.factors) + grid.factors.index(factor)
    sets = ["gpu.peak=x2", "gpu.memory.bandwidth=x0.5", "cluster.links.inter_node.bandwidth=x4"]
    compared = what_if(plan, set=sets)
    assert isinstance(compared, Comparison)
    assert sum(grid.seconds[index]) == pytest.approx(compared.after.held.step_s, rel=1e-8)
    assert dict(zip(grid.terms, grid.seconds[index], strict=True)) == pytest.approx(
        {**dict.fromkeys(grid.terms, 0.0), **compared.after.held.terms}, rel=1e-8)  # fmt: skip


def test_the_capacity_is_marked(plan: Plan) -> None:
    tight = memory_bars(plan.best, plan.best.device_bytes / 2)
    assert max(sum(part.width for part in bar.segments) for bar in tight) == pytest.approx(100)
    assert {round(bar.limit_at) for bar in tight} == {50}
    roomy = memory_bars(plan.best, plan.best.device_bytes * 2)
    assert {bar.limit_at for bar in roomy} == {100}
    for bar in roomy:
        assert sum(part.num_bytes for part in bar.segments) == pytest.approx(bar.num_bytes)


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "0 s"), (6.68e-5, "66.8 us"), (0.0302, "30.2 ms"),
                                               (119.0, "119 s"), (3600.0, "60.0 min"), (1e6, "11.6 days")])  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_ranks_run_along_tp_then_cp_dp_and_pp() -> None:
    own = mw.evaluate(None, "pp8-dp2-mbs1-z1-rnone", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)
    assert [(seat.dp, seat.pp) for seat in seats(report(own))] == [(rank % 2, rank // 2) for rank in range(16)]
    other = mw.evaluate(None, "tp2-cp2r-dp4-mbs1-z1-rnone", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)
    assert [(s.tp, s.cp, s.dp) for s in seats(report(other))] == [(r % 2, r // 2 % 2, r // 4) for r in range(16)]


def test_every_number_of_the_hardware_has_a_source(made: Report) -> None:
    named = {(fact.of, fact.name): fact for fact in made.facts}
    assert named["GPU h100-sxm-80gb", "memory.bandwidth"].value == "3.35 TB/s"
    assert ("node dgx-h100", "nics.bandwidth") in named
    assert all(fact.source for fact in made.facts)


def test_the_command(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    check("report", run_here("report", "plan.json", "-o", "report.html", cwd=tmp_path))
    first = (tmp_path / "report.html").read_text()
    again = run_here("report", "plan.json", "-o", "report.html", cwd=tmp_path)
    assert (again.code, again.err.splitlines()[0]) == (2, "error: report.html exists")
    assert run_here("report", "plan.json", "-o", "report.html", "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "report.html").read_text() == first

    second = json.loads(run_here("report", "plan.json", "--choice", "2", "-o", "two.html", "--json", cwd=tmp_path).out)
    assert (second["kind"], second["choice"]) == ("report", 2)
    assert "slower than" in text_of((tmp_path / "two.html").read_text())
    assert run_here("report", "plan.json", "--choice", "9", "-o", "x.html", cwd=tmp_path).code == 2
    assert not (tmp_path / "x.html").exists()
