"""voc-seg, cityscapes-seg and folder-seg on small data sets in their original formats: conformance, options, faults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autoloss import tasks
from autoloss.errors import RequestError
from autoloss.run.check import check
from autoloss.space.loss import Loss, bind
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS
from autoloss.tasks.segmentation.task import FULL, PROXY, TRAIN_AUG, VocOptions, split_voc, voc_seg
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import Task
from autoloss.training.training import Scored, Training
from tests.tasks import conformance
from tests.tasks.segmentation import generated

TINY = {"backbone": "resnet18", "side": 32, "epochs": 1, "batch_size": 2}
TINY_FULL = {"full_backbone": "resnet18", "full_side": 32, "full_epochs": 1, "full_batch_size": 2}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("voc")
    generated.voc(place, count=12, side=48, varied=True)
    return str(place)


def tiny(data: str, metric: str = "miou", **options: Any) -> SupervisedTask:
    task = tasks.get("voc-seg", metric, data=data, **{**TINY, "held_out": 3, **options})
    assert isinstance(task, SupervisedTask)
    return task


def trained(task: Task, **training: Any) -> Scored:
    outcome = task.train(bind(Loss("-y * log(p)"), task.branches), Training(seed=0, **training))
    assert isinstance(outcome, Scored)
    return outcome


@pytest.fixture(scope="module")
def task(voc: str) -> SupervisedTask:
    return tiny(voc)


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim: Callable[[Task], None], task: Task):
    claim(task)


def test_the_papers_schedules_are_the_defaults():
    proxy, full = PROXY.recipe, FULL.recipe
    assert (PROXY.network, PROXY.backbone, PROXY.side, PROXY.head_factor) == ("deeplabv3+", "resnet50", 128, 10)
    assert (proxy.epochs, proxy.batch_size, proxy.optimizer, proxy.learning_rate) == (3, 32, "sgd", 0.02)
    assert (proxy.schedule, proxy.power, proxy.minimum_learning_rate) == ("poly", 0.9, 1e-4)
    assert (proxy.momentum, proxy.weight_decay, proxy.auxiliary) == (0.9, 5e-4, 0)
    assert (FULL.network, FULL.backbone, FULL.side, FULL.output_stride) == ("deeplabv3+", "resnet101", 512, 8)
    assert (full.epochs, full.batch_size, full.learning_rate, full.auxiliary) == (30, 32, 0.02, 0.4)


@pytest.mark.parametrize(("metric", "encoding"), [("biou", "band"), ("bf1", "edge"), ("gacc", "one_hot")])
def test_boundary_metrics_train_on_boundaries_without_the_background(voc: str, metric: str, encoding: str):
    made = tiny(voc, metric)
    branch = made.branches["main"]
    # A quarter of the paper's 128 pixels, so a quarter of its 5 pixels.
    assert (branch.encoding, branch.tolerance, branch.ignore_index, branch.channels) == (encoding, 1, 255, 21)
    sample = made.samples(1, seed=0)["main"][0]
    assert branch.metric(branch.ideal(sample.context), sample.context) == 1.0
    background = torch.zeros_like(sample.prediction)
    background[:, 0] = 9.0
    target = sample.context["target"]
    if metric != "gacc":
        assert branch.metric(background, {"target": torch.where(target == 255, 255, 0 * target)}) != 1.0


def test_a_retraining_has_its_own_network_and_whole_images_of_any_size(voc: str):
    made = tiny(voc, **TINY_FULL)
    outcome = trained(made, split="test", schedule="full")
    # 9 images to train on, those among them that the search held out; 3 others in val.
    assert outcome.curve[-1][0] == made.steps(Training(seed=0, split="test", schedule="full")) == 4
    assert made.steps(Training(seed=0)) == 3
    assert list(outcome.also) == list(SEGMENTATION_METRICS)
    assert outcome.score == outcome.also["miou"]
    with pytest.raises(RequestError, match=r"split of the schedule full named 'valid'. Known: test"):
        made.train({}, Training(seed=0, split="valid", schedule="full"))


def test_network_auxiliary_loss_and_rate_of_the_heads_are_options(voc: str):
    options = {"network": "pspnet", "output_stride": 8}
    alone = trained(tiny(voc, **options)).curve
    first, second = (trained(tiny(voc, **options, auxiliary=0.4, head_factor=factor)).curve for factor in (1.0, 10.0))
    assert first[0] == second[0]
    assert first[1:] != second[1:]
    # An untrained head's cross entropy is about that of the other.
    assert 1.3 < first[0][1] / alone[0][1] < 1.5


def test_cityscapes_trains_on_its_classes(tmp_path: Path):
    generated.cityscapes(tmp_path, count=10, side=32)
    made = tasks.get("cityscapes-seg", data=str(tmp_path), **TINY)
    assert (made.name, made.branches["main"].channels, made.splits) == ("cityscapes-seg", 19, ("valid", "test"))
    assert trained(made).score >= 0


def test_a_folders_valid_split_is_kept_from_retraining(tmp_path: Path):
    generated.folder(tmp_path, count=10, side=32)
    made = tasks.get("folder-seg", data=str(tmp_path), **TINY, **TINY_FULL)
    assert isinstance(made, SupervisedTask)
    assert (made.branches["main"].channels, made.splits) == (11, ("valid", "test"))
    assert made.steps(Training(seed=0, schedule="full")) == made.steps(Training(seed=0)) == 3
    assert trained(made, split="valid", schedule="full").score >= 0


def test_a_folder_of_few_images_is_trained_on_for_some_200_steps_and_ten_times_as_long_again(tmp_path: Path):
    generated.folder(tmp_path, count=10, side=32)
    small = {"backbone": "resnet18", "side": 32, "full_backbone": "resnet18", "full_side": 32}
    made = tasks.get("folder-seg", data=str(tmp_path), **small)
    assert made.choices() == [
        "Read 10 images with 11 classes, 0 to 10; 255 is ignored. Metric: miou.",
        "Data: 6 train, 2 valid, 2 test examples, inputs of size 3 × 32 × 32.",
        "Chosen for 6 training examples: epochs=200, batch_size=8 (200 steps).",
    ]
    assert (made.steps(Training(seed=0)), made.steps(Training(seed=0, schedule="full"))) == (200, 2000)
    assert made.recipe("proxy")["epochs"] == 200


def test_sbd_is_used_where_it_is_there(tmp_path: Path):
    generated.voc(tmp_path, count=8, side=32)
    before = split_voc(VocOptions(data=str(tmp_path)))
    generated.sbd(tmp_path, count=6, side=32)
    for place in (tmp_path, tmp_path / "VOCdevkit", tmp_path / "VOCdevkit" / "VOC2012"):
        after = split_voc(VocOptions(data=str(place), held_out=2))
        assert (len(before.full_train), len(after.full_train)) == (6, 12)
        assert (len(after.train), len(after.valid), len(after.test)) == (10, 2, 2)
    assert len(split_voc(VocOptions(data=str(tmp_path), split="train")).full_train) == 6


def test_an_image_to_train_on_is_none_to_measure_on(tmp_path: Path):
    lists = generated.voc(tmp_path, count=8, side=32) / "ImageSets" / "Segmentation"
    both = (lists / "val.txt").read_text().split()[0]
    (lists / "train.txt").write_text((lists / "train.txt").read_text() + both)
    with pytest.raises(
        RequestError, match=f"VOC 2012 val has 1 of the images of VOC 2012 train: {both}; expected each image in one"
    ):
        split_voc(VocOptions(data=str(tmp_path)))


def test_the_papers_share_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    generated.voc(tmp_path, count=20, side=16)
    assert len(split_voc(VocOptions(data=str(tmp_path))).valid) == round(15 * 1500 / TRAIN_AUG) == 2
    monkeypatch.setattr("autoloss.tasks.segmentation.task.TRAIN_AUG", 1)
    monkeypatch.setattr("autoloss.tasks.segmentation.task.HELD_OUT", 7)
    assert len(split_voc(VocOptions(data=str(tmp_path))).valid) == 7


def test_every_value_is_an_option_and_texts_are_read_as_numbers(voc: str):
    made = tiny(voc, full_epochs="7", tolerance="2", learning_rate="0.5", background="none", evaluation_batch="none")
    assert (made.recipes["full"].epochs, made.recipes["proxy"].learning_rate) == (7, 0.5)
    assert made.branches["main"].tolerance == 2
    known = inspect.signature(voc_seg).parameters
    assert {"held_out", "weights", "full_weights", "power", "full_auxiliary", "side", "device"} <= set(known)
    assert known["background"].default == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": None}, r"VOCdevkit/VOC2012/JPEGImages.*benchmark_RELEASE.*VOCtrainval_11-May-2012"),
        ({"data": "/nowhere"}, "/nowhere"),
        ({"network": "pspnt"}, "Did you mean 'pspnet'"),
        ({"backbone": "resnet19"}, "backbone is 'resnet19'; expected .*'resnet50'.* Did you mean 'resnet1"),
        ({"output_stride": 32}, "output_stride is 32; expected a whole number, at least 8 and at most 16"),
        ({"weights": "absent.pth"}, "no file 'absent.pth'"),
        ({"side": 8}, "side is 8"),
        ({"batch_size": 1}, "batch_size is 1; expected at least 2"),
        ({"full_head_factor": 0.0}, "head_factor is 0.0"),
        ({"full_epochs": 0}, "epochs is 0"),
        ({"held_out": 9}, "9 of the 9 images"),
        ({"split": "trainval"}, "the test split"),
        ({"split": "trian"}, "split is 'trian'; expected 'train' or .* Did you mean 'train'"),
        ({"split": "train_aug"}, "SBD"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"device": "gpu"}, "There is no device 'gpu'"),
        ({"epohcs": 1}, "Did you mean 'epochs'"),
        ({"held_out": "few"}, "held_out is 'few'; expected a whole number"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(voc: str, options: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=f"(?s){message}"):
        tiny(**{"data": voc, **options})


def test_check_names_the_faults_of_all_splits_before_anything_is_made(tmp_path: Path):
    root = generated.voc(tmp_path, count=8, side=32)
    (root / "JPEGImages" / "2007_000001.jpg").write_bytes(b"no image")
    (root / "SegmentationClass" / "2007_000006.png").unlink()
    with pytest.raises(RequestError) as refused:
        # No network with these weights could be made.
        check("voc-seg", options={"data": str(tmp_path), "weights": "absent.pth"})
    lines = str(refused.value).splitlines()
    assert "2007_000001.jpg" in lines[1]
    assert "2007_000006.png" in lines[2]
    assert len(lines) == 5
