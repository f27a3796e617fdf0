"""A task on files: the formats, the small copy and the augmentation carry a training from end to end."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from autoloss.space.loss import Loss, bind
from autoloss.tasks.data import Data
from autoloss.tasks.segmentation.data.augmentation import ImageDataset
from autoloss.tasks.segmentation.data.image_files import IGNORED, hold_out, open_copy
from autoloss.tasks.segmentation.data.voc import load_voc
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training

SIDE = 16


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 21, 1))


def accuracy(prediction: Tensor, target: Tensor) -> float:
    counts = target != IGNORED
    return (prediction.argmax(dim=1) == target)[counts].float().mean().item()


def task(devkit: Path, cache: Path) -> SupervisedTask:
    train, valid = hold_out(load_voc(devkit, "train_aug"), 4, seed=0)
    return SupervisedTask(
        network,
        ImageDataset(open_copy(train, SIDE, cache), crop=SIDE),
        ImageDataset(open_copy(valid, SIDE, cache)),
        "softmax",
        accuracy,
        test=ImageDataset(load_voc(devkit, "val"), SIDE),
        data=Data(ignore_index=IGNORED),
        recipe=Recipe(epochs=12, batch_size=7, learning_rate=0.1),
    )


def test_cross_entropy_learns_on_vocs_files_and_equal_seeds_give_equal_scores(devkit: Path, tmp_path: Path):
    made = task(devkit, tmp_path)
    criterion = bind(Loss("-y * log(p)"), made.branches)
    outcome = made.train(criterion, Training(seed=1))
    assert isinstance(outcome, Scored)
    # One batch is noisy: crops differ in how many of their pixels are ignored.
    first, *_, second_last, last = [loss for _, loss in outcome.curve]
    assert (second_last + last) / 2 < first / 2
    assert outcome.score > 0.5
    assert made.train(criterion, Training(seed=1)) == outcome
    assert task(devkit, tmp_path).train(criterion, Training(seed=1)) == outcome
    assert isinstance(made.train(criterion, Training(seed=1, split="test")), Scored)


def test_samples_hold_what_was_augmented_with_their_ignored_pixels(devkit: Path, tmp_path: Path):
    made = task(devkit, tmp_path)
    samples = made.samples(5, seed=0)["main"]
    assert all(sample.prediction.shape == (1, 21, SIDE, SIDE) for sample in samples)
    masks = [made.branches["main"].mask(sample.context) for sample in samples]
    assert any(mask is not None and not bool(mask.all()) for mask in masks)
