"""Contents → HTML: every text escaped, nothing loaded from elsewhere, a policy that would forbid it."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autoloss.numbers import counted, figure
from autoloss.report.failures import describe_end
from autoloss.report.page.charts import SIZE
from autoloss.report.page.contents import Contents

GENERATOR = b'<meta name="generator" content="autoloss'
"""What tells a report from another file."""
_FOLDER = files("autoloss.report.page").joinpath("templates")


def page(contents: Contents) -> str:
    """Return the whole page as one HTML document."""
    return (
        _environment()
        .get_template("page.html")
        .render(
            contents=contents, style=_asset("style.css"), script=_asset("page.js"), policy=policy(live=contents.live)
        )
    )


def compared_page(contents: object) -> str:
    """Return the page of several runs as one HTML document.

    Args:
        contents: A `comparing.RunsContents`, which is made of what this page does not know.
    """
    return (
        _environment()
        .get_template("comparison.html")
        .render(contents=contents, style=_asset("style.css"), script=_asset("page.js"), policy=policy(live=False))
    )


def main(contents: Contents) -> str:
    """Return what is inside the page's main part, for a page that is open already."""
    return _environment().get_template("main.html").render(contents=contents)


def apology(trouble: str) -> str:
    """Return what stands above a page whose run cannot be read any more."""
    text = Markup("<section class='alarm' role='alert'><p>{}</p><p>Below is what was read last.</p></section>")
    return text.format(trouble)


def policy(*, live: bool) -> str:
    """Return the Content-Security-Policy: this style, this script, images within the page, and nothing else."""
    allowed = {
        "default-src": "'none'",
        "style-src": _digest("style.css"),
        "script-src": _digest("page.js"),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("autoloss.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"SIZE": SIZE}
    made.filters |= {"figure": figure, "counted": counted, "end": describe_end}
    return made


@functools.cache
def _asset(name: str) -> Markup:
    # Both are the package's own files; a policy allows them by their digest.
    return Markup(_FOLDER.joinpath(name).read_text(encoding="utf-8"))


def _digest(name: str) -> str:
    found: Any = base64.b64encode(hashlib.sha256(_asset(name).encode()).digest())
    return f"'sha256-{found.decode()}'"
