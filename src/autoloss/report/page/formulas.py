"""Formulas as a page shows them: simplified as mathematics, and the text that was found."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from autoloss.report.readable import simplify_formulas, simplify_stored
from autoloss.run.results import Search

if TYPE_CHECKING:
    from autoloss.space.form import BranchForm


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula.

    Args:
        found: As the search found it.
        line: Simplified, on one line.
        set: Simplified, as mathematics in HTML.
        identity: What it is on the task, such as `cross entropy × 2`; empty where it is no loss of the zoo.
    """

    found: str
    line: str
    set: Markup
    identity: str = ""


class Formulas(dict[str, Formula]):
    """The text of a formula of a run → what the page shows of it."""

    @classmethod
    def of(cls, search: Search, found: Iterable[str]) -> Formulas:
        branches = tuple(search.settings.branches.items())
        readable = simplify_formulas(search, found)
        return cls(
            {
                text: Formula(text, one.line, _write_mathml(text, branches), one.identity)
                for text, one in readable.items()
            }
        )


@functools.lru_cache(maxsize=2000)
def _write_mathml(formula: str, branches: tuple[tuple[str, BranchForm], ...]) -> Markup:
    """Write a simplified formula as MathML; one with an operator of a person's own stays text."""
    from autoloss.space.loss import MAIN

    terms = simplify_stored(formula, branches)
    if terms is None:
        return Markup("<code>{}</code>").format(formula)
    if set(terms) == {MAIN}:
        return terms[MAIN].mathml
    return Markup("<br>").join(Markup("{}: {}").format(name, term.mathml) for name, term in terms.items())
