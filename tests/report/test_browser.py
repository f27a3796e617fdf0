"""The page in a real browser: it follows a search, asks nobody else for anything, and can be read and used by all."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoloss.proposing.records import Outcome, State
from autoloss.report.page.serving import Live, Server
from autoloss.report.page.writing import write_report
from autoloss.store.run_settings import TaskReference
from autoloss.store.store import Store
from tests.report.written import CE, KEY, POOLED, add, candidate, compared, scored, searched

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
LONG = "neg(log(mean_nhw(log(add(mean_c(mul(y, tanh(p))), max_pool(mul(mul(y, p), add(p, mean_c(p)))))))))"
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0
"""Least ratios of WCAG 2.2, AA."""

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = searched(tmp_path_factory.mktemp("browser") / "run", task=TaskReference("digits-seg", {"metric": "miou"}))
    add(path, (candidate(6, LONG), scored(0.5)))
    return compared(path, found=(0.9, 0.91, 0.92), standard=(0.7, 0.72, 0.71))


@pytest.fixture(scope="module")
def file(directory) -> str:
    return write_report(directory)[0].as_uri()


class Seen:
    """A page, with what it said and asked for."""

    def __init__(self, browser: Any, url: str, viewport: dict[str, int], scheme: str = "light") -> None:
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_file_says_nothing_asks_nobody_and_fits(viewport, scheme, browser, file):
    with Seen(browser, file, viewport, scheme) as seen:
        assert seen.errors == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        beyond = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.parentElement.clientWidth).map(t => t.id)"
        assert seen.page.evaluate(beyond) == []
        top = seen.page.locator("#headline").bounding_box()
        assert top["y"] + top["height"] < viewport["height"]
        assert seen.page.locator("#headline").inner_text() == "Yes: #1 beats the best baseline."
        assert seen.page.locator("math").count() > 5


COLOURS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const under = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = [], graphics = [];
  for (const element of document.querySelectorAll("body *:not(script)")) {
    const style = getComputedStyle(element);
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const name = element.outerHTML.slice(0, 80);
    const ink = element.tagName === "text" ? style.fill : style.color;
    if (own) texts.push([name, ratio(parts(ink), under(element))]);
    if (element.matches("path.line, path.dots, path.bar, path.point"))
      graphics.push([name, ratio(parts(style.stroke), under(element))]);
  }
  return [texts, graphics];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_and_every_line_stands_out_enough(scheme, browser, file):
    with Seen(browser, file, WIDE, scheme) as seen:
        texts, graphics = seen.page.evaluate(COLOURS)
    assert len(texts) > 100
    assert len(graphics) > 20
    assert [row for row in texts if row[1] < TEXT_CONTRAST] == []
    assert [row for row in graphics if row[1] < GRAPHIC_CONTRAST] == []


def test_everything_that_can_be_used_is_reached_and_worked_by_keyboard(browser, file):
    with Seen(browser, file, NARROW) as seen:
        page = seen.page
        wanted = page.evaluate("document.querySelectorAll('a, button, [tabindex=\"0\"]').length")
        reached = set()
        for _ in range(wanted + 1):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none" or page.evaluate("document.activeElement === document.body")
        assert len(reached) >= wanted
        page.locator("#best-table-sort-1").focus()
        page.keyboard.press("Enter")
        assert page.locator("#best-table th[aria-sort]").get_attribute("aria-sort") == "descending"
        scores = [float(text) for text in page.locator("#best-table tbody tr td:nth-child(2)").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        page.keyboard.press("Enter")
        assert float(page.locator("#best-table tbody tr td:nth-child(2)").first.inner_text()) == min(scores)


def test_whoever_does_not_see_it_is_told(browser, file):
    with Seen(browser, file, WIDE) as seen:
        page = seen.page
        assert page.locator("h1").count() == 1
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.evaluate("[...document.querySelectorAll('img')].every((image) => image.alt)")
        nameless = ("svg:not([aria-hidden])", "[role=img]:not([aria-label])", "[role=region]:not([aria-label])")
        assert page.locator(", ".join([*nameless, "section:not([aria-labelledby])"])).count() == 0
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((head) => +head.tagName[1])")
        assert all(later - sooner <= 1 for sooner, later in itertools.pairwise(levels))


def test_the_live_page_follows_a_search_and_keeps_scroll_focus_and_order(browser, tmp_path):
    directory = searched(tmp_path / "run")
    with Server(Live(directory), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with Seen(browser, server.address, NARROW) as seen:
                page = seen.page
                assert "best so far is #1" in page.locator("#answer").inner_text()
                page.locator("#best-table-sort-1").click()
                page.locator("#best-table-sort-1").click()
                page.locator("#best-table-sort-1").focus()
                page.evaluate("scrollTo(0, 700)")
                before = page.evaluate("scrollY")
                with Store(directory, write=True) as store:
                    store.add_training(CE, KEY, scored(0.95), 5)
                add(directory, (candidate(6, CE), None), (candidate(7, POOLED), None))
                page.get_by_text("best so far is #5").wait_for(timeout=60_000)
                assert "#7" in page.locator("#running").inner_text()
                assert page.evaluate("document.activeElement.id") == "best-table-sort-1"
                assert page.locator("#best-table th[aria-sort]").get_attribute("aria-sort") == "ascending"
                assert page.evaluate("scrollY") == before
                assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
                assert seen.errors == []
                assert [url for url in seen.requests if not url.startswith((server.address, "data:"))] == []
        finally:
            server.shutdown()
            thread.join()


def test_markup_as_names_stays_text_on_the_live_page(browser, tmp_path):
    hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><h1>"
    directory = searched(tmp_path / "<h1>run", title=hostile, task=TaskReference(None, {hostile: hostile}))
    with Server(Live(directory), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with Seen(browser, server.address, WIDE) as seen:
                with Store(directory, write=True) as store:
                    store.add_training(hostile, KEY, Outcome(state=State.FAILED, reason=hostile), 5)
                    store.add_candidate(candidate(6, hostile), {("main", 0): (hostile, "NO_GRADIENT")})
                    store.add_training(hostile, KEY, scored(0.99), 6)
                seen.page.get_by_text("best so far is #6").wait_for(timeout=60_000)
                assert "owned" in seen.page.locator("#best-table").inner_text()
                assert seen.page.locator("h1").count() == 1
                assert seen.page.title() != "owned"
                assert seen.page.locator("img[src=x]").count() == 0
                assert seen.errors == []
                assert [url for url in seen.requests if not url.startswith((server.address, "data:"))] == []
        finally:
            server.shutdown()
            thread.join()
