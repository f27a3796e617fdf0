"""Formulas as a page shows them: set as mathematics, with the text that was found beside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from autoloss.report.readable import readable_of
from autoloss.run.results import Search


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula.

    Args:
        found: As the search found it.
        line: Simplified, on one line.
        set: Simplified, as mathematics in HTML.
    """

    found: str
    line: str
    set: Markup


class Formulas(dict[str, Formula]):
    """Formulas of a run as they were found → set for the page."""

    @classmethod
    def of(cls, search: Search, found: Iterable[str]) -> Formulas:
        readable = readable_of(search, found)
        return cls({text: Formula(text, one.line, _set(one.line)) for text, one in readable.items()})


def _set(line: str) -> Markup:
    return Markup("<code>{}</code>").format(escape(line))
