"""The gallery: a card for each named loss, with its curve and its gradient beside the standard loss's."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from autoloss.report.card import Card, make_card
from autoloss.report.page.charts import SIZE, Chart
from autoloss.zoo import names
from website.losses import FAMILIES

INTRODUCTION = """\
# Gallery

A card for each loss that has a name: its formula, its value and its gradient beside those of the standard loss of its kind
(dashed), how much gradient an example gets in each state, where it was ahead and where not, and the code to use it.
`autoloss zoo show NAME` prints the same card, from the same source.

The bars compare the gradient with the standard loss's in the same state; the first state is 1. For losses of classes they are
measured on an image of 24 × 24 pixels with a square of a rare class. Figures are from files under `bench/results`; a loss without
one was not measured here. Read *ahead* with the number of tasks in mind: each line is one task.

"""
ORDER = ("found", "seg", "pose", "det", "ins", "shelf", "baseline")


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for family in sorted(FAMILIES, key=ORDER.index):
        listed = [name for name in names() if name.startswith(f"{family}/")]
        parts += [f"## {FAMILIES[family]}", *(_write_card(make_card(name)) for name in listed)]
    return "\n\n".join(parts) + "\n"


def _write_card(card: Card) -> str:
    parts = [f"### {card.name}", f"{card.description[0].upper()}{card.description[1:]}. Source: {card.source}."]
    parts += [f'<div class="formula">{term.mathml!s}</div>\n\n`{term}`' for term in card.terms.values()]
    charts = [chart for shape in card.shapes for chart in shape.charts]
    if charts:
        parts.append(f'<div class="curves">{"".join(map(_draw, charts))}</div>')
    if card.weights:
        parts.append(_draw_weights(card))
    parts += [" ".join(part) for part in (card.words, card.evidence) if part]
    return "\n\n".join([*parts, f"```python\n{card.code}\n```"])


def _draw(chart: Chart) -> str:
    """Draw a chart as SVG, in the colours of the site's theme."""
    grid = "".join(f"M0 {SIZE - place}H{SIZE}" for place, _ in chart.y.ticks)
    ys = "".join(
        f'<text x="-20" y="{SIZE - place + 16}" text-anchor="end">{label}</text>' for place, label in chart.y.ticks
    )
    xs = "".join(
        f'<text x="{place}" y="{SIZE + 70}" text-anchor="middle">{label}</text>' for place, label in chart.x.ticks
    )
    paths = "".join(
        f'<path class="{"theirs" if one.dashed else "mine"}" d="{_thin(one.path)}"/>' for one in chart.layers
    )
    return (
        f'<figure><svg viewBox="-200 -40 1240 1140" role="img" aria-label="{escape(chart.description)}">'
        f'<path class="grid" d="{grid}"/>{paths}{ys}{xs}</svg><figcaption>{escape(chart.title)}</figcaption></figure>'
    )


def _thin(path: str) -> str:
    """Return every fourth point of each line of a path, and the last."""
    lines = [line.split("L") for line in path.split("M") if line]
    return "".join(f"M{'L'.join([*points[:-1:4], points[-1]])}" for points in lines)


def _draw_weights(card: Card) -> str:
    return f'<table class="weights">{"".join(_list_rows(card))}</table>'


def _list_rows(card: Card) -> Iterator[str]:
    for state, weight in card.weights.items():
        width, written = min(100.0, 20 * weight), f"{weight:.2f}" if weight < 10 else f"{weight:.0f}"
        bar = f'<span style="width:{width:.0f}%"></span>'
        yield f"<tr><th>{escape(state)}</th><td>{written} ×</td><td>{bar}</td></tr>"
