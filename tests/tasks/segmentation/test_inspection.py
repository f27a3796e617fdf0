"""A look at a data set finds what is wrong with its files, says how much it looked at, and stops at twenty."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autoloss.errors import RequestError
from autoloss.tasks.files import FIRST, FaultyFile, inspect_images, report_faults
from autoloss.tasks.segmentation.data.cityscapes import load_cityscapes
from autoloss.tasks.segmentation.data.image_files import ImageFiles
from autoloss.tasks.segmentation.data.voc import load_voc
from tests.tasks.segmentation import generated
from tests.tasks.segmentation.drawn import blocks, painted, pictures


@pytest.fixture
def drawn(tmp_path: Path) -> ImageFiles:
    return pictures(tmp_path, blocks(30, 16, 16))


def turned(file: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(painted(blocks(1, 16, 16)[0])).save(file, exif=exif)


def truncated(file: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 3, (16, 16), np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:-30])


FAULTS: dict[str, tuple[int, Callable[[Path], object], str]] = {
    "no image": (0, Path.unlink, "there is no such file"),
    "no mask": (1, Path.unlink, "there is no such file"),
    "no picture": (0, lambda file: file.write_bytes(b"hello"), "cannot be decoded"),
    "empty mask": (1, lambda file: file.write_bytes(b""), "cannot be decoded"),
    "truncated image": (0, truncated, "cannot be decoded"),
    "truncated mask": (1, truncated, "cannot be decoded"),
    "mask of another size": (1, lambda file: Image.new("L", (16, 8)).save(file), "is 16×8 pixels; expected the 16×16"),
    "label outside": (1, lambda file: Image.new("L", (16, 16), 3).save(file), "holds the label 3 (256 of 256 pixels)"),
    "mask in colours": (1, lambda file: Image.new("RGB", (16, 16)).save(file), "holds RGB values"),
    "16 bits": (0, lambda file: Image.new("I;16", (16, 16)).save(file), "holds I;16 values"),
    "turned image": (0, turned, "is stored rotated (EXIF orientation 6)"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_found_named_and_given_a_remedy(drawn: ImageFiles, kind: str):
    which, spoil, said = FAULTS[kind]
    file = drawn.pairs[17][which]
    spoil(file)
    found = list(inspect_images(drawn)[0])
    assert [fault.file for fault in found] == [file]
    assert f"{file}: {said}" in str(found[0])
    assert found[0].expected
    assert found[0].remedy
    # Training reads the pair without an inspection.
    with pytest.raises(FaultyFile, match=re.escape(said)):
        drawn.pair(17)


def test_all_kinds_of_faults_are_listed_at_once_in_the_order_of_the_data(drawn: ImageFiles):
    files = []
    for index, (which, spoil, _) in enumerate(FAULTS.values()):
        files.append(drawn.pairs[2 * index][which])
        spoil(files[-1])
    assert [fault.file for fault in inspect_images(drawn)[0]] == files
    lines = str(report_faults("drawn", *inspect_images(drawn))).splitlines()
    assert lines[0] == "drawn cannot be used as it is:"
    assert len(lines) == 1 + len(FAULTS) + 1
    assert lines[-1].startswith("drawn: read the headers of 30 and decoded ")


def test_twenty_faults_are_enough(drawn: ImageFiles):
    for image, _ in drawn.pairs:
        image.unlink()
    assert len(inspect_images(drawn)[0]) == 20
    assert len(inspect_images(drawn, limit=3)[0]) == 3
    assert "read the headers of 20 and decoded 0" in inspect_images(drawn)[1]


def test_data_sets_as_they_should_be_have_none(drawn: ImageFiles, devkit: Path, cities: Path):
    for found in (drawn, load_voc(devkit, "train_aug"), load_voc(devkit, "val"), load_cityscapes(cities, "train")):
        faults, read = inspect_images(found)
        assert faults == []
        assert f"read the headers of {len(found)} and decoded {len(found)} of {len(found)}" in read


def test_large_data_sets_are_decoded_in_part_the_first_and_the_same_others_and_that_is_said(drawn: ImageFiles):
    seen: list[list[str]] = []

    def watched(file: Path) -> np.ndarray:
        seen[-1].append(file.name)
        return drawn.read_mask(file)

    for _ in range(2):
        seen.append([])
        _, read = inspect_images(replace(drawn, read_mask=watched), pixels=12 * 256)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 12
    assert seen[0][:FIRST] == [mask.name for _, mask in drawn.pairs[:FIRST]]
    assert read == "drawn: read the headers of 30 and decoded 12 of 30 pairs of image and mask."
    assert "decoded 1 of 30" in inspect_images(drawn, pixels=1)[1]


def test_headers_are_looked_at_beyond_what_is_decoded(drawn: ImageFiles):
    Image.new("L", (4, 4)).save(drawn.pairs[29][1])
    assert [fault.file for fault in inspect_images(drawn, pixels=1)[0]] == [drawn.pairs[29][1]]


def test_masks_in_matlabs_files_are_looked_at_too(tmp_path: Path):
    generated.voc(tmp_path, 4, 16)
    root = generated.sbd(tmp_path, 5, 16)
    (root / "cls/2008_000000.mat").unlink()
    (root / "cls/2008_000001.mat").write_bytes(b"MATLAB 5.0")
    generated.save_mat(np.full((16, 16), 21, np.uint8), root / "cls/2008_000002.mat")
    generated.save_mat(np.zeros((16, 12), np.uint8), root / "cls/2008_000003.mat")
    generated.save_mat(np.zeros((16, 16)), root / "cls/2008_000004.mat")
    said = {fault.file.stem: str(fault) for fault in inspect_images(load_voc(tmp_path, "train_aug"))[0]}
    for stem, part in {
        "2008_000000": "there is no such file",
        "2008_000001": "cannot be decoded",
        "2008_000002": "holds the label 21 (256 of 256 pixels); expected 0 to 20",
        "2008_000003": "is 12×16 pixels; expected the 16×16 of its image 2008_000003.jpg",
        "2008_000004": "GTcls.Segmentation is float64",
    }.items():
        assert part in said.pop(stem)
    assert not said


def test_no_images_are_refused(drawn: ImageFiles):
    with pytest.raises(RequestError, match="drawn holds no images"):
        inspect_images(replace(drawn, pairs=()))
