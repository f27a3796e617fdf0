"""Images with class masks, read from their files on access: the form of every segmentation data set (Appendix A).

A data set of any size is ready at once, and is sent to another process as a list of paths. A proxy reads 128×128 pixels of images
that are twenty times as large; without a resized copy on disk it would wait for their decoding. The file of a copy is named by a
fingerprint of everything that it was made from, and is renamed to that name when it is complete: an incomplete copy is never used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import cloudpickle
import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.files import commit_file
from autoloss.tasks.files import FAULTS_SHOWN, Fault, FaultyFile, missing_file, open_image, report_faults

IGNORED = 255
"""Label of a pixel that is ignored."""
INDEXED = ("1", "L", "P")
"""Modes of Pillow with one index per pixel."""
SCALES = {"L;2": 85, "L;4": 17}
"""How Pillow reads grey of few bits → factor on an index."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
AN_INDEX_MASK = "an index PNG (palette or grey) with one class index per pixel"
ORIENTATION, UPRIGHT = 0x0112, 1
"""EXIF tag of the orientation, and its value for an image that is not rotated."""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of images and their class masks; all methods raise a `FaultyFile` for what cannot be used.

    `classes` are names by index. `read_mask` maps the file of a mask to class indices (H, W) in 8 bits, `IGNORED` for
    ignored pixels; it is a function of a module, so that it can be sent to another process.
    """

    kind: ClassVar[str] = "pairs of image and mask"
    name: str
    pairs: tuple[tuple[Path, Path], ...]
    classes: tuple[str, ...]
    read_mask: Callable[[Path], np.ndarray]

    def __len__(self) -> int:
        return len(self.pairs)

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in 8 bits."""
        with open_image(self.pairs[index][0]) as picture:
            _check_upright(self.pairs[index][0], picture)
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """Read a mask, (H, W) in 8 bits, with labels of classes only."""
        file = self.pairs[index][1]
        mask = self.read_mask(file)
        # The largest label that is not ignored: 255 + 1 wraps to 0.
        if mask.size and int((mask + np.uint8(1)).max()) > len(self.classes):
            raise FaultyFile(_label_fault(file, mask, len(self.classes)))
        return torch.from_numpy(np.require(mask, requirements=["C", "W"]))

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Read an image and its mask, of one size."""
        image, mask = self.image(index), self.mask(index)
        self._check_size(index, (image.shape[2], image.shape[1]), (mask.shape[1], mask.shape[0]))
        return image, mask

    decode = pair

    def header(self, index: int) -> tuple[int, int]:
        """Return width and height in the header of an image, which is upright and has a mask of its size."""
        image, mask = self.pairs[index]
        with open_image(image) as picture:
            size = picture.size
            _check_upright(image, picture)
        if not mask.is_file():
            raise FaultyFile(missing_file(mask, "the mask of an image"))
        # Pillow does not read MATLAB's format.
        if mask.suffix.lower() in SUFFIXES:
            with open_image(mask, "a mask", None) as picture:
                self._check_size(index, size, picture.size)
        return size

    def _check_size(self, index: int, size: tuple[int, int], of_mask: tuple[int, int]) -> None:
        image, mask = self.pairs[index]
        if size != of_mask:
            found = f"is {of_mask[0]}×{of_mask[1]} pixels"
            expected = f"the {size[0]}×{size[1]} of its image {image.name}"
            remedy = "Save the mask at the size of its image, without interpolating labels."
            raise FaultyFile(Fault(mask, found, expected, remedy))


def _check_upright(file: Path, picture: Image.Image) -> None:
    # Pillow would decode a whole PNG to look for EXIF data that it does not have.
    turned = picture.getexif().get(ORIENTATION, UPRIGHT) if "exif" in picture.info else UPRIGHT
    if turned != UPRIGHT:
        found = f"is stored rotated (EXIF orientation {turned})"
        remedy = "Save it rotated, without that tag, if its mask is upright; else remove the tag."
        raise FaultyFile(Fault(file, found, "an image stored as it is displayed", remedy))


def hold_out(images: ImageFiles, count: int, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """Hold out images of a training split for validation, so that a search is never scored on the test split.

    Return the remaining images and those held out, in the order of the data set. Which ones depends on their names and the
    seed alone, not on their order or folder.
    """
    chosen = set(rank_by_hash([image.name for image, _ in images.pairs], seed)[:count])
    rest = tuple(pair for index, pair in enumerate(images.pairs) if index not in chosen)
    held_out = tuple(pair for index, pair in enumerate(images.pairs) if index in chosen)
    return (
        replace(images, name=f"{images.name} less {count} held out", pairs=rest),
        replace(images, name=f"{images.name}, {count} held out", pairs=held_out),
    )


def rank_by_hash(names: list[str], seed: int) -> list[int]:
    """Return the indices sorted by a hash of name and seed; adding a name does not change the order of the others."""
    keys = [hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=lambda index: (keys[index], index))


def read_indices(file: Path) -> np.ndarray:
    """Read an index PNG, palette or grey: (H, W) in 8 bits; a `FaultyFile` is raised if it is none."""
    with open_image(file, AN_INDEX_MASK, INDEXED) as picture:
        # Pillow scales grey of 2 and 4 bits to the range of 8.
        scale = next((factor for mode, factor in SCALES.items() if mode in str(getattr(picture, "tile", ()))), 1)
        return np.array(picture, dtype=np.uint8) // np.uint8(scale)


def _label_fault(file: Path, mask: np.ndarray, classes: int) -> Fault:
    labels, counts = np.unique(mask, return_counts=True)
    wrong = (labels >= classes) & (labels != IGNORED)
    listed = ", ".join(map(str, labels[wrong][:5])) + (", …" if wrong.sum() > 5 else "")
    found = f"holds the label{'s' if wrong.sum() > 1 else ''} {listed} ({counts[wrong].sum()} of {mask.size} pixels)"
    expected = f"0 to {classes - 1}, or {IGNORED} for ignored pixels"
    return Fault(file, found, expected, "Correct the mask, or the number of classes.")


FORMAT = 2
"""Version of the format of copies."""
CACHE = "AUTOLOSS_CACHE"
"""Environment variable with the folder of the cache."""
CHUNK = 256
"""Images that are read at once, which bounds the memory."""

log = logging.getLogger(__name__)


def resize(image: Tensor, mask: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Resize an image (3, H, W) and its mask (H, W), both in 8 bits, such that they stay aligned."""
    return resize_image(image, height, width), resize_mask(mask, height, width)


