"""COCO's keypoints and detections: what was written is read, extra fields are ignored, what is wrong is named or counted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.tasks.catalogue import inspect
from autoloss.tasks.pose.data.coco import load_detections, load_keypoints, to_people, write_people
from autoloss.tasks.pose.people import JOINTS
from tests.screens import screen
from tests.tasks.pose.drawn import change, content, detection, draw_people, write_folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("coco"), train=5, val=3)


@pytest.fixture
def folder(original, tmp_path):
    """Return a copy whose annotations may be changed."""
    for name in ("train2017", "val2017"):
        (tmp_path / name).symlink_to(original / name)
    (tmp_path / "annotations").mkdir()
    for file in (original / "annotations").iterdir():
        (tmp_path / "annotations" / file.name).write_text(file.read_text())
    (tmp_path / "detections.json").write_text((original / "detections.json").read_text())
    return tmp_path


def test_figures_are_read_as_they_were_written(tmp_path):
    drawn = draw_people("train", 3)
    write_people(drawn, tmp_path, "train2017")
    read = to_people(load_keypoints(tmp_path, "train2017")[0])
    assert len(read) == 3
    for index in range(3):
        one, other = drawn.people[index], read.people[index]
        for name in ("joints", "visibility", "area", "crowd", "boxes"):
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-9)
        assert torch.equal(read.read(index), drawn.read(index))


def test_another_reader_of_cocos_format_reads_them_too(original):
    coco = pytest.importorskip("faster_coco_eval").COCO(str(original / "annotations/person_keypoints_val2017.json"))
    assert coco.cats[1]["keypoints"] == list(JOINTS)
    assert len(coco.cats[1]["skeleton"]) == 19
    assert {len(row["keypoints"]) for row in coco.anns.values()} == {51}
    assert len(coco.imgs) == 3


def test_persons_of_area_0_are_counted(folder):
    change(folder, lambda c: c["annotations"][0].update(area=0))
    assert "1 persons with labelled joints have the area 0" in load_keypoints(folder, "val2017")[0].notes[0]


def test_a_joint_at_pixel_0_lies_half_a_pixel_from_the_edge(folder):
    change(folder, lambda c: c["annotations"][0].update(keypoints=[0, 3, 2] * 17))
    people = to_people(load_keypoints(folder, "val2017")[0]).people[0]
    assert people.joints[0, 0].tolist() == [0.5, 3.5]


def test_detections_go_to_their_images_with_their_scores(folder):
    split, persons = load_keypoints(folder, "val2017")
    boxes, notes = load_detections(folder / "detections.json", split, persons)
    rows = content(folder)["annotations"]
    assert notes == ()
    assert sum(len(each[0]) for each in boxes) == len(rows) + 1
    left, top, width, height = rows[0]["bbox"]
    assert boxes[0][0][0].tolist() == [left, top, left + width, top + height]
    assert boxes[0][1][0] == 0.5 + rows[0]["id"] / 1000
    images = replace(to_people(split), detected=boxes)
    assert images.boxes(0) is boxes[0]
    assert len(to_people(split).boxes(0)[0]) == len(boxes[0][0]) - 1


def test_what_a_labelling_tool_adds_is_ignored(folder):
    def add(values):
        values.update(info={"tool": "x"}, licenses=[], tags=[1, 2])
        for row in values["annotations"]:
            row.update(attributes={"occluded": False}, segmentation=None, track_id=7, caption="a person")
        for image in values["images"]:
            image.update(license=3, flickr_url="", date_captured=0)
        values["categories"][0].update(supercategory="person", color="#fff")
        values["categories"][0]["keypoints"] = [name.replace("_", " ").title() for name in JOINTS]
        values["categories"].append({"id": 9, "name": "dog"})
        values["annotations"].append({"id": 900, "image_id": 1, "category_id": 9, "bbox": [1, 1, 5, 5], "area": 25})

    before = to_people(load_keypoints(folder, "val2017")[0]).people
    read, _ = load_keypoints(change(folder, add), "val2017")
    for one, other in zip(before, to_people(read).people, strict=True):
        np.testing.assert_array_equal(one.joints, other.joints)
    assert read.notes == ("COCO val2017: 1 annotations are of a category without keypoints; they are left out.",)


def test_persons_without_a_labelled_joint_are_counted_and_left_out(folder, caplog):
    change(folder, lambda c: c["annotations"][0].update(keypoints=[0] * 51, num_keypoints=0), "train2017")
    read, _ = load_keypoints(folder, "train2017")
    assert "1 persons have no labelled joint" in read.notes[0]
    assert len(to_people(read).persons()) == len(content(folder, "train2017")["annotations"]) - 1
    from autoloss.tasks import get

    with caplog.at_level(logging.WARNING):
        get("coco-pose", data=str(folder), held_out=2, device="cpu")
    assert "1 persons have no labelled joint" in caplog.text


def test_what_is_held_out_has_persons_with_joints(folder):
    from autoloss.tasks import get

    labelled = content(folder, "train2017")["annotations"][-1]["image_id"]

    def hide(values):
        for row in values["annotations"]:
            if row["image_id"] not in (labelled, labelled - 1):
                row.update(keypoints=[0] * 51, num_keypoints=0)

    task = get("coco-pose", data=str(change(folder, hide, "train2017")), held_out=1, share=1.0, device="cpu")
    assert [len(task._data[split].persons()) > 0 for split in ("train", "valid")] == [True, True]
    assert len(task._data["train"]) == len(task._data["valid"]) == 1


def test_a_crowd_needs_no_joints_and_is_no_person_without_joints(folder):
    def group(values):
        values["annotations"][0].pop("keypoints")
        values["annotations"][0].update(iscrowd=1, num_keypoints=0)

    read, _ = load_keypoints(change(folder, group), "val2017")
    assert read.notes == ()
    assert to_people(read).people[0].crowd.tolist()[0]
    assert (to_people(read).people[0].visibility[0] == 0).all()


def test_another_count_of_joints_than_they_have_is_noted(folder):
    change(folder, lambda c: c["annotations"][0].update(num_keypoints=99))
    assert "have another num_keypoints" in load_keypoints(folder, "val2017")[0].notes[0]


ANNOTATIONS = {
    "16 joints": (
        lambda c: c["annotations"][0].update(keypoints=[1] * 48),
        "annotation 1 has 48 numbers",
        "51 numbers",
    ),
    "no joints": (lambda c: c["annotations"][0].pop("keypoints"), "annotation 1 has no keypoints", "51 numbers"),
    "visibility": (
        lambda c: c["annotations"][0].update(keypoints=[1, 1, 3] * 17),
        "a keypoint of visibility 3",
        "0, 1",
    ),
    "text": (
        lambda c: c["annotations"][0].update(keypoints=["x"] * 51),
        "keypoints that are not numbers",
        "51 numbers",
    ),
    "endless": (lambda c: c["annotations"][0].update(keypoints=[10**400] * 51), "that are not numbers", "51 numbers"),
    "an object": (lambda c: c["annotations"][0].update(keypoints={"nose": 1}), "has no keypoints", "51 numbers"),
    "category": (
        lambda c: c["categories"][0].pop("keypoints"),
        "'person' has no keypoints",
        "COCO's 17 keypoints: nose",
    ),
    "16 names": (lambda c: c["categories"][0]["keypoints"].pop(), "'person' has 16 keypoints", "COCO's 17 keypoints"),
    "other names": (
        lambda c: c["categories"][0]["keypoints"].reverse(),
        "'right_ankle' as keypoint 1, where COCO has 'nose'",
        "COCO's 17 keypoints",
    ),
    "no categories": (lambda c: c.pop("categories"), "lacks categories", "COCO keypoints: an object with the lists"),
    "no box": (lambda c: c["annotations"][0].pop("bbox"), "annotation 1 has no box", "left, top, width, height"),
    "another image": (
        lambda c: c["annotations"][0].update(image_id=99),
        "image 99, which is not listed",
        "of the file",
    ),
}


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_a_broken_file_of_keypoints_gets_one_screen(kind, folder, capsys):
    edit, found, expected = ANNOTATIONS[kind]
    said = screen(capsys, "check", "coco-pose", "--data", change(folder, edit))
    assert found in said
    assert expected in said
    assert "person_keypoints_val2017.json" in said


BOX = [1.0, 1.0, 5.0, 5.0]
DETECTIONS = {
    "unknown image": (
        [detection(99, BOX, 0.5)],
        "detection number 1 is of image 99, which is not in the file",
        "this split",
    ),
    "image of text": (
        [detection(1, BOX, 0.5), detection("1", BOX, 0.5)],
        "detection number 2 is of image '1'",
        "this split",
    ),
    "no score": ([{"image_id": 1, "category_id": 1, "bbox": BOX}], "has the score None", "a finite number"),
    "a box of text": ([detection(1, ["a", 1, 1, 1], 0.5)], "has the box", "left, top, width, height"),
    "negative": ([detection(1, [1, 1, -5, 5], 0.5)], "has the box [1, 1, -5, 5]", "left, top, width, height"),
    "no list": ({"annotations": []}, "holds a dict", "COCO results: a list of objects"),
    "no objects": ([[1, 2, 3]], "detection number 1 is a list", "an object"),
}


@pytest.mark.parametrize("kind", DETECTIONS)
def test_a_broken_file_of_detections_gets_one_screen(kind, folder, capsys):
    rows, found, expected = DETECTIONS[kind]
    (folder / "broken.json").write_text(json.dumps(rows))
    said = screen(capsys, "check", "coco-pose", "--data", folder, "--set", f"detections={folder / 'broken.json'}")
    assert found in said
    assert expected in said


@pytest.mark.parametrize(("text", "found"), [("", "cannot be decoded"), ("[" * 100_000, "cannot be decoded")])
def test_a_file_that_is_no_json_gets_one_screen(text, found, folder, capsys):
    (folder / "broken.json").write_text(text)
    said = screen(capsys, "check", "coco-pose", "--data", folder, "--set", f"detections={folder / 'broken.json'}")
    assert found in said
    said = screen(capsys, "check", "coco-pose", "--data", folder, "--set", f"detections={folder / 'absent.json'}")
    assert "there is no such file" in said


def test_detections_of_others_and_without_area_are_counted_and_left_out(folder):
    rows = [detection(1, BOX, 0.5, category_id=18), detection(1, [1, 1, 0, 5], 0.5), detection(1, BOX, 0.9, extra="x")]
    (folder / "some.json").write_text(json.dumps(rows))
    boxes, notes = load_detections(folder / "some.json", *load_keypoints(folder, "val2017"))
    assert [len(each[0]) for each in boxes] == [1, 0, 0]
    assert notes == (
        "some.json: 1 detections are of other categories; they are left out.",
        "some.json: 1 detections have no width or no height; they are left out.",
    )


def test_faulty_images_are_named_by_an_inspection(folder):
    file = content(folder)["images"][0]["file_name"]
    change(folder, lambda c: c["images"][0].update(width=97))
    with pytest.raises(RequestError, match=r"96×96 pixels .* expected 97×96"):
        inspect("coco-pose", data=str(folder))
    change(folder, lambda c: c["images"][0].update(width=96, file_name="absent.png"))
    with pytest.raises(RequestError, match=r"absent.png: there is no such file"):
        inspect("coco-pose", data=str(folder))
    assert file != "absent.png"
