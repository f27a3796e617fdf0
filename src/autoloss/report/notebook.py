"""Searches, losses and comparisons as HTML of a notebook, and as plots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from autoloss.comparison.entrant import Rows
from autoloss.errors import RequestError
from autoloss.formulas.simplify import simplify_loss
from autoloss.numbers import figure
from autoloss.report.page.figures import list_scores
from autoloss.report.page.shapes import trace_tree
from autoloss.report.summary import summarize
from autoloss.report.verdict import write_mean
from autoloss.run.results import Search
from autoloss.space.expression import Expression
from autoloss.space.form import Kind
from autoloss.space.loss import Loss
from autoloss.space.loss_text import MAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LISTED = 5
"""Number of losses that a search shows."""


def to_html(value: Search | Loss | Expression | Rows) -> str:
    """Return the HTML of a search, a loss, an expression, or the rows of a comparison."""
    if isinstance(value, Rows):
        rows = [(row.entrant.label, write_mean(row.score), len(row.scores)) for row in value]
        return _write_table(("loss", "mean ± 95 %", "seeds"), rows)
    if not isinstance(value, Search):
        terms = simplify_loss(value if isinstance(value, Loss) else Loss({MAIN: value}))
        lines = [
            f"{'' if name == MAIN else f'{escape(name)}: '}{term.mathml} <code>{escape(str(term))}</code>"
            for name, term in terms.items()
        ]
        return "<br>".join(lines)
    summary = summarize(value, LISTED)
    parts = [f"<p><strong>{escape(summary.task)}</strong>: {escape(summary.verdict.headline)}</p>"]
    parts += [f"<p>{escape(line)}</p>" for line in summary.advice]
    rows = [(f"#{one.found.id}", figure(one.found.score), one.formula.line) for one in summary.top]
    return "".join([*parts, _write_table(("loss", "score", "formula"), rows)])


def _write_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def plot(value: Search | Loss | Expression | Rows, axes: Axes | None = None) -> Axes:
    """Draw a search, a loss, an expression, or the rows of a comparison.

    Raises:
        RequestError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise RequestError("plot() needs matplotlib, which is not installed: pip install 'autoloss[plot]'.") from None
    drawn = axes if axes is not None else pyplot.subplots()[1]
    if isinstance(value, Search):
        _draw_search(value, drawn)
    elif isinstance(value, Rows):
        _draw_rows(value, drawn)
    else:
        _draw_loss(value if isinstance(value, Loss) else Loss({MAIN: value}), drawn)
    return drawn


def _draw_loss(value: Loss, axes: Axes) -> None:
    """Draw the value of each branch and its gradient (dashed) over the prediction."""
    for name, tree in value.items():
        kind: Kind = "areas" if "i" in tree.leaves else "pairs" if "w" in tree.leaves else "classes"
        label, sides = trace_tree(tree, kind)
        for side, (values, slopes) in sides.items():
            title = side if name == MAIN else f"{name}, {side}"
            (line,) = axes.plot(*zip(*values, strict=True), label=title)
            axes.plot(*zip(*slopes, strict=True), linestyle="--", color=line.get_color(), label=f"gradient, {title}")
        axes.set_xlabel(label)
    axes.legend()


def _draw_rows(value: Rows, axes: Axes) -> None:
    """Draw the mean of each loss with its 95 % confidence interval."""
    rows = [row for row in reversed(value) if row.mean is not None]
    for place, row in enumerate(rows):
        axes.errorbar(row.mean or 0.0, place, xerr=row.interval or 0.0, fmt="o", capsize=3, color="C0")
    axes.set_yticks(range(len(rows)), [row.entrant.label for row in rows])
    axes.set_xlabel("mean, ± 95 % confidence interval")


def _draw_search(value: Search, axes: Axes) -> None:
    """Draw the score of each whole training and the best so far over the budget, beside the standard loss at its best."""
    points, _ = list_scores(value, 1.0)
    if points:
        spent, scores = zip(*points, strict=True)
        axes.plot(spent, scores, ".", alpha=0.5, label="one training")
        axes.step(spent, list(itertools.accumulate(scores, max)), where="post", label="best so far")
    best = value.ladder and value.ladder.best
    if best and best.mean is not None:
        axes.axhline(best.mean, linestyle="--", color="grey", label="standard loss at its best")
    axes.set_xlabel("training equivalents")
    axes.set_ylabel("score on the valid split")
    axes.legend()
