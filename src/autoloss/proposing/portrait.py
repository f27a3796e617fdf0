# pyright: basic
"""The portrait of a loss: its gradients on fixed, made-up predictions, and its operators. It does not depend on the task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm, Kind
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse

SHAPE, CLASSES = (2, 8, 8), 4
SHARES = (0.6, 0.25, 0.1, 0.05)
"""Shares of the classes in the made-up targets; the last two are rare. Of labels and values, the last is."""
LARGEST = 12.0
"""Largest absolute value of a logarithm; that of a gradient which is zero or not finite."""
MEANS = "neg(mul(mean_nhw(mul(y, p)), inv(mean_nhw(add(y, p)))))"
BASES: dict[Kind, tuple[str, str]] = {
    "classes": ("neg(mul(y, log(p)))", MEANS),
    "labels": ("neg(add(mul(y, log(p)), mul(add(1, neg(y)), log(add(1, neg(p))))))", MEANS),
    "values": ("square(add(p, neg(y)))", "abs(add(p, neg(y)))"),
}
"""Kind of leaves → the standard loss, and one with another view of errors: of whole regions, or of their sign alone."""


def find_kind(form: BranchForm) -> Kind | None:
    """Return the kind of leaves for which portraits of the losses of a branch are made; None for boxes, heatmaps and pairs."""
    known = form.kind in BASES and (form.kind != "values" or form.from_prediction)
    return form.kind if known else None


@dataclass(frozen=True, slots=True)
class State:
    """A made-up raw prediction (2, C, 8, 8) with its target.

    Args:
        regions: Where the prediction is right, where the target is 1 or high, and where it is rare; as 0 and 1.
    """

    raw: Tensor
    target: Tensor
    regions: tuple[Tensor, ...]


def describe_tree(tree: Expression, kind: Kind) -> NDArray[np.float32]:
    """Return the portrait of a loss.

    Returns:
        For each state the logarithm of the gradient's norm less that of the first, the cosines to the gradients of the two bases,
        and the shares of the squared gradient in the regions; then the logarithm of the number of operators and the share of each.
    """
    found: list[float] = []
    first = None
    for state, bases in _make_states(kind):
        gradient = _differentiate(tree, state, kind)
        norm = float(gradient.norm())
        if not 0 < norm < math.inf:
            found += [LARGEST, *(0.0 for _ in (*bases, *state.regions))]
            continue
        first = math.log(norm) if first is None else first
        unit = gradient / norm
        found.append(min(max(math.log(norm) - first, -LARGEST), LARGEST))
        found += [float((unit * base).sum()) for base in bases]
        found += [float((unit * unit * region).sum()) for region in state.regions]
    names = [operator.name for operator in tree.operators]
    counts = (names.count(name) / max(1, len(names)) for name in OPERATORS)
    # Rounded: the last bits may differ between two ways to add up, and a threshold would see them.
    return np.round(np.array([*found, math.log1p(len(names)), *counts]), 4).astype(np.float32)


def _differentiate(tree: Expression, state: State, kind: Kind) -> Tensor:
    """Return the gradient of the plain sum with respect to the raw prediction."""
    raw = state.raw.clone().requires_grad_(True)
    p = {"classes": lambda: raw.softmax(1), "labels": raw.sigmoid}.get(kind, lambda: raw)()
    value = tree.compute({"y": state.target, "p": p})
    if not value.requires_grad:
        return torch.zeros_like(raw)
    return torch.autograd.grad(value.sum(), raw)[0].detach()


@cache
def _make_states(kind: Kind) -> Sequence[tuple[State, tuple[Tensor, ...]]]:
    """Return the states of a kind, each with the directions of its bases' gradients."""
    states = (_make_values if kind == "values" else _make_probabilities)(kind == "classes")
    trees = [parse(text) for text in BASES[kind]]
    found: list[tuple[State, tuple[Tensor, ...]]] = []
    for state in states:
        gradients = (_differentiate(tree, state, kind) for tree in trees)
        found.append((state, tuple(gradient / gradient.norm() for gradient in gradients)))
    return found


def _make_probabilities(classes: bool) -> Sequence[State]:
    """Return logits: untrained, all background, half-way, a fifth confidently wrong, nearly right, and rare classes missed."""
    rng = np.random.default_rng(0)
    label = rng.choice(CLASSES, size=SHAPE, p=SHARES)
    noise, chance, wrong = rng.normal(size=(*SHAPE, CLASSES)), rng.random(SHAPE), rng.integers(1, CLASSES, SHAPE)
    hot = np.eye(CLASSES)
    rare = label >= CLASSES - 2
    said = {
        "untrained": 0.3 * noise,
        "background": 0.3 * noise + 4 * hot[0 * label],
        "half-way": 0.5 * noise + 3 * (hot[label].T * (chance < 0.5).T).T,
        "wrong": 0.5 * noise + 4 * hot[np.where(chance < 0.2, (label + wrong) % CLASSES, label)],
        "right": 0.5 * noise + 6 * hot[label],
        "missed": 0.5 * noise + 4 * hot[np.where(rare, 0, label)],
    }
    found: list[State] = []
    for logits in said.values():
        if classes:
            right, raw, target = logits.argmax(-1) == label, logits, hot[label]
        else:
            # One label: any other class than the background, of which the rare ones are a part.
            raw = (np.logaddexp.reduce(logits[..., 1:], axis=-1) - logits[..., 0])[..., None]
            target = (label > 0)[..., None]
            right = (raw[..., 0] > 0) == (label > 0)
        whole = np.ones_like(raw, dtype=bool)
        regions = (right[..., None] & whole, target > 0.5, rare[..., None] & whole)
        found.append(State(_to_tensor(raw), _to_tensor(target), tuple(map(_to_tensor, regions))))
    return found


def _make_values(_: bool) -> Sequence[State]:
    """Return numbers: untrained, the mean, half-way, a tenth far off, nearly right, and large ones missed."""
    rng = np.random.default_rng(0)
    target, noise, chance = rng.normal(size=(*SHAPE, 1)), rng.normal(size=(*SHAPE, 1)), rng.random((*SHAPE, 1))
    target = np.where(chance < SHARES[-1], target + 5, target)
    high = target > 1
    said: Sequence[NDArray[np.float64]] = (
        0.1 * noise,
        np.full_like(target, target.mean()) + 0.01 * noise,
        0.5 * target + 0.3 * noise,
        target + np.where(chance > 0.9, 4.0, 0.2) * noise,
        target + 0.05 * noise,
        np.where(high, 0.5, target) + 0.1 * noise,
    )
    return [
        State(_to_tensor(raw), _to_tensor(target), tuple(map(_to_tensor, (abs(raw - target) < 0.5, high, target > 4))))
        for raw in said
    ]


def _to_tensor(values: NDArray[np.generic]) -> Tensor:
    """Return (N, H, W, C) as (N, C, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 1), dtype=np.float64))
