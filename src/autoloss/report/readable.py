"""Formulas as people read them: simplified, on one line; kept beside the run, so that reading them again needs no torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoloss import __version__
from autoloss.errors import RequestError
from autoloss.tasks.training.whole_files import write_text

if TYPE_CHECKING:
    from autoloss.formulas.terms import Term
    from autoloss.run.results import Search
    from autoloss.space.form import BranchForm

FILE = "formulas.json"


@dataclass(frozen=True, slots=True)
class Readable:
    """A formula beside the one that was found.

    Args:
        text: Simplified, in the form that parses back.
        line: Simplified, for readers: `-y·log(p)`.
    """

    text: str
    line: str


def readable_of(search: Search, formulas: Iterable[str]) -> Mapping[str, Readable]:
    """Return formulas of a run simplified; what is not known yet is worked out, and kept where the folder can be written."""
    wanted = dict.fromkeys(formulas)
    path = search.directory / FILE
    known = _kept(path)
    if missing := [formula for formula in wanted if formula not in known]:
        branches = tuple(search.settings.branches.items())
        known |= {formula: _simplified(formula, branches) for formula in missing}
        _keep(path, known)
    return {formula: known[formula] for formula in wanted}


@functools.lru_cache(maxsize=2000)
def terms_of(formula: str, branches: tuple[tuple[str, BranchForm], ...]) -> Mapping[str, Term] | None:
    """Simplify a formula, branch by branch; None where it holds an operator of somebody's own, which is not at hand here.

    Args:
        branches: Name and form of each branch of the run.
    """
    from autoloss.formulas.simplify import simplified
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    forms = dict(branches)
    try:
        return simplified(Loss.parse(formula, {name: form.leaves for name, form in forms.items()}), forms)
    except FormulaError:
        return None


def _simplified(formula: str, branches: tuple[tuple[str, BranchForm], ...]) -> Readable:
    from autoloss.formulas.simplify import unicode
    from autoloss.space.loss import MAIN

    terms = terms_of(formula, branches)
    if terms is None:
        return Readable(formula, formula)
    if set(terms) == {MAIN}:
        return Readable(str(terms[MAIN]), unicode(terms[MAIN]))
    return Readable("; ".join(f"{name}: {term}" for name, term in terms.items()), unicode(terms))


def _kept(path: Path) -> dict[str, Readable]:
    """Read what is kept, or nothing: another release may simplify further, and a damaged file is worth nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["release"] != __version__:
            return {}
        return {formula: Readable(text, line) for formula, (text, line) in found["formulas"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(path: Path, known: Mapping[str, Readable]) -> None:
    formulas = {formula: [found.text, found.line] for formula, found in known.items()}
    try:
        write_text(path, json.dumps({"release": __version__, "formulas": formulas}, ensure_ascii=False))
    except RequestError:
        # A folder that is only read stays as it is.
        return
