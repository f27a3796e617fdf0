"""Export of a loss of a run: read from the store alone, so neither the task nor its data are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from autoloss.comparison.entrant import Entrant
from autoloss.numbers import figure
from autoloss.proposing.records import Outcome, State
from autoloss.report.individual import find_promotions, write_counterpart
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import at_share, describe_factors
from autoloss.run.export import choose_format, write_loss
from autoloss.run.results import FoundLoss, Search, find_learning_rate, open_run
from autoloss.run.user_files import Trust
from autoloss.training.recipe import describe_recipe
from autoloss.training.training import THRESHOLD

RECOMMENDED = "recommended instead"


def export_loss(
    directory: Path,
    individual: int | None,
    to: str,
    say: Callable[[str], None] | None = None,
    trust: Trust = False,
    library: str | None = None,
) -> str:
    """Return a loss of a run as text.

    Args:
        individual: Number of the loss; by default the best loss found.
        to: `python`, one file that imports torch alone; `latex`, as found and simplified; or `json`.
        trust: Which files that the run names may be run, for operators of its own.
        say: Called with a warning if the training of the loss failed or learned nothing.
        library: `lightgbm`, `xgboost` or `catboost`: a Python file with an objective for it, which imports NumPy alone.
    """
    to = choose_format(to, library)
    found = open_run(directory, trust=trust)
    chosen = found.choose(individual)
    facts = _collect_facts(found, chosen)
    if say is not None and "warning" in facts:
        say(f"Loss #{chosen.id}: {facts['warning']}. Writing it anyway.")
    if say is not None and individual is None and RECOMMENDED in facts:
        say(f"Recommended is another loss: {facts[RECOMMENDED]}. Writing the best of the search, #{chosen.id}.")
    score = chosen.score if math.isfinite(chosen.score) else None
    return write_loss(chosen.loss, chosen.forms, to, f"Found loss {chosen.id}", facts, chosen.id, score)


def _collect_facts(found: Search, chosen: FoundLoss) -> dict[str, str]:
    number, fidelity = chosen.id, chosen.fidelity
    row = next((row for row in found.comparison if row.entrant.number == number), None)
    compared, also = (None, chosen.also) if row is None else (row.entrant, row.also)
    short, judged = "" if fidelity == 1 else f" {at_share(fidelity)}", found.judgement
    plain = Entrant(f"#{number}", chosen.formula)
    way = find_learning_rate(found, plain)
    ways = [", ".join(one.list_changes()) for one in (plain.follow(found.configuration.search), way)]
    trained_with, step = describe_recipe(found.settings.recipe, way.step_rule, way.learning_rate, way.length)
    seeds = "" if judged.found is None else f" (test split, {len(judged.found.scores)} training seeds)"
    facts = {
        "warning": _warn(found.reader.outcome(number), found.settings.untrained),
        "task": found.settings.title,
        "metric": str(found.settings.task.options.get("metric", "the task's own")),
        f"score of the proxy training{short}, valid split": figure(chosen.score),
        "proxy training": (ways[0] or "as the recipe says") if ways[0] != ways[1] else "",
        **{
            name.replace("_", " "): write_counterpart(other)
            for name, other in find_promotions(found, number).items()
            if other is not None
        },
        "mean over new training seeds, valid split": figure(chosen.confirmed),
        "trained with": trained_with,
        "between backward() and optimizer.step()": step,
        "decide for yes from a probability of": f"{also[THRESHOLD]:.2g}" if THRESHOLD in also else "",
        "best learning rate": f"{compared.learning_rate:g} × the recipe's" if compared else "",
        "best scale": f"{compared.scale:g} × the loss" if compared and compared.scale != 1 else "",
        RECOMMENDED: _name_other(found, chosen),
        "judgement": judged.standing.value + seeds if found.top(1) and number == found.best.id else "",
        "run": f"{found.directory.name}, seed {found.configuration.seed}, loss #{number}",
        "found by": f"autoloss {found.settings.release}",
        "factor": describe_factors(chosen.formula),
        "on this task": simplify_formulas(found, [chosen.formula])[chosen.formula].identity,
    }
    return {name: text for name, text in facts.items() if text not in ("", "–")}


def _name_other(found: Search, chosen: FoundLoss) -> str:
    """Name what is recommended where that is another loss, which a known one is not under its name."""
    advice, mine = found.recommendation, found.enter(chosen.id, chosen.formula)
    if advice is None or advice.loss == mine.loss:
        return ""
    return "" if Entrant(advice.name, advice.loss).loss_name == mine.loss_name else advice.title


def _warn(outcome: Outcome | None, untrained: float | None) -> str:
    """Return a warning if the training of a loss failed or learned nothing, otherwise an empty text."""
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
