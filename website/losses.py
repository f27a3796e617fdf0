"""The page of operators and named losses, from Table 1 and the zoo."""

from __future__ import annotations

from itertools import groupby

from autoloss.formulas.simplify import simplify
from autoloss.formulas.terms import Term, to_term
from autoloss.space.operators import EPSILON, OPERATORS
from autoloss.space.parsing import parse
from autoloss.zoo import ENTRIES
from autoloss.zoo.entries import Entry
from website.documented import cell, code, table

INTRODUCTION = f"""\
# Operators and named losses

`p` is the prediction after the activation, `y` the target; losses of boxes use the areas of intersection `i`, union `u` and
enclosing box `e`. A formula may use the operators by name, and `+ - * / **`.

## Operators

ε = {EPSILON:g} keeps them finite at 0: `inv` is 1/(x + ε), `log` is sign(x)·log(|x| + ε), `sqrt` is sign(x)·√(|x| + ε).
"""
LOSSES = """\
## Losses by name

Wherever a command takes a loss it takes such a name, and `autoloss.zoo.get(name)` returns it. Each formula can be
copied; below it is the output of `autoloss simplify`: a shorter form with the same value and gradient.
"""
FAMILIES = {
    "seg": "Published for segmentation",
    "pose": "Published for poses",
    "det": "Published for detection",
    "ins": "Published for instance segmentation",
    "baseline": "Baselines",
    "shelf": "The shelf: known losses as formulas",
    "found": "Found by searches of this project",
}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, _operators(), LOSSES]
    for family, entries in groupby(ENTRIES.values(), key=lambda entry: entry.name.partition("/")[0]):
        rows = [[code(entry.name), _formula(entry), _about(entry)] for entry in entries]
        parts += [f"### {FAMILIES[family]}", table(["name", "formula", "description"], rows)]
    return "\n\n".join(parts) + "\n"


def _operators() -> str:
    operands = {1: "p", 2: "p, y"}
    rows = [
        [code(f"{name}({operands[row.arity]})"), _render(f"{name}({operands[row.arity]})")]
        for name, row in OPERATORS.items()
    ]
    return table(["text", "formula"], rows)


def _formula(entry: Entry) -> str:
    if entry.members:
        return "one for each branch: " + ", ".join(code(member.name) for member in entry.members.values())
    if not entry.formula:
        return "written by hand"
    return f"{code(entry.formula)}<br>{_html(simplify(entry.formula, entry.activation))}"


def _about(entry: Entry) -> str:
    target = {"edge": "; y is the edge of each class", "band": "; y is the band at borders"}.get(entry.target, "")
    return cell(f"{entry.description}{target}. {entry.source}")


def _render(formula: str) -> str:
    """Return a formula as MathML, unchanged."""
    return _html(to_term(parse(formula, None)))


def _html(term: Term) -> str:
    # In Markdown's tables a bar ends a cell.
    return str(term.mathml).replace("|", "&#124;")
