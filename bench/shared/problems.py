"""The tasks that scripts about searches share, each also in a form whose trainings take a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import autoloss

FEW = {"train": 64, "valid": 16, "test": 16, "epochs": 1}
"""Options of digits-seg that make it so small."""
STEPS = 100
"""Steps of a training on a table that make it so small."""
FEW_OF_DETECTION = {"train": 16, "valid": 8, "test": 8, "epochs": 1}
FEW_OF_POSES = {"train": 32, "valid": 8, "test": 8, "epochs": 1}
SGD = {"optimizer": "sgd", "learning_rate": 0.1}
"""Options of figures-pose and digits-det under which a training follows the size of the gradients, as with Adam it does not."""


def make_worst_digit(few: bool = False) -> autoloss.Task:
    """Return the task of docs/start.md: the recall of the handwritten digit that a small network recognises worst."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, valid, test = ((images[rows], labels[rows]) for rows in order.split([400, 600, 797]))
    return autoloss.SupervisedTask(
        lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        train=train,
        valid=valid,
        test=test,
        activation="softmax",
        metric=_measure_worst_recall,
        recipe=autoloss.Recipe(epochs=5 if few else 10, batch_size=32, learning_rate=0.2),
        name="worst-digit",
    )


def _measure_worst_recall(prediction: Tensor, target: Tensor) -> float:
    hit = (prediction.argmax(dim=1) == target).double()
    return min(hit[target == digit].mean().item() for digit in target.unique())


def make_denoising(few: bool = False) -> autoloss.Task:
    """Return a regression of pictures, on which one random tree in thousands passes: scikit-image's photographs under noise."""
    # Of the extra `bench`, which other scripts that import this module do not need.
    from skimage import data

    rng = torch.Generator().manual_seed(0)
    photographs = [torch.tensor(load() / 255, dtype=torch.float32) for load in (data.camera, data.coins, data.moon)]
    size, count = 24, 80 if few else 800
    crops = []
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        top, left = (int(torch.randint(side - size, (), generator=rng)) for side in photograph.shape)
        crops.append(photograph[None, top : top + size, left : left + size])
    clean = torch.stack(crops)
    noisy = clean + 0.15 * torch.randn(clean.shape, generator=rng)
    parts = torch.arange(count).split([count // 2, count // 4, count // 4])
    train, valid, test = ((noisy[rows], clean[rows]) for rows in parts)
    return autoloss.SupervisedTask(
        _make_denoiser,
        train=train,
        valid=valid,
        test=test,
        activation="none",
        metric=_measure_psnr,
        recipe=autoloss.Recipe(epochs=6, batch_size=16, learning_rate=0.003, optimizer="adam"),
        name="denoising",
    )


def _make_denoiser() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )


def _measure_psnr(prediction: Tensor, target: Tensor) -> float:
    error = (prediction - target).square().mean(dim=(1, 2, 3)).clamp(min=1e-8)
    return float((-10 * error.log10()).mean())


def make_segmentation(metric: str) -> Callable[[bool], autoloss.Task]:
    """Return the function that makes digits-seg with a metric, with few steps if told so."""
    return lambda few: autoloss.tasks.get("digits-seg", metric=metric, **(FEW if few else {}))


def _make_table(few: bool) -> autoloss.Task:
    return autoloss.tasks.get("tabular", metric="f1", data="breast_cancer_hard", **({"steps": STEPS} if few else {}))


def _make_detection(few: bool) -> autoloss.Task:
    return autoloss.tasks.get("digits-det", **(FEW_OF_DETECTION if few else {}))


PROBLEMS: Mapping[str, Callable[[bool], autoloss.Task]] = {
    "digits-seg-miou": make_segmentation("miou"),
    "digits-seg-bf1": make_segmentation("bf1"),
    "tabular-f1": _make_table,
    "worst-digit": make_worst_digit,
    "digits-det": _make_detection,
}
"""Name → the function that makes the task, with few steps and examples if told so."""
