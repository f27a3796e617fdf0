"""Simplified formulas of a run, and what they are on its branches; stored beside it, so that reading them needs no torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoloss import __version__
from autoloss.atomic_files import write_text
from autoloss.conversion import parse_json
from autoloss.errors import RequestError
from autoloss.run.identities import Identity, identify_formulas
from autoloss.space.loss_text import join_branches

if TYPE_CHECKING:
    from autoloss.formulas.terms import Term
    from autoloss.run.results import Search
    from autoloss.space.form import BranchForm

FILE = "formulas.json"


@dataclass(frozen=True, slots=True)
class Readable:
    """A simplified formula.

    Args:
        text: In the form that parses back: `-y * log(p)`.
        line: For readers: `−y·log(p)`.
        identities: Branch → the loss of the zoo that it is there, up to a factor; None where the run does not tell.
    """

    text: str
    line: str
    identities: Mapping[str, Identity] | None = None

    @property
    def identity(self) -> str:
        """Say what the loss is, such as `cross entropy × 2`; nothing where it is no loss of the zoo on any branch."""
        return join_branches(self.identities) if self.identities else ""


def simplify_formulas(search: Search, formulas: Iterable[str]) -> Mapping[str, Readable]:
    """Simplify formulas of a run; those that are not stored yet are added to the file, where the folder can be written."""
    wanted = dict.fromkeys(formulas)
    path = search.directory / FILE
    known = _read_stored(path)
    # Who drove the run has branches that its settings may not describe.
    better = search.branches is not None
    if missing := [one for one in wanted if one not in known or (better and known[one].identities is None)]:
        branches = tuple(search.settings.branches.items())
        found = {formula: _simplify(formula, branches) for formula in missing}
        known |= {
            formula: replace(found[formula], identities=its) for formula, its in _identify(search, missing).items()
        }
        _store(path, known)
    return {formula: known[formula] for formula in wanted}


@functools.lru_cache(maxsize=2000)
def simplify_stored(formula: str, branches: tuple[tuple[str, BranchForm], ...]) -> Mapping[str, Term] | None:
    """Simplify a stored formula, branch by branch; None if it holds an operator of a person's own, which is not known here.

    Args:
        branches: Name and form of each branch of the run.
    """
    from autoloss.formulas.simplify import simplify_loss
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    forms = dict(branches)
    try:
        return simplify_loss(Loss.parse(formula, {name: form.leaves for name, form in forms.items()}), forms)
    except FormulaError:
        return None


def _identify(search: Search, formulas: Sequence[str]) -> Mapping[str, Mapping[str, Identity] | None]:
    """Return what each formula is; None for those with an operator of a person's own, which is not known here."""
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    losses: dict[str, Loss] = {}
    for formula in formulas:
        with suppress(FormulaError):
            losses[formula] = Loss.parse(formula, search.settings.leaves)
    return {**dict.fromkeys(formulas), **identify_formulas(search, losses)}


def _simplify(formula: str, branches: tuple[tuple[str, BranchForm], ...]) -> Readable:
    from autoloss.formulas.notations import UNICODE
    from autoloss.formulas.simplify import write_loss

    terms = simplify_stored(formula, branches)
    return Readable(formula, formula) if terms is None else Readable(write_loss(terms), write_loss(terms, UNICODE))


def _read_stored(path: Path) -> dict[str, Readable]:
    """Read the file; nothing where it is damaged or of another release, which may simplify differently."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if found["release"] != __version__:
            return {}
        return {formula: _read(*stored) for formula, stored in found["formulas"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read(text: str, line: str, identities: Mapping[str, Mapping[str, Any]] | None) -> Readable:
    known = None if identities is None else {branch: Identity(**one) for branch, one in identities.items()}
    return Readable(text, line, known)


def _store(path: Path, known: Mapping[str, Readable]) -> None:
    formulas = {formula: list(asdict(found).values()) for formula, found in known.items()}
    try:
        write_text(path, json.dumps({"release": __version__, "formulas": formulas}, ensure_ascii=False))
    except RequestError:
        # A folder that is only read stays as it is.
        return
