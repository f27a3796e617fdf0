"""Everything that the page shows, gathered from one look at a run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoloss.comparison.judgement import Judgement
from autoloss.comparison.table import Row
from autoloss.numbers import counted, duration, figure
from autoloss.proposing.records import PROMOTED
from autoloss.report.failures import failures
from autoloss.report.leaderboard import count_seeds, describe_p_values, hall_rows, rows_of, top_rows
from autoloss.report.lineage import Step, lineage
from autoloss.report.page import figures
from autoloss.report.page.charts import Axis, Chart, axis
from autoloss.report.page.formulas import Formula, Formulas
from autoloss.report.page.scenes import Scenes, kept
from autoloss.report.page.shapes import Shape, shape_of
from autoloss.report.page.story import State, Story, state_of, story_of
from autoloss.report.shares import (
    at_share,
    count_trainings,
    describe_factors,
    promoted_from,
    trains_short,
    write_counts,
    write_score,
)
from autoloss.report.verdict import MEANING
from autoloss.run.results import Search
from autoloss.store.read import Reader

TOP = 20
"""Losses in the table of the best."""
OFFSPRING = 8
"""Children of the best loss that are listed."""
EXAMPLES = 12
"""Groups of failures that are listed."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the comparison on the test split.

    Args:
        badge: What it is called there; nothing for baselines.
        places: Of its interval's ends and of its mean, in units; None where there is no mean.
        below: The mean is below the axis.
    """

    label: str
    baseline: bool
    badge: str
    mean: str
    half: str
    p_value: str
    seeds: str
    reasons: tuple[str, ...]
    places: tuple[int, int, int] | None
    below: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """A loss in a table.

    Args:
        badge: What it is called there; nothing for most.
    """

    values: Mapping[str, Any]
    formula: Formula
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best losses of one share of the schedule; scores of several shares are not comparable.

    Args:
        table: Its name on the page, the same at every look.
        title: Share in words; empty where a run has only one.
    """

    table: str
    title: str
    rows: Sequence[Listed]


@dataclass(frozen=True, slots=True)
class Relative:
    """A loss of the family of the best.

    Args:
        how: How it came about; of offspring only whether it was promoted.
        score: With its share of the schedule, where there are several.
    """

    id: int
    how: str
    score: str
    formula: Formula


@dataclass(frozen=True, slots=True)
class Contents:
    """What the page shows.

    Args:
        best: The loss that the story is about.
        factor: What the factors before its formulas are, in words; empty where it has none.
        notes: What the comparison's columns mean.
        axis: Of the intervals in the comparison.
        running: Number, since when, formula, and share where there are several.
        by_size: Score against size, with the hall of fame as a line; None where no loss has a score.
        hall_share: At which share the hall of fame was trained, in words; empty where there is only one.
        family: The best loss's ancestors, the first one first; itself last.
        written: When this was read, in words.
    """

    run: str
    task: str
    options: str
    release: str
    seed: int
    written: str
    live: bool
    state: State
    facts: Mapping[str, str]
    story: Story
    best: Listed | None
    factor: str
    compared: Sequence[Compared]
    notes: Sequence[str]
    axis: Axis | None
    damaged: Sequence[str]
    running: Sequence[tuple[int, str, Formula, str]]
    over_time: Sequence[Chart]
    funnel: Sequence[figures.Stage]
    failures: Mapping[str, Sequence[Mapping[str, Any]]]
    hall: Sequence[Listed]
    by_size: Chart | None
    hall_share: str
    top: Sequence[Ranking]
    operators: Sequence[figures.Trend]
    family: Sequence[Relative]
    offspring: Sequence[Relative]
    offspring_count: int
    curves: Sequence[Chart]
    shapes: Sequence[Shape]
    scenes: Scenes | None


