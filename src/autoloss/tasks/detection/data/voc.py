"""The boxes of PASCAL VOC 2007 and 2012, in the original XML (Section 4.2, generalisation).

Source: Everingham et al., The PASCAL Visual Object Classes Challenge 2007 and 2012, development kit. VOC counts pixels from 1 and
both ends of a box belong to it; here a box reaches from its first pixel's left border to its last one's right border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from autoloss.tasks.detection.data.boxed import BoxedImages, Boxes
from autoloss.tasks.detection.data.coco import find_problems, to_boxes
from autoloss.tasks.files import (
    Fault,
    FaultyFile,
    find_directory,
    find_root,
    name_problems,
    read_names,
    report_decoding,
    report_faults,
)
from autoloss.tasks.segmentation.data.voc import CLASSES as SEGMENTED

NAME = "VOC"
CLASSES = SEGMENTED[1:]
LISTS = "ImageSets/Main"
LAYOUT = """\
  VOCdevkit/VOC2007/JPEGImages/000005.jpg, …
  VOCdevkit/VOC2007/Annotations/000005.xml, …
  VOCdevkit/VOC2007/ImageSets/Main/trainval.txt, test.txt, …"""
LABELS = {name: label for label, name in enumerate(CLASSES, start=1)}


def load_voc(directory: Path | str, year: int, split: str) -> BoxedImages:
    """Read the annotations of a split, such as 2007 trainval; images are read later.

    Args:
        directory: VOCdevkit, or the folder that holds it.
    """
    place = find_directory(directory, NAME, LAYOUT)
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
    """Read one file as COCO would annotate it; if it is faulty, append its faults and return None."""
    try:
        with report_decoding(file, "an annotation of VOC in XML"):
            root = ElementTree.parse(file).getroot()
    except FaultyFile as error:
        faults.append(error.fault)
        return None
    if root.tag != "annotation":
        faults.append(Fault(file, f"holds <{root.tag}>", "<annotation>", "Copy it again from its source."))
        return None
    width, height = (_parse_number(root, f"size/{side}") or 0.0 for side in ("width", "height"))
    if not 1 <= min(width, height) <= max(width, height) < math.inf:
        faults.append(Fault(file, "has no size", "size with a width and a height"))
        return None
    image = {"width": int(width), "height": int(height)}
    rows = [_to_row(number, one) for number, one in enumerate(root.iterfind("object"), start=1)]
    before = len(faults)
    for row in rows:
        faults += name_problems(file, f"object {row['id']}", find_problems(row, image, LABELS))
    if len(faults) > before:
        return None
    difficult = np.array([_text(one, "difficult") == "1" for one in root.iterfind("object")], dtype=bool)
    return replace(to_boxes(image, rows, LABELS), difficult=difficult)


def _to_row(number: int, one: Element) -> dict[str, Any]:
    sides = [_parse_number(one, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    left, top, right, bottom = (math.nan if side is None else side for side in sides)
    box = None if one.find("bndbox") is None else [left - 1, top - 1, right - left + 1, bottom - top + 1]
    return {"id": number, "category_id": _text(one, "name"), "bbox": box}


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _parse_number(element: Element, path: str) -> float | None:
    try:
        return float(_text(element, path))
    except ValueError:
        return None
