"""A loss as the objective of gradient boosting: gradients and Hessians of each row, and the score that boosting starts from.

Needs NumPy alone. An exported file holds these functions as they stand here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoloss.errors import RequestError
from autoloss.space.derivatives import Jet, lift

HESSIANS = ("true", "abs", "standard", "ones")
SCALES = ("standard", "mean", "none")
STARTS = ("loss", "standard")
SMALLEST = 1e-16
"""The least Hessian: no library divides by 0."""
FARTHEST = 12.0
"""Scores beyond which no best constant is looked for: probabilities of 6e-6."""
BLOCK = 4096
"""Rows that are differentiated at a time: their arrays stay in the cache of the processor."""


@dataclass(frozen=True)
class Objective:
    """Gradients and Hessians of a loss by the scores of N rows, K scores each.

    Args:
        formula: Of y and p.
        link: `logistic`, one score of two classes, whose formula is summed over both; `softmax` or `sigmoid`, a score for each
            class; `none`, a number.
        start: The score that boosting starts from, (K,).
        factor: On the loss.
        center: Of the labels of `none`: p and y are what is above it, in multiples of `unit`.
        hessian: `true`, `abs` (of the true one), `standard` (of cross entropy or squares), or `ones`.
        floor: The least Hessian, as a share of the standard one.
        normalise: Divide gradients and Hessians of each call by the mean Hessian.
    """

    formula: Callable[[Jet, Jet], Jet]
    link: str
    start: Any
    factor: float = 1.0
    center: float = 0.0
    unit: float = 1.0
    hessian: str = "true"
    floor: float = 0.05
    normalise: bool = False

    def predict(self, scores: Any) -> Any:
        """Return predictions from scores that include the start: probabilities of class 1 or of all classes, or the number."""
        with np.errstate(over="ignore"):
            if self.link == "none":
                return scores
            if self.link == "softmax":
                powers = np.exp(scores - scores.max(axis=1, keepdims=True))
                return powers / powers.sum(axis=1, keepdims=True)
            return 1 / (1 + np.exp(-scores))

    def encode(self, labels: Any) -> Any:
        """Return y, (N, K)."""
        if self.link in ("softmax", "sigmoid"):
            return (labels[:, None] == np.arange(len(self.start))).astype(float)
        return (labels[:, None] - self.center) / self.unit

    def measure(self, scores: Any, labels: Any) -> Any:
        """Return the loss of each row, (N,).

        Args:
            scores: (N, K), with the start.
        """
        y, p = self.encode(labels), self.predict(scores)
        if self.link == "none":
            p = (p - self.center) / self.unit
        with np.errstate(all="ignore"):
            if self.link == "logistic":
                y, p = np.hstack([y, 1 - y]), np.hstack([p, self.predict(-scores)])
            (value,) = self._evaluate(y, p, "value")
        return self.factor * value.sum(axis=1)

    def _evaluate(self, y: Any, p: Any, *parts: str) -> list[Any]:
        found = lift(self.formula(lift(y), Jet(p, 1.0)))
        return [np.broadcast_to(getattr(found, part), p.shape) for part in parts]

    def slope_scores(self, scores: Any, labels: Any) -> Any:
        """Return the loss's first and second derivatives by each score, and the standard Hessian, all (N, K).

        Args:
            scores: (N, K), with the start.
        """
        y, p = self.encode(labels), self.predict(scores)
        with np.errstate(all="ignore"):
            if self.link == "none":
                first, second = self._evaluate(y, (p - self.center) / self.unit, "first", "second")
                first, second, standard = first / self.unit, second / self.unit**2, np.ones_like(p)
            elif self.link == "softmax":
                # Sums over the other classes: 1 - p, or a class taken from the sum of all, would lose the digits of what is small.
                others = 1.0 - np.eye(p.shape[1])
                q = p @ others
                standard = p * q
                slope, curve = self._evaluate(y, p, "first", "second")
                above = slope * q - (slope * p) @ others
                first, bend = p * above, curve * p + slope
                # The derivative by the score itself of what is weighted by p.
                moved = p * (bend * q - (bend * p) @ others)
                second = standard * above + p * (curve * standard - moved)
            else:
                # 1 - p would lose the digits of a small probability.
                q = self.predict(-scores)
                if self.link == "logistic":
                    both = self._evaluate(np.hstack([y, 1 - y]), np.hstack([p, q]), "first", "second")
                    slope, curve = both[0][:, :1] - both[0][:, 1:], both[1][:, :1] + both[1][:, 1:]
                else:
                    slope, curve = self._evaluate(y, p, "first", "second")
                standard = p * q
                first = slope * standard
                second = standard * (curve * standard + slope * (q - p))
        return self.factor * first, self.factor * second, standard

    def differentiate(self, scores: Any, labels: Any, weight: Any = None) -> Any:
        """Return gradients and Hessians, (N, K), as a library takes them.

        Args:
            scores: (N, K), with the start.
            weight: Of the rows, (N,).
        """
        first, hessians = np.empty(scores.shape), np.empty(scores.shape)
        for begin in range(0, len(scores), BLOCK):
            rows = slice(begin, begin + BLOCK)
            first[rows], hessians[rows] = self._differentiate_block(scores[rows], labels[rows])
        if weight is not None:
            first, hessians = first * weight[:, None], hessians * weight[:, None]
        if not np.isfinite(first.sum() + hessians.sum()):
            strange = int((~np.isfinite(first) | ~np.isfinite(hessians)).any(axis=1).sum())
            raise RequestError(
                f"The gradient or Hessian of {strange} of {len(first)} rows is not finite, with scores from {scores.min():.3g} to "
                f"{scores.max():.3g}. Use a lower learning rate, hessian='standard', or another loss."
            )
        if self.normalise:
            mean = hessians.mean()
            first, hessians = first / mean, hessians / mean
        return first, hessians

    def _differentiate_block(self, scores: Any, labels: Any) -> Any:
        first, second, standard = self.slope_scores(scores, labels)
        if self.hessian == "standard":
            hessians = standard
        elif self.hessian == "ones":
            hessians = np.ones_like(standard)
        else:
            hessians = np.maximum(second if self.hessian == "true" else np.abs(second), self.floor * standard)
        return first, np.maximum(hessians, SMALLEST)


def choose_link(library: str, activation: str, labels: Any, classes: int | None) -> str:
    """Return the link of an activation; two classes have one score."""
    if activation == "none":
        return "none"
    found = to_numbers(labels)
    several = (found.size > 0 and found.max() > 1) if classes is None else classes > 2
    if several and activation == "sigmoid" and library != "lightgbm":
        raise RequestError(f"{library} has no sigmoid per class; use activation='softmax', or lightgbm.")
    return activation if several else "logistic"


def to_numbers(values: Any, what: str = "labels") -> Any:
    """Return labels, or others of this name, as an array of numbers."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        advice = " Number the classes from 0." if what == "labels" else ""
        raise RequestError(f"The {what} are no numbers ({error}).{advice}") from None


