"""A found loss for use elsewhere: as a Python file for torch or for a boosting library, as JSON, and as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.formulas.objective_file import write_objective_file
from autoloss.formulas.python_file import clean_text, write_file
from autoloss.formulas.simplify import escape_latex, simplify_loss
from autoloss.formulas.statements import write_line
from autoloss.formulas.terms import to_term
from autoloss.space.expression import CONSTANT
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss
from autoloss.space.loss_text import MAIN, join_branches


def to_python(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a Python file that imports torch alone, with one `nn.Module` for each branch; to be saved as UTF-8.

    Value and gradient are those of `Loss.criterion` to the last bit; with constants, to rounding.

    Args:
        forms: One for each branch of the loss.
        title: What the loss is called; classes are named after it.
        facts: What else the file says about the loss, such as score, metric and run: label → text. Any text is safe.

    Raises:
        RequestError: A form is missing or lacks a leaf, or a tree holds an operator of a person's own that a file cannot hold.

    >>> from autoloss import Loss
    >>> from autoloss.space.form import BranchForm
    >>> text = to_python(Loss("-y * log(p)"), {"main": BranchForm()}, title="Cross entropy", facts={})
    >>> "class CrossEntropyLoss(nn.Module):" in text, "output = -(y * signed_log(p))" in text
    (True, True)
    """
    _check(loss, forms)
    return write_file(loss, forms, title, facts)


def to_objective(
    loss: Loss, forms: Mapping[str, BranchForm], library: str, *, title: str, facts: Mapping[str, str]
) -> str:
    """Write a loss as a Python file that imports NumPy alone, with an objective of `lightgbm`, `xgboost` or `catboost`.

    Raises:
        RequestError: A form is missing or lacks a leaf, the library is unknown, or the loss cannot be an objective of rows.

    >>> from autoloss import Loss
    >>> from autoloss.space.form import BranchForm
    >>> text = to_objective(Loss("-y * log(p)"), {"main": BranchForm()}, "lightgbm", title="Cross entropy", facts={})
    >>> "def make_objective" in text, "import torch" in text
    (True, False)
    """
    _check(loss, forms)
    return write_objective_file(loss, forms, library, title, facts)


def to_json(
    loss: Loss, forms: Mapping[str, BranchForm], *, id: int | None, score: float | None, facts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a loss as plain values that JSON can hold; a score that is not finite becomes None."""
    _check(loss, forms)
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


_DISPLAY = r"""% {title}
{facts}
% Needs \usepackage{{amsmath}}. The loss is o, summed over channels and averaged over positions;
% log and sqrt keep the sign of what they are given.
\begin{{align*}}
{lines}
\end{{align*}}
"""


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


def _check(loss: Loss, forms: Mapping[str, BranchForm]) -> None:
    for name, tree in loss.items():
        if name not in forms:
            raise unknown("form of the branch", name, forms)
        if strange := sorted(tree.leaves - {CONSTANT} - set(forms[name].leaves)):
            raise RequestError(
                f"{str(tree)!r} has the leaves {', '.join(strange)}; the branch {name!r} has {', '.join(forms[name].leaves)}."
            )