def resize_image(image: Tensor, height: int, width: int) -> Tensor:
    """Resize an image (3, H, W) in 8 bits bilinearly, with antialiasing."""
    if image.shape[-2:] == (height, width):
        return image
    # In the memory format channels_last torch resizes 8 bits several times as fast (measured).
    batch = image[None].contiguous(memory_format=torch.channels_last)
    return F.interpolate(batch, (height, width), mode="bilinear", antialias=True)[0]


def resize_mask(mask: Tensor, height: int, width: int) -> Tensor:
    """Resize a mask (H, W) in 8 bits; each pixel gets the label nearest to its centre."""
    if mask.shape == (height, width):
        return mask
    # The mode `nearest` takes the first pixel of each block, which shifts labels relative to the image.
    return F.interpolate(mask[None, None], (height, width), mode="nearest-exact")[0, 0]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ResizedCopy:
    """The images and masks of a data set at one size.

    `rows` are (N, side, side, 4) in 8 bits, mapped from `file`: red, green, blue and the class.
    """

    source: ImageFiles
    side: int
    rows: np.ndarray = field(repr=False)
    file: Path

    def __len__(self) -> int:
        return len(self.rows)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, (3, side, side), and its mask, (side, side), in 8 bits."""
        row = torch.from_numpy(self.rows[index].copy())
        return row[..., :3].permute(2, 0, 1), row[..., 3]

    def __reduce__(self) -> tuple[Callable[..., ResizedCopy], tuple[Any, ...]]:
        # Sent as its folder: the other process maps it too, or makes it if it has another disk.
        return open_copy, (self.source, self.side, self.file.parent)


ImageSource = ImageFiles | ResizedCopy


def open_copy(source: ImageFiles, side: int, directory: Path | str | None = None) -> ResizedCopy:
    """Open the copy of a data set with images of side × side pixels, whatever their shape; it is made if there is none yet.

    Of several processes one makes the copy, and the others wait for it. The cache is by default in the folder
    `AUTOLOSS_CACHE` or the user's.

    Raises:
        RequestError: The cache cannot be written, or files are faulty; all are found, and twenty listed.
    """
    cache = find_cache() if directory is None else Path(directory)
    file = cache / f"{fingerprint(source, side)}.npy"
    try:
        if not file.is_file():
            _make_copy(source, side, file)
        return ResizedCopy(source, side, _map_rows(source, side, file), file)
    except OSError as error:
        size = math.ceil(len(source) * side * side * 4 / 1e6)
        raise RequestError(
            f"The resized copy of {source.name} cannot be kept in {cache}: {error.strerror or error}. "
            f"Set {CACHE} to a folder that can be written, with room for {size} MB."
        ) from None


def find_cache() -> Path:
    """Return the folder of the cache."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(usual).expanduser() / "autoloss"
    except RuntimeError:
        raise RequestError(f"There is no home folder to cache resized images. Set {CACHE} to a folder.") from None


