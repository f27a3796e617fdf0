"""The boxes and masks of COCO's instances, in the original JSON (Section 4.2).

Source: Lin et al., 2014, Microsoft COCO, and the data format of cocodataset.org. As in COCO's own tools, boxes without width or
height and masks without a pixel are evaluated, although no detection can match them, and are not trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from autoloss.errors import quote
from autoloss.tasks.detection.data.boxed import IDENTITIES_SHOWN, BoxedImages, Boxes
from autoloss.tasks.detection.data.outlines import (
    LARGEST,
    Problem,
    find_mask_problems,
    find_outline_problems,
    is_finite,
    reaches_outside,
    to_run_lengths,
)
from autoloss.tasks.detection.masks import mask_areas
from autoloss.tasks.files.faults import REMEDY, Fault, FaultyFile, name_problems, read_json, report_faults
from autoloss.tasks.files.layout import find_directory, leads_outside

NAME = "COCO"
LAYOUT = """\
  annotations/instances_train2017.json, instances_val2017.json
  train2017/000000000009.jpg, …
  val2017/000000000139.jpg, …"""
A_BOX = "a box of four numbers: left, top, width, height"
GROUPS = ("images", "annotations", "categories")
AN_INSTANCES_FILE = "COCO instances: an object with the lists images, annotations and categories"


def load_coco(directory: Path | str, split: str, *, masks: bool = False) -> BoxedImages:
    """Read the instances of a split, such as train2017; images are read later.

    Args:
        masks: Read and check the masks of the instances.

    Raises:
        RequestError: A part of the folder is missing, or annotations are faulty; the first twenty are listed, each by its id.
    """
    root = find_directory(Path(directory), NAME, LAYOUT)
    return load_instances(
        root / "annotations" / f"instances_{split}.json", root / split, f"{NAME} {split}", masks=masks
    )


def load_instances(
    file: Path, folder: Path, name: str, *, masks: bool = False, content: Mapping[str, list[Any]] | None = None
) -> BoxedImages:
    """Read a file of instances whose images are in a folder; arguments as for `load_coco`.

    Args:
        content: Content of the file, if it has been read already.

    Raises:
        RequestError: It cannot be read, or annotations are faulty.
    """
    content = read_annotations(file) if content is None else content
    faults: list[Fault] = []
    categories = _index_by_id(file, content["categories"], "category", ("name",), faults)
    images = _index_by_id(file, content["images"], "image", ("file_name", "width", "height"), faults)
    labels = {identity: label for label, identity in enumerate(sorted(categories), start=1)}
    of_image: dict[int, list[Mapping[str, Any]]] = {identity: [] for identity in images}
    seen: Counter[Any] = Counter()
    for number, annotation in enumerate(content["annotations"]):
        identity = annotation.get("id") if isinstance(annotation, Mapping) else None
        identity = identity if isinstance(identity, int) else None
        seen[identity] += 1
        problems = [*_find_problems(annotation, images, labels)]
        if masks and not problems:
            problems += find_mask_problems(annotation.get("segmentation"), images[annotation["image_id"]])
        if identity is None:
            problems.append(("lacks an id", "a whole number of its own"))
        elif seen[identity] > 1:
            problems.append(("has the id of another", "ids that differ"))
        place = f"annotation {identity}" if identity is not None else f"annotation number {number + 1}, without an id,"
        faults += name_problems(file, place, problems)
        if not problems:
            of_image[annotation["image_id"]].append(annotation)
    if faults:
        raise report_faults(name, faults)
    annotations = tuple(_to_boxes(images[identity], rows, labels, masks) for identity, rows in of_image.items())
    return BoxedImages(
        name,
        tuple(folder / str(image["file_name"]) for image in images.values()),
        annotations,
        tuple(str(categories[identity]["name"]) for identity in sorted(categories)),
        tuple(f"{name}: {note}" for note in _find_notes(images, of_image, annotations, masks)),
    )


def _find_notes(
    images: Mapping[int, Mapping[str, Any]],
    of_image: Mapping[int, Sequence[Mapping[str, Any]]],
    annotations: Sequence[Boxes],
    masks: bool,
) -> Iterator[str]:
    """Yield notes on what is unusual but accepted, as by COCO's own tools."""
    flat = sum(not all(row["bbox"][2:]) for rows in of_image.values() for row in rows)
    if flat:
        yield f"{flat} boxes have no width or no height; training leaves them out, evaluation counts them."
    if not masks:
        return
    blank = sum(int((mask_areas(boxes.masks or ()) == 0).sum()) for boxes in annotations)
    if blank:
        yield f"{blank} masks have no pixel in their image; training leaves them out, evaluation counts them."
    cut = [
        row["id"]
        for identity, rows in of_image.items()
        for row in rows
        if reaches_outside(row["segmentation"], images[identity])
    ]
    if cut:
        listed = ", ".join(map(str, cut[:IDENTITIES_SHOWN])) + (", …" if len(cut) > IDENTITIES_SHOWN else "")
        yield f"{len(cut)} masks reach outside their image, where they are cut off (annotations {listed})."