def check_labels(labels: Any, weight: Any, link: str, classes: int | None) -> tuple[Any, Any, int]:
    """Return labels and weights as arrays, and the number of scores of a row."""
    labels = to_numbers(labels)
    # The libraries keep them in float32; a start that differs by 1e-9 can turn a split between equal gains.
    weight = np.ones(len(labels)) if weight is None else to_numbers(weight, "weights").astype(np.float32).astype(float)
    if labels.ndim != 1 or not len(labels) or not np.isfinite(labels).all():
        raise RequestError(f"The labels have the shape {labels.shape}; expected one finite number for each row.")
    if weight.shape != labels.shape or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise RequestError(
            f"The weights have the shape {weight.shape} and the sum {weight.sum():g}; expected one number for each of the "
            f"{len(labels)} rows, none negative and not all 0."
        )
    kept = labels[weight > 0]
    if kept.min() == kept.max():
        raise RequestError(f"All labels of positive weight are {kept[0]:g}; the target is constant.")
    if link == "none":
        return labels, weight, 1
    if link == "logistic":
        if kept.min() < 0 or kept.max() > 1:
            raise RequestError(f"The labels go from {kept.min():g} to {kept.max():g}; expected 0 to 1.")
        return labels, weight, 1
    scores = int(labels.max()) + 1 if classes is None else classes
    if (labels != labels.astype(int)).any() or labels.min() < 0 or labels.max() >= scores:
        kind = "whole numbers" if (labels == labels.astype(int)).all() else "fractions"
        raise RequestError(
            f"Labels are {kind} from {labels.min():g} to {labels.max():g}; expected classes 0 to {scores - 1}, or a loss with "
            "activation='none' for numbers."
        )
    if absent := sorted(set(range(scores)) - set(kept.astype(int).tolist())):
        raise RequestError(
            f"No row of positive weight has the class {', '.join(map(str, absent[:5]))}{' …' * (len(absent) > 5)} of the {scores} "
            f"classes 0 to {scores - 1}. Number the classes that occur from 0; numbers need a loss with activation='none'."
        )
    return labels, weight, scores


