"""COCO's and VOC's boxes, read from generated files in the original formats: what was written is read, what is wrong is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from PIL import Image

from autoloss.errors import RequestError
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.detection.data.coco import load_coco
from autoloss.tasks.detection.data.voc import concatenate, load_voc

WIDTH, HEIGHT = 40, 30


def picture(file: Path, seed: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, quality=95)


def annotation(identity: int, image: int, category: int, bbox: list[float], **more: Any) -> dict[str, Any]:
    left, top, width, height = bbox
    outline = [[left, top, left + width, top, left + width, top + height]]
    area = width * height / 2
    return {"id": identity, "image_id": image, "category_id": category, "bbox": bbox, "area": area, "iscrowd": 0} | {
        "segmentation": outline,
        **more,
    }


def content() -> dict[str, Any]:
    run_lengths = {"counts": [0, 400, WIDTH * HEIGHT - 400], "size": [HEIGHT, WIDTH]}
    return {
        "info": {},
        "images": [
            {"id": number, "file_name": f"{number:012}.jpg", "width": WIDTH, "height": HEIGHT} for number in (7, 9, 11)
        ],
        # Ids have gaps, and are not in order.
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [
            annotation(101, 7, 18, [2, 3, 10, 12]),
            annotation(102, 9, 1, [5.5, 4.25, 20, 8]),
            annotation(103, 7, 1, [0, 0, 20, 20], iscrowd=1, segmentation=run_lengths),
            annotation(104, 9, 18, [8, 8, 3, 0]),
            annotation(105, 9, 18, [0, 0, 30, 20], iscrowd=1, segmentation={"counts": "abc", "size": [HEIGHT, WIDTH]}),
        ],
    }


def written(directory: Path, values: dict[str, Any]) -> Path:
    file = directory / "annotations" / "instances_train2017.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    for image in (7, 9, 11):
        picture(directory / "train2017" / f"{image:012}.jpg", image)
    return directory


def test_a_class_has_one_number_in_all_splits_whatever_their_files_list(tmp_path):
    train = load_coco(written(tmp_path, content()), "train2017")
    values = {**content(), "categories": [{"id": 18, "name": "dog"}, {"id": 30, "name": "hat"}]}
    values["annotations"] = [row for row in values["annotations"] if row["category_id"] == 18]
    file = tmp_path / "annotations" / "instances_val2017.json"

    def read() -> BoxedImages:
        file.write_text(json.dumps(values))
        return load_coco(tmp_path, "val2017", like=train)

    (tmp_path / "val2017").symlink_to(tmp_path / "train2017")
    valid = read()
    assert valid.classes == train.classes
    assert valid[0][1]["labels"].tolist() == [2]
    values["annotations"].append(annotation(200, 7, 30, [2, 3, 10, 12]))
    with pytest.raises(RequestError, match="annotation 200 has the category 30; expected one of the 2 classes"):
        read()
    values["annotations"].pop()
    values["categories"][0]["name"] = "cat"
    with pytest.raises(RequestError, match="category 18 is 'cat'; expected 'dog', as in COCO train2017"):
        read()


def test_cocos_boxes_are_read_as_written(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    assert images.classes == ("person", "dog")
    assert len(images) == 3
    image, target = images[0]
    assert image.shape == (3, HEIGHT, WIDTH)
    assert 0 <= float(image.min()) < float(image.max()) <= 1
    assert target["boxes"].tolist() == [[2, 3, 12, 15], [0, 0, 20, 20]]
    assert target["labels"].tolist() == [2, 1]
    assert target["crowd"].tolist() == [False, True]
    assert target["area"].tolist() == [60, 200]
    assert images[1][1]["boxes"][0].tolist() == [5.5, 4.25, 25.5, 12.25]
    assert len(images[2][1]["boxes"]) == 0


def test_images_come_by_their_ids_as_in_cocos_evaluation_whatever_the_order_of_the_file(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    values = content()
    values["images"].reverse()
    again = load_coco(written(tmp_path, values), "train2017")
    assert again.image_ids == images.image_ids == tuple(sorted(images.image_ids))
    assert (again.files, [one.boxes.tolist() for one in again.annotations]) == (
        images.files,
        [one.boxes.tolist() for one in images.annotations],
    )


def test_boxes_need_no_outline_where_masks_are_not_asked_for(tmp_path):
    values = content()
    del values["annotations"][0]["segmentation"]
    values["annotations"][1]["segmentation"] = None
    images = load_coco(written(tmp_path, values), "train2017")
    assert [len(boxes.boxes) for boxes in images.annotations] == [2, 3, 0]
    with pytest.raises(RequestError, match=r"(?s)annotation 101 has no mask.*annotation 102 has no mask"):
        load_coco(tmp_path, "train2017", masks=True)


def test_a_box_without_height_is_counted_and_said(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    (note,) = images.notes
    assert "1 boxes are less than 0.01 pixels wide or high" in note
    assert images[1][1]["boxes"].shape == (3, 4)
    assert [boxes.trainable_count for boxes in images.annotations] == [1, 1, 0]


def test_training_uses_images_with_objects(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    assert [file.name for file in images.with_objects().files] == ["000000000007.jpg", "000000000009.jpg"]


def test_images_are_divided_by_the_seed(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    rest, held = images.hold_out(1, seed=3)
    assert sorted([*rest.files, *held.files]) == sorted(images.files)
    assert images.hold_out(1, seed=3)[1].files == held.files


def test_the_data_travel_to_another_process(tmp_path):
    images = load_coco(written(tmp_path, content()), "train2017")
    other = cloudpickle.loads(cloudpickle.dumps(images))
    assert other[0][0].tolist() == images[0][0].tolist()


FAULTS = {
    "no box": ({"bbox": None}, "has no box"),
    "three numbers": ({"bbox": [1, 2, 3]}, r"has the box \[1, 2, 3\]"),
    "not finite": ({"bbox": [1, 2, 3, float("inf")]}, "four numbers"),
    "negative width": ({"bbox": [5, 5, -3, 4]}, "box of -3×4 pixels"),
    "outside": ({"bbox": [41, 2, 5, 5]}, "outside its image of 40×30"),
    "unknown category": ({"category_id": 5}, "has the category 5"),
    "unknown image": ({"image_id": 8}, "image 8, which is not listed"),
    "two points": ({"segmentation": [[1, 1, 5, 5]]}, "polygon of 4 numbers"),
    "odd polygon": ({"segmentation": [[1, 1, 5, 5, 6, 6, 7]]}, "polygon of 7 numbers"),
    "another size": ({"segmentation": {"counts": [1200], "size": [40, 30]}}, r"run lengths of size \[40, 30\]"),
    "too short": ({"segmentation": {"counts": [3, 4], "size": [30, 40]}}, "cover 7 pixels"),
    "a crowd as text": ({"iscrowd": "0"}, "has the iscrowd '0'; expected 0 or 1"),
    "the same id": ({"id": 102}, "annotation 102 has the id of another"),
}


@pytest.mark.parametrize(("given", "said"), [("x", "has the id 'x'"), (None, "lacks an id")])
def test_an_annotation_without_a_usable_id_is_named_by_its_place(given, said, tmp_path):
    values = content()
    values["annotations"][1]["id"] = given
    with pytest.raises(RequestError, match=f"annotation number 2 {said}; expected a whole number of its own"):
        load_coco(written(tmp_path, values), "train2017")


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_an_annotation_is_named_with_file_and_id(fault, tmp_path):
    change, message = FAULTS[fault]
    values = content()
    values["annotations"][0].update(change)
    with pytest.raises(RequestError, match=message) as caught:
        load_coco(written(tmp_path, values), "train2017")
    assert "instances_train2017.json" in str(caught.value)
    assert f"annotation {change.get('id', 101)} " in str(caught.value)


def test_all_faults_are_named_at_once(tmp_path):
    values = content()
    for row in values["annotations"]:
        row["category_id"] = 99
    with pytest.raises(RequestError) as caught:
        load_coco(written(tmp_path, values), "train2017")
    assert all(f"annotation {number} " in str(caught.value) for number in range(101, 106))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be decoded"), ("[]", "lacks images"), ('{"images": [], "categories": []}', "lacks annotations")],
)
def test_another_file_is_no_file_of_instances(text, message, tmp_path):
    written(tmp_path, content())
    (tmp_path / "annotations" / "instances_train2017.json").write_text(text)
    with pytest.raises(RequestError, match=message):
        load_coco(tmp_path, "train2017")


def test_what_images_and_categories_lack_is_named(tmp_path):
    values = copy.deepcopy(content())
    del values["images"][1]["width"]
    values["categories"].append(values["categories"][0])
    values["images"].append({**values["images"][0], "id": 13})
    with pytest.raises(RequestError) as caught:
        load_coco(written(tmp_path, values), "train2017")
    assert "image 9 lacks width" in str(caught.value)
    assert "category 18 comes twice" in str(caught.value)
    assert "image 13 has the file of image 7; expected an image for each file" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "message"), [("missing", "no such file"), ("size", "has 8×8 pixels"), ("text", "cannot be decoded")]
)
def test_an_image_that_does_not_fit_is_named_when_it_is_read(fault, message, tmp_path):
    file = written(tmp_path, content()) / "train2017" / "000000000007.jpg"
    file.unlink()
    if fault == "size":
        picture(file, 0, (8, 8))
    if fault == "text":
        file.write_text("no picture")
    images = load_coco(tmp_path, "train2017")
    with pytest.raises(RequestError, match=message):
        images[0]


OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>{box}
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"""
BOX = "<bndbox><xmax>{2}</xmax><xmin>{0}</xmin><ymin>{1}</ymin><ymax>{3}</ymax></bndbox>"