def read_annotations(
    file: Path,
    expected: str = AN_INSTANCES_FILE,
    remedy: str = "Use the file of instances, not that of captions or keypoints.",
) -> dict[str, list[Any]]:
    """Read a JSON file with lists of images, annotations and categories, whatever these hold.

    Raises:
        RequestError: It is missing, is no such file, or is damaged.
    """
    content = read_json(file, expected)
    lacking = [name for name in GROUPS if not isinstance(content, dict) or not isinstance(content.get(name), list)]
    if lacking:
        raise FaultyFile(Fault(file, f"lacks {' and '.join(lacking)}", expected, remedy))
    return content


def _index_by_id(
    file: Path, rows: Sequence[Any], kind: str, needed: Sequence[str], faults: list[Fault]
) -> dict[int, Mapping[str, Any]]:
    """Return images or categories by their ids, in the order of the file; append the faults of invalid ones."""
    found: dict[int, Mapping[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        identity = row.get("id") if isinstance(row, Mapping) else None
        place = f"{kind} {identity if isinstance(identity, int) else f'number {number}'}"
        lacking = [name for name in ("id", *needed) if not isinstance(row, Mapping) or name not in row]
        if lacking:
            faults.append(
                Fault(file, f"{place} lacks {', '.join(lacking)}", f"each {kind} with {', '.join(needed)}", REMEDY)
            )
        elif unfit := [name for name in ("id", *needed) if not _is_valid(name, row[name])]:
            expected = " and ".join(EXPECTED[name] for name in unfit)
            faults.append(
                Fault(
                    file,
                    f"{place} has the {unfit[0]} {quote(row[unfit[0]])}",
                    f"{' and '.join(unfit)}: {expected}",
                    REMEDY,
                )
            )
        elif identity in found:
            faults.append(Fault(file, f"{place} comes twice", "ids that differ", REMEDY))
        else:
            found[row["id"]] = row
    return found


EXPECTED = {
    "id": "a whole number",
    "width": "pixels, at least 1",
    "height": "pixels, at least 1",
    "file_name": "a path inside the split's folder",
    "name": "text",
}
"""Field of an image or a category → its type, for messages."""


def _is_valid(name: str, value: Any) -> bool:
    match name:
        case "id":
            return isinstance(value, int)
        case "width" | "height":
            return isinstance(value, int) and 1 <= value < LARGEST
        case "file_name":
            return isinstance(value, str) and not leads_outside(value)
        case _:
            return isinstance(value, str)


def is_box(box: Any) -> TypeGuard[list[float]]:
    """Return whether a value is a box of four numbers."""
    return isinstance(box, list) and len(box) == 4 and all(map(is_finite, box))


def _find_problems(
    annotation: Any, images: Mapping[int, Mapping[str, Any]], labels: Mapping[int, int]
) -> Iterator[Problem]:
    """Yield the problems of an annotation."""
    if not isinstance(annotation, Mapping):
        yield f"is a {type(annotation).__name__}", "an object"
        return
    place, category = annotation.get("image_id"), annotation.get("category_id")
    image = images.get(place) if isinstance(place, int) else None
    if image is None:
        yield f"is of image {quote(place)}, which is not listed", "an image of the file"
    if not isinstance(category, int) or category not in labels:
        yield f"has the category {quote(category)}", f"one of the {len(labels)} that the file lists"
    if not is_finite(annotation.get("area", 0)):
        yield f"has the area {quote(annotation['area'])}", "a number of pixels"
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
            f"has the box {box}, outside image {annotation['image_id']} of {image['width']}×{image['height']} pixels",
            "a box that touches its image",
        )
    if image is not None and annotation.get("segmentation") is not None:
        yield from find_outline_problems(annotation["segmentation"], image)


def _to_boxes(
    image: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], labels: Mapping[int, int], masks: bool
) -> Boxes:
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