def standard_start(labels: Any, weight: Any, link: str, scores: int) -> Any:
    """Return the best constant score of cross entropy, or of squares, (K,)."""
    share = np.average(labels, weights=weight)
    if link == "none":
        return np.array([share])
    if link == "logistic":
        return np.array([np.log(share / (1 - share))])
    shares = np.bincount(labels.astype(int), weights=weight, minlength=scores) / weight.sum()
    return np.log(shares) if link == "softmax" else np.log(shares / (1 - shares))


def search_start(objective: Objective, labels: Any, weight: Any) -> Any:
    """Return the constant score that minimises the loss, (K,).

    Args:
        objective: Its start is the standard one.
    """
    values, places = np.unique(labels, return_inverse=True)
    totals = np.bincount(places, weights=weight) / weight.sum()
    search = _search_number if len(objective.start) == 1 else _descend
    found = search(objective, values, totals)
    if found is None:
        raise RequestError(
            "No constant score minimises the loss: it falls without end, or is not finite. Check its sign (a loss is lower for "
            "better predictions), or name a start: start='standard', or a number."
        )
    if objective.link == "none":
        away = 3 * (values[-1] - values[0])
        at, *far = (objective.measure((values + shift)[:, None], values) for shift in (0.0, -away, away))
        if (endless := (far[0] < at) | (far[1] < at)).any():
            raise RequestError(
                f"For {totals @ endless:.0%} of the labels, such as {values[endless][0]:g}, the loss is lower far from the label "
                "than at it, so scores would grow without end. The formula sees standardised labels, which are also negative; with "
                "standardise=False it sees them as they are."
            )
    return found


