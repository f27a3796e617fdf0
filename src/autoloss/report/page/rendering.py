"""Contents → HTML: every text is escaped, and a policy forbids loading anything from elsewhere."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from types import SimpleNamespace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autoloss.numbers import counted, figure
from autoloss.report.failures import describe_end
from autoloss.report.leaderboard import count_seeds, write_p_value
from autoloss.report.page.charts import SIZE
from autoloss.report.shares import at_share, write_score
from autoloss.report.trainings import CAUSES, describe_in_full, list_controls
from autoloss.report.verdict import write_mean

GENERATOR = b'<meta name="generator" content="autoloss'
"""Bytes by which a file is recognised as a report."""
FILTERS = (
    *(at_share, count_seeds, counted, describe_end, figure, write_mean, write_p_value, write_score),
    *(describe_in_full, list_controls),
)
_FOLDER = files("autoloss.report.page").joinpath("templates")


def page(contents: SimpleNamespace) -> str:
    """Return the page of a run or of several runs as one HTML document."""
    style, script = _asset("style.css"), _asset("page.js")
    template = _environment().get_template(contents.template)
    return template.render(c=contents, style=style, script=script, policy=policy(live=contents.live))


def main(contents: SimpleNamespace, trouble: str) -> str:
    """Return the main part of the page, to replace that of an open page; `trouble`: why its run can no longer be read, or empty."""
    return _environment().get_template("main.html").render(c=contents, trouble=trouble)


def policy(*, live: bool) -> str:
    """Return the Content-Security-Policy, which allows only this style, this script and embedded images."""
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
    loader = PackageLoader("autoloss.report.page", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"SIZE": SIZE, "CAUSES": CAUSES}
    made.filters |= {function.__name__: function for function in FILTERS}
    return made


@functools.cache
def _asset(name: str) -> Markup:
    # A file of the package, trusted as markup; the policy allows it by its digest.
    return Markup(_FOLDER.joinpath(name).read_text(encoding="utf-8"))


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()}'"
