"""The files of a data set: their options and layout, their faults, and their inspection in seconds before any training.

The header of every file is read. Decoding all images would take as long as an epoch, so the first ones and a random sample are
decoded, up to a number of pixels. Making the resized copy for a proxy reads all images, and reports the same faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from random import Random
from typing import Any, ClassVar, Literal, Protocol

from PIL import Image

from autoloss.errors import RequestError, quote
from autoloss.files import parse_json
from autoloss.options import Natural, PositiveShare, declare
from autoloss.training.recipe import Recipe

FAULTS_SHOWN = 20
REMEDY = "Correct it in the file, or remove it."
FIRST = 8
"""Images that are always decoded, so that a fault of all images is reported for the same ones each time."""
PIXELS = 60_000_000
"""Pixels that are decoded, approximately: 300 images of VOC or 30 of Cityscapes, in a few seconds."""
DECODABLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes of Pillow with at most 8 bits per channel."""
AN_IMAGE = "an image of 8 bits per channel, such as JPEG or PNG"


@declare()
class FileOptions:
    """Options of every task whose data are files."""

    data: str | Path | None = None
    """Folder of the data set."""
    seed: int = 0
    """Seed of the images that are held out for validation, and of those that the proxy trains on."""
    device: str = "auto"
    """Device on which networks are trained; auto is a GPU if there is one."""
    loaders: Natural = 0
    """Worker processes that read images ahead; without them a GPU waits for its data."""

    def find_data(self, name: str, layout: str, origin: str = "") -> Path:
        """Return the folder of the data, which hold `name` and come from `origin`; a RequestError if none was given."""
        if self.data is None:
            source = f"\nThey come from {origin}." if origin else ""
            raise RequestError(
                f"The option data is missing: the folder of {name}. Expected\n{layout}{source}", argument="data"
            )
        return Path(self.data)

    def find_device(self) -> str:
        """Return the device's name in torch."""
        import torch

        return ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device


@declare()
class AnnotatedOptions(FileOptions):
    """Options of every task on annotated images, of which some are held out and the proxy trains on a share of the rest."""

    held_out: int | None = None
    """Number of training images held out for validation; the paper's share when None."""
    share: PositiveShare = 1.0
    """Share of the other training images that the proxy trains on."""


@declare()
class NetworkOptions:
    """Network and recipe of a schedule."""

    backbone: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
    recipe: Recipe


def count_held_out(given: int | None, images: Images, paper: tuple[int, int]) -> int:
    """Return how many images are held out: the number given, or the share of the paper's (held out, of how many), at most that."""
    (held, of), found = paper, len(images)
    count = max(1, min(held, round(found * held / of))) if given is None else given
    if not 1 <= count < found:
        raise RequestError(
            f"{count} of the {found} images of {images.name} were to be held out; expected at least 1, and at least 1 left to "
            "train on. Hold out another number, or add images."
        )
    return count


def find_root(roots: Iterable[Path], needed: Sequence[str], name: str, layout: str) -> Path:
    """Return the first root that has all needed parts; else the RequestError names what the most complete one lacks."""
    candidates = list(dict.fromkeys(roots))
    lacking = {root: [part for part in needed if not (root / part).exists()] for root in candidates}
    best = min(candidates, key=lambda root: len(lacking[root]))
    if lacking[best]:
        raise RequestError(
            f"{best} holds no {name}: there is no {' and no '.join(lacking[best])}. Expected\n{layout}\n"
            "Give the folder that holds all of it."
        )
    return best


def find_directory(directory: Path | str, name: str, layout: str) -> Path:
    """Return the folder of a data set; a RequestError shows its layout if there is none."""
    found = Path(directory).expanduser()
    if not found.is_dir():
        what = "is no folder" if found.exists() else "does not exist"
        raise RequestError(f"{directory} {what}; expected the folder of {name}:\n{layout}\nCheck the path.")
    return found


def leads_outside(name: str) -> bool:
    """Return whether a name from a file leads outside its folder."""
    return "\0" in name or PurePath(name).is_absolute() or ".." in PurePath(name).parts


def read_names(file: Path, name: str) -> list[str]:
    """Read the names of a split, one per line, without blank lines and repeated names."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise RequestError(
            f"{name} has no split {file.stem!r}: there is no {file}; expected a text file with one name per line. "
            "Add it, or choose another split."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read ({error}); expected a text file with one name per line.") from None
    names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if astray := [name for name in names if leads_outside(name)]:
        raise RequestError(f"{file} names {quote(astray[0])}, outside the folder of {name}. Remove the line.")
    if not names:
        raise RequestError(f"{file} is empty: the split {file.stem!r} of {name} has no images. Put one name per line.")
    return names


def check_apart(train: Iterable[Path], test: Iterable[Path], names: tuple[str, str]) -> None:
    """Raise a RequestError if images to train on, or to choose by, are measured on in the end too."""
    if both := sorted(set(train) & set(test)):
        listed = ", ".join(file.stem for file in both[:5]) + ", …" * (len(both) > 5)
        raise RequestError(
            f"{names[1]} has {len(both)} of the images of {names[0]}: {listed}; expected each image in one split. Remove them "
            "from one."
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one file."""

    file: Path
    found: str
    expected: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"{self.file}: {self.found}; expected {self.expected}. {self.remedy}"