def _search_number(objective: Objective, values: Any, totals: Any) -> Any:
    """Find the least loss on a grid, then the root of the derivative between the neighbours."""
    spread = FARTHEST if objective.link == "logistic" else 3 * (values[-1] - values[0])
    middle = 0.0 if objective.link == "logistic" else float(np.average(values, weights=totals))
    grid = middle + spread * np.linspace(-1, 1, 193)
    step = max(1, len(values) // 1000)
    few, shares = values[::step], totals[::step]

    def average(score: float) -> float:
        return float(objective.measure(np.full((len(few), 1), score), few) @ shares)

    losses = np.array([average(score) for score in grid])
    if not np.isfinite(losses).all() or losses.argmin() in (0, len(grid) - 1):
        return None
    low, high = grid[losses.argmin() - 1], grid[losses.argmin() + 1]
    for _ in range(60):
        score = (low + high) / 2
        slope = objective.slope_scores(np.full((len(values), 1), score), values)[0][:, 0] @ totals
        low, high = (score, high) if slope < 0 else (low, score)
    return np.array([(low + high) / 2])


def _descend(objective: Objective, values: Any, totals: Any) -> Any:
    """Descend from the standard start by damped steps of Newton, one class a row."""
    start = objective.start

    def average(score: Any) -> float:
        return float(objective.measure(np.tile(score, (len(values), 1)), values) @ totals)

    best = average(start)
    for _ in range(200):
        first, second, standard = objective.slope_scores(np.tile(start, (len(values), 1)), values)
        slope = totals @ first
        step = np.clip(-slope / (totals @ np.maximum(second, 0.05 * standard)), -1, 1)
        while np.abs(step).max() > 1e-9 and not average(start + step) < best:
            step = step / 2
        if np.abs(step).max() <= 1e-9:
            break
        start, best = start + step, average(start + step)
    # Where the slope is 0 but the loss bends down, it has a maximum.
    is_least = (totals @ objective.slope_scores(np.tile(start, (len(values), 1)), values)[1] >= 0).all()
    return start if is_least and np.isfinite(best) and np.abs(start - objective.start).max() < FARTHEST else None


def prepare_objective(
    formula: Callable[[Jet, Jet], Jet],
    link: str,
    labels: Any,
    weight: Any = None,
    *,
    classes: int | None = None,
    hessian: str = "true",
    floor: float = 0.05,
    scale: str = "standard",
    start: Any = "loss",
    standardise: bool = True,
) -> Objective:
    """Return the objective of a formula for a training set, checked on it.

    Raises:
        RequestError: An option, the labels or the weights are wrong, or the loss does not fit them.
    """
    for name, found, known in (("hessian", hessian, HESSIANS), ("scale", scale, SCALES)):
        if found not in known:
            raise RequestError(f"{name} is {found!r}; expected one of {', '.join(known)}.")
    if not 0 <= floor <= 1:
        raise RequestError(f"floor is {floor!r}; expected a share of the standard Hessian, from 0 to 1.")
    labels, weight, scores = check_labels(labels, weight, link, classes)
    standard = standard_start(labels, weight, link, scores)
    center = float(standard[0]) if link == "none" and standardise else 0.0
    unit = float(np.sqrt(np.average((labels - center) ** 2, weights=weight))) if link == "none" and standardise else 1.0
    objective = Objective(
        formula,
        link,
        standard,
        center=center,
        unit=unit,
        hessian=hessian,
        floor=floor,
        normalise=scale == "mean",
    )
    if isinstance(start, str):
        if start not in STARTS:
            raise RequestError(f"start is {start!r}; expected one of {', '.join(STARTS)}, or {scores} numbers.")
        begin = search_start(objective, labels, weight) if start == "loss" else standard
    else:
        begin = to_numbers(start, "numbers of start").reshape(-1)
        if begin.shape != (scores,) or not np.isfinite(begin).all():
            raise RequestError(f"start is {start!r}; expected {scores} finite numbers.")
    factor = _balance(objective, begin, labels, weight)
    return replace(objective, start=begin, factor=1.0 if scale == "none" else factor)


def _balance(objective: Objective, start: Any, labels: Any, weight: Any) -> float:
    """Return the factor at which the gradients at the start have the root mean square of the standard loss's at its own.

    Args:
        objective: Its start is the standard one.
    """
    first, second, curve = objective.slope_scores(np.tile(start, (len(labels), 1)), labels)
    if not np.isfinite(first).all() or not np.isfinite(second).all():
        scores = [round(each, 4) for each in start.tolist()]
        raise RequestError(f"The gradient or Hessian is not finite at the start {scores}. Name another start, or loss.")
    size = float(np.sqrt(np.average((first**2).sum(axis=1), weights=weight)))
    counts = curve[weight > 0], second[weight > 0]
    usable = np.abs(counts[1]) if objective.hessian == "abs" else counts[1]
    p = objective.predict(np.tile(objective.start, (len(labels), 1)))
    target = objective.encode(labels) * objective.unit + objective.center
    wanted = float(np.sqrt(np.average(((p - target) ** 2).sum(axis=1), weights=weight)))
    # A loss that is constant has slopes of rounding.
    if size <= 1e-13 * max(1.0, wanted):
        raise RequestError("The loss has gradient 0 for every row at the start score. Use another loss.")
    if objective.hessian in ("true", "abs") and not (usable > 1e-9 * counts[0] * np.abs(first).max()).any():
        kind = "0" if (counts[1] == 0).all() else "0 or negative"
        raise RequestError(
            f"The Hessian of the loss is {kind} for every row at the start score, and boosting divides by it. Use "
            "hessian='standard' or hessian='ones'" + (", or hessian='abs'." if kind != "0" else ".")
        )
    return wanted / size
