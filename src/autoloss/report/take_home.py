"""Export of a loss of a run: read from the store alone, so neither the task nor its data are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoloss import zoo
from autoloss.atomic_files import write_text
from autoloss.errors import RequestError, unknown
from autoloss.formulas.export import to_json, to_latex, to_python
from autoloss.numbers import figure
from autoloss.proposing.records import Outcome, State
from autoloss.report.lineage import promoted_from, promoted_to
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import at_share, describe_factors
from autoloss.run.resolving import operator_table
from autoloss.run.results import FoundLoss, Search, open_run
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss
from autoloss.space.loss_text import MAIN

SUFFIXES = {".py": "python", ".tex": "latex", ".json": "json"}
FORMATS = tuple(SUFFIXES.values())


def export(loss: FoundLoss | Loss | str, path: str | Path, *, branches: Mapping[str, Branch] | None = None) -> Path:
    """Write a loss as a file for use elsewhere.

    Args:
        loss: A loss that was found, a loss, a formula, or a name of the zoo.
        path: File to write; its suffix says what: `.py`, a file that imports torch alone, `.tex`, or `.json`.
        branches: Those of the task, as `task.branches`; needed for a loss that is not of a run and of anything but a softmax over
            classes.

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
        raise unknown("format with the suffix", file.suffix, SUFFIXES)
    if file.exists():
        raise RequestError(f"{file} exists already, and nothing is overwritten. Name another file.", argument="path")
    if isinstance(loss, FoundLoss):
        forms, found = loss.forms, loss.loss
    else:
        used = branches or {MAIN: ActivatedBranch()}
        forms = {name: branch.form() for name, branch in used.items()}
        trees = zoo.resolve(loss, used)[1] if isinstance(loss, str) else loss
        found = {name: tree for name, tree in trees.items() if isinstance(tree, Expression)}
        if len(found) < len(trees):
            raise RequestError(f"{loss} is written by hand, and only formulas can be exported.")
        found = Loss(found)
    write_text(file, _write(found, forms, SUFFIXES[file.suffix], file.stem.replace("_", " "), {}))
    return file


def _write(
    loss: Loss,
    forms: Mapping[str, BranchForm],
    to: str,
    title: str,
    facts: Mapping[str, str],
    number: int | None = None,
    score: float | None = None,
) -> str:
    if to == "json":
        values = to_json(loss, forms, id=number, score=score, facts=facts)
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    write = to_latex if to == "latex" else to_python
    return write(loss, forms, title=title, facts=facts)


def export_loss(directory: Path, individual: int | None, to: str, say: Callable[[str], None] | None = None) -> str:
    """Return a loss of a run as text.

    Args:
        individual: Its number; the best loss found if omitted.
        to: `python`, one file that imports torch alone; `latex`, as found and simplified; or `json`.
        say: Called with a warning where the training of the loss failed or learned nothing.

    Raises:
        RequestError: No such run, loss or format.
    """
    if to not in FORMATS:
        raise unknown("export format", to, FORMATS)
    found = open_run(directory)
    row = _choose(found, individual)
    forms = found.settings.branches
    loss = Loss.parse(row["loss"], found.settings.leaves, operator_table(found.operators))
    facts = _collect_facts(found, row)
    if say is not None and "warning" in facts:
        say(f"Loss #{row['id']}: {facts['warning']}. Writing it anyway.")
    return _write(loss, forms, to, f"Found loss {row['id']}", facts, row["id"], row["score"])


def _choose(found: Search, individual: int | None) -> Mapping[str, Any]:
    """Return id, loss, fidelity and score of the loss that is asked for, or of the best."""
    if individual is None:
        if not found.top(1):
            raise RequestError(f"No loss of the run in {found.directory} has a score yet; name one by its number.")
        individual = found.best.id
    for row in found.reader.losses([individual]):
        return row
    raise RequestError(
        f"There is no loss #{individual} with an outcome in {found.directory}; it has {found.reader.count}, counted from 0."
    )


def _collect_facts(found: Search, row: Mapping[str, Any]) -> dict[str, str]:
    number, fidelity, searched = row["id"], row["fidelity"], found.configuration.search.learning_rate
    compared = next((row.entrant for row in found.comparison if row.entrant.number == number), None)
    short = "" if fidelity == 1 else f" {at_share(fidelity)}"
    ((candidate, _), *_) = found.reader.lineage(number)
    promotions = {"promoted from": promoted_from(found, candidate), "promoted to": promoted_to(found, number)}
    facts = {
        "warning": _warn(found.reader.outcome(number), found.settings.untrained),
        "task": found.settings.title,
        "metric": str(found.settings.task.options.get("metric", "the task's own")),
        f"score of the proxy training{short}, valid split": figure(row["score"]),
        **{name: str(other or "") for name, other in promotions.items()},
        "mean over new training seeds, valid split": figure(found.losses([number])[0].confirmed),
        "best learning rate": f"{compared.learning_rate:g} × the recipe's" if compared else "",
        "best scale": f"{compared.scale:g} × the loss" if compared and compared.scale != 1 else "",
        "learning rate of the search": "" if compared or searched == 1 else f"{searched:g} × the recipe's",
        "judgement": found.judgement.standing.value if found.top(1) and number == found.best.id else "",
        "run": f"{found.directory.name}, seed {found.configuration.seed}, loss #{number}",
        "found by": f"autoloss {found.settings.release}",
        "factor": describe_factors(row["loss"]),
        "on this task": simplify_formulas(found, [row["loss"]])[row["loss"]].identity,
    }
    return {name: text for name, text in facts.items() if text not in ("", "–")}


def _warn(outcome: Outcome | None, untrained: float | None) -> str:
    """Return a warning where the training of a loss failed or learned nothing; empty otherwise."""
    if outcome is None:
        return ""
    if outcome.state is State.DIVERGED:
        step = "" if outcome.step is None else f" at step {outcome.step}"
        return f"its training diverged{step}: {outcome.reason.splitlines()[0] if outcome.reason else 'not finite'}"
    if outcome.score is None:
        return f"its training {outcome.state.value} and has no score"
    if untrained is not None and outcome.score <= untrained:
        return f"its training learned nothing: score {figure(outcome.score)}, and {figure(untrained)} untrained"
    return ""