def voc_object(name="dog", difficult=0, box: object = (3, 5, 12, 14)) -> str:
    return OBJECT.format(name=name, difficult=difficult, box=BOX.format(*box) if isinstance(box, tuple) else box)


def voc_written(
    directory: Path, objects: list[str], year: int = 2007, size: str | None = None, split: str = "trainval"
) -> Path:
    """Write a split of one image."""
    stem = {"trainval": "000005", "test": "000006"}[split]
    root = directory / "VOCdevkit" / f"VOC{year}"
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / f"ImageSets/Main/{split}.txt").write_text(f"{stem}\n")
    picture(root / f"JPEGImages/{stem}.jpg", year)
    size = size or f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    (root / f"Annotations/{stem}.xml").write_text(f"<annotation>{size}{''.join(objects)}</annotation>")
    return directory


def test_vocs_boxes_hold_their_last_pixel(tmp_path):
    images = load_voc(voc_written(tmp_path, [voc_object(), voc_object("person", 1, (1, 1, 40, 30))]), 2007, "trainval")
    image, target = images[0]
    assert image.shape == (3, HEIGHT, WIDTH)
    assert target["boxes"].tolist() == [[2, 4, 12, 14], [0, 0, 40, 30]]
    assert target["labels"].tolist() == [12, 15]
    assert target["difficult"].tolist() == [False, True]
    assert target["area"].tolist() == [100, 1200]
    assert images.annotations[0].trainable_count == 1


