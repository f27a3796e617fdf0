"""A found loss for a paper: LaTeX of the tree as it was found and, below it, simplified."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.formulas.simplify import latex, simplified
from autoloss.space.form import BranchForm
from autoloss.space.loss import MAIN, Loss

HEAD = r"""% {title}
{facts}
% Needs \usepackage{{amsmath}}. The loss is o, summed over channels and averaged over positions;
% log and sqrt keep the sign of what they are given.
\begin{{align*}}
{lines}
\end{{align*}}
"""


def to_latex(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a LaTeX display of a line for each branch, and a second one where it can be simplified.

    Args:
        title: What the loss is called; stands in a comment, with the facts. Any text is safe.
    """
    shorter = simplified(loss, forms)
    lines: list[str] = []
    for name, tree in loss.items():
        original, simple = latex(tree), latex(shorter[name])
        left = "o" if name == MAIN else rf"o_{{\text{{{_escaped(name)}}}}}"
        lines += [f"{left} &= {original}"] + ([f"&= {simple}"] if simple != original else [])
    return HEAD.format(
        title=_comment(title),
        facts="\n".join(f"% {_comment(label)}: {_comment(text)}" for label, text in facts.items()) or "%",
        lines=" \\\\\n".join(lines),
    )


def _comment(text: str) -> str:
    """Return a person's text as one line, which a comment ends with."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(str(text).split()))


def _escaped(name: str) -> str:
    return name.replace("_", r"\_")
