"""`simplify`: print a shorter formula with the same value and gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import AsJson
from autoloss.errors import RequestError

if TYPE_CHECKING:
    from autoloss.formulas.terms import Term
    from autoloss.space.branch import Activation
    from autoloss.space.loss import Loss


# A formula may begin with a minus, which would else be taken for an option.
@app.command(context_settings={"ignore_unknown_options": True})
def simplify(
    formula: Annotated[str, typer.Argument(metavar="FORMULA", help="A formula, or a name of the zoo.")],
    activation: Annotated[
        str | None,
        typer.Option(
            help="Activation that gives p: softmax, sigmoid or none (softmax; for a loss of the zoo, its own)."
        ),
    ] = None,
    one_hot: Annotated[bool, typer.Option("--one-hot", help="y is 0 or 1 everywhere: no soft labels.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a formula shorter, with the same value and gradient."""
    from autoloss.formulas.notations import LATEX, TEXT, UNICODE
    from autoloss.formulas.simplify import write_loss

    loss = _read(formula)
    terms = shortened(formula, activation, one_hot=one_hot)
    nodes, left = sum(len(tree.symbols) for tree in loss.values()), sum(term.size for term in terms.values())
    text, unicode, latex = (write_loss(terms, notation) for notation in (TEXT, UNICODE, LATEX))
    if as_json:
        print_json(
            {
                "formula": str(loss),
                "simplified": text,
                "unicode": unicode,
                "latex": latex,
                "nodes": nodes,
                "simplified_nodes": left,
            }
        )
        return
    for line in [latex] if as_latex else [unicode, text, f"{nodes} → {left} nodes"]:
        console_of().print(line, soft_wrap=True)


def shortened(text: str, activation: str | None = None, *, one_hot: bool = False) -> dict[str, Term]:
    """Simplify each branch of a formula or of a loss of the zoo, with the activation that it was found for.

    Raises:
        RequestError: No formula, a hand-written loss, or an unknown activation.
    """
    from autoloss.formulas.simplify import simplify as simplify_formula
    from autoloss.zoo import ENTRIES

    found: dict[str, Term] = {}
    for branch, tree in _read(text).items():
        entry = ENTRIES.get(text)
        own = (entry.members.get(branch, entry)).activation if entry else "softmax"
        # `simplify` itself refuses what it does not know.
        found[branch] = simplify_formula(tree, cast("Activation", activation or own), one_hot=one_hot)
    return found


def _read(text: str) -> Loss:
    from autoloss.space.loss import Loss
    from autoloss.zoo import ENTRIES, get_entry

    family, slash, _ = text.partition("/")
    if text not in ENTRIES and not (slash and any(name.startswith(f"{family}/") for name in ENTRIES)):
        return Loss.parse(text)
    formulas = get_entry(text).formulas
    if not formulas:
        raise RequestError(f"{text} is written by hand; only formulas can be simplified. `autoloss zoo` lists them.")
    return Loss(formulas)
