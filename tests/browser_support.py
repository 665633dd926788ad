"""One headless Chromium for all tests of a file, and pages that remember what went wrong in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome")

# Every text node that is seen, with its contrast to what lies behind it; WCAG 2.2 AA asks for 4.5, or 3 if it is large.
CONTRAST = """
() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const share = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * share[0] + 0.7152 * share[1] + 0.0722 * share[2];
  };
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length && (colour[3] === undefined || colour[3] > 0)) return over(colour, [255, 255, 255]);
    }
    return numbers(getComputedStyle(document.documentElement).colorScheme === "dark" ? "0 0 0" : "255 255 255");
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, [hidden]")) continue;
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (style.visibility === "hidden" || style.display === "none" || box.width === 0) continue;
    const back = behind(element);
    let front = over(numbers(element instanceof SVGElement ? style.fill : style.color), back);
    for (let e = element; e; e = e.parentElement) front = over([...front, Number(getComputedStyle(e).opacity)], back);
    const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    found.push({ text: node.textContent.trim().slice(0, 40), ratio, wanted: large ? 3 : 4.5 });
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; without one the tests are skipped.

    Not for the session: while playwright runs, its event loop does, and no other test of the process could start one.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium (or brew install --cask chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """``opened(address, width=..., dark=...)`` is a page whose scripts have done their work, the same one each time.

    In the end nothing was said on any console, and nothing was asked for but addresses below those that were opened.
    """
    pages, problems, asked = dict[tuple[str, int, bool], Any](), list[str](), list[str]()

    def page_at(address: str, width: int = 1280, dark: bool = False) -> Any:
        if (address, width, dark) in pages:
            return pages[address, width, dark]
        scheme = "dark" if dark else "light"
        page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        pages[address, width, dark] = page
        return page

    yield page_at
    for page in pages.values():
        page.close()
    assert problems == []
    known = ("data:", *(address for address, _, _ in pages))
    assert [url for url in asked if not url.startswith(known)] == []


def wait_for(page: Any, script: str, value: object) -> None:
    """Wait until a script gives a value; a page's own policy forbids Playwright's way of doing so."""
    for _ in range(300):
        if page.evaluate(script) == value:
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"{script} never gave {value}, but {page.evaluate(script)}")


def low_contrast(page: Any) -> list[str]:
    """Texts that are hard to read."""
    found = page.evaluate(CONTRAST)
    assert len(found) > 50, "the page has text"
    return [f"{one['text']}: {one['ratio']:.2f} of {one['wanted']}" for one in found if one["ratio"] < one["wanted"]]
