"""A page in headless Chromium: its console, its width, its contrast, its structure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

WIDE, NARROW = 1280, 390  # CSS pixels: a laptop, a phone
HEIGHT = 900
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
          "rules": {"color-contrast": {"enabled": False}}}  # fmt: skip
_CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
# Elements that stick out of the page, unless something around them scrolls or cuts them.
_STICKS_OUT = """() => [...document.body.querySelectorAll('*')].filter(e => {
  if (e.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let p = e.parentElement; p; p = p.parentElement)
    if (p !== document.body && getComputedStyle(p).overflowX !== 'visible') return false;
  return true;
}).map(e => e.outerHTML.slice(0, 120))"""
# axe cannot decide on text of SVG. Its colour is its fill; behind it is the shape drawn under it, or the first
# background that is not transparent.
_SVG_CONTRAST = """() => {
  const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const shape = text => {
    const at = text.getBoundingClientRect(), x = at.x + at.width / 2, y = at.y + at.height / 2;
    const inside = e => { const r = e.getBoundingClientRect();
      return r.left <= x && x <= r.right && r.top <= y && y <= r.bottom; };
    return [...text.ownerSVGElement.querySelectorAll('rect')].reverse().find(e => inside(e)
      && e.compareDocumentPosition(text) & 4 && getComputedStyle(e).fill !== 'none');
  };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  return [...document.querySelectorAll('svg text')].map(e => {
    const under = shape(e), back = under ? rgb(getComputedStyle(under).fill).slice(0, 3) : behind(e.ownerSVGElement);
    const a = light(rgb(getComputedStyle(e).fill).slice(0, 3)), b = light(back);
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent];
  }).filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => `contrast ${ratio.toFixed(2)}: ${text}`);
}"""
# Text of SVG shrinks with its drawing. Below 9 pixels nobody reads it.
_SMALL = """() => [...document.querySelectorAll('svg text')]
  .map(e => [parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a, e.textContent])
  .filter(([size]) => size < 9).map(([size, text]) => `${size.toFixed(1)} px: ${text}`)"""
# Headings, and below each the kinds of what is shown, without numbers and words that plans change.
_OUTLINE = """() => [...document.querySelectorAll('h1, h2, main > *, section > *')]
  .filter(e => e.checkVisibility() && e.tagName !== 'SECTION')
  .map(e => e.tagName === 'H1' ? 'h1' : e.tagName === 'H2' ? 'h2 ' + e.textContent
    : '  ' + (e.dataset.kind || e.className.split(' ')[0] || e.tagName.toLowerCase()))
  .map(line => line.replace(/[\\d.,]+ (s|ms|h|min)\\b/, 'N s').trimEnd())"""


class Seen:
    """A page and what it has written to the console or asked of the network since it was opened."""

    def __init__(self, browser: Browser, url: str, width: int, *, dark: bool = False) -> None:
        size: ViewportSize = {"width": width, "height": HEIGHT}
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        self.page: Page = context.new_page()
        self.console: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def wait_until(self, expression: str, argument: object = None, timeout_s: float = 120.0) -> None:
        """Waits until a function of JavaScript is true. (Playwright's own wait evaluates text, which pages forbid.)"""
        ends = time.monotonic() + timeout_s
        while not self.page.evaluate(expression, argument):
            if time.monotonic() > ends:
                raise TimeoutError(expression)
            self.page.wait_for_timeout(20)

    def sticking_out(self) -> list[str]:
        """Elements wider than the page."""
        wide = self.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found: list[str] = self.page.evaluate(_STICKS_OUT)
        return found or (["the page itself"] if wide else [])

    def axe_problems(self) -> list[str]:
        """Violations of WCAG 2.2 A and AA. A contrast that axe cannot decide counts; text of SVG is judged here."""
        from axe_playwright_python.sync_playwright import Axe

        rules: dict[str, Any] = Axe().run(self.page, options=_RULES).response
        # axe cannot decide on text that a table has scrolled out of sight: nothing is cut while it looks.
        self.page.add_style_tag(content=".scroll { overflow: visible !important; } body { min-width: 1100px; }")
        contrast: dict[str, Any] = Axe().run(self.page, options=_CONTRAST).response
        found = [f"{rule['id']}: {node['html'][:120]}: {node['any'][0]['message'] if node['any'] else rule['help']}"
                 for rule in (*rules["violations"], *contrast["violations"], *contrast["incomplete"])
                 for node in rule["nodes"] if not node["html"].startswith("<text")]  # fmt: skip
        return [*found, *self.page.evaluate(_SVG_CONTRAST)]

    def outline(self) -> str:
        """Headings and kinds of blocks in the order of the page, a line each."""
        lines: list[str] = self.page.evaluate(_OUTLINE)
        return "\n".join(lines) + "\n"


def problems(seen: Seen) -> list[str]:
    """Everything that no page may have."""
    found = [f"console: {line}" for line in seen.console]
    found += [f"sticks out: {html}" for html in seen.sticking_out()]
    found += [f"small: {line}" for line in seen.page.evaluate(_SMALL)]
    return found + seen.axe_problems()