def gathered(reader: Reader, *, live: bool = False, now: float | None = None) -> Contents:
    """Gather the page of a run as far as it was read.

    Args:
        live: The page is served, and looks again.
        now: The time of reading (Unix time); the clock's when left out.
    """
    now = time.time() if now is None else now
    search = Search(reader)
    state = state_of(search)
    story = story_of(search, state)
    top, hall = top_rows(search, TOP), hall_rows(search)
    number = story.best
    born = [] if number is None else reader.offspring(number)
    steps = [] if number is None else lineage(search, number)
    shown = [*(row["formula"] for row in (*top, *hall)), *(step.child.loss for step in steps)]
    running = reader.running
    formulas = Formulas.of(search, [*shown, *(row["loss"] for row in (*born[:OFFSPRING], *running))])
    best = None if number is None else _list_best(search, formulas, number)
    # Only a loss that beats the best baseline is a winner.
    badge = "winner" if story.is_win else "best found" if search.confirmed else "best so far"
    compared, scale = _compared(search, number, badge)
    notes = [MEANING, *describe_p_values(search.comparison, search.judgement)] if compared else []
    listed = [Listed(row, formulas[row["formula"]], badge if row["id"] == number else "") for row in (*hall, *top)]
    return Contents(
        run=search.directory.absolute().name,
        task=search.settings.title,
        options=", ".join(f"{name} {value}" for name, value in search.settings.task.options.items()),
        release=search.settings.release,
        seed=search.configuration.seed,
        written=time.strftime("%Y-%m-%d %H:%M", time.localtime(now)),
        live=live,
        state=state,
        facts=_facts(search, state),
        story=story,
        best=best,
        factor="" if best is None else describe_factors(best.formula.found),
        compared=compared,
        notes=notes,
        axis=scale,
        damaged=list(reader.damaged),
        running=[
            (
                row["id"],
                duration(max(0.0, now - row["born_at"])) if state.going else "",
                formulas[row["loss"]],
                at_share(row["fidelity"]) if trains_short(search) else "",
            )
            for row in running
        ],
        over_time=figures.over_time(search, figures.baseline_on_valid(search, reader.trainings)),
        funnel=figures.funnel(search, len(running)),
        failures={name: rows[:EXAMPLES] for name, rows in failures(reader).items()},
        hall=listed[: len(hall)],
        by_size=figures.score_by_size(search, hall),
        hall_share="".join(_title(search, row["fidelity"]) for row in reader.losses(reader.best_by_size[:1])),
        top=_rankings(search, listed[len(hall) :]),
        operators=figures.operators(reader.operators),
        family=[_ancestor(search, step, formulas) for step in reversed(steps)],
        offspring=[_child(search, row, formulas) for row in born[:OFFSPRING]],
        offspring_count=len(born),
        curves=_curves(search, number),
        shapes=[] if best is None else _shapes(search, best),
        scenes=None if best is None else kept(search, best.formula.found),
    )


def _score(search: Search, score: float | None, fidelity: float) -> str:
    return write_score(score, fidelity) if trains_short(search) else figure(score)


def _ancestor(search: Search, step: Step, formulas: Formulas) -> Relative:
    child, how = step.child, "; ".join(dict.fromkeys(step.how.values()))
    return Relative(child.id, how, _score(search, step.score, child.fidelity), formulas[child.loss])


def _child(search: Search, row: Mapping[str, Any], formulas: Formulas) -> Relative:
    how = PROMOTED if row["promoted"] else ""
    return Relative(row["id"], how, _score(search, row["score"], row["fidelity"]), formulas[row["loss"]])


def _title(search: Search, fidelity: float) -> str:
    """Return where losses that are alike were trained, in words; nothing where a run has only one share."""
    return f"trained {at_share(fidelity)}" if trains_short(search) else ""


def _rankings(search: Search, rows: Sequence[Listed]) -> list[Ranking]:
    """Divide the best, which are ordered by share first."""
    shares = {row["id"]: row["fidelity"] for row in search.reader.losses([row.values["id"] for row in rows])}
    groups = itertools.groupby(rows, key=lambda row: shares[row.values["id"]])
    return [
        Ranking("best-table" if share == 1 else f"best-table-{share:g}", _title(search, share), list(group))
        for share, group in groups
    ]


