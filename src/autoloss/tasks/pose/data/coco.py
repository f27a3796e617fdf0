"""Persons in COCO's JSON: keypoints, detected boxes, and data sets written in the same format (Section 4.4).

Source: Lin et al., 2014, Microsoft COCO, and the data and results formats of cocodataset.org. As in COCO's own tools, a person
without a labelled joint is neither trained on nor evaluated. Fields that the format does not have are ignored.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from autoloss.errors import name_kind, quote
from autoloss.tasks.detection.data.boxed import BoxedImages, Boxes
from autoloss.tasks.detection.data.coco import A_BOX, NAME, is_box, load_instances, read_annotations
from autoloss.tasks.detection.masks import is_finite
from autoloss.tasks.files import Fault, FaultyFile, find_directory, name_problems, read_json, report_faults
from autoloss.tasks.pose.people import BONES, JOINTS, PIXEL_CENTRE, People, PeopleImages, ScoredBoxes, list_joints

LAYOUT = """\
  annotations/person_keypoints_train2017.json, person_keypoints_val2017.json
  train2017/000000000009.jpg, …
  val2017/000000000139.jpg, …"""
A_KEYPOINTS_FILE = "COCO keypoints: an object with the lists images, annotations and categories"
A_DETECTIONS_FILE = "COCO results: a list of objects with image_id, category_id, bbox and score"
NUMBERS = 3 * len(JOINTS)
THE_NUMBERS = f"{NUMBERS} numbers: x, y and visibility (0, 1 or 2) of {len(JOINTS)} joints"
PERSON = {"id": 1, "name": "person", "keypoints": list(JOINTS), "skeleton": [[a + 1, b + 1] for a, b in BONES]}
"""COCO's category, whose skeleton counts joints from 1."""

Array = NDArray[Any]


def to_people(images: BoxedImages) -> PeopleImages:
    """Return the persons of images with joints."""
    return PeopleImages(images.name, images.image, tuple(map(_to_people, images.annotations)))


def _to_people(boxes: Boxes) -> People:
    assert boxes.joints is not None
    places, visibility = boxes.joints[..., :2] + PIXEL_CENTRE, boxes.joints[..., 2].astype(np.int8)
    return People(boxes.boxes.astype(np.float64), places, visibility, boxes.area, boxes.crowd)


def _select_persons(boxes: Boxes, joints: Mapping[int, Array]) -> Boxes:
    """Return the annotations that have joints, with them."""
    rows = [row for row, identity in enumerate(boxes.identities.tolist()) if identity in joints]
    columns = ("boxes", "labels", "crowd", "difficult", "area", "identities")
    found = np.array([joints[boxes.identities[row]] for row in rows], np.float64).reshape(-1, len(JOINTS), 3)
    return replace(boxes, **{name: getattr(boxes, name)[rows] for name in columns}, joints=found)


def load_keypoints(directory: Path | str, split: str) -> tuple[BoxedImages, frozenset[int]]:
    """Read the persons of a split, such as train2017, and the ids of the categories that have joints; images are read later.

    Raises:
        RequestError: A part of the folder is missing, or annotations are faulty; the first twenty are listed, each by its id.
    """
    root = find_directory(directory, NAME, LAYOUT)
    file, name = root / "annotations" / f"person_keypoints_{split}.json", f"{NAME} {split}"
    remedy = "Use the file of keypoints, not that of captions or instances."
    content = read_annotations(file, A_KEYPOINTS_FILE, remedy)
    persons = _find_persons(file, content["categories"])
    # Boxes, images and ids are checked there.
    images = load_instances(file, root / split, name, content)
    faults: list[Fault] = []
    joints: dict[int, Array] = {}
    counted: Counter[str] = Counter()
    for annotation in content["annotations"]:
        if annotation["category_id"] not in persons:
            counted["annotations are of a category without keypoints; they are left out"] += 1
        elif problems := list(_find_problems(annotation)):
            faults += name_problems(file, f"annotation {annotation['id']}", problems)
        else:
            found = np.array(annotation.get("keypoints") or [0] * NUMBERS, np.float64).reshape(-1, 3)
            joints[annotation["id"]] = found
            labelled = int((found[:, 2] > 0).sum())
            if not labelled and not annotation.get("iscrowd"):
                counted["persons have no labelled joint; training leaves them out, and evaluation ignores them"] += 1
            if labelled and not annotation.get("area", 1):
                counted["persons with labelled joints have the area 0, so that no prediction can match them"] += 1
            if annotation.get("num_keypoints", labelled) != labelled:
                counted["persons have another num_keypoints than labelled joints; the joints are used"] += 1
    if faults:
        raise report_faults(name, faults)
    notes = (*images.notes, *(f"{name}: {number} {what}." for what, number in counted.items()))
    annotations = tuple(_select_persons(boxes, joints) for boxes in images.annotations)
    return replace(images, annotations=annotations, notes=notes), persons