class FaultyFile(RequestError):
    """Raised when a faulty file is read."""

    def __init__(self, fault: Fault) -> None:
        # The fault alone is the argument, so that the error survives pickling between processes.
        super().__init__(fault)
        self.fault = fault


def report_faults(name: str, faults: Sequence[object], end: str = "") -> RequestError:
    """Return the error that lists the first twenty faults of a data set, with a last line; what is repeated is said once."""
    lines, before = list[str](), ""
    for place, _, what in (str(fault).partition(": ") for fault in faults[:FAULTS_SHOWN]):
        lines.append(f"\n  {place}: {'the same' if what == before else what}" if what else f"\n  {place}")
        before = what
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"\n  and {len(faults) - FAULTS_SHOWN} more")
    return RequestError(f"{name} cannot be used as it is:{''.join(lines)}{end and chr(10)}{end}")


def missing_file(file: Path, expected: str) -> Fault:
    """Return the fault of a file that does not exist."""
    remedy = "Add it, correct the path, or remove its name from the list of the split."
    return Fault(file, "there is no such file", expected, remedy)


@contextmanager
def report_decoding(file: Path, expected: str) -> Iterator[None]:
    """Turn every error that occurs while a file is read into a `FaultyFile`; a damaged one can make a decoder raise anything."""
    try:
        yield
    except FaultyFile:
        raise
    except (FileNotFoundError, IsADirectoryError):
        raise FaultyFile(missing_file(file, expected)) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        # Pillow repeats the path.
        found = f"cannot be decoded ({reason.replace(f' {str(file)!r}', '')})"
        raise FaultyFile(Fault(file, found, expected, "Copy it again from its source, or remove it.")) from None


def read_json(file: Path, expected: str) -> Any:
    """Read a JSON file; a `FaultyFile` is raised if it is missing or cannot be decoded."""
    with report_decoding(file, expected):
        return parse_json(file.read_bytes())


def name_problems(file: Path, place: str, problems: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return the problems of a place in a file, each as (found, expected), as faults."""
    return [Fault(file, f"{place} {found}", expected) for found, expected in problems]


@contextmanager
def open_image(
    file: Path, expected: str = AN_IMAGE, modes: tuple[str, ...] | None = DECODABLE
) -> Iterator[Image.Image]:
    """Open an image in one of some modes of Pillow, any if None; every error becomes a `FaultyFile`."""
    with report_decoding(file, expected), Image.open(file) as picture:
        if modes is not None and picture.mode not in modes:
            found = f"holds {picture.mode} values"
            raise FaultyFile(Fault(file, found, expected, "Convert it."))
        yield picture


class Images(Protocol):
    """The images of a data set that can be inspected; both methods raise a `FaultyFile`."""

    kind: ClassVar[str]
    """A noun for what is inspected, such as pairs of image and mask."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def header(self, index: int) -> tuple[int, int]: ...
    def decode(self, index: int) -> object: ...


def inspect_images(images: Images, limit: int = FAULTS_SHOWN, *, pixels: int = PIXELS) -> tuple[list[Fault], str]:
    """Inspect the files of a data set until `limit` faults are found; about this many pixels are decoded.

    Return the faults in the order of the data set, and a sentence on how many headers were read and images decoded.
    """
    if not len(images):
        raise RequestError(f"{images.name} holds no images; expected at least one.")
    found: dict[int, Fault] = {}
    sizes: dict[int, tuple[int, int]] = {}
    decoded = 0
    for index in range(len(images)):
        if len(found) < limit:
            try:
                sizes[index] = images.header(index)
            except FaultyFile as error:
                found[index] = error.fault
    headers = len(found) + len(sizes)
    for index in _draw_sample(sizes, pixels):
        if len(found) >= limit:
            break
        decoded += 1
        try:
            images.decode(index)
        except FaultyFile as error:
            found[index] = error.fault
    read = f"{images.name}: read the headers of {headers} and decoded {decoded} of {len(images)} {images.kind}."
    return [found[index] for index in sorted(found)], read


def _draw_sample(sizes: dict[int, tuple[int, int]], pixels: int) -> Iterator[int]:
    """Yield the images to decode: the first ones, then others at random, at least one."""
    order = list(sizes)
    rest = order[FIRST:]
    # The same images each time, so that corrected files are inspected again.
    Random(0).shuffle(rest)
    for index in order[:FIRST] + rest:
        yield index
        pixels -= sizes[index][0] * sizes[index][1]
        if pixels <= 0:
            return
