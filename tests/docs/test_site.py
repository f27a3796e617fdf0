"""The site builds without a warning, says what the code says, and loads nothing from anywhere else."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from website import catalogue, commands, documented, settings

import autoloss
from autoloss.cli import app
from autoloss.settings import setting_names
from autoloss.space.operators import OPERATORS
from autoloss.tasks.catalogue import CATALOGUE
from autoloss.zoo import ENTRIES
from tests.docs.pages import ROOT
from tests.report.test_browser import ARGUMENTS, CHROMIUM

pytest.importorskip("material", reason="mkdocs-material is not installed (pip install autoloss[docs])")
pytest.importorskip("torchvision", reason="torchvision is not installed (pip install autoloss[vision])")

LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\bhref=[\"']?([^\"'\s>]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return place


def test_every_page_is_there(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages | {"quick-start", "gallery", "notebook", "contributing", "changelog"} <= {
        path.stem for path in site.glob("*.html")
    }
    assert {path.stem for path in (site / "reference").glob("*.html")} == {
        "commands",
        "settings",
        "tasks",
        "losses",
        "python",
    }


def test_every_picture_of_a_page_is_part_of_the_site(site):
    shown = {
        page: re.findall(r'(?:src|srcset)="([^"#:]+\.png)"', page.read_text(encoding="utf-8"))
        for page in site.rglob("*.html")
    }
    assert sum(map(len, shown.values())) >= 6
    assert [
        (page.name, name) for page, names in shown.items() for name in names if not (page.parent / name).exists()
    ] == []


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = [first or second for first, second in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert loaded
        assert [url for url in loaded if re.match(r"(?:https?:)?//", url)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_reference_says_all_that_the_code_knows(site):
    page = {path.stem: path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html")}
    named = [command.callback.__name__ for command in app.registered_commands]
    assert [name for name in named if f'<h2 id="{name}">' not in page["commands"]] == []
    assert [name for name in setting_names() if f"<code>{name}</code>" not in page["settings"]] == []
    assert [name for name in CATALOGUE if f'<h2 id="{name}">' not in page["tasks"]] == []
    assert [name for name in ENTRIES if f"<code>{name}</code>" not in page["losses"]] == []
    assert [name for name in OPERATORS if f"<code>{name}(" not in page["losses"]] == []
    assert [name for name in autoloss.__all__ if f"autoloss.{name}" not in page["python"]] == []


def test_defaults_and_meanings_come_from_the_code():
    assert "| `evolution.lag` | Candidate k depends on the outcomes up to candidate k − lag;" in settings.page()
    assert "(`search.promoted_lag`). | `4` | a whole number, at least 1 |" in settings.page()
    assert "| `none` | a whole number, at least 1, or none |" in settings.page()
    assert "| `voc-seg` | `rejection.threshold=0.6`, `rejection.unit=absolute` |" in settings.page()
    assert re.search(r"\| `--seeds <int[^`]*` \| Trainings per loss, on new training seeds. \| `8` \|", commands.page())
    assert re.search(r"\| `side` \| [^|]* \| `128` \| `512` \|", catalogue.page())
    assert "| `tail` | Exponent of the class frequencies: how much rarer each digit is" in catalogue.page()


def test_every_option_of_a_task_has_a_meaning():
    page = catalogue.page()
    for name in CATALOGUE:
        _, _, section = page.partition(f"## {name}\n")
        lines = section.partition("\n## ")[0].splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
        assert len(rows) > 5, name
        assert [row[0] for row in rows if len(row[1].split()) < 2] == [], name


def test_arguments_are_read_from_docstrings():
    def told() -> None:
        """Do it.

        More.

        Args:
            first: One
                line.
            second: Another.

        Returns:
            Nothing
            at all.
        """

    said = documented.docstring(told)
    assert said.text == "Do it.\n\nMore."
    assert said.entries("Args") == {"first": "One line.", "second": "Another."}
    assert said.sections["Returns"] == "Nothing\nat all."


@pytest.fixture
def address(site) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_site_in_a_browser(address, width, scheme):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGUMENTS)
        page = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in (
            "index",
            "gallery",
            "start",
            "paper",
            "reference/commands",
            "reference/losses",
            "reference/python",
        ):
            page.goto(f"{address}/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        page.keyboard.press("/")
        page.keyboard.type("evolution.lag")
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
        browser.close()
    assert errors == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
