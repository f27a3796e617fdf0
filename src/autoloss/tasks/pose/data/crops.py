"""The crops that a network sees: one person each, turned, scaled and mirrored at random in training (Section 4.4, Appendix A).

A crop is an affine map from its own continuous coordinates to those of the image: pixels are interpolated once, and joints go the
same way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from autoloss.options import Count, Positive, Share, check, declare
from autoloss.tasks.pose.heatmaps import draw_heatmaps
from autoloss.tasks.pose.people import MIRRORED, PeopleImages

Matrix = NDArray[np.float64]
"""(2, 3): continuous coordinates of a crop, with a 1 → those of the image."""
Example = tuple[Tensor, Mapping[str, Tensor]]
"""A normalised crop (3, H, W), and the context of `HeatmapBranch` for this person."""

Side = Annotated[int, Field(ge=32, multiple_of=32)]


@declare("crops.")
class CropSettings:
    """Sizes of crops and heatmaps; the defaults are the paper's."""

    size: tuple[Side, Side] = (256, 192)
    """Height and width of a crop in pixels."""
    stride: Count = 4
    """Pixels of the crop per cell of a heatmap, along each side."""
    sigma: Positive = 2.0
    """Standard deviation of a target in cells."""
    padding: Positive = 1.25
    """Factor on the sides of a person's box."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each colour, for normalisation."""
    deviation: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each colour."""

    def __post_init__(self) -> None:
        check(self, {"stride": (all(side % self.stride == 0 for side in self.size), "a divisor of the size")})

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width of a heatmap."""
        return self.size[0] // self.stride, self.size[1] // self.stride


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a crop on its box: factor on its sides, degrees clockwise as one looks at the image, and mirrored or not."""

    scale: float = 1.0
    degrees: float = 0.0
    mirrored: bool = False


UPRIGHT = Placement()


@declare("augmentation.")
class Augmentation:
    """Random changes of each training example; the defaults are the paper's."""

    flip: Share = 0.5
    """Probability that a crop is mirrored, with left and right joints swapped."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 40.0
    """Largest angle in degrees, to either side."""
    scale: tuple[Positive, Positive] = (0.5, 1.5)
    """Smallest and largest factor on the side of the crop."""

    def __post_init__(self) -> None:
        check(self, {"scale": (self.scale[0] <= self.scale[1], "the smaller factor first")})

    def draw(self) -> Placement:
        """Draw from torch's global generator."""
        flip, turn, share = torch.rand(3).tolist()
        low, high = self.scale
        return Placement(low + share * (high - low), (2 * turn - 1) * self.rotation, flip < self.flip)


def frame_box(box: NDArray[np.floating], settings: CropSettings, placement: Placement = UPRIGHT) -> Matrix:
    """Return the crop around a box (left, top, right, bottom): the same centre, the aspect ratio of a crop, padded."""
    left, top, right, bottom = box.astype(np.float64)
    height, width = settings.size
    unit = settings.padding * placement.scale * max((right - left) / width, (bottom - top) / height)
    cosine, sine = math.cos(math.radians(placement.degrees)), math.sin(math.radians(placement.degrees))
    linear = unit * np.array([[cosine, -sine], [sine, cosine]]) @ np.diag([-1.0 if placement.mirrored else 1.0, 1.0])
    centre = np.array([left + right, top + bottom]) / 2
    return np.concatenate([linear, (centre - linear @ [width / 2, height / 2])[:, None]], axis=1)


def to_image(positions: NDArray[np.floating], matrix: Matrix) -> NDArray[np.float64]:
    """Map positions (…, 2) of a crop to the image."""
    return positions @ matrix[:, :2].T + matrix[:, 2]


def to_crop(positions: NDArray[np.floating], matrix: Matrix) -> NDArray[np.float64]:
    """Map positions (…, 2) of the image to a crop."""
    return (positions - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T


def cut(image: Tensor, matrix: Matrix, settings: CropSettings) -> Tensor:
    """Cut a crop out of an image (3, H, W) in [0, 1] by bilinear interpolation, and normalise it; outside is black."""
    height, width = settings.size
    rows, columns = image.shape[1:]
    # From the cube [−1, 1] of the crop to that of the image, as torch counts positions.
    to_pixels = np.array([[width / 2, 0, width / 2], [0, height / 2, height / 2], [0, 0, 1]])
    to_cube = np.array([[2 / columns, 0, -1], [0, 2 / rows, -1]])
    theta = torch.from_numpy(to_cube @ np.vstack([matrix, [0, 0, 1]]) @ to_pixels).float()
    grid = F.affine_grid(theta[None], [1, 3, height, width], align_corners=False)
    found = F.grid_sample(image[None], grid, mode="bilinear", padding_mode="zeros", align_corners=False)[0]
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (settings.mean, settings.deviation))
    return (found - mean) / deviation


class TrainingCrops(Dataset[Example]):
    """The persons of a data set with their heatmaps; the augmentation draws from torch's global generator, None changes nothing."""

    def __init__(self, images: PeopleImages, settings: CropSettings, augmentation: Augmentation | None) -> None:
        self._images = images
        self._settings = settings
        self._augmentation = augmentation
        self._persons = images.persons()

    def __len__(self) -> int:
        return len(self._persons)

    def __getitem__(self, index: int) -> Example:
        image, row = self._persons[index]
        people, settings = self._images.people[image], self._settings
        placement = UPRIGHT if self._augmentation is None else self._augmentation.draw()
        matrix = frame_box(people.boxes[row], settings, placement)
        joints = to_crop(people.joints[row], matrix) / settings.stride
        inside = ((joints >= 0) & (joints < settings.cells[::-1])).all(axis=1)
        labelled = (people.visibility[row] > 0) & inside
        if placement.mirrored:
            joints, labelled = joints[MIRRORED], labelled[MIRRORED]
        positions, counts = torch.from_numpy(joints).float(), torch.from_numpy(labelled)
        area = people.area[row] / abs(np.linalg.det(matrix[:, :2])) / settings.stride**2
        return cut(self._images.read(image), matrix, settings), {
            "target": draw_heatmaps(positions, counts, settings.cells, settings.sigma),
            "labelled": counts,
            "joints": positions,
            "area": torch.tensor(area, dtype=torch.float32),
        }


class BoxCrops(Dataset[tuple[Tensor, Matrix]]):
    """The boxes of some images as crops, each with its map to the image, in the order of the boxes."""

    def __init__(self, images: PeopleImages, indices: Sequence[int], settings: CropSettings) -> None:
        self._images = images
        self._settings = settings
        self._boxes = [(image, box) for image in indices for box in images.boxes(image)[0]]

    def __len__(self) -> int:
        return len(self._boxes)

    def __getitem__(self, index: int) -> tuple[Tensor, Matrix]:
        image, box = self._boxes[index]
        matrix = frame_box(box, self._settings)
        return cut(self._images.read(image), matrix, self._settings), matrix