def load_detections(
    file: Path | str, images: BoxedImages, persons: frozenset[int]
) -> tuple[tuple[ScoredBoxes, ...], tuple[str, ...]]:
    """Read detected persons in COCO's format of results: the boxes of each image, and notes on what was left out.

    Those of categories that are no `persons` or without area are left out; the first twenty faults are listed.
    """
    file = Path(file)
    content = read_json(file, A_DETECTIONS_FILE)
    if not isinstance(content, list):
        raise FaultyFile(Fault(file, f"holds {name_kind(content)}", A_DETECTIONS_FILE, "Check the path."))
    faults: list[Fault] = []
    counted: Counter[str] = Counter()
    of_image: dict[int, list[tuple[list[float], float]]] = {identity: [] for identity in images.image_ids}
    for number, row in enumerate(content, start=1):
        if problems := list(_find_detection_problems(row, of_image)):
            faults += name_problems(file, f"detection number {number}", problems)
        elif row.get("category_id", PERSON["id"]) not in persons:
            counted["detections are of other categories; they are left out"] += 1
        elif not all(row["bbox"][2:]):
            counted["detections have no width or no height; they are left out"] += 1
        else:
            left, top, width, height = row["bbox"]
            of_image[row["image_id"]].append(([left, top, left + width, top + height], float(row["score"])))
    if faults:
        raise report_faults(f"{images.name}, detections", faults)
    boxes = tuple(
        (
            np.array([box for box, _ in found], np.float64).reshape(-1, 4),
            np.array([score for _, score in found], np.float64),
        )
        for found in of_image.values()
    )
    return boxes, tuple(f"{file.name}: {number} {what}." for what, number in counted.items())


def write_people(images: PeopleImages, directory: Path | str, split: str) -> None:
    """Write images and persons as COCO does: `directory/annotations/person_keypoints_<split>.json` and the folder of images."""
    root = Path(directory)
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir(exist_ok=True)
    listed: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, people in enumerate(images.people, start=1):
        pixels = (images.read(number - 1) * 255).round().byte().permute(1, 2, 0).numpy()
        height, width = pixels.shape[:2]
        name = f"{number:012d}.png"
        Image.fromarray(pixels).save(root / split / name)
        listed.append({"id": number, "file_name": name, "width": width, "height": height})
        rows = enumerate(list_annotations(people, number), start=len(annotations) + 1)
        annotations += [{"id": place, **row} for place, row in rows]
    content = {"images": listed, "annotations": annotations, "categories": [PERSON]}
    (root / "annotations" / f"person_keypoints_{split}.json").write_text(json.dumps(content), encoding="utf-8")


def list_annotations(people: People, image: int) -> Iterator[dict[str, Any]]:
    """Yield the persons of an image as COCO annotates them, without ids."""
    for row, (box, visibility) in enumerate(zip(people.boxes.tolist(), people.visibility, strict=True)):
        left, top, right, bottom = box
        yield {
            "image_id": image,
            "category_id": PERSON["id"],
            "bbox": [left, top, right - left, bottom - top],
            "area": float(people.area[row]),
            "iscrowd": int(people.crowd[row]),
            "num_keypoints": int((visibility > 0).sum()),
            "keypoints": list_joints(people.joints[row], visibility),
        }


def _find_persons(file: Path, categories: Sequence[Any]) -> frozenset[int]:
    """Return the ids of the categories with COCO's joints."""
    found: list[int] = []
    names: list[str] = []
    for category in categories:
        if not isinstance(category, Mapping):
            continue
        names.append(str(category.get("name", category.get("id"))))
        if "keypoints" not in category:
            continue
        listed = category["keypoints"]
        if not isinstance(listed, list) or len(listed) != len(JOINTS):
            count = f"{len(listed)}" if isinstance(listed, list) else "no list of"
            raise FaultyFile(_category_fault(file, names[-1], f"has {count} keypoints"))
        for number, (name, expected) in enumerate(zip(listed, JOINTS, strict=True), start=1):
            if "_".join(str(name).lower().replace("-", " ").replace("_", " ").split()) != expected:
                what = f"has {quote(name)} as keypoint {number}, where COCO has {expected!r}"
                raise FaultyFile(_category_fault(file, names[-1], what))
        found.append(category.get("id", 0))
    if not found:
        raise FaultyFile(_category_fault(file, ", ".join(names[:5]), "has no keypoints"))
    return frozenset(found)


def _category_fault(file: Path, name: str, found: str) -> Fault:
    expected = f"a category with COCO's {len(JOINTS)} keypoints: {', '.join(JOINTS)}"
    return Fault(file, f"the category {quote(name)} {found}", expected, "Export persons with this skeleton.")


def _find_problems(annotation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the problems of a person's keypoints, as (found, expected)."""
    numbers = annotation.get("keypoints")
    if numbers is None and annotation.get("iscrowd"):
        return
    if not isinstance(numbers, list) or len(numbers) != NUMBERS:
        count = f"{len(numbers)} numbers of keypoints" if isinstance(numbers, list) else "no keypoints"
        yield f"has {count}", THE_NUMBERS
    elif not all(map(is_finite, numbers)):
        yield "has keypoints that are not numbers", THE_NUMBERS
    elif strange := [seen for seen in numbers[2::3] if seen not in (0, 1, 2)]:
        yield f"has a keypoint of visibility {quote(strange[0])}", THE_NUMBERS


def _find_detection_problems(row: Any, images: Mapping[int, object]) -> Iterator[tuple[str, str]]:
    """Yield the problems of a detection, as (found, expected)."""
    if not isinstance(row, Mapping):
        yield f"is {name_kind(row)}", "an object"
        return
    image, box, score = row.get("image_id"), row.get("bbox"), row.get("score")
    if not isinstance(image, int) or image not in images:
        yield f"is of image {quote(image)}, which is not in the file of keypoints", "an image of this split"
    if not isinstance(score, int | float) or not math.isfinite(score):
        yield f"has the score {quote(score)}", "a finite number"
    if not is_box(box) or min(box[2:]) < 0:
        yield f"has the box {quote(box)}", A_BOX
