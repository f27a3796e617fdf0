"""The boxes and masks of COCO's instances, in the original JSON (Section 4.2).

Source: Lin et al., 2014, Microsoft COCO, and the data format of cocodataset.org. As in COCO's own tools, boxes without width or
height and masks without a pixel are evaluated, although no detection can match them, and are not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from autoloss.errors import name_kind, quote
from autoloss.tasks.detection.data.boxed import IDENTITIES_SHOWN, LEAST_SIDE, BoxedImages, Boxes
from autoloss.tasks.detection.masks import (
    LARGEST,
    Problem,
    find_mask_problems,
    find_outline_problems,
    is_finite,
    mask_areas,
    reaches_outside,
    to_run_lengths,
)
from autoloss.tasks.files import (
    Fault,
    FaultyFile,
    find_directory,
    leads_outside,
    name_problems,
    read_json,
    report_faults,
)

NAME = "COCO"
LAYOUT = """\
  annotations/instances_train2017.json, instances_val2017.json
  train2017/000000000009.jpg, …
  val2017/000000000139.jpg, …"""
A_BOX = "a box of four numbers: left, top, width, height"
GROUPS = ("images", "annotations", "categories")
AN_INSTANCES_FILE = "COCO instances: an object with the lists images, annotations and categories"


def load_coco(
    directory: Path | str, split: str, *, masks: bool = False, like: BoxedImages | None = None
) -> BoxedImages:
    """Read the instances of a split, such as train2017; images are read later.

    Args:
        like: A split whose classes this one has; a file may list fewer categories, or others that none of its annotations has.

    Raises:
        RequestError: A part of the folder is missing, or annotations are faulty; the first twenty are listed, each by its id.
    """
    root = find_directory(directory, NAME, LAYOUT)
    file = root / "annotations" / f"instances_{split}.json"
    return load_instances(file, root / split, f"{NAME} {split}", read_annotations(file), masks=masks, like=like)


def load_instances(
    file: Path,
    folder: Path,
    name: str,
    content: Mapping[str, list[Any]],
    *,
    masks: bool = False,
    like: BoxedImages | None = None,
) -> BoxedImages:
    """Check the content of a file of instances, whose images are in a folder; the rest as for `load_coco`."""
    faults: list[Fault] = []
    listed = _index_by_id(file, content["categories"], "category", ("name",), faults)
    names = {identity: row["name"] for identity, row in sorted(listed.items())}
    if like is not None:
        known = dict(zip(like.categories, like.classes, strict=True))
        for identity in sorted(names.keys() & known.keys()):
            if names[identity] != known[identity]:
                problem = f"is {quote(names[identity])}", f"{quote(known[identity])}, as in {like.name}"
                faults += name_problems(file, f"category {identity}", [problem])
        names = known
    # Of detections with equal scores COCO's own evaluation counts those in images with lower ids first.
    found = _index_by_id(file, content["images"], "image", ("file_name", "width", "height"), faults)
    images = dict(sorted(found.items()))
    labels = {identity: label for label, identity in enumerate(names, start=1)}
    of_image: dict[int, list[Mapping[str, Any]]] = {identity: [] for identity in images}
    seen: set[int] = set()
    for number, annotation in enumerate(content["annotations"], start=1):
        identity = annotation.get("id") if isinstance(annotation, Mapping) else None
        place = annotation.get("image_id") if isinstance(annotation, Mapping) else None
        image = images.get(place) if isinstance(place, int) else None
        problems = [*find_problems(annotation, image, labels)]
        if masks and not problems:
            problems += find_mask_problems(annotation.get("segmentation"), image or {})
        if not isinstance(identity, int):
            problems.append(
                ("lacks an id" if identity is None else f"has the id {quote(identity)}", "a whole number of its own")
            )
            place = f"annotation number {number}"
        else:
            problems += [("has the id of another", "ids that differ")] if identity in seen else []
            place = f"annotation {identity}"
            seen.add(identity)
        faults += name_problems(file, place, problems)
        if not problems:
            of_image[annotation["image_id"]].append(annotation)
    if faults:
        raise report_faults(name, faults)
    annotations = tuple(to_boxes(images[identity], rows, labels, masks) for identity, rows in of_image.items())
    return BoxedImages(
        name,
        tuple(folder / image["file_name"] for image in images.values()),
        annotations,
        tuple(names.values()),
        tuple(f"{name}: {note}" for note in _find_notes(images, of_image, annotations, masks)),
        tuple(names),
        tuple(images),
    )


def _find_notes(
    images: Mapping[int, Mapping[str, Any]],
    of_image: Mapping[int, Sequence[Mapping[str, Any]]],
    annotations: Sequence[Boxes],
    masks: bool,
) -> Iterator[str]:
    """Yield notes on what is unusual but accepted, as by COCO's own tools."""
    flat = sum(min(row["bbox"][2:]) < LEAST_SIDE for rows in of_image.values() for row in rows)
    if flat:
        yield f"{flat} boxes are less than {LEAST_SIDE} pixels wide or high; training leaves them out, evaluation counts them."
    if not masks:
        return
    blank = sum(int((mask_areas(boxes.masks or ()) == 0).sum()) for boxes in annotations)
    if blank:
        yield f"{blank} masks have no pixel in their image; training leaves them out, evaluation counts them."
    every = ((row, images[identity]) for identity, rows in of_image.items() for row in rows)
    cut = [row["id"] for row, image in every if reaches_outside(row["segmentation"], image)]
    if cut:
        listed = ", ".join(map(str, cut[:IDENTITIES_SHOWN])) + (", …" if len(cut) > IDENTITIES_SHOWN else "")
        yield f"{len(cut)} masks reach outside their image, where they are cut off (annotations {listed})."


