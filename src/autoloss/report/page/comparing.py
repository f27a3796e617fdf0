"""Several runs beside each other: what they were asked, what they found, and how fast."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoloss import __version__
from autoloss.atomic_files import write_text
from autoloss.errors import RequestError
from autoloss.numbers import figure
from autoloss.report.page.charts import Axis, Chart, Layer, Point, axis, steps
from autoloss.report.page.formulas import Formula, Formulas
from autoloss.report.page.rendering import compared_page
from autoloss.report.page.story import state_of, story_of
from autoloss.report.page.writing import refuse_other
from autoloss.report.shares import list_charges
from autoloss.run.results import Search
from autoloss.settings import Configuration
from autoloss.store.read import Reader

FILE = "comparison.html"
COLOURS = 4
"""Colours of the style sheet; further runs have dashed lines."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One of the runs.

    Args:
        answer: The judgement in a sentence.
        best: Formula of its best loss, and its number; None where it has none.
        score: Of the best loss on the valid split; `confirmed` is its mean over new training seeds, `test` on the test split.
        baseline: Name and mean of the best baseline on the test split.
        settings: Setting → value, of those that differ between the runs.
    """

    run: str
    task: str
    state: str
    progress: str
    answer: str
    number: int | None
    best: Formula | None
    score: str
    confirmed: str
    test: str
    baseline: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunsContents:
    """What the page of several runs shows.

    Args:
        warning: Why scores cannot be compared; empty where they can.
        settings: Names of the settings in which the runs differ.
    """

    run: str
    release: str
    written: str
    live: bool
    warning: str
    runs: Sequence[Beside]
    settings: Sequence[str]
    chart: Chart | None


def write_comparison(directories: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the comparison of several runs as one HTML file.

    Args:
        out: The file; `comparison.html` in the current folder when left out. An earlier report is replaced, any other file is not.

    Returns:
        The file, and what of the runs could not be read.

    Raises:
        RequestError: A run comes twice or is not there, or the file is another one's or cannot be written.
    """
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise RequestError(f"A run is compared with others; found {', '.join(map(str, directories))}. Give each once.")
    path = Path(FILE) if out is None else out
    refuse_other(path)
    readers = [Reader(directory) for directory in directories]
    write_text(path, compared_page(gather_runs([Search(reader) for reader in readers])))
    return path, [problem for reader in readers for problem in reader.damaged]


def gather_runs(searches: Sequence[Search]) -> RunsContents:
    """Gather the page of several runs as far as they were read."""
    names = _name_runs(searches)
    values = [_flatten(search.configuration) for search in searches]
    differing = [name for name in values[0] if len({one.get(name) for one in values}) > 1]
    judged = {(search.settings.title, str(search.settings.task.options.get("metric", ""))) for search in searches}
    return RunsContents(
        run=" and ".join(names),
        release=__version__,
        written=time.strftime("%Y-%m-%d %H:%M"),
        live=False,
        warning=""
        if len(judged) == 1
        else "These runs have different tasks or metrics: their scores cannot be compared.",
        runs=[
            _put_beside(search, name, {setting: one.get(setting, "–") for setting in differing})
            for search, name, one in zip(searches, names, values, strict=True)
        ],
        settings=differing,
        chart=_draw(searches, names) if len(judged) == 1 else None,
    )


def _name_runs(searches: Sequence[Search]) -> list[str]:
    """Return the names of the folders, or as much of their paths as tells them apart."""
    paths = [search.directory.absolute() for search in searches]
    for length in itertools.count(1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names) or length > max(len(path.parts) for path in paths):
            return names
    raise AssertionError


def _flatten(configuration: Configuration) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in dataclasses.asdict(configuration).items():
        inner: dict[str, Any] = value if isinstance(value, dict) else {"": value}
        found |= {".".join(filter(None, (name, key))): _write_value(one) for key, one in inner.items()}
    return found


def _write_value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _put_beside(search: Search, name: str, settings: dict[str, str]) -> Beside:
    state = state_of(search)
    story = story_of(search, state)
    best = search.best if search.top(1) else None
    judgement = search.judgement if best else None
    found, rival = (judgement.found, judgement.rival) if judgement else (None, None)
    options = ", ".join(f"{key} {value}" for key, value in search.settings.task.options.items())
    return Beside(
        run=name,
        task=f"{search.settings.title} ({options})" if options else search.settings.title,
        state=state.word,
        progress=f"{state.progress} {state.unit}",
        answer=story.headline,
        number=best.id if best else None,
        best=Formulas.of(search, [best.formula])[best.formula] if best else None,
        score=figure(best.score) if best else "–",
        confirmed=figure(best.confirmed) if best else "–",
        test="–" if found is None else _write_mean(found.mean, found.interval),
        baseline="–" if rival is None else f"{rival.entrant.label} {_write_mean(rival.mean, rival.interval)}",
        settings=settings,
    )


def _write_mean(mean: float | None, interval: float | None) -> str:
    return figure(mean) + ("" if interval is None else f" ± {figure(interval)}")


def _draw(searches: Sequence[Search], names: Sequence[str]) -> Chart | None:
    """Draw the best score so far of each run over what it spent, at the largest share of the schedule that all of them have."""
    shares = [{row["fidelity"] for row in search.reader.ended if row["score"] is not None} for search in searches]
    common = set.intersection(*shares)
    if not common:
        return None
    lines = [_follow_best(search, max(common)) for search in searches]
    x = axis(0, max(line[-1][0] for line in lines), "training equivalents", widen=False)
    scores = [score for line in lines for _, score in line]
    y = axis(min(scores), max(scores), "score on the valid split")
    layers = tuple(_layer(at, name, line, x, y) for at, (name, line) in enumerate(zip(names, lines, strict=True)))
    ends = "; ".join(f"{name} ends at {figure(line[-1][1])}" for name, line in zip(names, lines, strict=True))
    return Chart("Best score so far", f"Best score so far of {len(lines)} runs: {ends}.", x, y, layers)


def _layer(number: int, name: str, line: Sequence[Point], x: Axis, y: Axis) -> Layer:
    return Layer("line", steps(line, x, y), number % COLOURS + 1, name, dashed=number >= COLOURS)


def _follow_best(search: Search, share: float) -> list[Point]:
    spent = itertools.accumulate(list_charges(search))
    best, line = -math.inf, []
    at = 0.0
    for at, row in zip(spent, search.reader.ended, strict=True):
        if row["fidelity"] == share and row["score"] is not None:
            best = max(best, row["score"])
            line.append((at, best))
    return [*line, (at, best)]