def test_years_are_joined(tmp_path):
    for year in (2007, 2012):
        voc_written(tmp_path, [voc_object()] * (year - 2006), year)
    both = concatenate([load_voc(tmp_path / "VOCdevkit", year, "trainval") for year in (2007, 2012)])
    assert [len(boxes.labels) for boxes in both.annotations] == [1, 6]
    assert both.name == "VOC 2007 trainval and VOC 2012 trainval"


VOC_FAULTS = {
    "unknown class": (voc_object("unicorn"), "object 2 has the category 'unicorn'"),
    "no box": (voc_object(box=""), "object 2 has no box"),
    "a side missing": (
        voc_object(box="<bndbox><xmin>1</xmin></bndbox>"),
        r"object 2 has the box \[0.0, nan, nan, nan\]",
    ),
    "turned round": (voc_object(box=(9, 3, 4, 8)), "object 2 has a box of -4×6 pixels"),
    "outside": (voc_object(box=(42, 3, 44, 8)), "object 2 .* outside its image of 40×30"),
}


@pytest.mark.parametrize("fault", VOC_FAULTS)
def test_what_is_wrong_with_an_object_is_named_with_file_and_number(fault, tmp_path):
    wrong, message = VOC_FAULTS[fault]
    with pytest.raises(RequestError, match=message) as caught:
        load_voc(voc_written(tmp_path, [voc_object(), wrong]), 2007, "trainval")
    assert "000005.xml" in str(caught.value)


def test_vocs_files_need_a_size_and_to_be_there(tmp_path):
    with pytest.raises(RequestError, match="has no size"):
        load_voc(voc_written(tmp_path, [], size="<size/>"), 2007, "trainval")
    file = tmp_path / "VOCdevkit/VOC2007/Annotations/000005.xml"
    for text, message in (("<annotation>", "cannot be decoded"), ("<svg/>", "holds <svg>")):
        file.write_text(text)
        with pytest.raises(RequestError, match=message):
            load_voc(tmp_path, 2007, "trainval")
    file.unlink()
    with pytest.raises(RequestError, match="no such file"):
        load_voc(tmp_path, 2007, "trainval")
