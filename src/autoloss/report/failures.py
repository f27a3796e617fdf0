"""Trainings without a score and rejected losses, grouped by reason, each with an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoloss.errors import keep_text
from autoloss.numbers import counted
from autoloss.proposing.records import REASON_CHARACTERS
from autoloss.rejection.reasons import Reason
from autoloss.report.leaderboard import table
from autoloss.report.shares import at_share
from autoloss.store.read import Reader

NO_REASON = "no reason was given"
TITLES = {
    "trainings": "Trainings of the search without a score",
    "trials": "Other trainings without a score",
    "rejections": "Rejected without a training",
}


def group_failures(reader: Reader) -> dict[str, list[dict[str, Any]]]:
    """Return plain values: `trainings` of the search, `trials` outside it, and `rejections`, the most frequent first."""
    trainings, trials = [], []
    for group in reader.unscored:
        # A store of anybody's may hold a reason of any length.
        reason = keep_text(group["line"], REASON_CHARACTERS) or NO_REASON
        values = {"state": group["state"], "reason": reason, "count": group["count"]}
        if group["id"] is None:
            example = {name: group[name] for name in ("loss", "seed", "split", "step", "fidelity")}
            trials.append({**values, "example": example})
        else:
            example = {name: group[name] for name in ("id", "step", "fidelity")}
            trainings.append({**values, "example": {"formula": group["loss"], **example}})
    return {"trainings": trainings, "trials": trials, "rejections": _rejections(reader)}


def _rejections(reader: Reader) -> list[dict[str, Any]]:
    """Count the rejected losses by reason; the store keeps one in a thousand as an example."""
    totals, facts = reader.totals, ("candidate", "branch", "formula")
    examples = {row["reason"]: {fact: row[fact] for fact in facts} for row in reader.examples}
    found = [
        {"reason": reason.value, "count": totals[reason.name], "example": examples.get(reason.name)}
        for reason in Reason
        if totals.get(reason.name)
    ]
    return sorted(found, key=lambda row: -row["count"])


def print_failures(console: Console, values: Mapping[str, Sequence[Mapping[str, Any]]], directory: object) -> None:
    """Print the groups as tables."""
    for name, groups in values.items():
        columns = ["count", *(["state"] if name != "rejections" else []), "reason", "example"]
        shown = [
            {**row, "count": counted(row["count"], " "), "example": _write_example(row["example"])} for row in groups
        ]
        if shown:
            rows = [[row[column] for column in columns] for row in shown]
            console.print(table(TITLES[name], columns, rows, left=("state", "reason", "example")))
    if not any(values.values()):
        console.print(f"Nothing failed in {directory}, and nothing was rejected.")


def _write_example(example: Mapping[str, Any] | None) -> str:
    if example is None:
        return "no example kept"
    if "candidate" in example:
        return f"{example['formula']}  (for #{example['candidate']})"
    loss = f"#{example['id']}  {example['formula']}" if "id" in example else f"{example['loss']} on {example['split']}"
    return loss + describe_end(example)


def describe_end(example: Mapping[str, Any]) -> str:
    """Write the share and the step at which a training ended, as in ` (at 1/8, step 3)`; empty if whole and without a step."""
    short = [at_share(example["fidelity"])] if example["fidelity"] != 1 else []
    facts = short + [f"step {example['step']}"] * (example["step"] is not None)
    return f" ({', '.join(facts)})" * bool(facts)