def fingerprint(source: ImageFiles, side: int) -> str:
    """Return the name of a copy, which changes with everything that it is made from.

    The folder of the data set is not part of it, so that a data set that is moved keeps its copy.
    """
    faults: list[Fault] = []
    files = []
    for file in (file for pair in source.pairs for file in pair):
        try:
            status = file.stat()
            # Archives and images of containers give all files one time, but no tool sets when a file was last changed here.
            times = status.st_mtime_ns, status.st_ctime_ns
            files.append((file.parent.name, file.name, status.st_size, *times))
        except OSError:
            faults.append(missing_file(file, "a file of the data set"))
    if faults:
        raise report_faults(source.name, faults)
    # A function of a module is pickled by its name, any other by its code.
    reader = hashlib.sha256(cloudpickle.dumps(source.read_mask)).hexdigest()
    known = json.dumps([FORMAT, side, reader, len(source.classes), files])
    return f"{side}-{hashlib.sha256(known.encode()).hexdigest()[:24]}"


def _make_copy(source: ImageFiles, side: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if file.is_file():
            return
        # Under the lock, remaining parts are those of killed processes. Without locks each process has its own.
        for left in file.parent.glob(f"{file.stem}.part-*"):
            left.unlink(missing_ok=True)
        log.info("Making a copy of %s at %d×%d pixels, %s.", source.name, side, side, file)
        handle, name = tempfile.mkstemp(prefix=f"{file.stem}.part-", dir=file.parent)
        part = Path(name)
        try:
            # Written rather than mapped: a full disk would kill a process that writes to a mapped file.
            with os.fdopen(handle, "wb") as rows:
                header = {"descr": "|u1", "fortran_order": False, "shape": (len(source), side, side, 4)}
                np.lib.format.write_array_header_1_0(rows, header)
                for row in _resize_all(source, side):
                    rows.write(row.tobytes())
            part.chmod(0o644)
            commit_file(part, file)
        except OSError:
            # On a disk without locks another process may have been first; its copy is equal.
            if not file.is_file():
                raise
        finally:
            part.unlink(missing_ok=True)


def _map_rows(source: ImageFiles, side: int, file: Path) -> np.ndarray:
    shape = len(source), side, side, 4
    try:
        rows = np.load(file, mmap_mode="r")
    except (ValueError, EOFError):
        rows = np.empty(0)
    if rows.shape != shape:
        raise RequestError(
            f"The copy of {source.name}, {file}, is damaged; expected {len(source)} images. Delete it; it is made again."
        )
    return rows


def _resize_all(source: ImageFiles, side: int) -> Iterator[np.ndarray]:
    """Yield all images and masks resized, in order; decoded by threads, since decoders release the GIL.

    Raises:
        RequestError: Files are faulty; nothing is yielded after the first fault, but all files are checked.
    """
    faults: list[Fault] = []
    with ThreadPoolExecutor() as threads:
        for start in range(0, len(source), CHUNK):
            indices = range(start, min(start + CHUNK, len(source)))
            for row in threads.map(functools.partial(_resize_one, source, side), indices):
                if isinstance(row, Fault):
                    faults.append(row)
                elif not faults:
                    yield row
            if len(faults) >= FAULTS_SHOWN:
                break
    if faults:
        raise report_faults(source.name, faults)


def _resize_one(source: ImageFiles, side: int, index: int) -> np.ndarray | Fault:
    try:
        image, mask = resize(*source.pair(index), side, side)
    except FaultyFile as error:
        return error.fault
    # Channels last, as files are decoded and as torch resizes fastest.
    return torch.cat([image.permute(1, 2, 0), mask[..., None]], dim=2).numpy()
