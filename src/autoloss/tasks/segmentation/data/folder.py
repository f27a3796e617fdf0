"""A folder of the user's own: images and index masks of the same names, with or without lists of the splits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from autoloss.errors import RequestError, join_names
from autoloss.tasks.files import Fault, FaultyFile, find_directory, find_root, read_names, report_faults
from autoloss.tasks.segmentation.data.image_files import IGNORED, SUFFIXES, ImageFiles, rank_by_hash, read_indices

SPLITS = ("train", "valid", "test")
HELD_OUT_SHARE = 0.2
"""Share of the images that valid and test get where there is no list."""
LAYOUT = """\
  images/one.jpg, two.png, …       any usual format
  masks/one.png, two_mask.png, …   index PNGs, palette or grey: class 0, 1, …, and 255 for ignored pixels; or 0 and 255
  train.txt, valid.txt, test.txt   optional: the names without suffix, one per line; valid.txt may be val.txt"""


def load_folder(directory: Path | str, split: str, *, classes: int | None = None, seed: int = 0) -> ImageFiles:
    """Find a split of a folder with `images` and `masks`: the names in train.txt, valid.txt or test.txt.

    Without a list for valid or test, a fifth of the images in train.txt is held out for it, or, without train.txt, a fifth
    of the images in no list; train has the rest. Which images are held out depends on their names and the seed alone. If
    the number of classes is None, every mask of the folder is read, and the largest label is the last class.
    """
    name = f"the data in {directory}"
    root = find_directory(directory, "your data", LAYOUT)
    find_root((root,), ("images", "masks"), "data with images and masks", LAYOUT)
    images, masks = _index_by_stem(root / "images", SUFFIXES), _index_by_stem(root / "masks", (".png",), "_mask")
    files = _find_lists(root)
    lists = {part: read_names(file, name) for part, file in files.items()}
    _check_files(root, images, masks, {files[part]: stems for part, stems in lists.items()})
    members = _assign_splits(list(images), lists, seed)[split]
    # Batch normalisation cannot be trained on one image.
    if len(members) < (2 if split == "train" else 1):
        raise RequestError(
            f"The split {split!r} of {name} has {len(members)} of {len(images)} images, which is too few. "
            f"Add images, or list them in {root / f'{split}.txt'}."
        )
    read = read_indices
    if classes is None:
        classes, read = count_classes(tuple((file, file.stat().st_mtime_ns) for file in masks.values()))
    elif _are_binary(masks.values()):
        read = read_binary
    names = tuple(f"class {index}" for index in range(classes))
    return ImageFiles(f"{root.name} {split}", tuple((images[stem], masks[stem]) for stem in members), names, read)


def read_binary(file: Path) -> np.ndarray:
    """Read a mask of 0 and 255 as the classes 0 and 1."""
    return (read_indices(file) == IGNORED).astype(np.uint8)


@functools.lru_cache(maxsize=4)
def count_classes(masks: tuple[tuple[Path, int], ...]) -> tuple[int, Callable[[Path], np.ndarray]]:
    """Return the largest label of all masks, plus one, and what reads them: where all labels are 0 and 255, 255 is a class.

    Files come with the times of their last change, for the cache.
    """
    with ThreadPoolExecutor() as threads:
        labels = list(threads.map(_read_labels, (file for file, _ in masks)))
    faults = [one for one in labels if isinstance(one, Fault)] + _find_mixed([file for file, _ in masks], labels)
    place = masks[0][0].parent
    if faults:
        raise report_faults(str(place), faults)
    every = frozenset[int]().union(*(one for one in labels if not isinstance(one, Fault)))
    present = sorted(every - {IGNORED})
    found = max(present, default=0) + 1
    if every == {0, IGNORED}:
        return 2, read_binary
    if found < 2:
        raise RequestError(f"All {len(masks)} masks in {place} contain a single label; expected class indices: 0, 1, …")
    # Such labels are grey values rather than classes.
    if found > 4 * len(present):
        raise RequestError(
            f"The {len(masks)} masks in {place} contain the labels {join_names([*map(str, present)])}; expected class indices "
            f"without gaps: 0, 1, … Renumber the classes, or give their number: --set classes={found}."
        )
    return found, read_indices


def _are_binary(masks: Iterable[Path]) -> bool:
    """Return True if 0 and 255 are the labels of all masks together; usually the first one tells."""
    found = frozenset[int]()
    for mask in masks:
        labels = _read_labels(mask)
        if isinstance(labels, Fault) or labels - {0, IGNORED}:
            return False
        found |= labels
    return found == {0, IGNORED}


def _read_labels(mask: Path) -> frozenset[int] | Fault:
    try:
        labels = read_indices(mask)
    except FaultyFile as error:
        return error.fault
    return frozenset(np.flatnonzero(np.bincount(labels.ravel())).tolist())


def _find_mixed(masks: Sequence[Path], found: Sequence[frozenset[int] | Fault]) -> list[Fault]:
    """Return the masks that hold 0 and 255 alone where all others have classes and no pixel to ignore."""
    classes = [one for one in found if not isinstance(one, Fault) and one - {0, IGNORED}]
    if not classes or any(IGNORED in one for one in classes):
        return []
    return [
        Fault(
            mask,
            f"contains only 0 and {IGNORED}, and {IGNORED} is ignored",
            f"class indices, as in the {len(classes)} masks without {IGNORED}",
            f"Save its foreground as a class index, such as 1. If {IGNORED} is to be ignored: --set classes=<number of classes>.",
        )
        for mask, one in zip(masks, found, strict=True)
        if not isinstance(one, Fault) and IGNORED in one
    ]


def _index_by_stem(place: Path, suffixes: tuple[str, ...], suffix: str = "") -> dict[str, Path]:
    """Return the files of a folder by their names without what they end in, in order, without hidden files."""
    found: dict[str, Path] = {}
    for file in sorted(place.iterdir()):
        if file.suffix.lower() not in suffixes or file.name.startswith("."):
            continue
        stem = file.stem.removesuffix(suffix)
        if stem in found:
            raise RequestError(f"{found[stem]} and {file.name} have the same name. Rename one, with its mask.")
        found[stem] = file
    if not found:
        raise RequestError(f"{place} holds no file that ends in {', '.join(suffixes)}. Expected\n{LAYOUT}")
    return found


def _find_lists(root: Path) -> dict[str, Path]:
    """Return the lists of the splits that there are."""
    valid = root / ("val.txt" if (root / "val.txt").exists() else "valid.txt")
    if valid.name == "val.txt" and (root / "valid.txt").exists():
        raise RequestError(
            f"{root} holds val.txt and valid.txt; expected one list of the split valid. Remove the other."
        )
    files = {"train": root / "train.txt", "valid": valid, "test": root / "test.txt"}
    return {part: file for part, file in files.items() if file.exists()}


def _check_files(
    root: Path, images: Mapping[str, Path], masks: Mapping[str, Path], lists: Mapping[Path, Sequence[str]]
) -> None:
    """Check that each used image has a mask, and is in one split only."""
    faults: list[Fault] = []
    owner: dict[str, str] = {}
    for file, stems in lists.items():
        for stem in stems:
            if stem in owner:
                found = f"names {stem!r}, as {owner[stem]} does"
                faults.append(Fault(file, found, "each image in one split", "Remove it from one."))
            owner[stem] = file.name
            if stem not in images:
                found = f"names {stem!r}, of which there is no image"
                faults.append(Fault(file, found, "names without suffix", "Correct it, or add the image."))
    # Without a list for train, every image is in some split.
    for stem in images if root / "train.txt" not in lists else owner:
        if stem in images and stem not in masks:
            expected = f"its mask {root / 'masks' / stem}.png"
            faults.append(Fault(images[stem], "has no mask", expected, "Add the mask, or remove the image."))
    if faults:
        raise report_faults(f"The data in {root}", faults)


def _assign_splits(stems: list[str], lists: Mapping[str, Sequence[str]], seed: int) -> dict[str, list[str]]:
    """Return the names of each split."""
    elsewhere = {stem for part, members in lists.items() if part != "train" for stem in members}
    pool = list(lists.get("train", [stem for stem in stems if stem not in elsewhere]))
    order = rank_by_hash(pool, seed)
    members = {part: list(found) for part, found in lists.items()}
    held_out: set[int] = set()
    size = round(HELD_OUT_SHARE * len(pool))
    for part in ("valid", "test"):
        if part not in members:
            chosen = order[len(held_out) : len(held_out) + size]
            members[part] = [pool[index] for index in sorted(chosen)]
            held_out.update(chosen)
    members["train"] = [stem for index, stem in enumerate(pool) if index not in held_out]
    return members
