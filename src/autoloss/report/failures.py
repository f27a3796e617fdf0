"""What went no further, grouped by its reason, each with an example: trainings without a score, and rejected losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoloss.algorithm.rejection.reasons import Reason
from autoloss.report.leaderboard import table
from autoloss.report.numbers import counted
from autoloss.run.reading import Reading
from autoloss.run.records import Outcome, State
from autoloss.run.store import Store


def failures(reading: Reading) -> dict[str, list[dict[str, Any]]]:
    """Return as plain values: `trainings` of the search, `trials` beside it, and `rejections`, the most frequent first."""
    history = reading.search.history
    trainings = [
        (found.outcome, {"id": found.id, "formula": found.formula, "step": found.outcome.step})
        for found in history
        if found.child.source is None
    ]
    trials = [
        (outcome, {"loss": job.loss, "seed": job.seed, "split": job.split, "step": outcome.step})
        for job, outcome in reading.trials.items()
    ]
    return {"trainings": _grouped(trainings), "trials": _grouped(trials), "rejections": rejections(reading)}


def rejections(reading: Reading) -> list[dict[str, Any]]:
    """Return how many drawn losses went no further for which reason; one in a thousand was kept as an example."""
    with Store(reading.directory) as store:
        kept = list(store.sampled())
    examples: dict[str, dict[str, Any]] = {}
    for child, branch, formula, reason in kept:
        examples.setdefault(reason, {"child": child, "branch": branch, "formula": formula})
    found = [
        {"reason": reason.value, "count": reading.totals[reason.name], "example": examples.get(reason.name)}
        for reason in Reason
        if reading.totals[reason.name]
    ]
    return sorted(found, key=lambda row: -row["count"])


def _grouped(outcomes: Sequence[tuple[Outcome, dict[str, Any]]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for outcome, example in outcomes:
        if outcome.state is not State.SCORED:
            # What follows the first line is a traceback, which differs from one training to the next.
            reason = (outcome.reason.splitlines() or ["no reason was given"])[0]
            groups.setdefault((outcome.state.value, reason), []).append(example)
    found = [
        {"state": state, "reason": reason, "count": len(examples), "example": examples[0]}
        for (state, reason), examples in groups.items()
    ]
    return sorted(found, key=lambda row: -row["count"])


def print_failures(console: Console, values: Mapping[str, Sequence[Mapping[str, Any]]], directory: object) -> None:
    """Print the groups as tables."""
    columns = {"count": "right", "what": "left", "reason": "left", "example": "left"}
    for title, name in (("Trainings of the search without a score", "trainings"), ("Trials without a score", "trials")):
        rows = [(counted(row["count"]), row["state"], row["reason"], _training(row["example"])) for row in values[name]]
        if rows:
            console.print(table(title, columns, rows))
    rows = [(counted(row["count"]), row["reason"], _rejected(row["example"])) for row in values["rejections"]]
    if rows:
        console.print(
            table("Rejected without a training", {"count": "right", "reason": "left", "example": "left"}, rows)
        )
    if not any(values.values()):
        console.print(f"Nothing failed in {directory}, and nothing was rejected.")


def _training(example: Mapping[str, Any]) -> str:
    loss = f"#{example['id']}  {example['formula']}" if "id" in example else f"{example['loss']} on {example['split']}"
    return loss if example["step"] is None else f"{loss} (step {example['step']})"


def _rejected(example: Mapping[str, Any] | None) -> str:
    return "none was kept" if example is None else f"{example['formula']}  (for #{example['child']})"
