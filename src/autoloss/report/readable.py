"""Simplified formulas of a run, with equal losses of the zoo; stored beside the run, so that reading them needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from autoloss import __version__
from autoloss.errors import RequestError
from autoloss.files import write_text
from autoloss.run.identities import Identity, identify_formulas
from autoloss.space.loss_text import MAIN, join_branches

if TYPE_CHECKING:
    from markupsafe import Markup

    from autoloss.formulas.terms import Term
    from autoloss.run.results import Search
    from autoloss.space.form import BranchForm

FILE = "formulas.json"
_STORED = TypeAdapter(tuple[str, Mapping[str, tuple[str, str, Mapping[str, Identity] | None]]])
"""The file: the release, and formula → simplified, as text and for readers, and its identities."""
Forms = tuple[tuple[str, "BranchForm"], ...]
"""Name and form of each branch of a run."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A formula of a run and its simplified forms.

    Args:
        found: The formula as found.
        text: Simplified, in the form that parses back: `-y * log(p)`.
        line: Simplified, for readers: `−y·log(p)`.
        identities: Branch → loss of the zoo with the same gradient up to a factor; None if the run does not tell.
        forms: The branches of the run.
    """

    found: str
    text: str
    line: str
    identities: Mapping[str, Identity] | None = None
    forms: Forms = field(default=(), repr=False, compare=False)

    @property
    def identity(self) -> str:
        """The equal loss of the zoo, such as `cross entropy × 2`; empty if there is none on any branch."""
        return join_branches(self.identities) if self.identities else ""

    @property
    def mathml(self) -> Markup:
        """The simplified form as MathML."""
        return _write_mathml(self.found, self.forms)


def simplify_formulas(search: Search, formulas: Iterable[str]) -> Mapping[str, Readable]:
    """Simplify formulas of a run, and add new ones to its file if the folder can be written."""
    wanted = dict.fromkeys(formulas)
    path, forms = search.directory / FILE, tuple(search.settings.branches.items())
    known = _read_stored(path, forms)
    # The process that drives the run has the branches themselves, which the stored settings may not describe.
    better = search.branches is not None
    if missing := [one for one in wanted if one not in known or (better and known[one].identities is None)]:
        identities = _identify(search, missing)
        known |= {one: replace(_simplify(one, forms), identities=identities[one]) for one in missing}
        _store(path, known)
    return {formula: known[formula] for formula in wanted}


@functools.lru_cache(maxsize=2000)
def _simplify_terms(formula: str, forms: Forms) -> Mapping[str, Term] | None:
    """Simplify a formula branch by branch; None if it has a user's own operator, which is unknown here."""
    from autoloss.formulas.simplify import simplify_loss
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    try:
        return simplify_loss(Loss.parse(formula, {name: form.leaves for name, form in forms}), dict(forms))
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
    """Return formula → branch → equal loss; None for formulas with a user's own operator, which is unknown here."""
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    losses: dict[str, Loss] = {}
    for formula in formulas:
        with suppress(FormulaError):
            losses[formula] = Loss.parse(formula, search.settings.leaves)
    return {**dict.fromkeys(formulas), **identify_formulas(search, losses)}


def _read_stored(path: Path, forms: Forms) -> dict[str, Readable]:
    """Read the file; empty if it is damaged or of another release, which may simplify differently."""
    try:
        release, formulas = _STORED.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {found: Readable(found, *one, forms) for found, one in formulas.items()} if release == __version__ else {}


def _store(path: Path, known: Mapping[str, Readable]) -> None:
    """Write the file, if the folder can be written."""
    formulas = {one.found: (one.text, one.line, one.identities) for one in known.values()}
    with suppress(RequestError):
        write_text(path, _STORED.dump_json((__version__, formulas)).decode())
