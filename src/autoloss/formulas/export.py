"""A found loss as JSON and as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autoloss.formulas.python_file import check_forms, clean_text
from autoloss.formulas.simplify import escape_latex, simplify_loss
from autoloss.formulas.statements import write_line
from autoloss.formulas.terms import to_term
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss
from autoloss.space.loss_text import MAIN, join_branches


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
