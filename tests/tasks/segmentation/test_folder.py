"""A folder of one's own: any usual image, index masks, splits listed or cut by names and seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autoloss import tasks
from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data.folder import SPLITS, load_folder
from tests.tasks.segmentation import generated


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return generated.folder(tmp_path / "mine", 20, 32)


def members(place: Path, **options: int) -> dict[str, list[str]]:
    return {split: [image.stem for image, _ in load_folder(place, split, **options).pairs] for split in SPLITS}


def refused(place: Path, split: str = "train", **options: int) -> str:
    with pytest.raises(RequestError) as caught:
        load_folder(place, split, **options)
    return str(caught.value)


def test_a_folder_is_read_as_it_was_written(place: Path):
    found = load_folder(place, "train")
    written = {f"scene_{index:04d}": pair for index, pair in enumerate(generated.pictures("train", 20, 32))}
    for index, (image, _) in enumerate(found.pairs):
        assert np.array_equal(found.mask(index).numpy(), written[image.stem][1])
    assert {image.suffix for image, _ in found.pairs} == {".jpg", ".png"}


def test_without_lists_a_fifth_each_is_cut_for_valid_and_test(place: Path):
    found = members(place)
    assert [len(found[split]) for split in SPLITS] == [12, 4, 4]
    assert sorted(stem for stems in found.values() for stem in stems) == [f"scene_{index:04d}" for index in range(20)]
    assert members(place) == found
    assert members(place, seed=1) != found


def test_lists_decide_and_what_has_none_is_cut_from_the_list_to_train_on(place: Path):
    (place / "train.txt").write_text("".join(f"scene_{index:04d}\n" for index in range(10)))
    (place / "test.txt").write_text("scene_0015\nscene_0012\n")
    found = members(place)
    assert found["test"] == ["scene_0015", "scene_0012"]
    assert sorted(found["train"] + found["valid"]) == [f"scene_{index:04d}" for index in range(10)]
    assert len(found["valid"]) == 2


def test_without_a_list_to_train_on_what_no_other_names_is_trained_on(place: Path):
    (place / "valid.txt").write_text("scene_0000\n")
    (place / "test.txt").write_text("scene_0001\n")
    assert members(place)["train"] == [f"scene_{index:04d}" for index in range(2, 20)]


def test_the_list_of_valid_may_be_named_val(place: Path):
    (place / "val.txt").write_text("scene_0000\nscene_0001\n")
    (place / "test.txt").write_text("scene_0002\n")
    found = members(place)
    assert found["valid"] == ["scene_0000", "scene_0001"]
    assert len(found["train"]) == 17
    (place / "valid.txt").write_text("scene_0003\n")
    assert "holds val.txt and valid.txt; expected one list" in refused(place)


def test_the_background_is_one_of_the_classes(place: Path):
    for background in (3, 100):
        with pytest.raises(RequestError, match=f"background is {background}; expected none or one of the classes 0 to"):
            tasks.get("folder-seg", metric="bf1", data=str(place), background=background, classes=3)
    with pytest.raises(RequestError, match="background is -1; expected a whole number, at least 0, or none"):
        tasks.get("folder-seg", metric="bf1", data=str(place), background=-1)


def test_classes_are_found_in_all_masks_or_given(place: Path):
    assert len(load_folder(place, "test").classes) == 11
    assert len(load_folder(place, "test", classes=15).classes) == 15
    # Found anew when a mask changes, whichever split it is in.
    mask = place / "masks" / f"{members(place)['train'][0]}.png"
    generated.save_grey(np.full((32, 32), 13, np.uint8), mask)
    assert len(load_folder(place, "test").classes) == 14


def test_hidden_files_are_left_out(place: Path):
    (place / "images/._scene_0001.jpg").write_bytes(b"\0")
    (place / "images/.DS_Store").write_bytes(b"\0")
    assert sum(map(len, members(place).values())) == 20


def test_an_unknown_folder_or_number_of_classes_is_refused(place: Path, tmp_path: Path):
    assert "there is no images and no masks" in refused(tmp_path)
    assert "masks/one.png" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="classes is 1; expected a whole number, at least 2 and at most 255"):
        tasks.get("folder-seg", data=str(place), classes=1)


def test_files_that_belong_to_none_are_listed_by_name(place: Path):
    for index in range(25):
        Image.new("RGB", (32, 32)).save(place / f"images/more_{index:02d}.bmp")
    message = refused(place)
    assert f"images/more_00.bmp: has no mask; expected its mask {place / 'masks/more_00.png'}" in message
    assert message.count("\n") == 21
    assert message.endswith("and 5 more")


def test_with_a_list_to_train_on_images_without_masks_may_lie_about(place: Path):
    Image.new("RGB", (32, 32)).save(place / "images/unlabelled.png")
    (place / "train.txt").write_text("scene_0000\nscene_0001\nscene_0002\nscene_0003\nscene_0004\n")
    assert len(members(place)["train"]) == 3


def test_lists_that_contradict_are_refused_by_line(place: Path):
    (place / "train.txt").write_text("scene_0000\nscene_0001\nscene_0001.png\n")
    (place / "test.txt").write_text("scene_0001\n")
    message = refused(place)
    assert "train.txt: names 'scene_0001.png', of which there is no image; expected names without suffix" in message
    assert "test.txt: names 'scene_0001', as train.txt does; expected each image in one split" in message


def test_two_images_of_one_name_are_refused(place: Path):
    Image.new("RGB", (32, 32)).save(place / "images/scene_0000.png")
    assert "scene_0000.jpg and scene_0000.png have the same name" in refused(place)


def test_an_empty_folder_list_or_split_is_refused(place: Path, tmp_path: Path):
    (tmp_path / "empty/images").mkdir(parents=True)
    (tmp_path / "empty/masks").mkdir()
    assert "holds no file that ends in .jpg" in refused(tmp_path / "empty")
    generated.folder(tmp_path / "two", 2, 16)
    assert "The split 'valid' of the data" in refused(tmp_path / "two", "valid")
    assert "has 0 of 2 images, which is too few" in refused(tmp_path / "two", "valid")
    (place / "train.txt").write_text("scene_0000\n")
    assert "has 1 of 20 images, which is too few" in refused(place)
    (place / "valid.txt").write_text("")
    assert "valid.txt is empty" in refused(place)


def test_masks_of_0_and_255_alone_have_two_classes(place: Path):
    for file in (place / "masks").iterdir():
        generated.save_grey(np.tile(np.uint8([0, 0, 255, 0]), (32, 8)), file)
    found = load_folder(place, "train")
    assert (len(found.classes), found.mask(0).unique().tolist()) == (2, [0, 1])
    task = tasks.get("folder-seg", data=str(place), side=32)
    assert "Read 20 images with 2 classes, 0 to 1; 255 is class 1. Metric: miou." in task.choices()
    given = load_folder(place, "train", classes=2)
    assert given.mask(0).unique().tolist() == [0, 1]
    for file in (place / "masks").iterdir():
        generated.save_grey(np.zeros((32, 32), np.uint8), file)
    assert "contain a single label; expected class indices: 0, 1" in refused(place)


def test_masks_may_be_named_mask(place: Path):
    before = members(place)
    for file in (place / "masks").iterdir():
        file.rename(file.with_stem(f"{file.stem}_mask"))
    assert members(place) == before


def test_masks_of_grey_values_are_refused_unless_their_number_of_classes_is_given(place: Path):
    for file in (place / "masks").iterdir():
        generated.save_grey(np.tile(np.uint8([0, 100, 200, 0]), (32, 8)), file)
    assert "contain the labels 0, 100, 200; expected class indices without gaps" in refused(place)
    assert members(place, classes=201)["train"]


def test_masks_that_cannot_be_read_are_listed_while_classes_are_counted(place: Path):
    for index in (3, 5):
        Image.new("RGB", (32, 32)).save(place / f"masks/scene_{index:04d}.png")
    message = refused(place)
    assert message.count("holds RGB values; expected an index PNG") == message.count("scene_0005.png: the same") == 1


def test_some_masks_of_0_and_255_among_masks_of_classes_are_named(place: Path):
    masks = sorted((place / "masks").iterdir())
    for number, file in enumerate(masks):
        mask = np.zeros((32, 32), np.uint8)
        mask[8:24, 8:24] = 255 if number < 5 else 1
        generated.save_grey(mask, file)
    message = refused(place)
    assert message.count("contains only 0 and 255, and 255 is ignored") == 1
    assert message.count(".png: the same") == 4
    assert "15 masks without 255" in message
    assert members(place, classes=2)["train"]


def test_a_mask_whose_only_object_is_ignored_is_no_fault_where_other_masks_ignore_pixels(place: Path):
    for number, file in enumerate(sorted((place / "masks").iterdir())):
        mask = np.zeros((32, 32), np.uint8)
        mask[8:24, 8:24] = 255
        mask[9:23, 9:23] = 255 if number < 5 else 1
        generated.save_grey(mask, file)
    assert members(place)["train"]