def _list_best(search: Search, formulas: Formulas, number: int) -> Listed:
    (best,) = search.losses([number])
    return Listed(rows_of(search, [best])[0], formulas[best.formula])


def _facts(search: Search, state: State) -> dict[str, str]:
    best, changed = search.reader.losses(search.reader.ranking[:1]), search.reader.last_change
    return {
        state.unit: state.progress,
        **({"trainings": write_counts(count_trainings(search))} if trains_short(search) else {}),
        "losses drawn": counted(search.reader.totals.get("sampled", 0)),
        "best on valid": _score(search, best[0]["score"], best[0]["fidelity"]) if best else "–",
        "last written": "–" if changed is None else _ago(changed),
    }


def _ago(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _compared(search: Search, number: int | None, badge: str) -> tuple[list[Compared], Axis | None]:
    """Return the comparison with places on one axis; what failed far below the others does not press them together."""
    rows = search.comparison
    badges = {row.entrant: "" if row.entrant.baseline else "found" for row in rows}
    badges |= {row.entrant: badge for row in rows if number is not None and row.entrant.number == number}
    ends = [
        (row.mean - (row.interval or 0.0), row.mean + (row.interval or 0.0)) for row in rows if row.mean is not None
    ]
    means = sorted(row.mean for row in rows if row.mean is not None)
    if not ends:
        return [_compared_row(row, badges[row.entrant], search.judgement, None) for row in rows], None
    middle = means[len(means) // 2]
    reach = max(2 * (means[-1] - middle), *(high - low for low, high in ends[:1]), 1e-6)
    # The best loss found and the best baseline are what the table is looked at for.
    kept = [row for row in rows if badges[row.entrant] == badge][:1] + [row for row in rows if row.entrant.baseline][:1]
    asked = [row.mean - (row.interval or 0.0) for row in kept if row.mean is not None]
    low = max(min(low for low, _ in ends), min(middle - 2 * reach, *asked))
    scale = axis(low, max(high for _, high in ends), "score on the test split", count=4)
    return [_compared_row(row, badges[row.entrant], search.judgement, scale) for row in rows], scale


def _compared_row(row: Row, badge: str, judgement: Judgement, scale: Axis | None) -> Compared:
    places, p_value = None, judgement.p_values.get(row.entrant.label)
    if row.mean is not None and scale is not None:
        half = row.interval or 0.0
        places = (scale.place(row.mean - half), scale.place(row.mean), scale.place(row.mean + half))
    return Compared(
        label=row.entrant.label,
        baseline=row.entrant.baseline,
        badge=badge,
        mean=figure(row.mean),
        half="" if row.interval is None else figure(row.interval),
        p_value="" if p_value is None else f"{p_value:.2g}",
        seeds=count_seeds(row),
        reasons=tuple(reason.splitlines()[0] for reason in row.reasons),
        places=places,
        below=row.mean is not None and scale is not None and row.mean < scale.low,
    )


def _curves(search: Search, number: int | None) -> list[Chart]:
    if number is None:
        return []
    if charts := figures.training_curves(search, search.reader.trainings, number):
        return charts
    ((child, _), *_) = search.reader.lineage(number)
    origin = promoted_from(search, child)
    charts = []
    for one in [number] if origin is None else [number, origin.id]:
        outcome = search.reader.outcome(one)
        if outcome is not None and outcome.curve:
            score = _score(search, outcome.score, outcome.fidelity)
            charts.append(figures.training_curve(f"#{one}", outcome.curve, score))
    return charts


def _shapes(search: Search, best: Listed) -> list[Shape]:
    """Draw the best loss's trees, simplified; none where it holds operators of somebody's own."""
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    forms, standard = search.settings.branches, search.settings.standard_loss
    try:
        loss = Loss.parse(best.formula.found, search.settings.leaves)
    except FormulaError:
        return []
    label = f"#{best.values['id']}"
    drawn = [
        shape_of(tree, forms[name], name if len(loss) > 1 else "", label, standard.get(name, ""))
        for name, tree in loss.items()
    ]
    return [shape for shape in drawn if shape is not None]
