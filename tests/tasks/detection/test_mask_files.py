"""coco-ins on files in COCO's format: polygons and run lengths are read as pycocotools reads them, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.loss import bind
from autoloss.tasks import get
from autoloss.tasks.catalogue import inspect
from autoloss.training.training import Scored, Training
from tests.tasks.detection.test_box_formats import HEIGHT, WIDTH, content, picture, written

boxed_files = pytest.importorskip("autoloss.tasks.detection.task")
coco_files = pytest.importorskip("autoloss.tasks.detection.data.coco")
heads = pytest.importorskip("autoloss.tasks.detection.heads")

from tests.tasks.detection.test_boxed_files import FULL, SMALL  # noqa: E402


def mask(seed: int) -> np.ndarray:
    """Return a mask (H, W): a rectangle with a hole and a speck, whose columns begin with both values."""
    rng = np.random.default_rng(seed)
    found = np.zeros((HEIGHT, WIDTH), np.uint8)
    left, top = rng.integers(0, 10, 2)
    found[top : top + 15, left : left + 20] = 1
    found[top + 4 : top + 7, left + 5 : left + 9] = 0
    found[rng.integers(HEIGHT), rng.integers(WIDTH)] = 1
    return found


def run_lengths(found: np.ndarray) -> list[int]:
    """Count the runs of zeros and ones, down the columns, the first of zeros."""
    flat = found.T.flatten()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat]))).tolist()
    return np.diff([0, *edges, len(flat)]).tolist()


def compressed(counts: list[int]) -> str:
    """Write run lengths as COCO's compressed text: differences to the run before last, in characters of six bits."""
    text = ""
    for place, count in enumerate(counts):
        value = count - counts[place - 2] if place > 2 else count
        while True:
            low, value = value & 31, value >> 5
            more = value != (-1 if low & 16 else 0)
            text += chr(48 + low + 32 * more)
            if not more:
                break
    return text


def box_of(found: np.ndarray) -> list[int]:
    rows, columns = np.nonzero(found)
    return [int(value) for value in (columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1)]


def annotated(identity: int, image: int, segmentation: Any, box: list[float], **more: Any) -> dict[str, Any]:
    """Return an annotation with the fields that other tools add."""
    own = {"attributes": {"occluded": False}, "score": 0.9, "track_id": None, "caption": "a thing"}
    row = {
        "id": identity,
        "image_id": image,
        "category_id": (1, 18)[identity % 2],
        "bbox": box,
        "iscrowd": 0,
        "area": 77.5,
    }
    return {**own, **row, "segmentation": segmentation, **more}


SIZE = [HEIGHT, WIDTH]
POLYGONS = [[3, 4, 25.5, 4.25, 20, 22, 5, 18.75], [30, 3, 38, 3, 38, 12, 30, 12]]


def of_another_tool() -> dict[str, Any]:
    values = content()
    values |= {"licenses": [{"id": 1, "name": "none", "url": ""}], "tool": {"version": 3}}
    values["images"] = [{**row, "coco_url": "", "date_captured": 0, "license": 1} for row in values["images"]]
    values["categories"] = [{**row, "supercategory": "", "color": "#ff0000"} for row in values["categories"]]
    first, second, third = mask(1), mask(2), mask(3)
    values["annotations"] = [
        annotated(1, 7, POLYGONS, [3, 3, 35, 19]),
        annotated(2, 7, {"size": SIZE, "counts": run_lengths(first)}, box_of(first)),
        annotated(3, 9, {"size": SIZE, "counts": compressed(run_lengths(second))}, box_of(second)),
        annotated(4, 9, {"size": SIZE, "counts": run_lengths(third)}, box_of(third), iscrowd=1),
    ]
    # Some tools leave these away.
    for name in ("iscrowd", "area"):
        del values["annotations"][1][name]
    return values


