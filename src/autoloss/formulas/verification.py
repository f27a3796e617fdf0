"""Compare value and gradient of two terms, on positions where the leaves are 0, 1, nearly 0, and anything between.

Each node is computed once, together with its derivative along one random direction of all leaves that are no targets. Directions
are drawn for each element, so where two derivatives along them agree, the gradients do. The derivatives of operators are those
of autograd: there is no second definition of what they mean, at kinks and ties neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.autograd.functional import jvp  # pyright: ignore[reportUnknownVariableType]

from autoloss.formulas.terms import Term, evaluate_node
from autoloss.space.ranges import BINARY, POSITIVE, UNIT, Range

RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""Largest difference of values and derivatives in double precision. ε itself, 1e-12, is below this."""

TINY = 1e-13
"""A probability in a confident prediction: below ε, so that log(p + ε) and log(p + 2ε) are different losses there."""

SHAPE = (2, 2, 4, 4)
"""(N, C, H, W) with more than one of each, so that means and pools join different elements."""

SINGLE_SHAPE = (64, 1, 1, 1)
"""(N, C, H, W) where each item has one number, so that `mean_nhw` alone joins anything."""

MOST_ENDS = 1024
"""Combinations of ends that are tried, at most."""

TARGETS = frozenset({"y"})
"""Leaves that no gradient goes to."""

_ENDS: Mapping[Range, tuple[float, ...]] = {
    UNIT: (0, 1, TINY, 1e-6, 1e-3, 0.5, 0.999),
    BINARY: (0, 1),
    POSITIVE: (0, 1, TINY, 1e-6, 1e-3, 0.5, 3, 40),
}
_REAL_ENDS = (0, 1, -1, TINY, -TINY, 1e-6, -1e-6, 1e-3, -1e-3, 0.5, -0.5, 3, -3)

Dual = tuple[Tensor, Tensor | None]
"""A value and its derivative; none where no gradient goes through, since 0·∞ would be no 0."""


Scene = tuple[Mapping[str, Dual], Tensor]
"""Positions at which terms are compared: the leaves there, and a tensor of their shape."""


def draw_scenes(leaves: Mapping[str, Range], is_single: bool = False) -> tuple[Scene, ...]:
    """Draw the positions, always the same ones: inside the ranges, and at their ends, each with each.

    They are apart, since what is large at an end would swamp the rest in a mean.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    like = torch.zeros(SINGLE_SHAPE if is_single else SHAPE, dtype=torch.float64, device="cpu")
    inside = {name: _draw_inside(known, like.shape, generator) for name, known in leaves.items()}
    ends = _combine_ends(leaves, like, generator)
    return tuple(
        ({name: _add_slope(name, known, values[name], generator) for name, known in leaves.items()}, some)
        for values, some in ((inside, like), (ends, next(iter(ends.values()), like)))
    )


def _combine_ends(leaves: Mapping[str, Range], like: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Return all combinations of the ends of the ranges in a random order, or as many as there may be."""
    ends = {name: like.new_tensor(_ENDS.get(known, _REAL_ENDS)) for name, known in leaves.items()}
    count = min(math.prod(map(len, ends.values())), MOST_ENDS)
    while like.numel() < count:
        like = torch.cat([like, like], dim=0)
    places = torch.randperm(like.numel(), generator=generator, device="cpu").reshape(like.shape)
    found: dict[str, Tensor] = {}
    for name, values in ends.items():
        found[name] = values[places % len(values)]
        places = places // len(values)
    return found


def _draw_inside(known: Range, shape: torch.Size, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    if known == BINARY:
        return drawn.round()
    if known == UNIT:
        return 0.02 + 0.96 * drawn
    return 0.2 * 100**drawn if known == POSITIVE else 6 * drawn - 3


def _add_slope(name: str, known: Range, value: Tensor, generator: torch.Generator) -> Dual:
    slope = 0.5 + torch.rand(value.shape, generator=generator, dtype=torch.float64, device="cpu")
    if name in TARGETS:
        return value, None
    # What makes a probability 0 or 1, or an area 0, has no slope there; the product also tells ∞ from finite.
    if known == UNIT:
        slope = slope * ((value > 0) & (value < 1))
    elif known == POSITIVE:
        slope = slope * (value > 0)
    return value, slope


def compute_dual(term: Term, parts: list[Dual], scene: Scene) -> Dual:
    """Return value and derivative of a node from those of its parts."""
    leaves, like = scene
    if term.head == "leaf":
        return leaves[term.name]
    with torch.inference_mode(False), torch.enable_grad():
        values = [value.clone() for value, _ in parts]
        slopes = {place: slope for place, (_, slope) in enumerate(parts) if slope is not None}

        def evaluate(*moving: Tensor) -> Tensor:
            given = dict(zip(slopes, moving, strict=True))
            return evaluate_node(term, [given.get(place, value) for place, value in enumerate(values)], like)

        if not slopes:
            return evaluate(), None
        try:
            return cast("Dual", jvp(evaluate, tuple(values[place] for place in slopes), tuple(slopes.values())))
        except RuntimeError:
            # An operator of the user that cannot be differentiated twice: nothing around it can be verified.
            unknown = torch.full_like(like, torch.nan)
            return unknown, unknown


def are_equal(first: Dual, second: Dual) -> bool:
    """Say whether value and derivative are the same, also where they are not finite; nothing can be said where none is."""
    (value, slope), (other_value, other_slope) = first, second
    if not _are_close(value, other_value):
        return False
    if slope is None and other_slope is None:
        return True
    still = torch.zeros_like(value)
    return _are_close(still if slope is None else slope, still if other_slope is None else other_slope)


def _are_close(one: Tensor, other: Tensor) -> bool:
    near = torch.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    return near and bool(one.isfinite().any())
