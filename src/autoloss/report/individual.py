"""One loss of a run: formula, outcome, rejection test, training curve, lineage, and the command that trains it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autoloss.errors import RequestError
from autoloss.numbers import figure
from autoloss.proposing.records import PROMOTED, Origin
from autoloss.report.leaderboard import table
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import at_share, describe_factors, write_score, write_share
from autoloss.report.summary import describe_formula
from autoloss.run.results import Search, training_command
from autoloss.space.loss_text import join_branches

RUNNING = "in training"
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Characters of a curve in a terminal."""


def show_values(search: Search, number: int) -> dict[str, Any]:
    """Return everything known about one loss as plain values; it may still be in training."""
    line = search.reader.lineage(number)
    if not line:
        newest = search.reader.newest
        if newest is None:
            raise RequestError(f"{search.directory} has no loss yet.")
        raise RequestError(f"There is no loss #{number} in {search.directory}; it has #0 to #{newest} so far.")
    candidate, outcome = line[0][0], search.reader.outcome(number)
    return {
        "id": candidate.id,
        **describe_formula(simplify_formulas(search, [candidate.loss])[candidate.loss]),
        "state": RUNNING if outcome is None else outcome.state.value,
        "score": None if outcome is None else outcome.score,
        "fidelity": candidate.fidelity,
        **find_promotions(search, number),
        "factor": describe_factors(candidate.loss),
        "also": {} if outcome is None else dict(outcome.also),
        "reason": "" if outcome is None else outcome.reason,
        "step": None if outcome is None else outcome.step,
        "origin": candidate.origin.value,
        "source": candidate.source,
        "kinds": dict(candidate.kinds),
        "attempts": dict(candidate.attempts),
        "g": {branch: scores[0] for branch, scores in candidate.scores.items()},
        "gains": {branch: list(scores[1:]) for branch, scores in candidate.scores.items()},
        "lineage": lineage(search, number),
        "curve": [] if outcome is None else [list(point) for point in outcome.curve],
        "command": training_command(search, search.reader.trained_loss(number) or candidate.loss),
    }


def print_show(console: Console, values: Mapping[str, Any]) -> None:
    """Print one loss."""
    steps = values["lineage"]
    short = any(step["fidelity"] != 1 for step in steps) or bool(values["promoted_to"])
    for line in (
        Text.assemble((f"#{values['id']}", "bold"), f"  {values['readable']}"),
        *_describe_formula(values),
        *_describe_outcome(values, short),
        *_describe_test(values),
        *_draw_curve(values["curve"]),
    ):
        console.print(line, soft_wrap=True)
    kinds = [step["how"] for step in steps]
    columns = {
        "id": [step["id"] for step in steps],
        "how": [join_branches(how) if len({*how.values()}) > 1 else next(iter(how.values())) for how in kinds],
        "score": [figure(step["score"]) for step in steps],
        **({"share": [write_share(step["fidelity"]) for step in steps]} if short else {}),
        "formula": [step["formula"] for step in steps],
    }
    console.print(table("Lineage", columns, zip(*columns.values(), strict=True), left=("how", "share", "formula")))
    how = "again" if values["fidelity"] == 1 else "with the whole schedule"
    console.print(f"Train it {how}: {values['command']}", soft_wrap=True)


def _describe_formula(values: Mapping[str, Any]) -> list[str]:
    lines = [f"original: {values['formula']}"]
    if values["simplified"] != values["formula"]:
        lines.append(f"simplified: {values['simplified']}")
    if values["identity"]:
        lines.append(f"on this task: the gradient is that of {values['identity']}")
    return [*lines, values["factor"]] if values["factor"] else lines


def _describe_outcome(values: Mapping[str, Any], short: bool) -> list[str]:
    score = write_score(values["score"], values["fidelity"]) if short else figure(values["score"])
    also = "  ".join(f"{name} {figure(value)}" for name, value in values["also"].items())
    lines = [f"{values['state']}  score {score}  {also}".rstrip()]
    counterparts = {name: values[name] for name in ("promoted_from", "promoted_to") if values[name]}
    lines += [f"{name.replace('_', ' ')} {write_counterpart(other)}" for name, other in counterparts.items()]
    if values["reason"]:
        lines.append(f"reason: {values['reason']}" + ("" if values["step"] is None else f" (step {values['step']})"))
    if values["origin"] != Origin.TRAINED.value:
        lines.append(f"{values['origin']}: shares the outcome of #{values['source']}")
    return lines


def _describe_test(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for branch, score in values["g"].items():
        gains = " ".join(f"{gain:+.3f}" for gain in values["gains"][branch])
        lines.append(f"passed on {branch}: g {score:.3f}, gains per sample {gains}")
    meaning = "  g: increase of the metric by gradient descent on the predictions of an untrained network"
    return [*lines, meaning] if lines else lines


def _draw_curve(curve: Sequence[Sequence[float]]) -> list[str]:
    if not curve:
        return []
    (first, start), (last, end) = curve[0], curve[-1]
    return [
        f"training loss, steps {first:.0f} to {last:.0f}: {start:.4g} → {end:.4g}",
        f"  {sparkline([loss for _, loss in curve], WIDTH)}",
    ]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as one line of bars, each the mean of a stretch; a stretch without finite values is a gap."""
    count = min(width, len(values))
    stretches = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    kept = [[value for value in stretch if math.isfinite(value)] for stretch in stretches]
    means = [math.fsum(stretch) / len(stretch) if stretch else None for stretch in kept]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(" " if mean is None else BARS[round((mean - low) / step)] for mean in means)


def find_promotions(search: Search, number: int) -> dict[str, dict[str, Any] | None]:
    """Return the same loss at other shares of the schedule: the candidate that was promoted to this one, and the next.

    Each has an id, a fidelity, and a score, which is None in training or where it failed; None where there is none.
    """
    ((candidate, _), *_) = search.reader.lineage(number)
    parent = [candidate.parent] if candidate.promoted and candidate.parent is not None else []
    found = {
        "promoted_from": search.reader.losses(parent),
        "promoted_to": [row for row in search.reader.offspring(number) if row["promoted"]],
    }
    facts = ("id", "fidelity", "score")
    return {name: {fact: rows[0][fact] for fact in facts} if rows else None for name, rows in found.items()}


def write_counterpart(other: Mapping[str, Any]) -> str:
    """Write number, score and share of a loss that `find_promotions` returns.

    >>> write_counterpart({"id": 3, "fidelity": 0.125, "score": 0.8})
    '#3, score 0.8000 at 1/8'
    """
    score = "no score" if other["score"] is None else f"score {figure(other['score'])}"
    return f"#{other['id']}, {score} {at_share(other['fidelity'])}"


def lineage(search: Search, number: int) -> list[dict[str, Any]]:
    """Return a loss and its ancestors, from itself to a random tree; empty if there is no such loss.

    `how` maps a branch to the origin of its tree: copied, fresh, promoted, mutated and so on; the score is that of the training
    at the fidelity.
    """
    line = search.reader.lineage(number)
    shares = [*(f" from {write_share(parent.fidelity)}" for parent, _ in line[1:]), ""]
    return [
        {
            "id": candidate.id,
            "kinds": dict(candidate.kinds),
            "how": {branch: kind + share * (kind == PROMOTED) for branch, kind in candidate.kinds.items()},
            "formula": candidate.loss,
            "score": score,
            "fidelity": candidate.fidelity,
        }
        for (candidate, score), share in zip(line, shares, strict=False)
    ]
