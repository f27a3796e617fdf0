"""Comparison of several runs: their settings, their results, and their progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace

from autoloss import __version__
from autoloss.numbers import figure
from autoloss.report.page.charts import Chart, Layer, axis, steps
from autoloss.report.page.contents import TIME
from autoloss.report.page.figures import follow_best, list_scores
from autoloss.report.summary import summarize
from autoloss.run.results import Search
from autoloss.settings import Configuration, setting_names

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
    lines = {
        name: follow_best(*list_scores(search, max(common)))[0] for name, search in zip(names, searches, strict=True)
    }
    x = axis(0, max(line[-1][0] for line in lines.values()), "training equivalents", widen=False)
    scores = [score for line in lines.values() for _, score in line]
    y = axis(min(scores), max(scores), "score on the valid split")
    layers = [
        Layer("line", steps(line, x, y), number % COLOURS + 1, name, dashed=number >= COLOURS)
        for number, (name, line) in enumerate(lines.items())
    ]
    ends = "; ".join(f"{name} ends at {figure(line[-1][1])}" for name, line in lines.items())
    return Chart("Best score so far", f"Best score so far of {len(lines)} runs: {ends}.", x, y, tuple(layers))
