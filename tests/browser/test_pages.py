"""Reports and charts in Chromium: nothing on the console, nothing wider than a phone, all text readable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from meshwright.cli.charts.html import chart_page
from meshwright.cli.pages.post_training import post_training_page
from meshwright.cli.pages.report import report_page
from meshwright.cli.pages.serving import serving_page
from meshwright.planner.api import plan_rl, plan_serving
from meshwright.planner.document.plan import Plan
from meshwright.planner.explain.report import report
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.sweep import Sweep
from meshwright.planner.studies.what_if import what_if

import meshwright as mw

from ..snapshots import check
from .pages import NARROW, WIDE, Seen, problems

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pipeline() -> Plan:
    return mw.plan(model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64, fix={"pp": 4, "zero": 1})


def _report(plan: Plan) -> str:
    return report_page(plan, report(plan))


def _chart(*vary: str) -> str:
    result = what_if(pipeline(), vary=vary)
    assert isinstance(result, Sweep)
    return chart_page(result, "llama-3.1-8b on 2 x 8 h100-sxm-80gb")


def _serving() -> str:
    plan = plan_serving(model="llama-3.1-8b", cluster="2xh100-sxm-80gb", input=2000, output=300, rate="4/s", ttft="1 s",
                        fix=["tp=1", "pp=1"])  # fmt: skip
    return serving_page(plan, explain_serving(plan, 1))


def _post_training() -> str:
    plan = plan_rl(model="qwen3-4b", cluster="dgx-h100:1", prompts=8, samples=8, output=4000)
    return post_training_page(plan, 1)


PAGES: dict[str, Callable[[], str]] = {
    "report-pipeline": lambda: _report(pipeline()),
    "report-overlapped": lambda: _report(
        mw.evaluate(None, "pp4-dpv-vpp2-dp4-mbs1-z1-rnone", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)
    ),
    "report-one-gpu": lambda: _report(mw.plan(model="qwen3-0.6b", gpu="rtx-4090", gpus=1, global_batch=8)),
    "report-mixture": lambda: _report(mw.plan(model="mixtral-8x7b", cluster="dgx-h100:8", global_batch=256)),
    "report-serving": _serving,
    "report-post-training": _post_training,
    "curve": lambda: _chart("gpu.memory.bandwidth=2TB/s..8TB/s"),
    "map": lambda: _chart("gpu.memory.bandwidth=2TB/s..8TB/s", "gpu.peak=x0.5..x2:4"),
}
LOOKS = [pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
         for width in (WIDE, NARROW) for dark in (False, True)]  # fmt: skip


@pytest.fixture(scope="module", params=PAGES)
def page(browser: Browser, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(name, address)."""
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(PAGES[request.param](), encoding="utf-8")
    return request.param, path.as_uri()


FAULTY = """<!doctype html><html lang=en><title>faults</title><body style="background:#fff">
<p style="color:#aaa">pale</p><div style="width:900px">wide</div>
<svg viewBox="0 0 1000 40"><text y=20 fill="#bbb">drawn pale</text></svg>
<script>console.warn("written")</script>"""


def test_every_fault_is_seen(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "faulty.html"
    path.write_text(FAULTY, encoding="utf-8")

    found = "\n".join(problems(Seen(browser, path.as_uri(), NARROW)))

    faults = ("console: written", 'sticks out: <div style="width:900px">', "color-contrast: <p",
              "contrast 1.92: drawn pale", "small: 6.0 px: drawn pale")
    assert [fault for fault in faults if fault not in found] == []


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_nothing_is_wrong(browser: Browser, page: tuple[str, str], width: int, dark: bool) -> None:
    seen = Seen(browser, page[1], width, dark=dark)
    seen.page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")

    assert problems(seen) == []
    assert {asked.partition(":")[0] for asked in seen.asked} <= {"file", "data"}


def test_the_structure_is_the_same_on_a_phone(browser: Browser, page: tuple[str, str]) -> None:
    wide, narrow = (Seen(browser, page[1], width).outline() for width in (WIDE, NARROW))

    assert wide == narrow
    check(f"page-{page[0]}", wide)


def test_sliders_show_the_prices_of_what_if(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    plan = pipeline()
    path.write_text(_report(plan), encoding="utf-8")
    faster = what_if(plan, set=["gpu.peak=x2", "gpu.memory.bandwidth=x4"])
    assert isinstance(faster, Comparison)
    page = Seen(browser, path.as_uri(), WIDE).page

    for knob, mark in ((0, "3"), (1, "4")):
        page.locator(".knob").nth(knob).fill(mark)

    assert page.locator("#priced").text_content() == f"{faster.after.held.step_s:.3g} s"
    page.locator("#reset").click()
    assert page.locator("#priced").text_content() == f"{plan.best.closed_s:.3g} s"


def test_the_pipeline_zooms(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(_report(pipeline()), encoding="utf-8")
    page = Seen(browser, path.as_uri(), WIDE).page
    first = page.locator("rect").first
    before = first.bounding_box()

    page.locator(".zoom").fill("3")
    page.locator(".position").fill("0")

    after = first.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] == pytest.approx(8 * before["width"], rel=0.01)
    first.hover()
    assert "forward of micro-batch 0" in (page.locator("section .readout").first.text_content() or "")


def test_paper_has_everything_but_the_sliders(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(_report(pipeline()), encoding="utf-8")
    page = Seen(browser, path.as_uri(), WIDE).page

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert not page.locator(".live").is_visible()
    assert page.locator("details:not([open])").count() == 0
    assert page.pdf().startswith(b"%PDF")
