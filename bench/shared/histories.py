"""The text by which two histories are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoloss.proposing.records import Individual


def as_text(individuals: Iterable[Individual]) -> Iterator[str]:
    """Write a history as one JSON line per candidate, without times: equal histories are equal byte for byte."""
    short: Mapping[str, Any] = {"fidelity": 1, "pool": {}, "seeds": (0,), "folds": (0,)}
    for individual in individuals:
        candidate, outcome = individual.candidate, individual.outcome
        first = ("parent", "kinds", "attempts", "loss", "origin", "source", "signature", "scores")
        fields = {
            "child": candidate.id,
            **{name: getattr(candidate, name) for name in first},
            "counts": dict(sorted(candidate.counts.items())),
            "rejected": candidate.rejected,
            "accepted": candidate.accepted,
            **{name: getattr(outcome, name) for name in ("state", "score", "also", "curve", "step", "reason")},
            **{name: found for name, usual in short.items() if (found := getattr(candidate, name)) != usual},
            **({} if outcome.count == 1 else {"deviation": outcome.deviation, "count": outcome.count}),
        }
        yield json.dumps(
            fields, allow_nan=False, default=lambda one: one.hex() if isinstance(one, bytes) else one.value
        )
