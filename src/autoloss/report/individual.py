"""One loss of a run: formula, outcome, rejection test, training curve, lineage, and the command that trains it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from autoloss.errors import RequestError
from autoloss.numbers import figure
from autoloss.proposing.records import Origin
from autoloss.report.leaderboard import table
from autoloss.report.lineage import lineage
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import (
    Counterpart,
    at_share,
    describe_factors,
    promoted_from,
    promoted_to,
    write_score,
    write_share,
)
from autoloss.run.results import Search, training_command
from autoloss.space.loss_text import join_branches

RUNNING = "in training"
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Characters of a curve in a terminal."""


def show_values(search: Search, number: int) -> dict[str, Any]:
    """Return all that is known of one loss as plain values; it may still be in training.

    Raises:
        RequestError: There is no such loss.
    """
    steps = lineage(search, number)
    if not steps:
        raise RequestError(_no_such_loss(search, number))
    child, outcome = steps[0].child, search.reader.outcome(number)
    readable = simplify_formulas(search, [child.loss])[child.loss]
    return {
        "id": child.id,
        "formula": child.loss,
        "simplified": readable.text,
        "readable": readable.line,
        "identity": readable.identity,
        "state": RUNNING if outcome is None else outcome.state.value,
        "score": None if outcome is None else outcome.score,
        "fidelity": child.fidelity,
        "promoted_from": _counterpart(promoted_from(search, child)),
        "promoted_to": _counterpart(promoted_to(search, number)),
        "factor": describe_factors(child.loss),
        "also": {} if outcome is None else dict(outcome.also),
        "reason": "" if outcome is None else outcome.reason,
        "step": None if outcome is None else outcome.step,
        "origin": child.origin.value,
        "source": child.source,
        "kinds": dict(child.kinds),
        "attempts": dict(child.attempts),
        "g": {branch: scores[0] for branch, scores in child.scores.items()},
        "gains": {branch: list(scores[1:]) for branch, scores in child.scores.items()},
        "lineage": [
            {
                "id": step.child.id,
                "kinds": dict(step.child.kinds),
                "how": dict(step.how),
                "formula": step.child.loss,
                "score": step.score,
                "fidelity": step.child.fidelity,
            }
            for step in steps
        ],
        "curve": [] if outcome is None else [list(point) for point in outcome.curve],
        "command": training_command(search, search.reader.trained_loss(number) or child.loss),
    }


def _counterpart(found: Counterpart | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _no_such_loss(search: Search, number: int) -> str:
    newest = search.reader.newest
    if newest is None:
        return f"{search.directory} has no loss yet."
    return f"There is no loss #{number} in {search.directory}; it has #0 to #{newest} so far."


def print_show(console: Console, values: Mapping[str, Any]) -> None:
    """Print one loss."""
    console.print(Text.assemble((f"#{values['id']}", "bold"), f"  {values['readable']}"), soft_wrap=True)
    console.print(f"original: {values['formula']}", soft_wrap=True)
    if values["simplified"] != values["formula"]:
        console.print(f"simplified: {values['simplified']}", soft_wrap=True)
    if values["identity"]:
        console.print(f"on this task: {values['identity']}, by its gradient", soft_wrap=True)
    also = "  ".join(f"{name} {figure(value)}" for name, value in values["also"].items())
    if values["factor"]:
        console.print(values["factor"], soft_wrap=True)
    short = any(step["fidelity"] != 1 for step in values["lineage"]) or bool(values["promoted_to"])
    score = write_score(values["score"], values["fidelity"]) if short else figure(values["score"])
    console.print(f"{values['state']}  score {score}  {also}".rstrip())
    for name, other in (("promoted from", values["promoted_from"]), ("promoted to", values["promoted_to"])):
        if other:
            console.print(f"{name} #{other['id']}: {_describe(other)}")
    if values["reason"]:
        step = "" if values["step"] is None else f" (step {values['step']})"
        console.print(f"reason: {values['reason']}{step}")
    if values["origin"] != Origin.TRAINED.value:
        console.print(f"{values['origin']}: shares the outcome of #{values['source']}")
    for branch, score in values["g"].items():
        gains = " ".join(f"{gain:+.3f}" for gain in values["gains"][branch])
        console.print(f"passed on {branch}: g {score:.3f}, gains per sample {gains}")
    if values["g"]:
        console.print("  g: how far descending the loss on the predictions of an untrained network raises the metric")
    _print_curve(console, values["curve"])
    console.print(
        table(
            "Lineage",
            {
                "id": "right",
                "how": "left",
                "score": "right",
                **dict.fromkeys(["share"] * short, "left"),
                "formula": "left",
            },
            (
                (
                    step["id"],
                    _how(step["how"]),
                    figure(step["score"]),
                    *[write_share(step["fidelity"])] * short,
                    step["formula"],
                )
                for step in values["lineage"]
            ),
        )
    )
    console.print(f"Train it {'again' if values['fidelity'] == 1 else 'whole'}: {values['command']}", soft_wrap=True)


def _describe(other: Mapping[str, Any]) -> str:
    if other["score"] is None:
        return f"no score {at_share(other['fidelity'])}"
    return f"score {write_score(other['score'], other['fidelity'])}"


def _how(how: Mapping[str, str]) -> str:
    kinds = dict.fromkeys(how.values())
    return next(iter(kinds)) if len(kinds) == 1 else join_branches(how)


def _print_curve(console: Console, curve: Sequence[Sequence[float]]) -> None:
    if curve:
        (first, start), (last, end) = curve[0], curve[-1]
        console.print(f"training loss, steps {first:.0f} to {last:.0f}: {start:.4g} → {end:.4g}")
        console.print(f"  {sparkline([loss for _, loss in curve], WIDTH)}")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as one line of bars, the mean of each stretch; what is not finite is a gap."""
    count = min(width, len(values))
    stretches = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    kept = [[value for value in stretch if math.isfinite(value)] for stretch in stretches]
    means = [math.fsum(stretch) / len(stretch) if stretch else None for stretch in kept]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(" " if mean is None else BARS[round((mean - low) / step)] for mean in means)
