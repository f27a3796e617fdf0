"""Contents of the page, gathered from one reading of a run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace

from autoloss import __version__
from autoloss.comparison.entrant import Row
from autoloss.numbers import counted, duration, figure
from autoloss.report.failures import group_failures
from autoloss.report.individual import find_promotions, lineage
from autoloss.report.page import figures
from autoloss.report.page.charts import Axis, Chart, Layer, axis, steps
from autoloss.report.page.scenes import read_scenes
from autoloss.report.page.shapes import Shape, draw_kind
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import (
    count_trainings,
    describe_factors,
    score_of,
    write_counts,
)
from autoloss.report.summary import ListedLoss, Summary, list_by_size, summarize
from autoloss.report.verdict import MEANING, describe_p_values
from autoloss.run.results import Search
from autoloss.settings import Configuration, setting_names
from autoloss.store.read import Reader

TOP = 20
"""Number of losses in the table of the best."""
OFFSPRING = 8
"""Number of offspring of the best loss to list."""
EXAMPLES = 12
"""Number of groups of failures to list."""
TIME = "%Y-%m-%d %H:%M"


def gather_contents(reader: Reader, *, live: bool = False) -> SimpleNamespace:
    """Gather the contents of the page of a run, for `main.html` alone.

    Args:
        live: True if the page is served and updates itself.
    """
    now, search = time.time(), Search(reader)
    summary = summarize(search, TOP)
    best, hall = summary.best, list_by_size(search)
    born = [] if best is None else reader.offspring(best.found.id)
    family = [] if best is None else lineage(search, best.found.id)[::-1]
    going = summary.state.going
    running = [{**row, "age": duration(max(0.0, now - row["born_at"])) if going else ""} for row in reader.running]
    shown = [*(step["formula"] for step in family), *(row["loss"] for row in (*born[:OFFSPRING], *running))]
    known = best is not None and search.enter(best.found.id, best.found.formula).known
    shares = itertools.groupby(sorted(summary.top, key=lambda one: -one.found.fidelity), lambda one: one.found.fidelity)
    badge = f"best {'of the search' if known else 'found'}" if search.confirmed else "best so far"
    return SimpleNamespace(
        template="page.html",
        summary=summary,
        run=search.directory.absolute().name,
        release=search.settings.release,
        written=time.strftime(TIME, time.localtime(now)),
        live=live,
        badge="winner" if search.judgement.is_win else badge,
        formulas=simplify_formulas(search, shown),
        facts=_collect_facts(search, summary),
        factor="" if best is None else describe_factors(best.formula.found),
        notes=[MEANING, *describe_p_values(search.comparison, search.judgement)] if search.comparison else [],
        axis=_find_axis(search),
        damaged=list(reader.damaged),
        running=running,
        over_time=figures.over_time(search, figures.baseline_on_valid(search, reader.trainings)),
        funnel=figures.funnel(search, len(running)),
        failures={name: rows[:EXAMPLES] for name, rows in group_failures(reader).items()},
        hall=hall,
        by_size=figures.score_by_size(search, hall),
        rankings={share: list(group) for share, group in shares},
        operators=figures.operators(reader.operators),
        family=family,
        offspring=born[:OFFSPRING],
        offspring_count=len(born),
        curves=[] if best is None else _draw_curves(search, best.found.id),
        shapes=[] if best is None else _draw_shapes(search, best),
        scenes=None if best is None else read_scenes(search, best.formula.found),
    )


def _collect_facts(search: Search, summary: Summary) -> dict[str, str]:
    best, changed = search.top(1), search.reader.last_change
    return {
        summary.state.unit: summary.state.progress,
        **({"trainings": write_counts(count_trainings(search))} if summary.shares else {}),
        "losses drawn": counted(search.reader.totals.get("sampled", 0)),
        "best on valid": score_of(search, best[0].score, best[0].fidelity) if best else "–",
        "last written": "–" if changed is None else time.strftime(TIME, time.localtime(changed)),
    }


def _find_axis(search: Search) -> Axis | None:
    """Return an axis for the comparison that a mean far below the others does not compress."""
    rows = [row for row in search.comparison if row.mean is not None]
    if not rows:
        return None
    ends = [_interval(row) for row in rows]
    best, middle = rows[0].mean or 0.0, rows[(len(rows) - 1) // 2].mean or 0.0
    reach = max(2 * (best - middle), ends[0][1] - ends[0][0], 1e-6)
    # The best found loss and the best baseline are always inside.
    asked = [_interval(row)[0] for row in (search.judgement.found, search.judgement.rival) if row and row in rows]
    low = max(min(low for low, _ in ends), min(middle - 2 * reach, *asked))
    return axis(low, max(high for _, high in ends), "score on the test split", count=4)


def _interval(row: Row) -> tuple[float, float]:
    mean, half = row.mean or 0.0, row.interval or 0.0
    return mean - half, mean + half


def _draw_curves(search: Search, number: int) -> list[Chart]:
    if charts := figures.training_curves(search, search.reader.trainings, number):
        return charts
    origin = find_promotions(search, number)["promoted_from"]
    charts = []
    for one in [number] if origin is None else [number, origin["id"]]:
        outcome = search.reader.outcome(one)
        if outcome is not None and outcome.curve:
            score = score_of(search, outcome.score, outcome.fidelity)
            charts.append(figures.training_curve(f"#{one}", outcome.curve, score))
    return charts


def _draw_shapes(search: Search, best: ListedLoss) -> list[Shape]:
    """Draw the trees of the best loss; none if it has a user's own operators."""
    from autoloss.space.loss import Loss
    from autoloss.space.parsing import FormulaError

    forms, standard = search.settings.branches, search.settings.standard_loss
    try:
        loss = Loss.parse(best.formula.found, search.settings.leaves)
    except FormulaError:
        return []
    drawn = [
        draw_kind(tree, forms[name].kind, name if len(loss) > 1 else "", f"#{best.found.id}", standard.get(name, ""))
        for name, tree in loss.items()
    ]
    return [shape for shape in drawn if shape is not None]


