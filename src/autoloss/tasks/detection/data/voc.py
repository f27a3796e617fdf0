"""The boxes of PASCAL VOC 2007 and 2012, in the original XML (Section 4.2, generalisation).

Source: Everingham et al., The PASCAL Visual Object Classes Challenge 2007 and 2012, development kit. VOC counts pixels from 1 and
both ends of a box belong to it; here a box reaches from its first pixel's left border to its last one's right border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from autoloss.tasks.detection.data.boxed import BoxedImages, Boxes
from autoloss.tasks.detection.data.outlines import LARGEST
from autoloss.tasks.files.faults import REMEDY, Fault, FaultyFile, name_problems, report_decoding, report_faults
from autoloss.tasks.files.layout import find_directory, find_root, read_names

NAME = "VOC"
CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
LISTS = "ImageSets/Main"
LAYOUT = """\
  VOCdevkit/VOC2007/JPEGImages/000005.jpg, …
  VOCdevkit/VOC2007/Annotations/000005.xml, …
  VOCdevkit/VOC2007/ImageSets/Main/trainval.txt, test.txt, …"""
SIDES = ("xmin", "ymin", "xmax", "ymax")
AN_ANNOTATION = "an annotation of VOC in XML"


def load_voc(directory: Path | str, year: int, split: str) -> BoxedImages:
    """Read the annotations of a split, such as 2007 trainval; images are read later.

    Args:
        directory: VOCdevkit, or the folder that holds it.

    Raises:
        RequestError: A part of the folder is missing, or annotations are faulty; the first twenty are listed, each by its number.
    """
    place = find_directory(Path(directory), NAME, LAYOUT)
    folder = f"VOC{year}"
    roots = (place, place / folder, place / "VOCdevkit" / folder)
    root = find_root(roots, ("JPEGImages", "Annotations", LISTS), f"{NAME} {year}", LAYOUT)
    name = f"{NAME} {year} {split}"
    stems = read_names(root / LISTS / f"{split}.txt", name)
    faults: list[Fault] = []
    annotations = [_read_annotation(root / "Annotations" / f"{stem}.xml", faults) for stem in stems]
    if faults:
        raise report_faults(name, faults)
    files = tuple(root / "JPEGImages" / f"{stem}.jpg" for stem in stems)
    return BoxedImages(name, files, tuple(boxes for boxes in annotations if boxes), CLASSES)


def concatenate(parts: Sequence[BoxedImages]) -> BoxedImages:
    """Concatenate the images of several splits, such as 2007 and 2012 trainval."""
    return BoxedImages(
        " and ".join(part.name for part in parts),
        tuple(file for part in parts for file in part.files),
        tuple(boxes for part in parts for boxes in part.annotations),
        parts[0].classes,
        tuple(note for part in parts for note in part.notes),
    )


def _read_annotation(file: Path, faults: list[Fault]) -> Boxes | None:
    """Read one file; if it is faulty, append its faults and return None."""
    before = len(faults)
    try:
        root = _parse_xml(file)
    except FaultyFile as error:
        faults.append(error.fault)
        return None
    width, height = (_parse_number(root, f"size/{side}") for side in ("width", "height"))
    if width is None or height is None or min(width, height) < 1:
        faults.append(Fault(file, "has no size", "size with a width and a height", REMEDY))
        return None
    objects = root.findall("object")
    for number, one in enumerate(objects, start=1):
        faults += name_problems(file, f"object {number}", _find_problems(one, width, height))
    if len(faults) > before:
        return None
    sides = np.array([[_parse_number(one, f"bndbox/{side}") or 0.0 for side in SIDES] for one in objects]).reshape(
        -1, 4
    )
    boxes = sides - (1, 1, 0, 0)
    return Boxes(
        (int(width), int(height)),
        boxes.astype(np.float32),
        np.array([CLASSES.index(_text(one, "name")) + 1 for one in objects], dtype=np.int64),
        np.zeros(len(objects), dtype=bool),
        np.array([_text(one, "difficult") == "1" for one in objects], dtype=bool),
        (boxes[:, 2:] - boxes[:, :2]).prod(axis=1),
        np.arange(1, len(objects) + 1),
    )


def _parse_xml(file: Path) -> Element:
    with report_decoding(file, AN_ANNOTATION):
        root = ElementTree.parse(file).getroot()
    if root.tag != "annotation":
        raise FaultyFile(Fault(file, f"holds <{root.tag}>", "<annotation>", "Copy it again from its source."))
    return root


def _find_problems(one: Element, width: float, height: float) -> Iterator[tuple[str, str]]:
    """Yield the problems of an object, as (found, expected)."""
    if _text(one, "name") not in CLASSES:
        yield f"is a {_text(one, 'name') or 'thing without a name'!r}", "one of VOC's 20 classes"
    if one.find("bndbox") is None:
        yield "has no box", "a bndbox with xmin, ymin, xmax and ymax"
        return
    sides = [_parse_number(one, f"bndbox/{side}") for side in SIDES]
    lacking = [name for name, side in zip(SIDES, sides, strict=True) if side is None]
    if lacking:
        yield f"has no number for {', '.join(lacking)}", "a bndbox with xmin, ymin, xmax and ymax"
        return
    left, top, right, bottom = (side or 0.0 for side in sides)
    if right < left or bottom < top:
        yield f"has the box {left:g}, {top:g}, {right:g}, {bottom:g}", "xmin ≤ xmax and ymin ≤ ymax"
    elif left > width or top > height or right < 1 or bottom < 1:
        yield (
            f"has the box {left:g}, {top:g}, {right:g}, {bottom:g}, outside its image of {width:g}×{height:g} pixels",
            "a box that touches its image",
        )


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _parse_number(element: Element, path: str) -> float | None:
    try:
        number = float(_text(element, path))
    except ValueError:
        return None
    return number if abs(number) < LARGEST else None
