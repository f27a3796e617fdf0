"""A resized copy of a data set for proxies, made once and cached on disk (Appendix A).

A proxy reads 128×128 pixels of images that are twenty times as large; without the copy it would wait for their decoding. The folder
of a copy is named by a fingerprint of everything that it was made from, and is renamed to that name when it is complete, so that an
incomplete copy is never used.
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
from filelock import FileLock
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.files.faults import FAULTS_SHOWN, Fault, FaultyFile, missing_file, report_faults
from autoloss.tasks.segmentation.data.image_files import ImageFiles
from autoloss.tasks.segmentation.data.resizing import resize

FORMAT = 1
"""Version of the format of copies."""
CACHE = "AUTOLOSS_CACHE"
"""Environment variable with the folder of the cache."""
CHUNK = 256
"""Images that are read at once, which bounds the memory."""
IMAGES, MASKS = "images.npy", "masks.npy"

log = logging.getLogger(__name__)
Row = tuple[np.ndarray, np.ndarray]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ResizedCopy:
    """The images and masks of a data set at one size.

    Args:
        images: (N, side, side, 3) in 8 bits, memory-mapped where possible.
        masks: (N, side, side) in 8 bits, likewise.
        folder: Folder of the copy, None if it is in memory.
    """

    source: ImageFiles
    side: int
    images: np.ndarray = field(repr=False)
    masks: np.ndarray = field(repr=False)
    folder: Path | None

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

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
        # A copy on disk is sent as its folder: the other process maps it too, or makes it if it has another disk.
        if self.folder is not None:
            return open_copy, (self.source, self.side, self.folder.parent)
        return ResizedCopy, (self.source, self.side, self.images, self.masks, None)


def open_copy(source: ImageFiles, side: int, directory: Path | str | None = None) -> ResizedCopy:
    """Open the resized copy of a data set; it is made if there is none yet.

    Of several processes one makes the copy, and the others wait for it. If the cache cannot be written, the copy is made in
    memory, with a warning through logging.

    Args:
        side: In pixels; images are resized to side × side whatever their shape.
        directory: Folder of the cache; if None `AUTOLOSS_CACHE`, or the user's cache.

    Raises:
        RequestError: Files cannot be read; all are checked, and up to twenty faults listed.
    """
    if side < 1:
        raise RequestError(f"The side of the resized images is {side} pixels; it needs to be at least 1.")
    if not len(source):
        raise RequestError(f"{source.name} holds no images; expected at least one.")
    cache = find_cache() if directory is None else Path(directory)
    folder = cache / fingerprint(source, side)
    try:
        if not folder.is_dir():
            _make_copy(source, side, folder)
        return _open_mapped(source, side, folder)
    except OSError as error:
        _warn_once(str(cache), error.strerror or str(error))
        return _copy_in_memory(source, side)


def find_cache() -> Path:
    """Return the folder of the cache.

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
            f"There is no home folder for the cache of resized images. Set {CACHE} to a folder."
        ) from None


def fingerprint(source: ImageFiles, side: int) -> str:
    """Return the name of a copy, which changes with everything that it is made from.

    The folder of the data set is not part of it, so that a data set that is moved keeps its copy.

    Raises:
        RequestError: Files are missing.
    """
    faults: list[Fault] = []
    files = []
    for file in (file for pair in source.pairs for file in pair):
        try:
            status = file.stat()
            files.append((file.parent.name, file.name, status.st_size, status.st_mtime_ns))
        except OSError:
            faults.append(missing_file(file, "a file of the data set"))
    if faults:
        raise report_faults(source.name, faults)
    # A function of a module is pickled by its name, any other by its code.
    reader = hashlib.sha256(cloudpickle.dumps(source.read_mask)).hexdigest()
    known = json.dumps([FORMAT, side, reader, len(source.classes), files])
    return f"{side}-{hashlib.sha256(known.encode()).hexdigest()[:24]}"


def _make_copy(source: ImageFiles, side: int, folder: Path) -> None:
    """Write the copy to a temporary folder, and rename it when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        # Under the lock, remaining temporary folders are those of killed processes.
        for left in folder.parent.glob(f"{folder.name}.part-*"):
            shutil.rmtree(left, ignore_errors=True)
        log.info("Making a copy of %s at %d×%d pixels in %s.", source.name, side, side, folder)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
        try:
            _write(_resize_all(source, side), len(source), side, part)
            part.chmod(0o755)
            part.rename(folder)
        except OSError:
            # On a disk without locks another process may have been first; its copy is equal.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _write(rows: Iterable[Row], count: int, side: int, part: Path) -> None:
    with (part / IMAGES).open("wb") as images, (part / MASKS).open("wb") as masks:
        for file, shape in zip((images, masks), _shapes(count, side).values(), strict=True):
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        # Written rather than mapped: a full disk would kill a process that writes to a mapped file.
        for image, mask in rows:
            images.write(image.tobytes())
            masks.write(mask.tobytes())
        for file in (images, masks):
            file.flush()
            os.fsync(file.fileno())


def _shapes(count: int, side: int) -> dict[str, tuple[int, ...]]:
    # Channels last, as files are decoded and as torch resizes fastest.
    return {IMAGES: (count, side, side, 3), MASKS: (count, side, side)}


def _open_mapped(source: ImageFiles, side: int, folder: Path) -> ResizedCopy:
    shapes = _shapes(len(source), side)
    try:
        found = {name: np.load(folder / name, mmap_mode="r") for name in shapes}
    except (ValueError, EOFError, FileNotFoundError):
        found = {}
    if {name: array.shape for name, array in found.items()} != shapes:
        raise RequestError(
            f"The copy of {source.name} in {folder} is damaged; expected {IMAGES} and {MASKS} of {len(source)} images. "
            "Delete that folder: the copy is then made again."
        )
    return ResizedCopy(source, side, found[IMAGES], found[MASKS], folder)


def _copy_in_memory(source: ImageFiles, side: int) -> ResizedCopy:
    images, masks = (np.empty(shape, np.uint8) for shape in _shapes(len(source), side).values())
    for index, row in enumerate(_resize_all(source, side)):
        images[index], masks[index] = row
    return ResizedCopy(source, side, images, masks, None)


def _resize_all(source: ImageFiles, side: int) -> Iterator[Row]:
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


def _resize_one(source: ImageFiles, side: int, index: int) -> Row | Fault:
    try:
        image, mask = resize(*source.pair(index), side, side)
    except FaultyFile as error:
        return error.fault
    return image.permute(1, 2, 0).numpy(), mask.numpy()


@functools.cache
def _warn_once(cache: str, error: str) -> None:
    log.warning(
        "The resized copy of the images cannot be written to %s (%s); it is kept in the memory of each process. "
        "Set %s to a folder that can be written.",
        cache,
        error,
        CACHE,
    )
