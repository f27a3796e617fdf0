"""coco-det and voc-det: the paper's values, changeable, on small files in the original formats, from samples to a score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.loss import bind
from autoloss.tasks import get
from autoloss.tasks.catalogue import inspect
from autoloss.tasks.detection.samples import select_trainable
from autoloss.training.training import Scored, Training
from tests.tasks.detection.test_box_formats import HEIGHT, WIDTH, annotation, picture, voc_object, voc_written

boxed_files = pytest.importorskip("autoloss.tasks.detection.task")

SMALL = {
    "backbone": "resnet18",
    "channels": 8,
    "head_width": 16,
    "short_side": 64,
    "long_side": 96,
    "batch_size": 2,
    "learning_rate": 1e-4,
    "warmup_steps": 0,
    "share": 1.0,
    "held_out": 2,
    "device": "cpu",
}
FULL = {f"full_{name}": SMALL[name] for name in ("backbone", "channels", "head_width", "short_side", "long_side")} | {
    "full_epochs": 2,
    "full_batch_size": 2,
    "full_learning_rate": 1e-4,
}


def coco_written(directory: Path, train: int = 8, val: int = 3) -> Path:
    """Write images with one object each, one of them without."""
    categories = [{"id": 3, "name": "car"}, {"id": 17, "name": "cat"}]
    for split, count in (("train2017", train), ("val2017", val)):
        images, annotations = [], []
        for number in range(1, count + 1):
            images.append({"id": number, "file_name": f"{number}.jpg", "width": WIDTH, "height": HEIGHT})
            picture(directory / split / f"{number}.jpg", number)
            if number > 1:
                bbox = [number % 5, 2, 22, 20]
                annotations.append(annotation(number, number, (3, 17)[number % 2], bbox))
        file = directory / "annotations" / f"instances_{split}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return directory


def test_the_defaults_are_the_papers():
    proxy, full = boxed_files.PROXY, boxed_files.FULL
    assert (proxy.backbone, proxy.levels, proxy.channels, proxy.head_width) == ("resnet50", "P4-P6", 128, 512)
    recipe = proxy.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.warmup_steps) == (1, 32, 0.04, 250)
    assert boxed_files.DetectionOptions().share == 0.25
    assert boxed_files.PAPER_HELD_OUT["coco-det"][0] == 5000
    assert (full.levels, full.channels, full.head_width) == ("P2-P6", 256, 1024)
    recipe = full.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (12, 16, 0.02, 1e-4)
    assert recipe.rate(8 * 100, 1200) == pytest.approx(0.02)
    assert recipe.rate(8 * 100 + 1, 1200) == pytest.approx(0.002)
    assert recipe.rate(11 * 100 + 1, 1200) == pytest.approx(0.0002)


def write_voc(directory: Path) -> None:
    for year, split in ((2007, "trainval"), (2007, "test"), (2012, "trainval")):
        voc_written(directory, [voc_object(box=(3, 3, 30, 28)), voc_object("cat", 1)], year, split=split)


def test_the_search_never_sees_val2017_and_retraining_sees_all_of_train2017(tmp_path):
    task = get("coco-det", data=str(coco_written(tmp_path)), **{**SMALL, "share": 0.5})
    train, valid, test = (task._data[split] for split in ("train", "valid", "test"))
    assert len(valid) == 2
    described = ("COCO train2017: 2", "COCO train2017, held out: 2", "COCO val2017: 3")
    assert task.choices()[0] == f"Read {'; '.join(f'{part} images, 2 objects' for part in described)}."
    assert not set(train.files) & set(valid.files)
    assert all(file.parent.name == "val2017" for file in test.files)
    assert all(file.parent.name == "train2017" for file in (*train.files, *valid.files))
    # Of 8 images one has no object; half of the rest trains the proxy, all 7 are trained on in the end.
    assert len(train) in (2, 3)
    assert len(task._examples["full"]) == 7
    halfway = get("coco-det", data=str(tmp_path), **SMALL, full_milestones="0.5", full_epochs="2")
    assert halfway.recipes["full"].milestones == (0.5,)
    assert task.steps(Training(seed=0, split="test", schedule="full")) == 12 * max(1, 7 // 16)


def test_coco_is_sampled_and_trained_on_both_schedules(tmp_path):
    task = get("coco-det", data=str(coco_written(tmp_path)), **SMALL, **FULL)
    assert task.classes == 2
    samples = task.samples(1, seed=0)
    assert samples["rcnn_cls"][0].prediction.shape[1] == 3
    criterion = bind(zoo.resolve(task.standard, task.branches)[1], task.branches)
    for schedule in ("proxy", "full"):
        outcome = task.train(criterion, Training(seed=0, split="test", schedule=schedule))
        assert isinstance(outcome, Scored)
        assert 0 <= outcome.score <= 1


def test_voc_trains_on_both_years_and_is_measured_on_2007s_test(tmp_path):
    write_voc(tmp_path)
    task = get("voc-det", data=str(tmp_path), **{**SMALL, "held_out": 1, "batch_size": 1})
    assert (task.metric, task.classes, len(task._data["test"]), len(task._examples["full"])) == ("voc07", 20, 1, 2)
    (image, target) = task._data["valid"][0]
    assert image.shape == (3, HEIGHT, WIDTH)
    assert select_trainable(target)["labels"].tolist() == [12]


def test_an_image_to_train_on_is_none_to_measure_on(tmp_path):
    write_voc(tmp_path)
    lists = tmp_path / "VOCdevkit/VOC2007/ImageSets/Main"
    (lists / "test.txt").write_text("000005\n000006\n")
    said = "VOC 2007 test has 1 of the images of VOC 2007 trainval and VOC 2012 trainval: 000005; expected each image in one split"
    with pytest.raises(RequestError, match=said):
        get("voc-det", data=str(tmp_path), **{**SMALL, "held_out": 1})


@pytest.mark.parametrize(("train", "val", "part"), [(1, 3, "COCO train2017, held out"), (8, 1, "COCO val2017")])
def test_images_to_measure_on_have_an_object(tmp_path, train: int, val: int, part: str):
    data = coco_written(tmp_path, train, val)
    if train == 1:
        # The first image has no object, and the seed holds it out.
        file = data / "annotations" / "instances_train2017.json"
        content = json.loads(file.read_text())
        content["images"] += [{**content["images"][0], "id": 2, "file_name": "2.jpg"}]
        content["annotations"] = [annotation(2, 2, 3, [1, 2, 22, 20])]
        file.write_text(json.dumps(content))
        picture(data / "train2017" / "2.jpg", 2)
    with pytest.raises(RequestError, match=f"None of the 1 images of {part} has an object that counts"):
        get("coco-det", data=str(data), **{**SMALL, "held_out": 1, "seed": 1})


def test_frozen_weights_come_from_a_file(tmp_path):
    from torchvision.models.resnet import resnet18

    from autoloss.tasks.detection.faster_rcnn import build_pyramid

    with torch.random.fork_rng():
        torch.manual_seed(3)
        body = resnet18(weights=None)
    torch.save(body.state_dict(), tmp_path / "weights.pt")
    backbone = build_pyramid("resnet18", 8, str(tmp_path / "weights.pt"))
    assert torch.equal(backbone.body.conv1.weight, body.conv1.weight)
    assert not backbone.body.layer1[0].conv1.weight.requires_grad
    assert backbone.body.layer4[0].conv1.weight.requires_grad
    (tmp_path / "wrong.pt").write_bytes(b"nothing")
    for weights, message in (
        (tmp_path / "none.pt", "There is no file"),
        (tmp_path / "wrong.pt", "cannot be read"),
    ):
        with pytest.raises(RequestError, match=message):
            build_pyramid("resnet18", 8, str(weights))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "The option data is missing: the folder of the data of coco-det"),
        ({"data": "nowhere"}, "does not exist"),
        ({"share": 0.0}, "share"),
        ({"levels": "P3-P5"}, "P4-P6"),
        ({"unit": "acres"}, "unit is .acres."),
        ({"full_epoch": 3}, "full_epochs"),
        ({"short_side": 0}, "short_side is 0"),
        ({"full_long_side": 0}, "full_long_side is 0"),
        ({"channels": 0}, "channels is 0"),
        ({"head_width": -1}, "head_width is -1"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        get("coco-det", **options)


def test_the_final_figures_of_coco_are_its_own_tools(tmp_path):
    task = get("coco-det", data=str(coco_written(tmp_path)), **SMALL, loaders=1)
    losses = zoo.resolve(task.standard, task.branches)[1]
    outcome = task.train(bind(losses, task.branches), Training(seed=0, split="test"))
    assert isinstance(outcome, Scored)
    # Of objects this size none is large; what is not there has no figure.
    assert {"ap50", "ap75", "map_small", "voc07"} <= set(outcome.also)
    assert "map_large" not in outcome.also


def no_picture(file: Path) -> None:
    file.write_bytes(b"hello")


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-400])


def smaller(file: Path) -> None:
    picture(file, 1, (WIDTH, HEIGHT // 2))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, r"3\.jpg: there is no such file \(annotation 3 in it\)"),
        (no_picture, r"3\.jpg: cannot be decoded \(.*\) \(annotation 3 in it\)"),
        (half, r"3\.jpg: cannot be decoded \(.*\) \(annotation 3 in it\)"),
        (smaller, rf"3\.jpg: has {WIDTH}×{HEIGHT // 2} pixels \(annotation 3 in it\); expected {WIDTH}×{HEIGHT}"),
    ],
    ids=["missing", "no picture", "half", "smaller"],
)
@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_a_check_names_faulty_images_with_their_annotations(split, spoil, message, tmp_path):
    coco_written(tmp_path)
    inspect("coco-det", data=str(tmp_path))
    spoil(tmp_path / split / "3.jpg")
    with pytest.raises(RequestError, match=message) as raised:
        inspect("coco-det", data=str(tmp_path))
    assert f"COCO {'train2017' if split == 'val2017' else 'val2017'}: read the headers of" in str(raised.value)


def test_a_check_of_voc_looks_at_all_three_lists(tmp_path):
    write_voc(tmp_path)
    inspect("voc-det", data=str(tmp_path))
    file = next((tmp_path / "VOCdevkit/VOC2012/JPEGImages").glob("*.jpg"))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (HEIGHT, WIDTH)).save(file, exif=exif)
    with pytest.raises(RequestError, match="It has an EXIF orientation: save it as it is displayed, without that tag"):
        inspect("voc-det", data=str(tmp_path))
    file.unlink()
    with pytest.raises(RequestError, match=rf"{file.name}: there is no such file \(annotations 1, 2 in it\)"):
        inspect("voc-det", data=str(tmp_path))
