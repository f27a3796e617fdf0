"""Share of loading in the time of a proxy training (Appendix A, 128², batch 8), and the cost of each form of data.

Rows {source, images_per_second, milliseconds_per_image, share}: share is the speed of training with this loader in the same
process relative to the network's forward and backward pass alone; 1 means that loading costs nothing.

Rows `forms` {form, milliseconds_per_step, ratio}: processor time of a whole training of a small network on 32² images, batch
32, with the data given as a Dataset, a list, a DataLoader or tensors, relative to a plain PyTorch loop over a DataLoader of that
Dataset with the same loss, by turns; the median ratio.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import autoloss
from autoloss.tasks.segmentation.data.augmentation import ImageDataset
from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageFiles, open_copy, read_indices
from autoloss.tasks.splits import Split
from output import Figure, emit, make_parser, parse_arguments

SIDE, CLASSES, BATCH = 128, 21, 8
HEIGHT, WIDTH = 375, 500
FIGURES = {
    "share with the small copy": Figure(("rows", {"source": "augmented small copy"}, "share"), digits=3),
    "share from JPEGs": Figure(("rows", {"source": "augmented files"}, "share"), digits=3),
    "Dataset / plain loop": Figure(("forms", {"form": "Dataset"}, "ratio"), digits=3),
    "list / plain loop": Figure(("forms", {"form": "list"}, "ratio"), digits=3),
    "DataLoader / plain loop": Figure(("forms", {"form": "DataLoader"}, "ratio"), digits=3),
    "tensors / plain loop": Figure(("forms", {"form": "tensors"}, "ratio"), digits=3),
}
FORM_SIDE, FORM_BATCH = 32, 32


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="timed batches of each")
    parser.add_argument("--pictures", type=int, default=64, help="images of the data set")
    parser.add_argument("--repeats", type=int, default=15, help="timed trainings of each form of data")
    arguments = parse_arguments(parser, argv, rounds=4, repeats=5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        rows = _rows(_written(Path(place), arguments.pictures), Path(place), arguments.rounds)
    result = {"side": SIDE, "batch": BATCH, "threads": 1, "rows": rows, "forms": _compare_forms(arguments.repeats)}
    emit(result, arguments, _print)


def _print(result: dict) -> None:
    print(f"{'source':<28}{'images/s':>10}{'ms/image':>10}{'share':>8}")
    for row in result["rows"]:
        share = "–" if row["share"] is None else f"{row['share']:.3f}"
        speed = f"{row['images_per_second']:>10.1f}{row['milliseconds_per_image']:>10.2f}"
        print(f"{row['source']:<28}{speed}{share:>8}")
    print(f"\n{'form of data':<28}{'ms/step':>10}{'ratio':>10}")
    for row in result["forms"]:
        print(f"{row['form']:<28}{row['milliseconds_per_step']:>10.3f}{row['ratio']:>10.3f}")


def _rows(pictures: ImageFiles, place: Path, rounds: int) -> list[dict]:
    """Time the network and both loaders by turns, so that what else the machine does meets all of them."""
    loaders = {"augmented small copy": open_copy(pictures, SIDE, place), "augmented files": pictures}
    endless = {name: _endless(Split(ImageDataset(source, crop=SIDE), name)) for name, source in loaders.items()}
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


class Pictures(Dataset):
    """Random images whose class is whether they are bright, one by one."""

    def __init__(self, count: int) -> None:
        self.images = torch.randn(count, 3, FORM_SIDE, FORM_SIDE, generator=torch.Generator().manual_seed(0))
        self.labels = (self.images.mean(dim=(1, 2, 3)) > 0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


def _make_small() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2))


def _accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(dim=1) == target).float().mean().item()


def _compare_forms(repeats: int, count: int = 1280) -> list[dict]:
    """Time a plain loop and a training with each form of data by turns."""
    data = Pictures(count)
    forms: dict[str, object] = {
        "Dataset": data,
        "list": [data[index] for index in range(count)],
        "DataLoader": DataLoader(data, batch_size=FORM_BATCH, shuffle=True),
        "tensors": (data.images, data.labels),
    }
    recipe = autoloss.Recipe(epochs=1, batch_size=FORM_BATCH, learning_rate=0.1)
    few = data.images[:FORM_BATCH], data.labels[:FORM_BATCH]
    tasks = {
        name: autoloss.SupervisedTask(_make_small, form, few, "softmax", _accuracy, recipe=recipe)
        for name, form in forms.items()
    }
    loss = autoloss.Loss("-y * log(p)")
    criterion = autoloss.bind(loss, tasks["tensors"].branches)
    trainings = {
        "plain loop": lambda: _train_plainly(data, loss.criterion(activation="softmax"), recipe),
        **{name: lambda task=task: task.train(criterion, autoloss.Training(seed=0)) for name, task in tasks.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(repeats + 1):
        for name, training in trainings.items():
            began = time.process_time()
            training()
            seconds[name].append(time.process_time() - began)
    steps = count // FORM_BATCH
    # By turns: what else the machine does meets all of a round.
    ratios = {
        name: statistics.median(value / plain for value, plain in zip(found, seconds["plain loop"], strict=True))
        for name, found in seconds.items()
    }
    return [
        {"form": name, "milliseconds_per_step": 1000 * min(found) / steps, "ratio": ratios[name]}
        for name, found in seconds.items()
    ]


def _train_plainly(data: Pictures, loss: nn.Module, recipe: autoloss.Recipe) -> None:
    network = _make_small()
    settings = {"lr": recipe.learning_rate, "momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    optimizer = torch.optim.SGD(network.parameters(), **settings)
    for images, labels in DataLoader(data, batch_size=FORM_BATCH, shuffle=True):
        optimizer.zero_grad()
        value = loss(network(images), labels)
        value.backward()
        optimizer.step()
        value.item()


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
