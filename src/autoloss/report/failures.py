"""Trainings without a score and rejected losses, grouped by reason, each with an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoloss.numbers import counted
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome, State
from autoloss.rejection.reasons import Reason
from autoloss.report.leaderboard import table
from autoloss.report.shares import at_share
from autoloss.store.read import Reader

NO_REASON = "no reason was given"


def failures(reader: Reader) -> dict[str, list[dict[str, Any]]]:
    """Return as plain values: `trainings` of the search, `trials` beside it, and `rejections`, the most frequent first."""
    trainings = [
        {
            "state": group["state"],
            "reason": group["line"] or NO_REASON,
            "count": group["count"],
            "example": {
                "id": group["id"],
                "formula": group["loss"],
                "step": group["step"],
                "fidelity": group["fidelity"],
            },
        }
        for group in reader.unscored
    ]
    return {"trainings": trainings, "trials": _trials(reader.trainings), "rejections": rejections(reader)}


def rejections(reader: Reader) -> list[dict[str, Any]]:
    """Count the rejected losses by reason; one in a thousand was kept as an example."""
    totals = reader.totals
    examples = {
        row["reason"]: {"child": row["candidate"], "branch": row["branch"], "formula": row["formula"]}
        for row in reader.examples
    }
    found = [
        {"reason": reason.value, "count": totals[reason.name], "example": examples.get(reason.name)}
        for reason in Reason
        if totals.get(reason.name)
    ]
    return sorted(found, key=lambda row: -row["count"])


def _trials(trainings: Mapping[Train, Outcome]) -> list[dict[str, Any]]:
    """Group the trainings beside the search that have no score."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job, outcome in trainings.items():
        if outcome.state is not State.SCORED:
            key = job.training
            example = {
                "loss": job.loss,
                "seed": key.seed,
                "split": key.split,
                "step": outcome.step,
                "fidelity": key.fidelity,
            }
            line = next(iter(outcome.reason.splitlines()), NO_REASON)
            groups.setdefault((outcome.state.value, line), []).append(example)
    found = [
        {"state": state, "reason": reason, "count": len(examples), "example": examples[0]}
        for (state, reason), examples in groups.items()
    ]
    return sorted(found, key=lambda row: -row["count"])


def print_failures(console: Console, values: Mapping[str, Sequence[Mapping[str, Any]]], directory: object) -> None:
    """Print the groups as tables."""
    columns = {"count": "right", "state": "left", "reason": "left", "example": "left"}
    for title, name in (
        ("Trainings of the search without a score", "trainings"),
        ("Other trainings without a score", "trials"),
    ):
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
    return loss + describe_end(example)


def describe_end(example: Mapping[str, Any]) -> str:
    """Say at which share and step a training ended: ` (at 1/8, step 3)`; nothing of one that is whole and has no step."""
    short = [at_share(example["fidelity"])] if example["fidelity"] != 1 else []
    facts = short + [f"step {example['step']}"] * (example["step"] is not None)
    return f" ({', '.join(facts)})" * bool(facts)


def _rejected(example: Mapping[str, Any] | None) -> str:
    return "no example kept" if example is None else f"{example['formula']}  (for #{example['child']})"
