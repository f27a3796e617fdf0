"""VOC, SBD and Cityscapes are read as they lie on disk, and refused with the layout that was expected."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data import cityscapes as cityscapes_module
from autoloss.tasks.segmentation.data.cityscapes import load_cityscapes
from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageFiles
from autoloss.tasks.segmentation.data.voc import load_voc
from tests.tasks.segmentation import generated


def stems(pictures: ImageFiles) -> list[str]:
    return [image.stem for image, _ in pictures.pairs]


def refused(find, *arguments: object) -> str:
    with pytest.raises(RequestError) as caught:
        find(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("inside", [".", "VOCdevkit", "VOCdevkit/VOC2012"])
@pytest.mark.parametrize(("split", "count"), [("train", 12), ("val", 4), ("trainval", 16), ("train_aug", 18)])
def test_voc_is_found_from_any_of_its_folders(devkit: Path, inside: str, split: str, count: int):
    found = load_voc(devkit / inside, split)
    assert len(found) == count
    assert found.name == f"VOC 2012 {split}"
    assert found.classes[0] == "background"
    assert found.classes[20] == "tvmonitor"


def test_train_aug_is_voc_and_sbd_without_val_and_vocs_own_mask_wins(devkit: Path):
    found = load_voc(devkit, "train_aug")
    assert stems(found) == stems(load_voc(devkit, "train")) + [f"2008_{k:06d}" for k in (0, 2, 4, 1, 3, 5)]
    assert not set(stems(found)) & set(stems(load_voc(devkit, "val")))
    # SBD annotates 2007_000000 too, which is in train, and 2007_000012, which is in val.
    assert [mask.suffix for _, mask in found.pairs] == [".png"] * 12 + [".mat"] * 6


def test_images_and_masks_of_voc_are_those_that_were_written(devkit: Path):
    found = load_voc(devkit, "trainval")
    written = generated.pictures("train", 12, 48, varied=True) + generated.pictures("valid", 4, 48, varied=True)
    for index, (image, mask) in enumerate(written):
        assert np.array_equal(found.mask(index).numpy(), mask)
        # JPEG loses a little.
        error = found.image(index).permute(1, 2, 0).numpy().astype(int) - image
        assert abs(error).mean() < 3
    assert {tuple(found.mask(index).shape) for index in range(len(found))} == {(48, 48), (36, 48), (48, 36), (36, 36)}


def test_borders_of_255_in_a_palette_are_ignored_not_colours(devkit: Path):
    found = load_voc(devkit, "train")
    labels = torch.cat([found.mask(index).ravel() for index in range(len(found))]).unique().tolist()
    assert labels == [*range(11), IGNORED]
    with Image.open(found.pairs[0][1]) as written:
        assert written.mode == "P"
        assert written.getpalette()[: 3 * 3] == [0, 0, 0, 128, 0, 0, 0, 128, 0]


def test_masks_of_sbd_are_its_segmentation(devkit: Path):
    found = load_voc(devkit, "train_aug")
    file = found.pairs[12][1]
    expected = loadmat(file)["GTcls"][0]["Segmentation"][0]
    assert expected.any()
    assert np.array_equal(found.mask(12).numpy(), expected)
    assert found.image(12).shape == (3, 48, 48)


def test_pictures_travel_to_another_process_with_their_reader(devkit: Path):
    found = load_voc(devkit, "train_aug")
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert again == found
    assert again.mask(15).equal(found.mask(15))


def test_a_folder_without_voc_is_refused_with_the_layout(tmp_path: Path):
    message = refused(load_voc, tmp_path, "train")
    assert "there is no JPEGImages and no SegmentationClass and no ImageSets/Segmentation" in message
    assert "VOCdevkit/VOC2012/JPEGImages/2007_000032.jpg" in message
    assert "does not exist" in refused(load_voc, tmp_path / "nowhere", "train")
    (tmp_path / "file").touch()
    assert "is no folder" in refused(load_voc, tmp_path / "file", "train")


def test_a_half_unpacked_voc_is_refused_by_what_is_missing(devkit: Path, tmp_path: Path):
    root = tmp_path / "VOC2012"
    shutil.copytree(devkit / "VOCdevkit/VOC2012/JPEGImages", root / "JPEGImages")
    message = refused(load_voc, tmp_path, "train")
    assert message.startswith(f"{root} holds no VOC 2012: there is no SegmentationClass and no ImageSets")


def test_a_missing_or_empty_list_is_refused_by_its_file(devkit: Path, tmp_path: Path):
    shutil.copytree(devkit, tmp_path, dirs_exist_ok=True)
    lists = tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation"
    (lists / "val.txt").unlink()
    assert f"VOC 2012 has no split 'val': there is no {lists / 'val.txt'}" in refused(load_voc, tmp_path, "val")
    (lists / "train.txt").write_text("\n\n")
    assert "the split 'train' of VOC 2012 has no images" in refused(load_voc, tmp_path, "train")
    (lists / "train.txt").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused(load_voc, tmp_path, "train")


def test_train_aug_without_sbd_is_refused_with_sbds_layout(tmp_path: Path):
    generated.voc(tmp_path, 4, 16)
    message = refused(load_voc, tmp_path, "train_aug")
    assert "no SBD: there is no benchmark_RELEASE/dataset" in message
    assert "benchmark_RELEASE/dataset/cls/2008_000002.mat" in message
    (generated.sbd(tmp_path, 0, 16, also=("2007_000000", "2007_000003")) / "val.txt").write_text("2007_000003")
    assert "adds nothing: each of its 2 images is in VOC's train or val" in refused(load_voc, tmp_path, "train_aug")


def test_blank_and_repeated_lines_of_a_list_count_once(devkit: Path, tmp_path: Path):
    shutil.copytree(devkit, tmp_path, dirs_exist_ok=True)
    (tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt").write_bytes(
        b"\xef\xbb\xbf2007_000003\r\n\r\n2007_000001 \r\n2007_000003"
    )
    assert stems(load_voc(tmp_path, "train")) == ["2007_000003", "2007_000001"]


def test_cityscapes_is_read_in_its_19_classes(cities: Path):
    train, val = load_cityscapes(cities, "train"), load_cityscapes(cities, "val")
    assert (len(train), len(val)) == (6, 2)
    assert len(train.classes) == 19
    assert (train.classes[0], train.classes[18]) == ("road", "bicycle")
    assert {image.parent.name for image, _ in train.pairs} == {"aachen", "bochum"}
    written = generated.pictures("train", 6, 32)
    by_number = {int(image.name.split("_")[1]): index for index, (image, _) in enumerate(train.pairs)}
    for number, (image, mask) in enumerate(written):
        assert np.array_equal(train.mask(by_number[number]).numpy(), mask)
        assert np.array_equal(train.image(by_number[number]).permute(1, 2, 0).numpy(), image)


def test_label_ids_become_the_benchmarks_train_ids():
    # The columns id and trainId of the data set's own table; 255 is ignored there too.
    published = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11}
    published |= {25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
    table = cityscapes_module.TRAIN_IDS
    assert [table[label] for label in range(34)] == [published.get(label, IGNORED) for label in range(34)]


def test_an_id_that_cityscapes_does_not_have_is_refused(tmp_path: Path):
    generated.save_grey(np.full((4, 4), 34, np.uint8), tmp_path / "mask.png")
    message = refused(cityscapes_module.read_mask, tmp_path / "mask.png")
    assert "holds the label id 34; expected ids from 0 to 33. Use the files that end in _labelIds.png" in message


def test_cityscapes_that_is_not_whole_is_refused(cities: Path, tmp_path: Path):
    assert "there is no leftImg8bit/test and no gtFine/test" in refused(load_cityscapes, cities, "test")
    assert "there is no leftImg8bit and no gtFine" in refused(load_cityscapes, tmp_path, "train")
    (tmp_path / "leftImg8bit/train").mkdir(parents=True)
    (tmp_path / "gtFine").mkdir()
    assert "there is no gtFine/train" in refused(load_cityscapes, tmp_path, "train")
    (tmp_path / "gtFine/train").mkdir()
    message = refused(load_cityscapes, tmp_path, "train")
    assert "The split 'train' of Cityscapes is empty" in message
    assert "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png" in message
