"""How much of a proxy training's time goes into loading images (Appendix A, 128², batch 8).

Rows {source, images_per_second, milliseconds_per_image, share}: share is the speed of training with this loader in the same
process relative to the network's forward and backward pass alone; 1 means that loading costs nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F

from autoloss.tasks.data import Split
from autoloss.tasks.segmentation.data.augmentation import AugmentedDataset
from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageFiles, read_indices
from autoloss.tasks.segmentation.data.resized_copy import open_copy
from output import Figure, emit, make_parser, parse_arguments

SIDE, CLASSES, BATCH = 128, 21, 8
HEIGHT, WIDTH = 375, 500
FIGURES = {
    "share with the small copy": Figure(("rows", {"source": "augmented small copy"}, "share"), digits=3),
    "share from JPEGs": Figure(("rows", {"source": "augmented files"}, "share"), digits=3),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="timed batches of each")
    parser.add_argument("--pictures", type=int, default=64, help="images of the data set")
    arguments = parse_arguments(parser, argv, rounds=4)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        rows = _rows(_written(Path(place), arguments.pictures), Path(place), arguments.rounds)
    result = {"side": SIDE, "batch": BATCH, "threads": 1, "rows": rows}
    emit(result, arguments, _print)


def _print(result: dict) -> None:
    print(f"{'source':<28}{'images/s':>10}{'ms/image':>10}{'share':>8}")
    for row in result["rows"]:
        share = "–" if row["share"] is None else f"{row['share']:.3f}"
        speed = f"{row['images_per_second']:>10.1f}{row['milliseconds_per_image']:>10.2f}"
        print(f"{row['source']:<28}{speed}{share:>8}")


def _rows(pictures: ImageFiles, place: Path, rounds: int) -> list[dict]:
    """Time the network and both loaders by turns, so that what else the machine does meets all of them."""
    loaders = {"augmented small copy": open_copy(pictures, SIDE, place), "augmented files": pictures}
    endless = {name: _endless(Split(AugmentedDataset(source, SIDE), name)) for name, source in loaders.items()}
    step = _step(next(endless["augmented small copy"]))
    seconds: dict[str, list[float]] = {name: [] for name in ("network", *endless)}
    for _ in range(rounds + 1):
        seconds["network"].append(_timed(step))
        for name, batches in endless.items():
            seconds[name].append(_timed(lambda batches=batches: next(batches)))
    # The first round warms up.
    middle = {name: statistics.median(found[1:]) / BATCH for name, found in seconds.items()}
    network = middle["network"]
    return [
        {
            "source": name,
            "images_per_second": 1 / value,
            "milliseconds_per_image": 1000 * value,
            "share": None if name == "network" else network / (network + value),
        }
        for name, value in middle.items()
    ]


def _step(batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    network = smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=CLASSES).train()

    def step() -> None:
        network.zero_grad()
        F.cross_entropy(network(batch[0]), batch[1], ignore_index=IGNORED).backward()

    return step


def _endless(split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from split.batches(torch.randperm(len(split)).split(BATCH))


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _written(place: Path, count: int) -> ImageFiles:
    """Write JPEGs of VOC's size, cut from two photographs, with masks of blobs."""
    rng = np.random.default_rng(0)
    photographs = load_sample_images().images
    pairs = []
    for index in range(count):
        photograph = photographs[index % 2]
        top, left = rng.integers(photograph.shape[0] - HEIGHT), rng.integers(photograph.shape[1] - WIDTH)
        pair = (place / f"{index}.jpg", place / f"{index}.png")
        Image.fromarray(photograph[top : top + HEIGHT, left : left + WIDTH]).save(pair[0], quality=90)
        coarse = Image.fromarray(rng.integers(0, CLASSES, (6, 8), np.uint8))
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).save(pair[1])
        pairs.append(pair)
    names = tuple(f"class {index}" for index in range(CLASSES))
    return ImageFiles("pictures of VOC's size", tuple(pairs), names, read_indices)


if __name__ == "__main__":
    main()
