"""Distances to the nearest position of another class, against SciPy's transform of each class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from autoloss.zoo.cross_entropies import compute_border_proximity
from autoloss.zoo.distances import compute_border_distances


def by_scipy(classes: Tensor) -> Tensor:
    found = np.zeros(classes.shape)
    for image, out in zip(classes.numpy(), found, strict=True):
        for label in np.unique(image):
            out[image == label] = distance_transform_edt(image == label)[image == label]
    return torch.from_numpy(found)


def discs(seed: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    classes = torch.zeros(2, height, width, dtype=torch.long)
    for image in classes:
        for label in range(1, 4):
            row, column = (
                int(torch.randint(height, (), generator=generator)),
                int(torch.randint(width, (), generator=generator)),
            )
            image[(rows - row) ** 2 + (columns - column) ** 2 <= (3 * label) ** 2] = label
    return classes


@pytest.mark.parametrize(("height", "width"), [(24, 31), (1, 17), (17, 1), (40, 7)])
def test_distances_are_those_of_each_class_by_itself(height: int, width: int):
    for seed in range(4):
        classes = discs(seed, height, width)
        # Discs smaller than the image: the background is in every image, and another class beside it.
        if all(len(image.unique()) > 1 for image in classes):
            torch.testing.assert_close(compute_border_distances(classes).double(), by_scipy(classes), rtol=1e-6, atol=0)


def test_noise_too():
    classes = torch.randint(3, (2, 9, 13), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compute_border_distances(classes).double(), by_scipy(classes), rtol=1e-6, atol=0)


def test_without_another_class_there_is_no_distance():
    assert compute_border_distances(torch.ones(1, 3, 4)).tolist() == [[[math.inf] * 4] * 3]


def test_a_row_by_hand():
    assert compute_border_distances(torch.tensor([[[5, 5, 5, 2, 2, 7]]])).tolist() == [[[3, 2, 1, 1, 1, 1]]]


def test_nearness_falls_from_the_border_to_the_deepest_point_of_each_class():
    y = torch.zeros(1, 2, 1, 6)
    y[0, 0, 0, :2], y[0, 1, 0, 2:5] = 1, 1
    # The last position is ignored: it ends the second region, whose middle is 2 away from both ends.
    assert compute_border_proximity(y).tolist() == [[[[0, 1, 0, 0, 0, 0]], [[0, 0, 1, 0, 1, 0]]]]


def test_nearness_of_an_image_of_one_class_is_nothing():
    assert not compute_border_proximity(torch.ones(1, 1, 3, 3)).any()
