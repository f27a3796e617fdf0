"""Broken data sets: `autoloss check` answers each with one screen that names the file, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.screens import refusal

Words = tuple[object, ...]
"""A command and its arguments."""

ROWS = [f"{age},{'blue' if age % 2 else 'red'},{'a' if age < 12 else 'b'}" for age in range(30)]
GOOD = "\n".join(["age,color,y", *ROWS])
WIDE = ",".join(f"column{number}" for number in range(5_000))

TABLES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "table.csv is empty", "expected a header"),
    "header alone": (b"age,color,y\n", "holds no rows", "Add rows"),
    "no header": (b"1,2,3\n4,5,6\n", "only numbers", "expected a header"),
    "no target": (GOOD.replace(",y", ",z", 1).encode(), "no column in table.csv named 'y'", "Known: age, color, z"),
    "no target among thousands": (f"{WIDE}\n{WIDE}\n".encode(), "named 'y'", "5000 in all"),
    "names twice": (
        GOOD.replace("age", "color", 1).encode(),
        "'color': the same name is used by columns 1 and 2",
        "line 1",
    ),
    "short row": (GOOD.replace("\n7,blue,a", "\n7,blue").encode(), "2 values where the header has 3", "line 9"),
    "no number": (
        GOOD.replace("\n7,", "\n7.5 kg,").encode(),
        "'7.5 kg' is not a finite number",
        "line 9, column 'age'",
    ),
    "a number without end": (GOOD.replace("\n7,", "\n" + "9" * 9_000 + ",").encode(), "9999…9999", "line 9"),
    "missing value": (GOOD.replace("\n7,blue", "\n7,").encode(), "line 9, column 'color'", "--set missing=impute"),
    "names as classes": (
        "\n".join(["x,y", *(f"{n},n{n}" for n in range(99))]).encode(),
        "fewer than 3",
        "--set target=",
    ),
    "numbers as classes": (
        "\n".join(["x,y", *(f"{n},{n}" for n in range(99))]).encode(),
        "a quantity",
        "--metric with one",
    ),
    "not UTF-8": (GOOD.replace("red", "r\xe9d", 1).encode("latin-1"), "byte 0xe9 is not UTF-8", "line 2"),
    "UTF-16": (GOOD.encode("utf-16"), "byte 0xff is not UTF-8", "line 1"),
    "open quote": (GOOD.replace("7,blue", '7,"blue').encode(), "line 9", "Check the quotes"),
    "huge cell": (GOOD.replace("\n7,blue", "\n7," + "x" * 200_000).encode(), "field larger than field limit", "line 9"),
    "one class": (GOOD.replace(",b", ",a").encode(), "is 'a'", "expected at least two values"),
    "rare class": ("\n".join([*GOOD.splitlines()[:-17], "1,red,b"]).encode(), "fewer than 3 rows", "'b' in line"),
    "too many texts": (
        "\n".join(["id,y", *(f"person {n},{'ab'[n % 2]}" for n in range(80))]).encode(),
        "80 different texts",
        "at most 50",
    ),
    "hostile names": (b"\x1b[2J,[red],y\n1,2\n", "2 values where the header has 3", "line 2"),
    "zeros": (bytes(3_000), "table.csv holds no rows", "Add rows"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not UTF-8", "CSV in UTF-8"),
}


def write_table(kind: str, folder: Path) -> Words:
    path = folder / "table.csv"
    path.write_bytes(TABLES[kind][0])
    return "check", "tabular", "--data", path, "--set", "target=y"


def test_a_folder_in_place_of_a_table_gets_one_screen(tmp_path):
    said = refusal("check", "tabular", "--data", tmp_path, "--set", "target=y")
    assert "cannot be read: Is a directory" in said
    assert "path of a CSV file" in said


Change = Callable[[dict[str, Any]], object]
COCO: dict[str, tuple[Change, str, str]] = {
    "id is text": (lambda c: c["images"][0].update(id="seven"), "has the id 'seven'", "a whole number"),
    "id is a list": (lambda c: c["annotations"][0].update(id=[1], bbox=None), "annotation number 1", "a box of four"),
    "width is text": (lambda c: c["images"][0].update(width="wide"), "has the width 'wide'", "at least 1"),
    "no height": (lambda c: c["images"][0].update(height=0), "has the height 0", "at least 1"),
    "file elsewhere": (
        lambda c: c["images"][0].update(file_name="../../../etc/passwd"),
        "'../../../etc/passwd'",
        "in the split's folder",
    ),
    "image is a list": (
        lambda c: c["annotations"][0].update(image_id=[7]),
        "image [7], which is not listed",
        "Correct it in the file",
    ),
    "category is an object": (lambda c: c["annotations"][0].update(category_id={}), "category {}", "one of the 2"),
    "a number without end": (
        lambda c: c["annotations"][0].update(bbox=[10**400, 0, 1, 1]),
        "has the box",
        "four numbers",
    ),
    "a box to the end of the world": (
        lambda c: c["annotations"][0].update(bbox=[0, 0, 1e300, 1]),
        "has the box",
        "four",
    ),
    "polygon of text": (
        lambda c: c["annotations"][0].update(segmentation=[["a", "b", "c", "d", "e", "f"]]),
        "what is no number",
        "points of two numbers",
    ),
    "negative runs": (
        lambda c: c["annotations"][2]["segmentation"].update(counts=[-5, 1205]),
        "no lengths",
        "at least 0",
    ),
    "area is negative": (
        lambda c: c["annotations"][0].update(area=-4),
        "has the area -4",
        "a number of pixels, at least 0",
    ),
    "area is text": (lambda c: c["annotations"][0].update(area="big"), "has the area 'big'", "a number of pixels"),
    "no lists": (lambda c: c.pop("categories"), "lacks categories", "expected COCO instances"),
}


def write_coco(kind: str, folder: Path) -> Words:
    from tests.tasks.detection.test_box_formats import content, written

    values = content()
    COCO[kind][0](values)
    return "check", "coco-det", "--data", written(folder, values)


JSON: dict[str, tuple[str, str, str]] = {
    name: (text, found, "COCO instances: an object with the lists")
    for name, text, found in [
        ("empty", "", "cannot be decoded"),
        ("brackets", "[" * 100_000, "cannot be decoded"),
        ("cut", '{"images": []', "cannot be decoded"),
        ("a list", "[]", "lacks"),
    ]
}


def write_json(kind: str, folder: Path) -> Words:
    from tests.tasks.detection.test_box_formats import content, written

    (written(folder, content()) / "annotations/instances_train2017.json").write_text(JSON[kind][0])
    return "check", "coco-det", "--data", folder


LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
XML: dict[str, tuple[str, str, str]] = {
    "no XML": ("hello", "cannot be decoded", "xml"),
    "a bomb": (f'<!DOCTYPE x [<!ENTITY a0 "ha">{LAUGHS}]><annotation>&a11;</annotation>', "cannot be decoded", "xml"),
    "another file of the machine": (
        '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><annotation>&f;</annotation>',
        "cannot be decoded",
        "xml",
    ),
    "no size": ("<annotation></annotation>", "has no size", "xml"),
    "huge numbers": (
        "<annotation><size><width>1e400</width><height>1e300</height></size></annotation>",
        "has no size",
        "xml",
    ),
}


def write_xml(kind: str, folder: Path) -> Words:
    from tests.tasks.detection.test_box_formats import voc_object, voc_written

    for year in (2007, 2012):
        voc_written(folder, [voc_object()], year)
    next((folder / "VOCdevkit/VOC2007/Annotations").iterdir()).write_text(XML[kind][0])
    return "check", "voc-det", "--data", folder


FOLDERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no masks": (lambda root: (root / "masks").rename(root / "mask"), "there is no masks", "masks/one.png"),
    "a list that leaves the folder": (
        lambda root: (root / "train.txt").write_text("../../etc/passwd\n"),
        "'../../etc/passwd', outside the folder",
        "Remove the line",
    ),
    "a binary list": (
        lambda root: (root / "train.txt").write_bytes(b"\xff\xfe\x00"),
        "cannot be read",
        "one name per line",
    ),
    "a mask of text": (
        lambda root: (root / "masks/scene_0003.png").write_text("hello"),
        "scene_0003.png: cannot be decoded",
        "expected",
    ),
    "a mask in colour": (
        lambda root: recolor(root / "masks/scene_0003.png", "RGB"),
        "scene_0003.png",
        "expected",
    ),
    "a mask in floating point": (
        lambda root: recolor(root / "masks/scene_0003.png", "F"),
        "scene_0003.png",
        "expected",
    ),
    "a picture that promises too much": (
        lambda root: next((root / "images").glob("scene_0003.*")).write_bytes(enormous()),
        "scene_0003",
        "cannot be decoded",
    ),
    "a mask that promises too much": (
        lambda root: (root / "masks/scene_0003.png").write_bytes(enormous()),
        "scene_0003.png: cannot be decoded",
        "expected",
    ),
}


def recolor(file: Path, mode: str) -> None:
    """Write a picture again with another kind of pixels."""
    from PIL import Image

    with Image.open(file) as found:
        picture = found.convert("L").convert(mode)
    # PNG has no floating point: the content is TIFF's.
    picture.save(file, format="TIFF" if mode == "F" else "PNG")


def enormous() -> bytes:
    """A PNG whose header promises 60,000 × 60,000 pixels."""
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def write_folder(kind: str, folder: Path) -> Words:
    from tests.tasks.segmentation import generated

    root = generated.folder(folder / "data", 12, 16)
    FOLDERS[kind][0](root)
    return "check", "folder-seg", "--data", root


CASES: Mapping[str, tuple[Mapping[str, tuple[Any, str, str]], Callable[[str, Path], Words]]] = {
    "table": (TABLES, write_table),
    "file of COCO": (COCO, write_coco),
    "JSON": (JSON, write_json),
    "annotation of VOC": (XML, write_xml),
    "folder": (FOLDERS, write_folder),
}
"""Kind of data → cases, each with what is said of it; and what writes one and returns a command. bench counts them, too."""


def check_case(data: str, kind: str, folder: Path) -> None:
    """Write broken data to a folder; what reads them says in one screen what is wrong."""
    cases, write = CASES[data]
    said = refusal(*write(kind, folder))
    assert all(text in said for text in cases[kind][1:])
    assert "root:" not in said


@pytest.mark.parametrize(("data", "kind"), [(data, kind) for data, (cases, _) in CASES.items() for kind in cases])
def test_broken_data_get_one_screen(data, kind, tmp_path):
    if data != "table":
        pytest.importorskip("torchvision")
    check_case(data, kind, tmp_path)
