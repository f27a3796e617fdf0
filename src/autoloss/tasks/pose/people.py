"""Images with persons and COCO's 17 joints, read on access: the form of every data set of poses (Section 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from autoloss.errors import RequestError

_PAIRED = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
JOINTS = ("nose", *(f"{side}_{joint}" for joint in _PAIRED for side in ("left", "right")))
MIRRORED = np.array([0, *(joint - 1 if joint % 2 == 0 else joint + 1 for joint in range(1, len(JOINTS)))])
"""Joint → its place in a mirror image: left becomes right."""
SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
"""Standard deviation of COCO's annotators at each joint, relative to the square root of the person's area."""
BONES = ((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10))
BONES += ((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6))
"""Pairs of joints that COCO's skeleton connects."""

PIXEL_CENTRE = 0.5
"""COCO's joints count pixels; ours are continuous."""


@dataclass(frozen=True, slots=True)
class People:
    """The G persons of one image, in continuous coordinates: pixel 0 covers 0 to 1.

    Boxes are (G, 4) as left, top, right, bottom; joints (G, 17, 2) as x and y, half a pixel more than COCO's, which count
    pixels; `visibility` (G, 17) is COCO's: 0 not labelled, 1 labelled but hidden, 2 visible; `crowd` says whether it is a
    group of persons.
    """

    boxes: NDArray[np.float64]
    joints: NDArray[np.float64]
    visibility: NDArray[np.int8]
    area: NDArray[np.float64]
    crowd: NDArray[np.bool_]

    @property
    def trainable(self) -> NDArray[np.int64]:
        """Rows of the persons to train on: no groups, with a labelled joint, and a box with width and height."""
        sized = (self.boxes[:, 2:] > self.boxes[:, :2]).all(axis=1)
        return np.flatnonzero(~self.crowd & (self.visibility > 0).any(axis=1) & sized)


ScoredBoxes = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Boxes of one image in which poses are predicted: (D, 4) as left, top, right, bottom, and their scores (D,)."""


@dataclass(frozen=True, slots=True)
class PeopleImages:
    """The images of a split, (3, H, W) in [0, 1], which `read` gives by their index, with the persons of each.

    In evaluation, poses are predicted in the `detected` boxes of each image, those of the ground truth when None.
    """

    name: str
    read: Callable[[int], Tensor]
    people: tuple[People, ...]
    detected: tuple[ScoredBoxes, ...] | None = None

    def __len__(self) -> int:
        return len(self.people)

    def persons(self) -> list[tuple[int, int]]:
        """Return image and row of every person to train on."""
        found = [(image, int(row)) for image, people in enumerate(self.people) for row in people.trainable]
        if not found:
            raise RequestError(f"{self.name} has no person with a labelled joint; check its annotations.")
        return found

    def boxes(self, image: int) -> ScoredBoxes:
        """Return the boxes in which poses are predicted; without detections those of the persons that can be trained on."""
        if self.detected is not None:
            return self.detected[image]
        people = self.people[image]
        return people.boxes[people.trainable], np.ones(len(people.trainable))


def list_joints(joints: NDArray[np.float64], visibility: NDArray[np.integer]) -> list[float]:
    """Return joints as COCO writes them: x, y and visibility of each in turn, x and y as counts of pixels, 0 where not labelled."""
    places = np.where(visibility[:, None] > 0, joints - PIXEL_CENTRE, 0.0)
    return [float(number) for number in np.column_stack([places, visibility]).reshape(-1)]
