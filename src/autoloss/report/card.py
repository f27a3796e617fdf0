"""The card of a named loss: formula, what it does to examples in each state, where it was ahead and where not, code to copy.

One source for `autoloss zoo show` and the gallery of the documentation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast, get_args

import torch

from autoloss.formulas.simplify import simplify
from autoloss.formulas.terms import Term
from autoloss.numbers import figure, plus_minus
from autoloss.report.page.shapes import Shape, draw_kind, probe_gradients
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.expression import Expression
from autoloss.space.form import KINDS, STANDARD, Activation, Encoding, Kernel, Kind
from autoloss.space.item_weights import differentiate
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.zoo import get_entry
from autoloss.zoo.entries import OF_SHARES
from autoloss.zoo.entry import Entry

SIDE = 24
"""Side of the image on which gradients are measured: a square of the rare class within the frequent one."""
MANY, LITTLE = 1.5, 0.67
"""Weights beside those of the standard loss from which a card says that a state counts more, or less."""
ENCODINGS = get_args(Encoding)
_KINDS: Mapping[str, Kind] = {**KINDS, "box": "areas", "pair_probability": "pairs", "pair_difference": "differences"}


@dataclass(frozen=True, slots=True)
class Card:
    """What a person wants to know of a named loss.

    Args:
        entries: The entry, or those of its branches.
        terms: Name → simplified formula; of a hand-written loss there is none.
        weights: State of an example → its gradient, divided by that of the standard loss in the same state; the first state is 1.
        words: What that says, in sentences.
        evidence: Where it was ahead and where not, in sentences, from files under bench/results.
        code: How to use it.
    """

    name: str
    description: str
    source: str
    terms: Mapping[str, Term]
    standard: str
    weights: Mapping[str, float]
    words: Sequence[str]
    evidence: Sequence[str]
    code: str
    shapes: Sequence[Shape]

    def lines(self) -> Iterator[str]:
        """Describe it in lines for a terminal."""
        yield f"{self.name}: {self.description}"
        yield f"source: {self.source}"
        for name, term in self.terms.items():
            yield f"  {name}: {term.unicode}" if len(self.terms) > 1 else f"  {term.unicode}"
        for state, weight in self.weights.items():
            written, bar = f"{weight:.{2 * (weight < 10)}f}", "█" * max(0, min(24, round(4 * weight)))
            yield f"  {state:<34} {written:>6} × {self.standard}  {bar}"
        yield from self.words
        yield from self.evidence
        yield ""
        yield self.code

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        weights = {state: float(f"{weight:.3g}") for state, weight in self.weights.items()}
        described = {"standard": self.standard, "weights": weights, "does": list(self.words)}
        return {**described, "evidence": list(self.evidence), "code": self.code}


def make_card(name: str) -> Card:
    """Return the card of a loss of the zoo.

    Raises:
        RequestError: There is no loss of that name.

    >>> card = make_card("shelf/balanced_ce")
    >>> card.words[0]
    'It gives more weight to examples of a rare class than cross entropy does.'
    """
    entry = get_entry(name)
    singles = list(entry.members.values()) or [entry]
    formulas = [one for one in singles if one.formula]
    terms = {one.name: simplify(one.formula, cast("Kernel", one.activation)) for one in formulas}
    standard = _get_standard(singles[0])
    drawn = [draw_kind(parse(one.formula), _KINDS[one.activation], "", one.name, standard.name) for one in formulas]
    weights = measure_states(entry) if not entry.members else {}
    title = standard.title or standard.name
    return Card(
        name=entry.name,
        description=entry.description,
        source=entry.source,
        terms=terms,
        standard=title,
        weights=weights,
        words=[] if entry.name == standard.name else list(describe_weights(weights, title)),
        evidence=[describe_evidence(row) for row in read_evidence().get(name, ())],
        code=write_code(entry),
        shapes=[shape for shape in drawn if shape is not None],
    )


def _get_standard(entry: Entry) -> Entry:
    """Return the loss that others of that kind are drawn beside."""
    return get_entry(STANDARD[_KINDS.get(entry.activation, "classes")])


def write_code(entry: Entry) -> str:
    """Return the lines of Python that make the loss."""
    options = "" if entry.activation not in ("softmax", "sigmoid", "none") else f'activation="{entry.activation}"'
    if entry.target in ("edge", "band"):
        options += f', target="{entry.target}"'
    if entry.activation.startswith("pair"):
        bound = f'autoloss.bind(autoloss.zoo.resolve("{entry.name}", task.branches)[1], task.branches)["main"]'
        return f'loss = {bound}(scores, task.branches["main"].make_context(scores, targets))'
    options += ", shares=shares" * (entry.name in OF_SHARES)
    if not options:
        return f'loss = autoloss.zoo.get("{entry.name}")'
    return f'criterion = autoloss.zoo.get("{entry.name}").criterion({options})'


def measure_states(entry: Entry) -> dict[str, float]:
    """Return state of an example → the gradient that it gets, beside that of the standard loss; the first state is 1."""
    standard = _get_standard(entry)
    if entry.activation in ("softmax", "sigmoid"):
        if entry.target not in (*ENCODINGS, get_entry("baseline/bce").target):
            # It needs more than prediction and target.
            return {}
        encoding = entry.target if entry.target in ENCODINGS else "one_hot"
        mine, theirs = (_measure_image(one, cast("Encoding", encoding)) for one in (entry, standard))
    elif entry.formula:
        mine, theirs = (probe_gradients(parse(one.formula), _KINDS[entry.activation]) for one in (entry, standard))
    else:
        return {}
    ratios = {state: mine[state] / theirs[state] for state in mine if theirs.get(state)}
    first = next((ratio for ratio in ratios.values() if ratio), 0.0)
    return {state: ratio / first for state, ratio in ratios.items()} if first else {}


def _measure_image(entry: Entry, encoding: Encoding) -> dict[str, float]:
    """Return the mean size of the gradient of pixels in each state, on an image of two classes."""
    activation = cast("Activation", entry.activation)
    branch = ActivatedBranch(activation=activation, channels=2, encoding=encoding)
    target = torch.zeros(1, SIDE, SIDE, dtype=torch.long)
    target[:, 8:14, 8:14] = 1
    drawn = torch.randint(3, target.shape, generator=torch.Generator().manual_seed(0))
    right = torch.tensor([0.5, 0.95, 0.05])[drawn]
    first = torch.where(target == 0, right, 1 - right)
    prediction = torch.stack([first.logit(), -first.logit()], dim=1) / (2 if activation == "softmax" else 1)
    labels = target if activation == "softmax" else torch.stack([1 - target, target], dim=1).float()
    sample = Sample(prediction, branch.make_context(prediction, labels))
    made = entry.make_branch_loss("main", branch)
    loss = bind({"main": made}, {"main": branch})["main"] if isinstance(made, Expression) else made
    sizes = differentiate(loss, sample).abs().sum(dim=1)
    near = torch.zeros_like(target, dtype=torch.bool)
    near[:, 7:15, 7:15] = True
    near[:, 9:13, 9:13] = False
    states = {
        "unsure (p of what is right 0.5)": (drawn == 0) & (target == 0) & ~near,
        "right (0.95)": (drawn == 1) & (target == 0) & ~near,
        "wrong (0.05)": (drawn == 2) & (target == 0) & ~near,
        "of a rare class (6 %), unsure": (drawn == 0) & (target == 1) & ~near,
        "at a border, unsure": (drawn == 0) & (target == 0) & near,
    }
    return {state: float(sizes[where].mean()) for state, where in states.items()}


def describe_weights(weights: Mapping[str, float], standard: str) -> Iterator[str]:
    """Describe the states of examples that a loss weights more, and less, than the standard loss."""
    names = {state: _PHRASES[state] for state in weights if state in _PHRASES}
    for verb, fits in (("more", lambda one: one >= MANY), ("less", lambda one: one <= LITTLE)):
        listed = [names[state] for state, weight in weights.items() if state in names and fits(weight)]
        if listed:
            yield f"It gives {verb} weight to {' and '.join(listed)} than {standard} does."
    if weights and all(LITTLE < weight < MANY for weight in weights.values()):
        yield f"It weights examples about as {standard} does."


_PHRASES = {
    "right (0.95)": "examples that are right already",
    "wrong (0.05)": "examples that are wrong",
    "of a rare class (6 %), unsure": "examples of a rare class",
    "at a border, unsure": "pixels at a border",
    "error 0.1": "small errors",
    "error 3": "outliers",
    "boxes that overlap well (0.9)": "boxes that fit",
    "boxes that hardly overlap (0.1)": "boxes that hardly overlap",
    "pairs in order by 2": "pairs that are in order",
    "pairs in the wrong order by 2": "pairs in the wrong order",
}


@functools.cache
def read_evidence() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return name of a loss → what was measured with it; `docs/figures.py` writes the file from bench/results."""
    return json.loads(files("autoloss.zoo").joinpath("evidence.json").read_text(encoding="utf-8"))


def describe_evidence(row: Mapping[str, Any]) -> str:
    """Write a measurement in a sentence."""
    place = "ahead of" if row["score"] > row["rival_score"] else "behind"
    return (
        f"{row['task']}, {row['metric']}: {figure(row['score'])}{plus_minus(row['interval'])}, {place} {row['rival']} with "
        f"{figure(row['rival_score'])} ({row['file']})."
    )