def read_annotations(
    file: Path,
    expected: str = AN_INSTANCES_FILE,
    remedy: str = "Use the file of instances, not that of captions or keypoints.",
) -> dict[str, list[Any]]:
    """Read a JSON file with lists of images, annotations and categories, whatever these hold."""
    content = read_json(file, expected)
    lacking = [name for name in GROUPS if not isinstance(content, dict) or not isinstance(content.get(name), list)]
    if lacking:
        raise FaultyFile(Fault(file, f"lacks {' and '.join(lacking)}", expected, remedy))
    return content


FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "id": ("a whole number", lambda value: isinstance(value, int)),
    "width": ("pixels, at least 1", lambda value: isinstance(value, int) and 1 <= value < LARGEST),
    "height": ("pixels, at least 1", lambda value: isinstance(value, int) and 1 <= value < LARGEST),
    "file_name": ("a path in the split's folder", lambda value: isinstance(value, str) and not leads_outside(value)),
    "name": ("text", lambda value: isinstance(value, str)),
}
"""Field of an image or a category → its type, for messages, and whether a value has it."""


def _index_by_id(
    file: Path, rows: Sequence[Any], kind: str, needed: Sequence[str], faults: list[Fault]
) -> dict[int, Mapping[str, Any]]:
    """Return images or categories by their ids, in the order of the file; append the faults of invalid ones."""
    found: dict[int, Mapping[str, Any]] = {}
    owners: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        values = row if isinstance(row, Mapping) else {}
        identity = values.get("id")
        lacking = [name for name in ("id", *needed) if name not in values]
        unfit = [name for name in ("id", *needed) if name in values and not FIELDS[name][1](values[name])]
        if lacking:
            problem = f"lacks {', '.join(lacking)}", f"each {kind} with {', '.join(needed)}"
        elif unfit:
            expected = " and ".join(FIELDS[name][0] for name in unfit)
            problem = f"has the {unfit[0]} {quote(values[unfit[0]])}", f"{' and '.join(unfit)}: {expected}"
        elif identity in found:
            problem = "comes twice", "ids that differ"
        # One picture of several images would be trained on and measured on.
        elif values.get("file_name") in owners:
            problem = (
                f"has the file of image {owners[values['file_name']]}",
                "an image for each file, with all of its objects",
            )
        else:
            if "file_name" in needed:
                owners[values["file_name"]] = values["id"]
            found[values["id"]] = values
            continue
        place = f"{kind} {identity if isinstance(identity, int) else f'number {number}'}"
        faults += name_problems(file, place, [problem])
    return found


def is_box(box: Any) -> TypeGuard[list[float]]:
    """Return whether a value is a box of four numbers."""
    return isinstance(box, list) and len(box) == 4 and all(map(is_finite, box))


def find_problems(annotation: Any, image: Mapping[str, Any] | None, labels: Mapping[Any, int]) -> Iterator[Problem]:
    """Yield the problems of an annotation; the image is None where it is not listed."""
    if not isinstance(annotation, Mapping):
        yield f"is {name_kind(annotation)}", "an object"
        return
    if image is None:
        yield f"is of image {quote(annotation.get('image_id'))}, which is not listed", "an image of the file"
    category = annotation.get("category_id")
    if not isinstance(category, int | str) or category not in labels:
        yield f"has the category {quote(category)}", f"one of the {len(labels)} classes"
    if annotation.get("iscrowd", 0) not in (0, 1):
        yield f"has the iscrowd {quote(annotation['iscrowd'])}", "0 or 1"
    if not is_finite(area := annotation.get("area", 0)) or area < 0:
        yield f"has the area {quote(area)}", "a number of pixels, at least 0"
    box = annotation.get("bbox")
    if not is_box(box):
        yield "has no box" if box is None else f"has the box {quote(box)}", A_BOX
        return
    left, top, width, height = box
    if min(width, height) < 0:
        yield f"has a box of {width:g}×{height:g} pixels", "a width and a height of at least 0"
    elif image is not None and not (
        left <= image["width"] and top <= image["height"] and left + width >= 0 and top + height >= 0
    ):
        yield (
            f"has the box {box}, outside its image of {image['width']}×{image['height']} pixels",
            "a box that touches its image",
        )
    if image is not None and annotation.get("segmentation") is not None:
        yield from find_outline_problems(annotation["segmentation"], image)


def to_boxes(
    image: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], labels: Mapping[Any, int], masks: bool = False
) -> Boxes:
    """Return the annotations of an image, which have no problems, as arrays."""
    corners = np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)
    outlines = tuple(to_run_lengths(row["segmentation"], image) for row in rows) if masks else None
    size = corners[:, 2] * corners[:, 3] if outlines is None else mask_areas(outlines)
    return Boxes(
        (int(image["width"]), int(image["height"])),
        np.concatenate([corners[:, :2], corners[:, :2] + corners[:, 2:]], axis=1).astype(np.float32),
        np.array([labels[row["category_id"]] for row in rows], dtype=np.int64),
        np.array([bool(row.get("iscrowd", 0)) for row in rows], dtype=bool),
        np.zeros(len(rows), dtype=bool),
        np.array([row.get("area", area) for row, area in zip(rows, size, strict=True)], dtype=np.float64),
        np.array([row["id"] for row in rows], dtype=np.int64),
        outlines,
    )
