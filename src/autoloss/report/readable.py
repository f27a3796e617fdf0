"""Simplified formulas of a run, and what they are on its branches; stored beside it, so that reading them needs no torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoloss import __version__
from autoloss.atomic_files import write_text
from autoloss.conversion import parse_json
from autoloss.errors import RequestError
from autoloss.run.identities import Identity, identify_formulas
from autoloss.space.loss_text import MAIN, join_branches

if TYPE_CHECKING:
    from markupsafe import Markup

    from autoloss.formulas.terms import Term
    from autoloss.run.results import Search
    from autoloss.space.form import BranchForm

FILE = "formulas.json"
Forms = tuple[tuple[str, "BranchForm"], ...]
"""Name and form of each branch of a run."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A formula of a run and its simplified forms.

    Args:
        found: As the search found it.
        text: Simplified, in the form that parses back: `-y * log(p)`.
        line: Simplified, for readers: `−y·log(p)`.
        identities: Branch → the loss of the zoo that it is there, up to a factor; None where the run does not tell.
        forms: The branches of the run.
    """

    found: str
    text: str
    line: str
    identities: Mapping[str, Identity] | None = None
    forms: Forms = field(default=(), repr=False, compare=False)

    @property
    def identity(self) -> str:
        """The loss of the zoo that it is, such as `cross entropy × 2`; empty where it is none on any branch."""
        return join_branches(self.identities) if self.identities else ""

    @property
    def mathml(self) -> Markup:
        """The simplified form as mathematics in HTML."""
        return _write_mathml(self.found, self.forms)


def simplify_formulas(search: Search, formulas: Iterable[str]) -> Mapping[str, Readable]:
    """Simplify formulas of a run; those that are not stored yet are added to the file, where the folder can be written."""
    wanted = dict.fromkeys(formulas)
    path, forms = search.directory / FILE, tuple(search.settings.branches.items())
    known = _read_stored(path, forms)
    # The process that drives the run has branches that its settings may not describe.
    better = search.branches is not None
    if missing := [one for one in wanted if one not in known or (better and known[one].identities is None)]:
        identities = _identify(search, missing)
        known |= {one: replace(_simplify(one, forms), identities=identities[one]) for one in missing}
        _store(path, known)
    return {formula: known[formula] for formula in wanted}


@functools.lru_cache(maxsize=2000)
def _simplify_terms(formula: str, forms: Forms) -> Mapping[str, Term] | None:
    """Simplify a formula branch by branch; None if it holds a user's own operator, which is not known here."""
    from autoloss.formulas.simplify import simplify_loss
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    known = dict(forms)
    try:
        return simplify_loss(Loss.parse(formula, {name: form.leaves for name, form in forms}), known)
    except FormulaError:
        return None


def _simplify(formula: str, forms: Forms) -> Readable:
    from autoloss.formulas.notations import UNICODE
    from autoloss.formulas.simplify import write_loss

    terms = _simplify_terms(formula, forms)
    text, line = (formula, formula) if terms is None else (write_loss(terms), write_loss(terms, UNICODE))
    return Readable(formula, text, line, forms=forms)


@functools.lru_cache(maxsize=2000)
def _write_mathml(formula: str, forms: Forms) -> Markup:
    from markupsafe import Markup

    terms = _simplify_terms(formula, forms)
    if terms is None:
        return Markup("<code>{}</code>").format(formula)
    if set(terms) == {MAIN}:
        return terms[MAIN].mathml
    return Markup("<br>").join(Markup("{}: {}").format(name, term.mathml) for name, term in terms.items())


def _identify(search: Search, formulas: Sequence[str]) -> Mapping[str, Mapping[str, Identity] | None]:
    """Return what each formula is; None for those with a user's own operator, which is not known here."""
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    losses: dict[str, Loss] = {}
    for formula in formulas:
        with suppress(FormulaError):
            losses[formula] = Loss.parse(formula, search.settings.leaves)
    return {**dict.fromkeys(formulas), **identify_formulas(search, losses)}


def _read_stored(path: Path, forms: Forms) -> dict[str, Readable]:
    """Read the file; nothing where it is damaged or of another release, which may simplify differently."""
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        if stored["release"] != __version__:
            return {}
        return {
            formula: Readable(
                formula, text, line, known and {name: Identity(**one) for name, one in known.items()}, forms
            )
            for formula, (text, line, known) in stored["formulas"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _store(path: Path, known: Mapping[str, Readable]) -> None:
    """Write the file; a folder that cannot be written stays as it is."""
    formulas = {
        one.found: (one.text, one.line, one.identities and {name: asdict(its) for name, its in one.identities.items()})
        for one in known.values()
    }
    with suppress(RequestError):
        write_text(path, json.dumps({"release": __version__, "formulas": formulas}, ensure_ascii=False))
