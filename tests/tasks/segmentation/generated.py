"""Small data sets in their original formats on disk: scenes of real handwritten digits before photographs.

To try things by hand: python -m tests.tasks.segmentation.generated voc DIR --count 200 --side 64
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_sample_images
from torch.nn import functional as F

from autoloss.tasks.segmentation.data.cityscapes import CLASSES as CITYSCAPES
from autoloss.tasks.segmentation.data.image_files import IGNORED
from autoloss.tasks.segmentation.digits import CELL, CLASSES, compose_scenes

VALID_SHARE = 0.25
"""Of the images of VOC and Cityscapes, what val gets; its digits are other people's."""
Picture = tuple[np.ndarray, np.ndarray]


def pictures(split: str, count: int, side: int, seed: int = 0, *, varied: bool = False) -> list[Picture]:
    """Compose images (H, W, 3) and masks (H, W): background 0, digit d as class d + 1, its border of one pixel 255.

    Args:
        split: Whose digits: train, valid or test.
        varied: Whether sizes differ, as real ones do: every other image is flatter, every third narrower, by a quarter.
    """
    rng = np.random.default_rng([seed, side, count])
    grey, classes = compose_scenes(split, count, seed, -(-side // CELL) * CELL)
    ink = grey.clamp(0, 1).permute(0, 2, 3, 1).numpy()[:, :side, :side]
    # Ink has a colour of its own in each scene, brighter than the darkened photograph behind it.
    colours = rng.uniform(170, 255, size=(count, 1, 1, 3)).astype(np.float32)
    images = ((1 - ink) * _backgrounds(count, side, rng) + ink * colours).astype(np.uint8)
    masks = _bordered(classes)[:, :side, :side]
    less = side * 3 // 4
    sizes = [(less if varied and k % 2 else side, less if varied and k % 3 == 2 else side) for k in range(count)]
    return [(images[k][:height, :width], masks[k][:height, :width]) for k, (height, width) in enumerate(sizes)]


def voc(directory: Path, count: int = 200, side: int = 64, seed: int = 0, *, varied: bool = False) -> Path:
    """Write a VOCdevkit with `count` images in train and val; return its folder."""
    root = directory / "VOCdevkit" / "VOC2012"
    images, masks, lists = (root / name for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"))
    for place in (images, masks, lists):
        place.mkdir(parents=True)
    named = {}
    for split, first, found in _parts(count, side, seed, varied):
        named[split] = [f"2007_{first + index:06d}" for index in range(len(found))]
        for stem, (image, mask) in zip(named[split], found, strict=True):
            _save_jpeg(image, images / f"{stem}.jpg")
            save_palette(mask, masks / f"{stem}.png")
    for split, stems in {**named, "trainval": sorted(named["train"] + named["val"])}.items():
        (lists / f"{split}.txt").write_text("\n".join(stems) + "\n")
    return root


def sbd(directory: Path, count: int = 40, side: int = 64, seed: int = 1, *, also: tuple[str, ...] = ()) -> Path:
    """Write a benchmark_RELEASE with `count` images of its own in train and val.

    Args:
        also: Names of VOC's images that SBD annotates too.
    """
    root = directory / "benchmark_RELEASE" / "dataset"
    for name in ("img", "cls"):
        (root / name).mkdir(parents=True)
    stems = [*(f"2008_{index:06d}" for index in range(count)), *also]
    for stem, (image, mask) in zip(stems, pictures("train", len(stems), side, seed), strict=True):
        _save_jpeg(image, root / "img" / f"{stem}.jpg")
        save_mat(np.where(mask == IGNORED, 0, mask).astype(np.uint8), root / "cls" / f"{stem}.mat")
    (root / "train.txt").write_text("\n".join(stems[::2]) + "\n")
    (root / "val.txt").write_text("\n".join(stems[1::2]) + "\n")
    return root


def cityscapes(directory: Path, count: int = 40, side: int = 64, seed: int = 0) -> Path:
    """Write images and label ids of two cities to train on and one for val."""
    # Class k is the train id k: background is road. What counts nowhere is unlabelled.
    ids = np.zeros(256, np.uint8)
    ids[:CLASSES] = list(CITYSCAPES.values())[:CLASSES]
    cities = {"train": ("aachen", "bochum"), "val": ("munster",)}
    for split, first, found in _parts(count, side, seed):
        for index, (image, mask) in enumerate(found, start=first):
            city = cities[split][index % len(cities[split])]
            for kind, end, content in (("leftImg8bit", "", image), ("gtFine", "_labelIds", ids[mask])):
                place = directory / kind / split / city
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(content).save(place / f"{city}_{index:06d}_000019_{kind}{end}.png")
    return directory


def folder(directory: Path, count: int = 40, side: int = 64, seed: int = 0, *, varied: bool = False) -> Path:
    """Write images and masks of the same names, grey and palette by turns, without lists of splits."""
    for name in ("images", "masks"):
        (directory / name).mkdir(parents=True)
    for index, (image, mask) in enumerate(pictures("train", count, side, seed, varied=varied)):
        stem = f"scene_{index:04d}"
        Image.fromarray(image).save(directory / "images" / f"{stem}.{('jpg', 'png')[index % 2]}")
        save = save_palette if index % 2 else save_grey
        save(mask, directory / "masks" / f"{stem}.png")
    return directory


def save_grey(mask: np.ndarray, file: Path) -> None:
    Image.fromarray(mask).save(file)


def save_palette(mask: np.ndarray, file: Path) -> None:
    """Write a palette PNG with VOC's colours: the bits of an index, taken by turns, make red, green and blue."""
    picture = Image.fromarray(mask)
    picture.putpalette(_palette())
    picture.save(file)


def save_mat(mask: np.ndarray, file: Path) -> None:
    """Write a mask as SBD does: a structure GTcls, compressed."""
    present = np.setdiff1d(np.unique(mask), [0])
    savemat(file, {"GTcls": {"Segmentation": mask, "CategoriesPresent": present}}, do_compression=True)


@functools.cache
def _palette() -> bytes:
    index = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((index >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    return colours.tobytes()


def _parts(count: int, side: int, seed: int, varied: bool = False) -> Iterator[tuple[str, int, list[Picture]]]:
    """Yield train and val: the name, the number of its first image, its images; no handwritten digit is in both."""
    held = round(VALID_SHARE * count)
    yield "train", 0, pictures("train", count - held, side, seed, varied=varied)
    yield "val", count - held, pictures("valid", held, side, seed, varied=varied)


def _bordered(classes: torch.Tensor) -> np.ndarray:
    """Surround each digit by a pixel that counts nowhere."""
    digit = (classes > 0).float()[:, None]
    near = F.max_pool2d(digit, 3, stride=1, padding=1) - digit
    return classes.masked_fill(near[:, 0] > 0, IGNORED).numpy()


def _backgrounds(count: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Cut pieces of two photographs and darken them; at most half as bright as ink."""
    photographs = load_sample_images().images
    found = np.empty((count, side, side, 3), np.float32)
    for index in range(count):
        photograph = photographs[index % 2]
        top, left = (rng.integers(length - side) for length in photograph.shape[:2])
        found[index] = photograph[top : top + side, left : left + side]
    return found * 0.35


def _save_jpeg(image: np.ndarray, file: Path) -> None:
    Image.fromarray(image).save(file, quality=95, subsampling=0)


WRITERS: dict[str, Callable[..., Path]] = {"voc": voc, "sbd": sbd, "cityscapes": cityscapes, "folder": folder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("format", choices=WRITERS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(WRITERS[arguments.format](arguments.directory, arguments.count, arguments.side, arguments.seed))


if __name__ == "__main__":
    main()
