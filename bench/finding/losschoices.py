"""Choices of proposers and rungs among the losses in a table, without training any of them again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from autoloss.proposing.chance import derive_generator
from autoloss.proposing.score_model import OPTIMISM, ScoreModel, describe_signature
from losstable import LossRow

OBSERVED = (12, 25, 50, 100, 200, 300)
"""Numbers of losses that the model is fitted to; the first is where a guided search begins to use it."""
HELD_OUT = 300
"""Losses at most that it is then asked about, in each repeat."""
POOL, POOLS = 4, 100
"""Losses among which a choice is made, and the number of choices in each repeat."""
LADDERS = ((1.0,), (0.125, 1.0), (0.25, 1.0), (0.125, 0.25, 1.0))
PROMOTE = (0.05, 0.1, 0.2)
BUDGETS = (10, 20, 40, 80)
"""In whole trainings."""
COLUMN = {0.125: "eighth_1", 0.25: "quarter_1", 1.0: "whole_1"}


def simulate_task(task: str, rows: Sequence[LossRow], repeats: int) -> dict[str, Any]:
    """Return the choices among the losses of one task.

    Args:
        repeats: Random orders of the losses that each figure is the mean of.
    """
    return {
        "task": task,
        "losses": len(rows),
        "diverged": sum(row.whole_1 is None for row in rows),
        "mutations": sum(row.parent is not None for row in rows),
        "seconds": {
            name: fmean(getattr(row, f"seconds_{name}") for row in rows) for name in ("eighth", "quarter", "whole")
        },
        "rank": rank_shares(rows),
        "model": [try_model(rows, observed, repeats) for observed in OBSERVED],
        "rungs": [try_rungs(rows, ladder, promote, repeats) for ladder, promote in _list_ladders()],
    }


def rank_shares(rows: Sequence[LossRow]) -> dict[str, float | None]:
    """Return Spearman's rank correlations with the score of the whole training with the other seed.

    `top_…` are those among the quarter of the losses with the highest mean of the whole trainings.
    """
    whole = [row for row in rows if None not in (row.eighth_1, row.quarter_1, row.whole_1, row.whole_2)]
    top = sorted(whole, key=lambda row: (row.whole_1 or 0) + (row.whole_2 or 0), reverse=True)[: len(whole) // 4]
    pairs = {"eighth": "eighth_1", "quarter": "quarter_1", "seeds": "whole_1"}
    found = {name: correlate_columns(whole, column, "whole_2") for name, column in pairs.items()}
    found |= {f"top_{name}": correlate_columns(top, column, "whole_2") for name, column in pairs.items()}
    return found


def correlate_columns(rows: Sequence[LossRow], first: str, second: str) -> float | None:
    return correlate([getattr(row, first) for row in rows], [getattr(row, second) for row in rows])


def correlate(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three values, or equal ones."""
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def try_model(rows: Sequence[LossRow], observed: int, repeats: int) -> dict[str, Any]:
    """Fit the model of a guided search to some losses at an eighth, and let it rank others.

    Returns:
        `eighth`, `whole`: rank correlation of its prediction with the score of losses that it has not seen; `better`: share of the
        pools of which the loss it chooses has a higher score of the whole training than one drawn at random, ties counting half;
        `gain`: mean difference of the two scores. None where there are too few losses.
    """
    usable = [row for row in rows if row.eighth_1 is not None]
    found: dict[str, list[float]] = {"eighth": [], "whole": [], "better": [], "gain": []}
    # As many as the pool in number have to be left.
    for rng in _generators("model", repeats) if len(usable) >= observed + POOL else ():
        order = rng.sample(usable, len(usable))
        held_out = [row for row in order[observed:] if row.whole_1 is not None][:HELD_OUT]
        model = ScoreModel(describe_rows(order[:observed]), _scores(order[:observed]))
        mean, deviation = model.predict(describe_rows(held_out))
        bound = dict(zip((row.number for row in held_out), mean + OPTIMISM * deviation, strict=True))
        for name, column in (("eighth", "eighth_1"), ("whole", "whole_1")):
            value = correlate(list(mean), [getattr(row, column) for row in held_out])
            found[name] += [] if value is None else [value]
        for _ in range(POOLS if len(held_out) >= POOL else 0):
            pool = rng.sample(held_out, POOL)
            chosen, other = max(pool, key=lambda row: bound[row.number]).whole_1, rng.choice(pool).whole_1
            assert chosen is not None
            assert other is not None
            found["better"].append((chosen > other) + (chosen == other) / 2)
            found["gain"].append(chosen - other)
    return {"observed": observed, **{name: fmean(values) if values else None for name, values in found.items()}}


def describe_rows(rows: Sequence[LossRow]) -> list[list[float]]:
    """Return the features of losses; a signature of the direction alone has two numbers for each sample instead of four."""
    return [describe_signature(row.signature, direction=len(row.signature) == 2 * len(row.gains)) for row in rows]


def try_rungs(rows: Sequence[LossRow], ladder: Sequence[float], promote: float, repeats: int) -> dict[str, Any]:
    """Spend budgets on losses in a random order: all at the first rung, the best of each at the next.

    Returns:
        `found`: budget → mean score, with the other training seed, of the loss with the best score of the last rung.
    """
    cost = sum(rung * promote**place for place, rung in enumerate(ladder))
    found: dict[int, float | None] = {}
    for budget in BUDGETS:
        count = int(budget / cost)
        winners = [
            _climb(rng.sample(rows, count), ladder, promote)
            for rng in _generators(f"rungs {budget}", repeats if count <= len(rows) else 0)
        ]
        confirmed = [0.0 if winner is None else winner.whole_2 or 0.0 for winner in winners]
        found[budget] = fmean(confirmed) if confirmed else None
    return {"rungs": list(ladder), "promote": promote, "found": found}


def _climb(rows: Sequence[LossRow], ladder: Sequence[float], promote: float) -> LossRow | None:
    for place, rung in enumerate(ladder):
        column = COLUMN[rung]
        scored = [row for row in rows if getattr(row, column) is not None]
        best = sorted(scored, key=lambda row: getattr(row, column), reverse=True)
        last = place == len(ladder) - 1
        rows = best[: 1 if last else math.ceil(promote * len(rows))]
    return rows[0] if rows else None


def _list_ladders() -> Iterator[tuple[tuple[float, ...], float]]:
    for ladder in LADDERS:
        for promote in PROMOTE if len(ladder) > 1 else (1.0,):
            yield ladder, promote


def _scores(rows: Sequence[LossRow]) -> list[float]:
    return [row.eighth_1 for row in rows if row.eighth_1 is not None]


def _generators(purpose: str, repeats: int) -> Iterator[Random]:
    return (derive_generator(repeat, "lossbench", purpose) for repeat in range(repeats))
