"""A small copy of a data set for proxies: each image and mask at one size, made once and kept (Appendix A).

A proxy reads 128×128 pixels of images that are twenty times as large: without the copy it would wait for their decoding. The copy
lies in a folder named by a fingerprint of all that it was made from, which appears in one step when it is complete, so that a
half-made one is never used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.files.faults import FAULTS_SHOWN, Fault, FaultyFile, missing_file, report_faults
from autoloss.tasks.files.locking import lock_file
from autoloss.tasks.segmentation.data.pictures import ImageFiles
from autoloss.tasks.segmentation.data.resizing import resize

FORMAT = 1
"""Raised when a copy of an earlier release would differ."""
CACHE = "AUTOLOSS_CACHE"
"""Environment variable: the folder where copies are kept."""
CHUNK = 256
"""Images that are read ahead, so that memory stays bounded."""
IMAGES, MASKS = "images.npy", "masks.npy"

log = logging.getLogger(__name__)
Row = tuple[np.ndarray, np.ndarray]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ResizedCopy:
    """The images and masks of a data set at one size.

    Args:
        images: (N, side, side, 3) in 8 bits, mapped from a file where that is possible; likewise `masks` (N, side, side).
        folder: Where they are kept, None in memory.
    """

    pictures: ImageFiles
    side: int
    images: np.ndarray = field(repr=False)
    masks: np.ndarray = field(repr=False)
    folder: Path | None

    @property
    def name(self) -> str:
        return self.pictures.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.pictures.classes

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> Tensor:
        """Return an image, (3, side, side) in 8 bits."""
        return torch.from_numpy(self.images[index].copy()).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """Return a mask, (side, side) in 8 bits."""
        return torch.from_numpy(self.masks[index].copy())

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        return self.image(index), self.mask(index)

    def __reduce__(self) -> tuple[Callable[..., ResizedCopy], tuple[Any, ...]]:
        # A kept copy travels as its place: the other process maps it too, or makes it where it has another disk.
        if self.folder is not None:
            return open_copy, (self.pictures, self.side, self.folder.parent)
        return ResizedCopy, (self.pictures, self.side, self.images, self.masks, None)


def open_copy(pictures: ImageFiles, side: int, directory: Path | str | None = None) -> ResizedCopy:
    """Return the small copy of a data set; it is made if there is none yet.

    Several processes may ask at once: one makes the copy, the others wait for it. Where nothing can be written the copy is
    made in memory, which is said once through logging.

    Args:
        side: Pixels; images are resized to side × side whatever their shape.
        directory: Where copies are kept; `AUTOLOSS_CACHE`, or the user's cache, when left out.

    Raises:
        RequestError: Files cannot be read; all are looked at, and up to twenty faults listed.
    """
    if side < 1:
        raise RequestError(f"A copy of {side} pixels' side was asked for; expected at least 1.")
    if not len(pictures):
        raise RequestError(f"{pictures.name} holds no images; expected at least one.")
    place = find_cache() if directory is None else Path(directory)
    folder = place / fingerprint(pictures, side)
    try:
        if not folder.is_dir():
            _make_copy(pictures, side, folder)
        return _open_mapped(pictures, side, folder)
    except OSError as error:
        _warn_once(str(place), error.strerror or str(error))
        return _copy_in_memory(pictures, side)


def find_cache() -> Path:
    """Return where copies are kept when nobody says otherwise.

    Raises:
        RequestError: The user has no home folder.
    """
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(usual).expanduser() / "autoloss"
    except RuntimeError:
        raise RequestError(
            f"You have no home folder to keep small copies of images in. Set {CACHE} to a folder."
        ) from None


def fingerprint(pictures: ImageFiles, side: int) -> str:
    """Return a name for a copy, that changes with anything it is made from.

    The folder in which the data set lies is not part of it: a data set that moves keeps its copy.

    Raises:
        RequestError: Files are not there.
    """
    faults: list[Fault] = []
    files = []
    for file in (file for pair in pictures.pairs for file in pair):
        try:
            status = file.stat()
            files.append((file.parent.name, file.name, status.st_size, status.st_mtime_ns))
        except OSError:
            faults.append(missing_file(file, "a file of the data set"))
    if faults:
        raise report_faults(pictures.name, faults)
    # A module's function is its name here, any other its code.
    reader = hashlib.sha256(cloudpickle.dumps(pictures.read_mask)).hexdigest()
    known = json.dumps([FORMAT, side, reader, len(pictures.classes), files])
    return f"{side}-{hashlib.sha256(known.encode()).hexdigest()[:24]}"


def _make_copy(pictures: ImageFiles, side: int, folder: Path) -> None:
    """Write the copy beside its place, and move it there when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        # Nobody else is at work here: what lies about was left by a process that was killed.
        for left in folder.parent.glob(f"{folder.name}.part-*"):
            shutil.rmtree(left, ignore_errors=True)
        log.info("Making a copy of %s at %d×%d pixels in %s.", pictures.name, side, side, folder)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
        try:
            _write(_resize_all(pictures, side), len(pictures), side, part)
            part.chmod(0o755)
            part.rename(folder)
        except OSError:
            # On a disk without locks another process can be first; its copy is as good.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _write(rows: Iterable[Row], count: int, side: int, part: Path) -> None:
    with (part / IMAGES).open("wb") as images, (part / MASKS).open("wb") as masks:
        for file, shape in zip((images, masks), _shapes(count, side).values(), strict=True):
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        # Written rather than mapped: a full disk is then an error, where it would kill the process.
        for image, mask in rows:
            images.write(image.tobytes())
            masks.write(mask.tobytes())
        for file in (images, masks):
            file.flush()
            os.fsync(file.fileno())


