"""Losses recognised: the loss of the zoo that has the same gradient on a branch, up to a positive factor.

Equal formulas are rare, equal losses are not: where y is 0 or 1, -(y + y)·log(p) is cross entropy, twice. What decides is the
gradient on the raw predictions of the branch's own samples, of which a training sees nothing but multiples.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from autoloss.errors import RequestError, RunError
from autoloss.space.loss_text import MAIN
from autoloss.zoo import ENTRIES, resolve

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autoloss.run.results import Search
    from autoloss.space.branch import Branch, Sample
    from autoloss.space.expression import Expression
    from autoloss.space.form import BranchForm
    from autoloss.space.loss import Loss

TOLERANCE = 1e-4
"""Largest difference of two gradients, relative to their norm on a sample, at which they count as equal. ε makes some: log(p²) is
not quite 2·log(p) at small probabilities."""
UNITY = 5e-3
"""A factor so near to 1 is the rounding of a found loss's own factor."""
LARGEST_SPREAD = 1.0
"""The largest spread of random predictions around the network's own, in logits."""
SIDE = 64
"""Images are cut to this side."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A loss of the zoo that another one is on a branch.

    Args:
        name: In the zoo, or the formula of the task's standard loss.
        title: What people call it.
        factor: The other loss's gradient is so many times that of this one.
    """

    name: str
    title: str
    factor: float

    def __str__(self) -> str:
        """Write it, without a factor of 1.

        >>> str(Identity("baseline/ce", "cross entropy", 2.0)), str(Identity("baseline/ce", "cross entropy", 1.0))
        ('cross entropy × 2', 'cross entropy')
        """
        return self.title if abs(self.factor - 1) < UNITY else f"{self.title} × {self.factor:.3g}"


def identify_formulas(search: Search, losses: Mapping[str, Loss]) -> dict[str, dict[str, Identity] | None]:
    """Return, for each formula of a run, branch → what it is there; None where the run does not tell.

    Args:
        search: Its branches are the task's own, where it has them; otherwise they are made of what the run stores.
        losses: Formula → loss.
    """
    settings, branches = search.settings, search.branches
    forms, standard = tuple(settings.branches.items()), tuple(settings.standard_loss.items())
    make = _restore_identifiers if branches is None else functools.partial(_make_identifiers, branches=branches)
    made = make(search.directory, settings.samples_digest, forms, standard)
    return {formula: _identify_loss(loss, made) for formula, loss in losses.items()}


def _make_identifiers(
    directory: Path,
    digest: str,
    forms: tuple[tuple[str, BranchForm], ...],
    standard: tuple[tuple[str, str], ...],
    branches: Mapping[str, Branch] | None = None,
) -> Mapping[str, Identifier]:
    from autoloss.formulas.python_file import make_branch
    from autoloss.store import samples as sample_files

    try:
        samples = sample_files.load(directory, digest)
    except RunError:
        # A run that is only looked at needs no samples: losses have no other name then.
        return {}
    made: dict[str, Identifier] = {}
    for name, form in forms:
        if found := samples.get(name):
            branch = branches[name] if branches else make_branch(form, found[0].prediction.shape[1])
            if branch is not None:
                made[name] = Identifier(branch, found, dict(standard).get(name))
    return made


_restore_identifiers = functools.lru_cache(maxsize=1)(_make_identifiers)
"""The same for a page that reads one run repeatedly."""


def _identify_loss(loss: Loss, identifiers: Mapping[str, Identifier]) -> dict[str, Identity] | None:
    if any(name not in identifiers for name in loss):
        return None
    found = {name: identifiers[name].identify(tree) for name, tree in loss.items()}
    return {name: identity for name, identity in found.items() if identity is not None}


