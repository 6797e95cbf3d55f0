"""The browser of these tests: the Chromium of the system, driven by Playwright.

They run under `make test-browser`, and are skipped elsewhere and where there is no Chromium.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not os.environ.get("MESHWRIGHT_BROWSER"):
        pytest.skip("`make test-browser` runs these")
    chromium = next(filter(None, map(shutil.which, _NAMES)), None)
    if chromium is None:
        pytest.skip("there is no Chromium: `apt-get install chromium`")
    from playwright.sync_api import sync_playwright

    # Root, as in containers, has no sandbox.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=flags)
        yield opened
        opened.close()