def test_outlines_are_read_as_pycocotools_reads_them(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    images = coco_files.load_coco(written(tmp_path, of_another_tool()), "train2017", masks=True)
    first, second, third = (images[index][1] for index in range(3))
    expected = tools.merge(tools.frPyObjects(POLYGONS, HEIGHT, WIDTH))
    assert first["masks"][0].sum() > 200
    assert compressed(run_lengths(first["masks"][0].numpy())) == expected["counts"].decode()
    assert np.array_equal(first["masks"][1].numpy(), mask(1))
    assert np.array_equal(second["masks"].numpy(), np.stack([mask(2), mask(3)]))
    assert third["masks"].shape == (0, HEIGHT, WIDTH)
    assert first["masks"].dtype == torch.uint8
    assert second["crowd"].tolist() == [False, True]
    # Without an area, that of the mask.
    assert first["area"].tolist() == [77.5, float(mask(1).sum())]
    assert images.notes == ()
    # Without masks, the same file is one of boxes.
    assert "masks" not in coco_files.load_coco(tmp_path, "train2017")[0][1]


def test_the_compressed_text_is_pycocotools():
    tools = pytest.importorskip("pycocotools.mask")
    for seed in range(20):
        found = (np.random.default_rng(seed).random((HEIGHT, WIDTH)) < 0.5).astype(np.uint8) if seed % 2 else mask(seed)
        assert compressed(run_lengths(found)) == tools.encode(np.asfortranarray(found))["counts"].decode()


def test_polygons_reaching_outside_are_cut_off_as_by_pycocotools(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    values = of_another_tool()
    outlines = [[[-8, 5, 30, -6, 44, 20, 12.5, 41]], [[20, 10, 70, 10, 70, 25, 20, 25], [1, 1, 9, 1, 9, 9]]]
    for row, outline in zip(values["annotations"], outlines, strict=False):
        row["segmentation"] = outline
    images = coco_files.load_coco(written(tmp_path, values), "train2017", masks=True)
    for found, outline in zip(images[0][1]["masks"].numpy(), outlines, strict=True):
        expected = tools.merge(tools.frPyObjects(outline, HEIGHT, WIDTH))
        assert compressed(run_lengths(found)) == expected["counts"].decode()
    (note,) = images.notes
    assert "2 masks reach outside their image, where they are cut off (annotations 1, 2)." in note


def test_a_mask_without_a_pixel_is_counted_and_not_trained_on(tmp_path):
    values = of_another_tool()
    # A line has no pixel; nor has what was painted nowhere.
    values["annotations"][0]["segmentation"] = [[5, 5, 5, 20, 5, 9]]
    values["annotations"][2]["segmentation"] = {"size": SIZE, "counts": [HEIGHT * WIDTH]}
    images = coco_files.load_coco(written(tmp_path, values), "train2017", masks=True)
    (note,) = images.notes
    assert "2 masks have no pixel in their image; training leaves them out, evaluation counts them." in note
    assert [boxes.trainable_count for boxes in images.annotations] == [1, 0, 0]
    assert len(images[0][1]["masks"]) == 2
    assert [file.stem for file in images.with_objects().files] == ["000000000007"]


def runs(counts: Any, size: Any = SIZE) -> dict[str, Any]:
    return {"segmentation": {"counts": counts, "size": size}}


RIGHT = compressed(run_lengths(mask(5)))
FAULTS = {
    "no mask": ({"segmentation": None}, "annotation 1 has no mask"),
    "no polygon": ({"segmentation": []}, "annotation 1 has no mask"),
    "two points": ({"segmentation": [[1, 1, 5, 5]]}, "polygon of 4 numbers"),
    "an odd polygon": ({"segmentation": [[1, 1, 5, 5, 6, 6, 7]]}, "polygon of 7 numbers"),
    "no numbers": ({"segmentation": [[1, 1, 5, "5", 6, 6]]}, "what is no number"),
    "pairs": ({"segmentation": [[[1, 1], [5, 5], [6, 1]]]}, "what is no number"),
    "outside": ({"segmentation": [[41, 31, 55, 31, 50, 45]]}, "mask outside its image of 40×30 pixels"),
    "left of it": ({"segmentation": [[-9, 3, -2, 3, -5, 9]]}, "mask outside its image of 40×30 pixels"),
    "far outside": ({"segmentation": [[1, 1, 9e6, 5, 5, 9e6]]}, "reaches far outside its image"),
    "size turned round": (runs(run_lengths(mask(5)), [WIDTH, HEIGHT]), r"run lengths of size \[40, 30\]"),
    "no size": ({"segmentation": {"counts": RIGHT}}, "run lengths of size None"),
    "too few": (runs([3, 4]), "cover 7 pixels"),
    "too many": (runs([600, 700]), "cover 1300 pixels"),
    "negative": (runs([1300, -100]), "no lengths"),
    "compressed, cut off": (runs(RIGHT[:-1]), "run lengths that cover|cannot be read"),
    "compressed, without an end": (runs("abc"), "compressed run lengths that cannot be read"),
    "compressed, another alphabet": (runs("5!x~"), "compressed run lengths that cannot be read"),
    "compressed, too few": (runs(compressed([3, 4])), "cover 7 pixels"),
    "compressed, negative": (runs(compressed([1300, -100])), "no lengths"),
    "a number": (runs(1200), "compressed run lengths that cannot be read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_mask_is_named_with_file_and_id(fault, tmp_path):
    change, message = FAULTS[fault]
    values = of_another_tool()
    values["annotations"][0].update(change)
    with pytest.raises(RequestError, match=message) as caught:
        coco_files.load_coco(written(tmp_path, values), "train2017", masks=True)
    assert "instances_train2017.json: annotation 1 " in str(caught.value)


def test_an_image_too_large_for_run_lengths_is_refused(tmp_path):
    values = of_another_tool()
    values["images"][0] |= {"width": 100_000, "height": 100_000}
    values["annotations"] = [annotated(1, 7, runs([10**10], [100_000, 100_000])["segmentation"], [3, 3, 5, 5])]
    with pytest.raises(RequestError, match="annotation 1 has the mask of an image of 100000×100000 pixels"):
        coco_files.load_coco(written(tmp_path, values), "train2017", masks=True)


def folder(directory: Path, train: int = 6, val: int = 3) -> Path:
    """Write images with one object each, but the first: polygons and both kinds of run lengths in turn."""
    categories = [{"id": 3, "name": "car"}, {"id": 17, "name": "cat"}]
    for split, count in (("train2017", train), ("val2017", val)):
        images, annotations = [], []
        for number in range(1, count + 1):
            images.append({"id": number, "file_name": f"{number}.jpg", "width": WIDTH, "height": HEIGHT})
            picture(directory / split / f"{number}.jpg", number)
            left, top, width, height = number % 5, 2, 22, 20
            found = np.zeros((HEIGHT, WIDTH), np.uint8)
            found[top : top + height, left : left + width] = 1
            found[top + 5 : top + 9, left + 3 : left + 9] = 0
            counts = run_lengths(found)
            square = [left, top, left + width, top, left + width, top + height, left, top + height]
            outlines = ([square], {"size": SIZE, "counts": counts}, {"size": SIZE, "counts": compressed(counts)})
            if number > 1:
                row = annotated(number, number, outlines[number % 3], [left, top, width, height])
                annotations.append({**row, "category_id": (3, 17)[number % 2]})
        file = directory / "annotations" / f"instances_{split}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return directory


def test_coco_is_trained_with_five_losses_on_both_schedules_and_measured_by_its_own_tools(tmp_path):
    task = get("coco-ins", data=str(folder(tmp_path)), **SMALL, **FULL)
    samples = task.samples(1, seed=0)
    assert list(samples) == ["rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg", "mask"]
    assert samples["mask"][0].prediction.shape[1:] == (1, 28, 28)
    criterion = bind(zoo.resolve("ins", task.branches)[1], task.branches)
    for schedule in ("proxy", "full"):
        outcome = task.train(criterion, Training(seed=0, split="test", schedule=schedule))
        assert isinstance(outcome, Scored)
        assert 0 <= outcome.score <= 1
        assert {"ap50", "ap75", "map_small", "box_map", "box_ap50"} <= set(outcome.also)


def test_the_proxy_has_the_head_of_half_the_width():
    proxy, full = boxed_files.PROXY, boxed_files.FULL
    small = {"backbone": "resnet18", "weights": "none"}
    for stage, width in ((proxy, 128), (full, 256)):
        network = dataclasses.replace(stage, **small).network(2, heads.INSTANCE_HEADS)
        convolutions, predictor = network.roi_heads.own["mask"].layers
        assert [layer[0].out_channels for layer in convolutions] == [width] * 4
        assert predictor.conv5_mask.out_channels == width


def test_a_check_names_the_masks_of_both_splits(tmp_path):
    inspect("coco-ins", data=str(folder(tmp_path)))
    file = tmp_path / "annotations" / "instances_val2017.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["segmentation"] = [[50, 3, 60, 3, 60, 9]]
    file.write_text(json.dumps(values))
    inspect("coco-det", data=str(tmp_path))
    with pytest.raises(RequestError, match=r"instances_val2017\.json: annotation 2 has a mask outside its image"):
        inspect("coco-ins", data=str(tmp_path))
