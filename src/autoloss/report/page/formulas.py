"""Formulas as a page shows them: set as mathematics, with the text that was found beside."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from autoloss.report.readable import readable_of, terms_of
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
        branches = tuple(search.settings.branches.items())
        readable = readable_of(search, found)
        return cls({text: Formula(text, one.line, _set(text, branches)) for text, one in readable.items()})


@functools.lru_cache(maxsize=2000)
def _set(formula: str, branches: str) -> Markup:
    """Set a formula, simplified; one with an operator of somebody's own stays text."""
    from autoloss.formulas.mathml import mathml
    from autoloss.space.loss import MAIN

    terms = terms_of(formula, branches)
    if terms is None:
        return Markup("<code>{}</code>").format(formula)
    if set(terms) == {MAIN}:
        return mathml(terms[MAIN])
    return Markup("<br>").join(Markup("{}: {}").format(name, mathml(term)) for name, term in terms.items())
