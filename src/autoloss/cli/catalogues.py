"""`tasks`, `zoo`, `check` and `simplify`: commands that need no run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

import autoloss.cli.arguments as arguments
from autoloss.cli.application import answer, app
from autoloss.errors import RequestError, RunError
from autoloss.space.loss_text import join_branches

if TYPE_CHECKING:
    from autoloss.formulas.terms import Term
    from autoloss.space.form import Kernel
    from autoloss.space.loss import Loss


@app.command()
def tasks(as_json: arguments.AsJson = False) -> None:
    """List the tasks that come with autoloss."""
    from autoloss.report.leaderboard import table
    from autoloss.tasks.catalogue import CATALOGUE

    rows = [(name, list(row.metrics), row.description) for name, row in CATALOGUE.items()]
    values = [dict(zip(("name", "metrics", "description"), row, strict=True)) for row in rows]
    shown = [(name, ", ".join(metrics), description) for name, metrics, description in rows]
    answer(as_json, values, table("Tasks", ["name", "metrics (the default first)", "description"], shown))


@app.command()
def zoo(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[show] NAME", help="Show the card of this loss.", show_default=False)
    ] = None,
    as_json: arguments.AsJson = False,
) -> None:
    """List all named losses, or show the card of one."""
    from autoloss.report.leaderboard import table
    from autoloss.zoo import ENTRIES, get_entry

    names = words[1:] if words and words[0] == "show" else words or []
    if len(names) > 1 or (words and not names):
        raise RequestError(f"Found {len(names)} names; give one, as in: autoloss zoo show baseline/ce")
    name = names[0] if names else None
    entries = [get_entry(name)] if name else list(ENTRIES.values())
    facts = ("name", "description", "source", "metric")
    rows = [{**{fact: getattr(one, fact) for fact in facts}, "formula": dict(one.formulas)} for one in entries]
    if name is None:
        formulas = [join_branches(row["formula"]) if row["formula"] else "(hand-written)" for row in rows]
        shown = [(row["name"], formula, row["description"]) for row, formula in zip(rows, formulas, strict=True)]
        answer(as_json, rows, table("Zoo", ["name", "formula", "description"], shown))
        return
    # For one loss only: the list needs no torch, which takes long to load.
    from autoloss.report.card import make_card

    card = make_card(name)
    simple = {branch: term.unicode for branch, term in _simplify(name).items()} if as_json and card.terms else None
    answer(as_json, {**rows[0], **({"simplified": simple} if simple else {}), **card.to_dict()}, *card.lines())


@app.command()
def check(
    task: arguments.TaskName,
    metric: arguments.Metric = None,
    data: arguments.Data = None,
    evaluations: Annotated[int, typer.Option(min=1, help="Budget of the search whose time is estimated.")] = 500,
    workers: arguments.Workers = 2,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    rates: Annotated[
        bool | None,
        typer.Option(
            "--rates/--no-rates",
            help="Also try rates, step rules and weights with the standard loss [default: if a training takes seconds].",
        ),
    ] = None,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Check a task, and estimate how long a search takes."""
    given = arguments.read(locals())
    from autoloss.run import check as checking

    report = checking.check(**given)
    answer(as_json, report.values(), *report.lines())
    if not report.has_score:
        raise RunError(f"No training with the standard loss has a score. With the recipe as given: {report.outcome}.")


# A formula may begin with a minus, which would otherwise be taken for an option.
@app.command(context_settings={"ignore_unknown_options": True})
def simplify(
    formula: Annotated[str, typer.Argument(metavar="FORMULA", help="A formula, or a name of the zoo.")],
    activation: Annotated[
        str | None,
        typer.Option(help="Activation that gives p: softmax, sigmoid or none. Default: softmax; for the zoo, its own."),
    ] = None,
    one_hot: Annotated[bool, typer.Option("--one-hot", help="y is 0 or 1 everywhere: no soft labels.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Make a formula shorter, with the same value and gradient."""
    from autoloss.formulas.notations import LATEX, TEXT, UNICODE
    from autoloss.formulas.simplify import write_loss

    loss, terms = _read(formula), _simplify(formula, activation, one_hot=one_hot)
    nodes, left = sum(len(tree.symbols) for tree in loss.values()), sum(term.size for term in terms.values())
    text, unicode, latex = (write_loss(terms, notation) for notation in (TEXT, UNICODE, LATEX))
    shorter = {"formula": str(loss), "simplified": text, "unicode": unicode, "latex": latex}
    shown = [latex] if as_latex else [unicode, text, f"{nodes} → {left} nodes"]
    answer(as_json, {**shorter, "nodes": nodes, "simplified_nodes": left}, *shown)


def _simplify(text: str, activation: str | None = None, *, one_hot: bool = False) -> dict[str, Term]:
    """Simplify each branch of a formula or of a loss of the zoo, by default for the activation it was found with."""
    from autoloss.formulas.simplify import simplify as simplify_formula
    from autoloss.zoo import ENTRIES

    found: dict[str, Term] = {}
    for branch, tree in _read(text).items():
        entry = ENTRIES.get(text)
        own = (entry.members.get(branch, entry)).activation if entry else "softmax"
        # `simplify` refuses an unknown activation.
        found[branch] = simplify_formula(tree, cast("Kernel", activation or own), one_hot=one_hot)
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