def _shapes(count: int, side: int) -> dict[str, tuple[int, ...]]:
    # With the channels last, as files are decoded and as torch resizes fastest.
    return {IMAGES: (count, side, side, 3), MASKS: (count, side, side)}


def _open_mapped(pictures: ImageFiles, side: int, folder: Path) -> ResizedCopy:
    shapes = _shapes(len(pictures), side)
    try:
        found = {name: np.load(folder / name, mmap_mode="r") for name in shapes}
    except (ValueError, EOFError, FileNotFoundError):
        found = {}
    if {name: array.shape for name, array in found.items()} != shapes:
        raise RequestError(
            f"The copy of {pictures.name} in {folder} is damaged; expected {IMAGES} and {MASKS} of {len(pictures)} images. "
            "Delete that folder: the copy is then made again."
        )
    return ResizedCopy(pictures, side, found[IMAGES], found[MASKS], folder)


def _copy_in_memory(pictures: ImageFiles, side: int) -> ResizedCopy:
    images, masks = (np.empty(shape, np.uint8) for shape in _shapes(len(pictures), side).values())
    for index, row in enumerate(_resize_all(pictures, side)):
        images[index], masks[index] = row
    return ResizedCopy(pictures, side, images, masks, None)


def _resize_all(pictures: ImageFiles, side: int) -> Iterator[Row]:
    """Yield all images and masks resized, in order; decoded by several threads, since decoders leave Python's lock.

    Raises:
        RequestError: Files are faulty; nothing more is yielded after the first, but all are looked at.
    """
    faults: list[Fault] = []
    with ThreadPoolExecutor() as threads:
        for start in range(0, len(pictures), CHUNK):
            indices = range(start, min(start + CHUNK, len(pictures)))
            for row in threads.map(functools.partial(_resize_one, pictures, side), indices):
                if isinstance(row, Fault):
                    faults.append(row)
                elif not faults:
                    yield row
            if len(faults) >= FAULTS_SHOWN:
                break
    if faults:
        raise report_faults(pictures.name, faults)


def _resize_one(pictures: ImageFiles, side: int, index: int) -> Row | Fault:
    try:
        image, mask = resize(*pictures.pair(index), side, side)
    except FaultyFile as error:
        return error.fault
    return image.permute(1, 2, 0).numpy(), mask.numpy()


@functools.cache
def _warn_once(place: str, error: str) -> None:
    log.warning(
        "The small copy of the images cannot be kept in %s (%s); it stays in the memory of each process. "
        "Set %s to a folder that can be written.",
        place,
        error,
        CACHE,
    )
