"""Takes the pictures of docs/pictures/ anew: the report and the explorer of 70B on 256 GPUs, in headless Chromium.

`make test-browser` installs what it needs: `.venv/bin/python tools/page_pictures.py`.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 1100
sys.path.insert(0, str(ROOT))


def keep(page: Page, name: str) -> None:
    """Writes the visible part of a page as a small PNG."""
    page.evaluate("() => document.activeElement.blur()")
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = FOLDER / name
    picture.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.goto(url)
    return page


def main() -> None:
    """The plan is searched once and shown twice."""
    import uvicorn
    from meshwright.cli.explore import server
    from meshwright.cli.explore.session import Session
    from meshwright.cli.pages.report import report_page
    from meshwright.planner.explain.report import report

    import meshwright as mw

    plan = mw.plan(model="llama-3-70b", cluster="dgx-h100", gpus=256, total_tokens=15e12)
    FOLDER.mkdir(exist_ok=True)
    listener = server.listening(0)
    application = server.application(Session.of(plan, "plan.json"), "t")
    running = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        path = Path(folder) / "report.html"
        path.write_text(report_page(plan, report(plan)), encoding="utf-8")
        page = opened(browser, path.as_uri())
        keep(page, "report.png")
        page.locator("figure.pipeline .zoom").first.fill("3.5")
        page.locator("figure.pipeline .position").first.fill("0")
        page.get_by_role("heading", name="Where the memory goes").scroll_into_view_if_needed()
        page.evaluate("scrollTo(0, document.querySelector('.memory').getBoundingClientRect().top + scrollY - 60)")
        keep(page, "report-pipeline.png")
        page = opened(browser, server.address(listener, "t"))
        page.locator("#study table").wait_for(timeout=120_000)
        page.locator("[data-path='gpu.memory.bandwidth']").fill("11")
        page.wait_for_timeout(15_000)  # the search for it
        keep(page, "explorer.png")
        browser.close()
    running.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
