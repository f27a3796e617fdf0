"""Export of a loss of a run: read from the store alone, so neither the task nor its data are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.formulas.export import to_json, to_latex, to_python
from autoloss.numbers import figure
from autoloss.proposing.records import State
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import at_share, describe_factors, promoted_from, promoted_to, write_score
from autoloss.run.resolving import operator_table
from autoloss.run.results import Search, open_run
from autoloss.space.loss import Loss

FORMATS = ("python", "latex", "json")


def export_loss(directory: Path, individual: int | None, to: str, say: Callable[[str], None] | None = None) -> str:
    """Return a loss of a run as text.

    Args:
        individual: X.
        to: `python`, one file that imports torch alone; `latex`, as found and simplified; or `json`.
        say: Called with a warning where no training says that the loss is of use.

    Raises:
        RequestError: No such run, loss or format.
    """
    if to not in FORMATS:
        raise unknown("export format", to, FORMATS)
    found = open_run(directory)
    row = _choose(found, individual)
    number, score, formula = row["id"], row["score"], row["loss"]
    forms = found.settings.branches
    loss = Loss.parse(formula, found.settings.leaves, operator_table(found.operators))
    facts = _collect_facts(found, row)
    if say is not None and "warning" in facts:
        say(f"Loss #{number}: {facts['warning']}. It is written all the same.")
    if to == "json":
        return json.dumps(to_json(loss, forms, id=number, score=score, facts=facts), indent=2, allow_nan=False) + "\n"
    write = to_latex if to == "latex" else to_python
    return write(loss, forms, title=f"Found loss {number}", facts=facts)


def _choose(found: Search, individual: int | None) -> Mapping[str, Any]:
    """Return id, loss, fidelity and score of the loss that is asked for, or of the winner."""
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
    number, score, fidelity = row["id"], row["score"], row["fidelity"]
    confirmed = found.losses([number])[0].confirmed
    short = "" if fidelity == 1 else f" {at_share(fidelity)}"
    compared = next((row.entrant for row in found.comparison if row.entrant.number == number), None)
    searched = found.configuration.search.learning_rate
    facts = {
        "warning": _warn(found, number),
        "task": found.settings.title,
        "metric": str(found.settings.task.options.get("metric", "the task's own")),
        f"score of the proxy training{short}, valid split": figure(score),
        **_promotions(found, number),
        "mean over new training seeds, valid split": figure(confirmed),
        "best learning rate": "–" if compared is None else f"{compared.learning_rate:g} × the recipe's",
        "best scale": "–" if compared is None or compared.scale == 1 else f"{compared.scale:g} × the loss",
        "learning rate of the search": "–" if compared or searched == 1 else f"{searched:g} × the recipe's",
        "judgement": found.judgement.standing.value if number == found.best.id else "–",
        "run": f"{found.directory.name}, seed {found.configuration.seed}, loss #{number}",
        "found by": f"autoloss {found.settings.release}",
        "factor": describe_factors(row["loss"]) or "–",
        "on this task": simplify_formulas(found, [row["loss"]])[row["loss"]].identity or "–",
    }
    return {name: text for name, text in facts.items() if text != "–"}


def _warn(found: Search, number: int) -> str:
    """Say that a loss diverged, has no score for another reason, or learned nothing; a dash otherwise."""
    outcome = found.reader.outcome(number)
    if outcome is None:
        return "–"
    if outcome.state is State.DIVERGED:
        step = "" if outcome.step is None else f" at step {outcome.step}"
        return f"its training diverged{step}: {outcome.reason.splitlines()[0] if outcome.reason else 'not finite'}"
    if outcome.score is None:
        return f"its training {outcome.state.value} and has no score"
    untrained = found.settings.untrained
    if untrained is not None and outcome.score <= untrained:
        return f"its training learned nothing: score {figure(outcome.score)}, and {figure(untrained)} untrained"
    return "–"


def _promotions(found: Search, number: int) -> dict[str, str]:
    ((child, _), *_) = found.reader.lineage(number)
    others = {"promoted from": promoted_from(found, child), "promoted to": promoted_to(found, number)}
    return {
        name: f"#{other.id}, score {write_score(other.score, other.fidelity)}"
        for name, other in others.items()
        if other
    }
