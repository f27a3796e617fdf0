"""Losses as files for use elsewhere: Python that needs torch or NumPy alone, LaTeX, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from autoloss import zoo
from autoloss.errors import RequestError, join_names, quote, unknown
from autoloss.files import write_text
from autoloss.formulas.objective_file import LIBRARIES, to_objective
from autoloss.formulas.python_file import check_forms, clean_text, to_python
from autoloss.formulas.simplify import escape_latex, simplify_loss
from autoloss.formulas.statements import write_line
from autoloss.formulas.terms import to_term
from autoloss.options import checked
from autoloss.run.results import FoundLoss
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression
from autoloss.space.form import Activation, BranchForm, Encoding
from autoloss.space.loss import HandWritten, Loss
from autoloss.space.loss_text import MAIN, join_branches

SUFFIXES = {".py": "python", ".tex": "latex", ".json": "json"}
FORMATS = tuple(SUFFIXES.values())
_DISPLAY = r"""% {title}
{facts}
% Needs \usepackage{{amsmath}}. The loss is o, summed over channels and averaged over positions;
% log and sqrt keep the sign of what they are given.
\begin{{align*}}
{lines}
\end{{align*}}
"""


@checked
def export(
    loss: FoundLoss | Mapping[str, Expression] | Expression | HandWritten | str,
    path: str | Path,
    *,
    branches: Mapping[str, Branch] | None = None,
    library: str | None = None,
) -> Path:
    """Write a loss as a file for use elsewhere.

    Args:
        loss: A found loss, a `Loss`, a tree, a formula, or a loss of the zoo or its name.
        path: File to write: `.py`, which imports only torch, `.tex` or `.json`.
        branches: Those of the task, as `task.branches`; needed for a formula of anything but a softmax over classes.
        library: `lightgbm`, `xgboost` or `catboost`: a `.py` file with an objective for it, which imports NumPy alone.

    Returns:
        The path.

    Raises:
        RequestError: The suffix is unknown, the file exists, or the loss does not fit the branches.

    >>> import autoloss
    >>> path = autoloss.export("-y * log(p)", "cross_entropy.py")
    >>> "class CrossEntropyLoss(nn.Module):" in path.read_text()
    True
    """
    file = Path(path)
    if file.suffix not in SUFFIXES:
        known = join_names(list(SUFFIXES))
        raise RequestError(f"path is {quote(path)}; expected a file name that ends in {known}.", argument="path")
    to = choose_format(SUFFIXES[file.suffix], library)
    if file.exists():
        raise RequestError(f"{file} exists already. Name another file.", argument="path")
    if isinstance(loss, FoundLoss):
        forms, found = loss.forms, loss.loss
    else:
        used = branches or {MAIN: _make_branch(loss)}
        forms = {name: branch.form() for name, branch in used.items()}
        trees = zoo.resolve(str(loss), used)[1] if isinstance(loss, str | HandWritten) else Loss(loss)
        found = {name: tree for name, tree in trees.items() if isinstance(tree, Expression)}
        if len(found) < len(trees):
            raise RequestError(f"{loss} is written by hand, and only formulas can be exported.")
        found = Loss(found)
    write_text(file, write_loss(found, forms, to, file.stem.replace("_", " "), {}))
    return file


def _make_branch(loss: object) -> ActivatedBranch:
    """Return the branch that a loss is exported for by default: that of its entry in the zoo, or of a softmax over classes."""
    entry = zoo.ENTRIES.get(str(loss))
    activation: Any = loss.activation if isinstance(loss, Loss) else entry.activation if entry else "softmax"
    encoding: Any = entry.target if entry else "one_hot"
    # A loss of pairs is refused as one that does not fit.
    return ActivatedBranch(
        activation=activation if activation in get_args(Activation) else "softmax",
        encoding=encoding if encoding in get_args(Encoding) else "one_hot",
    )


def choose_format(to: str, library: str | None) -> str:
    """Return what `write_loss` writes: a format, or the library that a Python file is for."""
    if to not in FORMATS:
        raise unknown("export format", to, FORMATS)
    if library in (None, "torch"):
        return to
    if library not in LIBRARIES:
        raise unknown("library to export for", library, ("torch", *LIBRARIES))
    if to != "python":
        raise RequestError(f"{library} needs a Python file; found the format {to}. Leave out --to, or --for.")
    return library


def write_loss(
    loss: Loss,
    forms: Mapping[str, BranchForm],
    to: str,
    title: str,
    facts: Mapping[str, str],
    number: int | None = None,
    score: float | None = None,
) -> str:
    """Return a loss as text in one of `FORMATS`, or for one of `LIBRARIES`; `number` and `score`: of a loss of a run."""
    if to == "json":
        values = to_json(loss, forms, id=number, score=score, facts=facts)
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    if to in LIBRARIES:
        return to_objective(loss, forms, to, title=title, facts=facts)
    write = to_latex if to == "latex" else to_python
    return write(loss, forms, title=title, facts=facts)


def to_json(
    loss: Loss, forms: Mapping[str, BranchForm], *, id: int | None, score: float | None, facts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a loss as plain values that JSON can hold; a score that is not finite becomes None."""
    check_forms(loss, forms)
    terms = simplify_loss(loss, forms)
    lines = {name: write_line(tree) for name, tree in loss.items()}
    return {
        "id": id,
        "formula": str(loss),
        "infix": join_branches(lines),
        "score": score if score is None or math.isfinite(score) else None,
        "branches": {
            name: {
                "formula": str(tree),
                "infix": lines[name],
                "simplified": str(terms[name]),
                "latex": {"found": to_term(tree).latex, "simplified": terms[name].latex},
                **forms[name].to_dict(),
            }
            for name, tree in loss.items()
        },
        "facts": dict(facts),
    }


def to_latex(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a LaTeX display: for each branch the tree as found and, where that is different, simplified.

    Args:
        title: What the loss is called; stands in a comment, with the facts. Any text is safe.
    """
    terms = simplify_loss(loss, forms)
    lines: list[str] = []
    for name, tree in loss.items():
        found, simplified = to_term(tree).latex, terms[name].latex
        left = "o" if name == MAIN else rf"o_{{\text{{{escape_latex(name)}}}}}"
        lines += [f"{left} &= {found}"] + ([f"&= {simplified}"] if simplified != found else [])
    return _DISPLAY.format(
        title=clean_text(title),
        facts="\n".join(f"% {clean_text(label)}: {clean_text(text)}" for label, text in facts.items()) or "%",
        lines=" \\\\\n".join(lines),
    )
