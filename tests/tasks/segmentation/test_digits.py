"""digits-seg: real digits in one split each, scenes that follow from the seed, a task that learns."""

from __future__ import annotations

import itertools

import pytest
import torch

from autoloss.space.loss import Loss, bind
from autoloss.tasks import get
from autoloss.tasks.scenes import SHARES
from autoloss.tasks.segmentation import digits
from autoloss.tasks.segmentation.digits import CELL, CLASSES, SmallSegmenter, compose_scenes, load_split
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS
from autoloss.training.training import Scored, Training


def test_no_handwritten_digit_is_in_two_splits_and_all_are_in_one():
    seen = {split: {image.tobytes() for image in load_split(split)[0]} for split in SHARES}
    for one, other in itertools.combinations(seen.values(), 2):
        assert not one & other
    assert sum(len(load_split(split)[0]) for split in SHARES) == 1797


def test_every_split_has_every_digit():
    for split in SHARES:
        assert set(load_split(split)[1].tolist()) == set(range(10))


def test_scenes_follow_from_the_seed():
    images, classes = compose_scenes("train", 20, 0)
    again = compose_scenes("train", 20, 0)
    assert images.equal(again[0])
    assert classes.equal(again[1])
    assert not images.equal(compose_scenes("train", 20, 1)[0])
    assert not images.equal(compose_scenes("valid", 20, 0)[0])


@pytest.mark.parametrize("size", [16, 32, 64])
def test_scenes_hold_all_classes_at_the_size_asked_for(size: int):
    images, classes = compose_scenes("test", 6400 // size, 0, size)
    assert images.shape == (6400 // size, 1, size, size)
    assert images.dtype == torch.float32
    assert classes.shape == (6400 // size, size, size)
    assert set(classes.unique().tolist()) == set(range(CLASSES))


def test_a_tail_makes_each_digit_rarer_than_the_one_before():
    _, flat = compose_scenes("train", 600, 0, tail=0.0)
    _, long = compose_scenes("train", 600, 0, tail=1.0)
    shares = [(classes == 1).sum() / (classes == 10).sum() for classes in (flat, long)]
    assert 0.5 < shares[0] < 3
    assert shares[1] > 5


def test_ink_is_a_digit_clutter_is_background(monkeypatch):
    monkeypatch.setattr(digits, "NOISE", 0.0)
    monkeypatch.setattr(digits, "DIGITS", 0.0)
    monkeypatch.setattr(digits, "CLUTTER", 1.0)
    images, classes = compose_scenes("train", 50, 0)
    assert images.max() > 0.5
    assert classes.max() == 0
    monkeypatch.setattr(digits, "DIGITS", 1.0)
    images, classes = compose_scenes("train", 50, 0)
    assert bool((images[:, 0][classes > 0] > 0.2).all())
    for cell in classes.unfold(1, CELL, CELL).unfold(2, CELL, CELL).reshape(-1, CELL * CELL):
        assert len(set(cell.tolist()) - {0}) == 1


def test_the_network_keeps_the_images_size():
    assert SmallSegmenter(11)(torch.zeros(2, 1, 32, 48)).shape == (2, 11, 32, 48)


@pytest.mark.parametrize("metric", SEGMENTATION_METRICS)
def test_samples_start_low_and_can_reach_one(metric: str):
    task = get("digits-seg", metric, train=64, valid=16, test=16)
    branch = task.branches["main"]
    for sample in task.samples(5, seed=0)["main"]:
        assert branch.metric(sample.prediction, sample.context) < 0.3 or metric in ("gacc", "fwiou")
        assert branch.metric(branch.ideal(sample.context), sample.context) == 1.0


def test_cross_entropy_learns_and_all_six_metrics_are_reported():
    task = get("digits-seg", train=512, valid=64, test=16)
    outcome = task.train(bind(Loss("-y * log(p)"), task.branches), Training(seed=0))
    assert isinstance(outcome, Scored)
    assert list(outcome.also) == list(SEGMENTATION_METRICS)
    assert outcome.score == outcome.also["miou"]
    assert outcome.also["macc"] > 2 / CLASSES
    assert outcome.curve[-1][1] < outcome.curve[0][1] / 3