COLOURS = 4
"""Colours of the style sheet; further runs have dashed lines."""


def gather_runs(searches: Sequence[Search]) -> SimpleNamespace:
    """Gather the contents of the page of several runs, for `comparison.html` alone."""
    names = _name_runs(searches)
    values = zip(*(_write_settings(search.configuration) for search in searches), strict=True)
    judged = {(search.settings.title, str(search.settings.task.options.get("metric", ""))) for search in searches}
    is_alike = len(judged) == 1
    return SimpleNamespace(
        template="comparison.html",
        live=False,
        run=" and ".join(names),
        release=__version__,
        written=time.strftime(TIME),
        warning="" if is_alike else "These runs have different tasks or metrics: their scores are not comparable.",
        runs={name: summarize(search) for name, search in zip(names, searches, strict=True)},
        settings={name: found for name, found in zip(setting_names(), values, strict=True) if len(set(found)) > 1},
        chart=_draw(searches, names) if is_alike else None,
    )


def _name_runs(searches: Sequence[Search]) -> list[str]:
    """Return the names of the folders, with as many of their parents as distinguish them."""
    parts = [search.directory.absolute().parts for search in searches]
    names = [one[-1] for one in parts]
    length = 1
    while len(set(names)) < len(names) and length < max(map(len, parts)):
        length += 1
        names = ["/".join(one[-length:]) for one in parts]
    return names


def _write_settings(configuration: Configuration) -> list[str]:
    values = [attrgetter(name)(configuration) for name in setting_names()]
    return [", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values]


def _draw(searches: Sequence[Search], names: Sequence[str]) -> Chart | None:
    """Draw the best score so far of each run over its spent budget, at the largest share of the schedule that all have."""
    shares = [{row["fidelity"] for row in search.reader.ended if row["score"] is not None} for search in searches]
    common = set.intersection(*shares)
    if not common:
        return None
    pairs = zip(names, searches, strict=True)
    lines = {name: figures.follow_best(*figures.list_scores(search, max(common)))[0] for name, search in pairs}
    x = axis(0, max(line[-1][0] for line in lines.values()), "training equivalents", widen=False)
    scores = [score for line in lines.values() for _, score in line]
    y = axis(min(scores), max(scores), "score on the valid split")
    layers = [
        Layer("line", steps(line, x, y), number % COLOURS + 1, name, dashed=number >= COLOURS)
        for number, (name, line) in enumerate(lines.items())
    ]
    ends = "; ".join(f"{name} ends at {figure(line[-1][1])}" for name, line in lines.items())
    return Chart("Best score so far", f"Best score so far of {len(lines)} runs: {ends}.", x, y, tuple(layers))