@final
class Identifier:
    """Identifies losses on one branch.

    Args:
        samples: Of an untrained network.
        standard: Formula or name in the zoo of the task's standard loss, which goes first.
    """

    def __init__(self, branch: Branch, samples: Sequence[Sample], standard: str | None = None) -> None:
        import torch

        from autoloss.rejection.scale import move_half_to_ideal

        # The middle of a large image is a sample like any other.
        cut = [sample.crop([min(length, SIDE) for length in sample.prediction.shape[2:]]) for sample in samples]
        generator = torch.Generator().manual_seed(0)
        # The predictions of the network, partly right ones, and random ones around the network's.
        right = [move_half_to_ideal(branch, sample, generator) for sample in cut]
        states = [*cut, *right, *(_scatter(branch, sample, generator) for sample in cut)]
        self._states = range(len(states))
        self._known = list(_list_known(branch, samples[0].prediction.shape[1], standard))
        self._differentiate = lambda tree, number: _differentiate(tree, branch, states[number])
        self._differentiate_known = functools.cache(self._differentiate)

    def identify(self, tree: Expression) -> Identity | None:
        """Return the first loss of the zoo whose gradient is a positive multiple of this tree's, or None."""
        slope = functools.cache(functools.partial(self._differentiate, tree))
        for name, title, known in self._known:
            # One state tells most losses apart.
            factor = _compare((slope(number), self._differentiate_known(known, number)) for number in self._states)
            if factor is not None:
                return Identity(name, title, float(f"{factor:.6g}"))
        return None


def _list_known(branch: Branch, channels: int, standard: str | None) -> Iterator[tuple[str, str, Expression]]:
    """Yield name, title and tree of all losses that fit a branch: the standard one, then those of its activation, as in a shelf."""

    def order(name: str) -> tuple[bool, bool, bool]:
        return name != standard, ENTRIES[name].activation != branch.kernel, not name.startswith("baseline/")

    for name in sorted(ENTRIES, key=order):
        entry, tree = ENTRIES[name], _parse(name, branch)
        if tree is not None:
            yield name, entry.title if entry.title and branch.fits(entry.activation, channels) else name, tree
    if standard and standard not in ENTRIES and (tree := _parse(standard, branch)) is not None:
        yield standard, "the standard loss", tree


def _parse(text: str, branch: Branch) -> Expression | None:
    """Return the tree of a loss for a branch; None where it does not fit, or is written by hand."""
    from autoloss.space.expression import Expression

    try:
        loss = resolve(text, {MAIN: branch})[1][MAIN]
    except RequestError:
        return None
    return loss if isinstance(loss, Expression) else None


def _scatter(branch: Branch, sample: Sample, generator: torch.Generator) -> Sample:
    import torch

    prediction = sample.prediction
    away = (branch.ideal(sample.context).to(prediction).reshape(prediction.shape) - prediction).square().mean().sqrt()
    spread = min(LARGEST_SPREAD, float(away))
    return replace(sample, prediction=prediction + spread * torch.randn(prediction.shape, generator=generator))


def _differentiate(tree: Expression, branch: Branch, sample: Sample) -> Tensor | None:
    """Return the gradient of the plain sum on the raw prediction, flat, in float64; None where it is not finite."""
    import torch

    from autoloss.space.loss import output, plain_sum

    prediction = sample.prediction.detach().double().requires_grad_(True)
    value = plain_sum(output(tree, branch, prediction, sample.context), branch.mask(sample.context))
    if not value.requires_grad:
        return torch.zeros(prediction.numel(), dtype=torch.float64)
    (slope,) = torch.autograd.grad(value, prediction)
    return slope.flatten() if bool(slope.isfinite().all()) and bool(value.isfinite()) else None


def _compare(pairs: Iterator[tuple[Tensor | None, Tensor | None]]) -> float | None:
    """Return the one positive factor between the gradients of all pairs, or None where there is none."""
    factor = None
    for mine, theirs in pairs:
        if mine is None or theirs is None:
            return None
        norm, size = float(mine.norm()), float(theirs.norm())
        if not norm and not size:
            continue
        if not norm or not size:
            return None
        factor = float(mine @ theirs) / size**2 if factor is None else factor
        if factor <= 0 or float((mine - factor * theirs).norm()) > TOLERANCE * norm:
            return None
    return factor
