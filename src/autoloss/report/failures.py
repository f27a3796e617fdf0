"""What went no further, grouped by its reason, each with an example: trainings without a score, and rejected losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from autoloss.rejection.reasons import Reason
from autoloss.report.leaderboard import table
from autoloss.report.numbers import counted
from autoloss.run.reading import Reading
from autoloss.search.records import State


def failures(reading: Reading) -> dict[str, list[dict[str, Any]]]:
    """Return as plain values: `trainings` of the search, `trials` beside it, and `rejections`, the most frequent first."""
    trainings = _grouped(
        (found.state, found.reason, {"id": found.id, "step": found.step})
        for found in reading.unscored
        if found.id in reading.children
    )
    for group in trainings:
        example = group["example"]
        group["example"] = {
            "id": example["id"],
            "formula": reading.children[example["id"]].loss,
            "step": example["step"],
        }
    trials = _grouped(
        (
            outcome.state,
            (outcome.reason.splitlines() or [""])[0],
            {"loss": job.loss, "seed": job.training.seed, "split": job.training.split, "step": outcome.step},
        )
        for job, outcome in reading.trials.items()
    )
    return {"trainings": trainings, "trials": trials, "rejections": rejections(reading)}


def rejections(reading: Reading) -> list[dict[str, Any]]:
    """Return how many drawn losses went no further for which reason; one in a thousand was kept as an example."""
    examples = {
        reason: {"child": child, "branch": branch, "formula": formula}
        for reason, (child, branch, _, formula) in reading.examples.items()
    }
    found = [
        {"reason": reason.value, "count": reading.totals[reason.name], "example": examples.get(reason.name)}
        for reason in Reason
        if reading.totals[reason.name]
    ]
    return sorted(found, key=lambda row: -row["count"])


def _grouped(trainings: Iterable[tuple[State, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for state, reason, example in trainings:
        if state is not State.SCORED:
            groups.setdefault((state.value, reason or "no reason was given"), []).append(example)
    found = [
        {"state": state, "reason": reason, "count": len(examples), "example": examples[0]}
        for (state, reason), examples in groups.items()
    ]
    return sorted(found, key=lambda row: -row["count"])


def print_failures(console: Console, values: Mapping[str, Sequence[Mapping[str, Any]]], directory: object) -> None:
    """Print the groups as tables."""
    columns = {"count": "right", "what": "left", "reason": "left", "example": "left"}
    for title, name in (("Trainings of the search without a score", "trainings"), ("Trials without a score", "trials")):
        rows = [
            (counted(row["count"], " "), row["state"], row["reason"], _training(row["example"])) for row in values[name]
        ]
        if rows:
            console.print(table(title, columns, rows))
    rows = [(counted(row["count"], " "), row["reason"], _rejected(row["example"])) for row in values["rejections"]]
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
