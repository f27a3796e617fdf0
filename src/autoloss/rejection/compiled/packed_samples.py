"""The samples of a branch in the memory order of the compiled engine, checked before any compiled code runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.rejection.compiled.bounds import PROBABILITY
from autoloss.rejection.compiled.derived_leaves import GIVEN
from autoloss.rejection.compiled.interpreter import BOX, DIFFERENCE, ONE_LOGIT, PAIR, PLAIN, SIGMOID, SOFTMAX
from autoloss.rejection.compiled.layout import MASK, VELOCITY, Layout, P, Y, Z
from autoloss.rejection.compiled.tape import AREA_REGISTERS, MASK_REGISTER, P_REGISTER, Y_REGISTER
from autoloss.space.activated import activate, flatten_depth, spatial
from autoloss.space.branch import Branch, Sample
from autoloss.space.form import PAIR_KERNELS, Kernel
from autoloss.space.ranges import Range

Packed = NDArray[np.floating[Any]]
"""A tensor (N, C, H, W) or (N, C, D, H, W), flat, in the order of the workspace."""

KERNELS: Mapping[Kernel | None, int] = {
    "softmax": SOFTMAX,
    "sigmoid": SIGMOID,
    "none": PLAIN,
    "box": BOX,
    "pair_probability": PAIR,
    "pair_difference": DIFFERENCE,
}
"""The way in which leaves are made → its number in the interpreter."""


@dataclass(frozen=True)
class PackedSample:
    """One sample in the order of the workspace.

    Args:
        layout: Layout of the leaves. A single logit z is stored as the two channels (0, z).
        activation: One of the interpreter's numbers.
        prediction: Raw, float64.
        target: The leaf y, or the fixed inputs of boxes, as computed in single and in double precision.
        mask: 1 where a position counts, or None when all do. Of pairs, which all count, the leaf w, or None.
        direction: The fixed direction of `Gradient.products`, float64.
        items: The numbers of the two items of each pair, (2, P); of other samples (2, 0).
    """

    sample: Sample
    layout: Layout
    activation: int
    prediction: Packed
    target: dict[type[np.floating[Any]], Packed]
    mask: Packed | None
    direction: Packed
    items: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((2, 0), np.uint64))

    @property
    def is_masked(self) -> bool:
        """True if some positions do not count."""
        return self.mask is not None and self.activation not in (PAIR, DIFFERENCE)

    @cached_property
    def areas(self) -> tuple[np.uint64, ...]:
        """Offsets of z, its velocity, p, and the fixed inputs in the workspace."""
        area = self.layout.area
        return tuple(np.uint64(head * area) for head in (Z, VELOCITY, Z if self.activation == PLAIN else P, Y))

    @cached_property
    def shape(self) -> tuple[np.uint64, ...]:
        """Channels, rows, height, width, rows per tile, offset of scratch memory, channels of z, depth, and scores."""
        one = self.layout
        sizes = (
            one.channels,
            one.rows,
            one.height,
            one.width,
            one.rows_per_tile,
            (MASK + 1) * one.area,
            one.moving,
            one.depth,
            one.scores,
        )
        return tuple(map(np.uint64, sizes))

    def unpack(self, packed: Packed) -> Tensor:
        """Return a packed raw prediction in the sample's own shape."""
        if self.layout.scores:
            return torch.as_tensor(packed.copy()).reshape(self.sample.prediction.shape)
        array = self.layout.unpack(packed)
        if self.activation == ONE_LOGIT:
            array = array[:, 1:]
        unpacked = torch.as_tensor(np.ascontiguousarray(array))
        if self.layout.depth > 1:
            planes, *others = unpacked.shape
            depth = self.layout.depth
            unpacked = unpacked.reshape(planes // depth, depth, *others).transpose(1, 2)
        return unpacked.reshape(self.sample.prediction.shape)


def pack_sample(branch: Branch, sample: Sample, direction: Tensor) -> PackedSample:
    """Pack a sample of a branch for which `find_obstacle` returns None."""
    if branch.kernel in PAIR_KERNELS.values():
        return _pack_scores(branch, sample, direction)
    raw = spatial(sample.prediction.detach()).cpu()
    planes, channels, height, width = flatten_depth(raw).shape
    one_logit = branch.kernel not in ("none", "box") and channels == 1
    depth = raw.shape[2] if raw.ndim == 5 else 1
    layout = Layout(planes, 2 if one_logit else channels, height, width, depth=depth)
    if branch.kernel == "box":
        layout = Layout(planes, 1, height, width, raw=channels, given=GIVEN)

    def pack(tensor: Tensor) -> Packed:
        full = torch.cat([torch.zeros_like(tensor), tensor], dim=1) if tensor.shape[1] < layout.channels else tensor
        return layout.pack(flatten_depth(full).double().numpy())

    single, double = (branch.fixed_inputs(sample, precision).cpu() for precision in (torch.float32, torch.float64))
    mask = branch.mask(sample.context)
    if mask is not None:
        mask = mask.cpu().expand(len(raw), layout.channels, *raw.shape[2:])
    return PackedSample(
        sample=sample,
        layout=layout,
        activation=ONE_LOGIT if one_logit else KERNELS[branch.kernel],
        prediction=pack(raw),
        target={np.float32: pack(single).astype(np.float32), np.float64: pack(double)},
        mask=None if mask is None or bool(mask.all()) else pack(mask),
        direction=pack(spatial(direction)),
    )


def _pack_scores(branch: Branch, sample: Sample, direction: Tensor) -> PackedSample:
    """Pack the scores of items and the pairs of them; leaves have one position for each pair."""

    def pack(tensor: Tensor) -> Packed:
        return tensor.detach().cpu().double().numpy().ravel()

    context = sample.context
    y = pack(branch.fixed_inputs(sample, torch.float64))
    return PackedSample(
        sample=sample,
        layout=Layout(len(y), 1, 1, 1, scores=sample.prediction.numel()),
        activation=KERNELS[branch.kernel],
        prediction=pack(sample.prediction),
        target={np.float32: y.astype(np.float32), np.float64: y},
        mask=pack(context["pair_weight"]) if "w" in branch.leaves_and_roles else None,
        direction=pack(direction),
        items=np.stack([context[name].cpu().numpy() for name in ("first", "second")]).astype(np.uint64),
    )


def bound_leaves(samples: Sequence[PackedSample]) -> dict[int, Range] | None:
    """Return the bounds of p, y and the mask over all samples, or None where p is not the result of a softmax or sigmoid."""
    if not samples or samples[0].activation in (PLAIN, BOX, DIFFERENCE):
        return None
    targets = [sample.target[np.float64] for sample in samples]
    ends = Range(min(float(one.min()) for one in targets), max(float(one.max()) for one in targets))
    largest = max([1.0, *(float(sample.mask.max()) for sample in samples if sample.mask is not None)])
    return {P_REGISTER: PROBABILITY, Y_REGISTER: ends, MASK_REGISTER: Range(0.0, largest)}


def check_samples(samples: Sequence[Sample]) -> None:
    """Check that the protocol can run on the samples."""
    shapes = [tuple(spatial(sample.prediction).shape) for sample in samples]
    if len({shape[1:] for shape in shapes}) > 1:
        raise RequestError(
            f"The samples' predictions have the shapes {shapes}; channels and spatial dimensions need to be the same for all. "
            "Crop or resize them to one size."
        )
    for number, sample in enumerate(samples):
        for name, tensor in {"prediction": sample.prediction, **sample.context}.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise RequestError(f"Sample {number} has a {name} that is not finite. Check the data and the network.")


def assign_registers(branch: Branch) -> dict[str, int]:
    """Return the register of each leaf of a branch that has a kernel."""
    if branch.kernel in PAIR_KERNELS.values():
        # All pairs count, so that the register of the mask is free for their weights.
        return {"p": P_REGISTER, "y": Y_REGISTER, "w": MASK_REGISTER}
    if branch.pair is not None:
        return dict(zip(branch.pair, (P_REGISTER, Y_REGISTER), strict=True))
    return dict(zip(branch.leaves_and_roles, AREA_REGISTERS, strict=True))


def find_obstacle(branch: Branch, samples: Sequence[Sample]) -> str | None:
    """Return why compiled code does not support a branch, or None when it does."""
    if branch.kernel is None:
        return f"a {type(branch).__name__} has no compiled form"
    if branch.kernel == "box" or branch.kernel in PAIR_KERNELS.values():
        return None
    if branch.pair is None:
        return f"its leaves are {', '.join(branch.leaves_and_roles)}"
    for sample in samples:
        prediction = sample.prediction.detach().float().requires_grad_(True)
        leaves = branch.leaves(prediction, sample.context)
        found, target = (leaves[name] for name in branch.pair)
        if target.requires_grad:
            return "its target depends on the prediction"
        expected = activate(spatial(prediction), branch.kernel)
        if found.shape != expected.shape or not torch.equal(found, expected):
            return f"its leaf {branch.pair[0]} is not the {branch.kernel} of the prediction"
    return None
