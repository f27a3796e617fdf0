"""Augmentation keeps image and mask together, follows the seed, and pads with what counts nowhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from autoloss.tasks.segmentation.data.augmentation import (
    DEVIATION,
    MEAN,
    SCALES,
    ImageDataset,
    normalise,
)
from autoloss.tasks.segmentation.data.image_files import IGNORED, open_copy, resize
from autoloss.tasks.splits import Split
from autoloss.training.loop import seed_generators
from tests.tasks.segmentation.drawn import blocks, painted, pictures


def grey(image: Tensor) -> Tensor:
    """Undo the normalisation: 0 to 255, one channel."""
    return ((image * torch.tensor(DEVIATION)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255)[0]


def inner(mask: Tensor) -> Tensor:
    """Pixels whose neighbours have their label, so that interpolation changed nothing there."""
    wide = F.pad(mask.float()[None, None], (1, 1, 1, 1), value=-1)
    return (F.max_pool2d(wide, 3, stride=1) == -F.max_pool2d(-wide, 3, stride=1))[0, 0]


def drawn(source, count: int, side: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    with seed_generators(seed):
        data = ImageDataset(source, crop=side)
        return [data[index % len(data)] for index in range(count)]


def test_image_and_mask_stay_together(tmp_path: Path):
    compared = 0
    for image, mask in drawn(pictures(tmp_path, blocks(4)), 60, 24):
        assert (image.shape, image.dtype) == ((3, 24, 24), torch.float32)
        assert (mask.shape, mask.dtype) == ((24, 24), torch.int64)
        # A label that was ignored is white; the padding is ignored too, and is the mean.
        sure = inner(mask) & (mask != IGNORED)
        compared += int(sure.sum())
        if sure.any():
            assert grey(image)[sure].sub(20 + 60 * mask[sure]).abs().max() < 1.5
    assert compared > 1000


def test_padding_is_the_mean_and_counts_nowhere(tmp_path: Path):
    data = pictures(tmp_path, [np.zeros((8, 8), np.uint8)])
    for image, mask in drawn(data, 20, 32):
        padding = mask == IGNORED
        side = round(8 * SCALES[0]), round(8 * SCALES[1])
        assert side[0] ** 2 <= int((~padding).sum()) <= side[1] ** 2
        # The mean is rounded to 8 bits.
        assert image[:, padding].abs().max() < 0.5 / 255 / min(DEVIATION) + 1e-6


def test_scales_offsets_and_flips_are_all_drawn(tmp_path: Path):
    mask = np.zeros((16, 16), np.uint8)
    mask[:, :4] = 1
    found = [mask for _, mask in drawn(pictures(tmp_path, [mask]), 200, 40)]
    widths = {int((mask != IGNORED).any(dim=0).sum()) for mask in found}
    assert (min(widths), max(widths)) == (8, 32)
    assert len(widths) > 15
    left = [bool((mask == 1).any(dim=0).nonzero()[0] < (mask == 0).any(dim=0).nonzero()[0]) for mask in found]
    assert 60 < sum(left) < 140
    assert len({tuple((mask != IGNORED).nonzero()[0].tolist()) for mask in found}) > 100


def test_what_is_shown_is_what_scaling_the_whole_and_cropping_it_shows(tmp_path: Path):
    # Each label names its place, so that the mean label says where a crop lies, and its spread how large it is.
    place = torch.arange(24 * 30, dtype=torch.int64).reshape(24, 30) // 30 * 10
    data = pictures(tmp_path, [place.numpy().astype(np.uint8)])
    data = replace(data, classes=tuple(map(str, range(250))))
    crop = v2.RandomCrop((20, 20), pad_if_needed=True, fill=IGNORED)

    def plainly(mask: Tensor) -> Tensor:
        factor = torch.empty(()).uniform_(*SCALES).item()
        size = [round(factor * length) for length in mask.shape]
        return crop(v2.functional.resize(mask[None], size, v2.InterpolationMode.NEAREST_EXACT))[0]

    with seed_generators(0):
        reference = [plainly(data.mask(0)) for _ in range(600)]
    found = [mask for _, mask in drawn(data, 600, 20)]
    for measure in (
        lambda mask: float((mask == IGNORED).float().mean()),
        lambda mask: float(mask[mask != IGNORED].float().mean()),
        lambda mask: float(mask[mask != IGNORED].float().std()),
        lambda mask: float((mask == IGNORED)[0].all()),
    ):
        ours, theirs = (np.array([measure(mask) for mask in masks]) for masks in (found, reference))
        error = np.hypot(ours.std(), theirs.std()) / 600**0.5
        assert abs(ours.mean() - theirs.mean()) < 4 * error
        assert ours.std() == pytest.approx(theirs.std(), rel=0.15)


def test_a_border_that_is_ignored_stays_ignored(tmp_path: Path):
    mask = np.full((32, 32), IGNORED, np.uint8)
    for _, found in drawn(pictures(tmp_path, [mask]), 10, 24):
        assert bool((found == IGNORED).all())


def test_equal_seeds_give_equal_batches_and_nothing_is_left_changed(tmp_path: Path):
    data = ImageDataset(pictures(tmp_path, blocks(6)), crop=16)

    def batches(seed: int) -> list[list[Tensor]]:
        with seed_generators(seed):
            return list(DataLoader(data, batch_size=3))

    state = torch.get_rng_state()
    first, again, other = batches(1), batches(1), batches(2)
    assert torch.get_rng_state().equal(state)
    for (image, mask), (same_image, same_mask) in zip(first, again, strict=True):
        assert image.equal(same_image)
        assert mask.equal(same_mask)
    assert not first[0][0].equal(other[0][0])
    assert (first[0][0].shape, first[0][1].shape) == ((3, 3, 16, 16), (3, 16, 16))


def test_a_split_takes_what_is_augmented_and_what_travelled_draws_the_same(tmp_path: Path):
    data = ImageDataset(open_copy(pictures(tmp_path, blocks(6)), 16, tmp_path / "cache"), crop=16)
    again = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own
    found = []
    for each in (data, again):
        with seed_generators(0):
            found += Split(each, "train").in_order(6)
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])


def test_whole_images_are_normalised_and_otherwise_as_they_are(tmp_path: Path):
    masks = blocks(2)
    image, mask = ImageDataset(pictures(tmp_path, masks))[1]
    assert np.array_equal(mask.numpy(), masks[1])
    expected = (torch.from_numpy(painted(masks[1])).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / (
        torch.tensor(DEVIATION)[:, None, None]
    )
    assert torch.allclose(image, expected, atol=1e-6)


def test_whole_images_of_differing_sizes_go_one_by_one_or_resized(tmp_path: Path):
    data = pictures(tmp_path, [*blocks(2, 16, 16), *blocks(2, 32, 24)])
    one_by_one = [tuple(mask.shape) for _, mask in Split(ImageDataset(data), "valid").in_order(1)]
    assert one_by_one == [(1, 16, 16)] * 2 + [(1, 32, 24)] * 2
    together = next(iter(Split(ImageDataset(data, 8), "valid").in_order(4)))
    assert together[0].shape == (4, 3, 8, 8)


def test_the_small_copy_is_augmented_and_evaluated_like_pictures(tmp_path: Path):
    small = open_copy(pictures(tmp_path, blocks(4)), 16, tmp_path / "cache")
    image, mask = drawn(small, 1, 16)[0]
    assert (image.shape, mask.shape) == ((3, 16, 16), (16, 16))
    assert ImageDataset(small)[2][1].equal(ImageDataset(small.source, 16)[2][1])
    assert ImageDataset(small)[2][0].equal(ImageDataset(small.source, 16)[2][0])


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_labels_lie_where_their_pixels_lie_at_another_size(factor: float):
    # A ramp: the label is the grey. Were labels taken from each block's first pixel, they would fall behind by half a block.
    ramp = torch.arange(0, 200, dtype=torch.uint8).repeat(20, 1)
    image, mask = resize(ramp.repeat(3, 1, 1), ramp, round(20 * factor), round(200 * factor))
    off = (image[0].float() - mask.float())[:, 8:-8]
    assert abs(float(off.mean())) <= 0.5
    assert float(off.abs().max()) <= 1


def test_normalised_images_have_imagenets_mean_at_zero():
    image = torch.tensor([round(255 * mean) for mean in MEAN], dtype=torch.uint8)[:, None, None].expand(3, 4, 4)
    assert normalise(image).abs().max() < 0.01
