"""The metrics of the tasks away from home, each of a whole split; higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

NEAR = 0.2
"""Error up to which a value counts as right, in standard deviations of the target."""
Measure = Callable[[Tensor, Tensor], float]


def average(each: Callable[[Tensor, Tensor], Tensor]) -> Measure:
    """Return the metric that is the mean of one value per item."""
    return lambda prediction, target: each(prediction, target).double().mean().item()


def decide(prediction: Tensor) -> Tensor:
    """Return the class of each position; one channel is the probability of yes."""
    return (prediction[:, 0] > 0.5).long() if prediction.shape[1] == 1 else prediction.argmax(dim=1)


def count_confusion(prediction: Tensor, target: Tensor) -> Tensor:
    """Count items by target (rows) and decision (columns), in float64."""
    classes = max(2, prediction.shape[1])
    pairs = target.long().flatten() * classes + decide(prediction).flatten()
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).double()


def measure_f_beta(beta: float) -> Measure:
    """Return F-β of the class 1."""

    def measure(prediction: Tensor, target: Tensor) -> float:
        counts = count_confusion(prediction, target)
        hit, missed, false = counts[1, 1], counts[1, 0], counts[0, 1]
        weighted = (1 + beta**2) * hit
        return (weighted / (weighted + beta**2 * missed + false).clamp(min=1)).item()

    return measure


def measure_macro_f1(prediction: Tensor, target: Tensor) -> float:
    counts = count_confusion(prediction, target)
    total = counts.sum(dim=0) + counts.sum(dim=1)
    return (2 * counts.diagonal() / total.clamp(min=1))[total > 0].mean().item()


def measure_worst_recall(prediction: Tensor, target: Tensor) -> float:
    counts = count_confusion(prediction, target)
    wanted = counts.sum(dim=1)
    return (counts.diagonal() / wanted.clamp(min=1))[wanted > 0].min().item()


def measure_mcc(prediction: Tensor, target: Tensor) -> float:
    (true_no, false_yes), (false_no, true_yes) = count_confusion(prediction, target).tolist()
    sides = (true_yes + false_yes) * (true_yes + false_no) * (true_no + false_yes) * (true_no + false_no)
    return (true_yes * true_no - false_yes * false_no) / sides**0.5 if sides else 0.0


def measure_geometric_mean(prediction: Tensor, target: Tensor) -> float:
    """Return the geometric mean of the recalls of the classes."""
    counts = count_confusion(prediction, target)
    wanted = counts.sum(dim=1)
    recalls = (counts.diagonal() / wanted.clamp(min=1))[wanted > 0]
    return recalls.prod().pow(1 / len(recalls)).item()


def measure_several_mcc(prediction: Tensor, target: Tensor) -> float:
    """Return Matthews' correlation of several classes (Gorodkin, 2004)."""
    counts = count_confusion(prediction, target)
    wanted, decided, total = counts.sum(dim=1), counts.sum(dim=0), counts.sum()
    size = ((total**2 - decided @ decided) * (total**2 - wanted @ wanted)).sqrt()
    return ((counts.trace() * total - wanted @ decided) / size).item() if size > 0 else 0.0


def measure_root_mean_square(prediction: Tensor, target: Tensor) -> float:
    return -(prediction - target).double().square().mean().sqrt().item()


def measure_auc(prediction: Tensor, target: Tensor) -> float:
    yes = target.flatten() > 0.5
    pairs = int(yes.sum()) * int((~yes).sum())
    ranks = rank(prediction[:, -1].flatten())
    count = int(yes.sum())
    return ((ranks[yes].sum() - count * (count - 1) / 2) / pairs).item() if pairs else float("nan")


def measure_kappa(prediction: Tensor, target: Tensor) -> float:
    """Return Cohen's kappa of grades with quadratic weights."""
    counts = count_confusion(prediction, target)
    grades = torch.arange(len(counts), dtype=torch.float64)
    weights = (grades[:, None] - grades) ** 2
    expected = counts.sum(dim=1)[:, None] * counts.sum(dim=0) / counts.sum()
    chance = (weights * expected).sum()
    return (1 - (weights * counts).sum() / chance).item() if chance > 0 else 0.0


def measure_spearman(prediction: Tensor, target: Tensor) -> float:
    found, wanted = (rank(values.flatten()) for values in (prediction, target))
    found, wanted = found - found.mean(), wanted - wanted.mean()
    size = found.norm() * wanted.norm()
    return (found @ wanted / size).item() if size > 0 else 0.0


def rank(values: Tensor) -> Tensor:
    """Return ranks from 0, in float64; equal values share the mean of theirs.

    >>> rank(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(dim=0).double()
    return (ends - (counts.double() + 1) / 2)[place]


def measure_iou(prediction: Tensor, target: Tensor) -> float:
    """Return the intersection over union of the class 1, of all pictures together."""
    counts = count_confusion(prediction, target)
    return (counts[1, 1] / (counts.sum() - counts[0, 0]).clamp(min=1)).item()


def _hits(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.topk(2, dim=1).indices == target.long()[:, None]).any(dim=1)


def _errors(prediction: Tensor, target: Tensor) -> Tensor:
    return -(prediction - target).abs().flatten(1).mean(dim=1)


def _grade_errors(prediction: Tensor, target: Tensor) -> Tensor:
    return -(decide(prediction) - target).abs().double()


def _near(prediction: Tensor, target: Tensor) -> Tensor:
    return ((prediction - target).abs() < NEAR).flatten(1).all(dim=1)


def _correct(prediction: Tensor, target: Tensor) -> Tensor:
    return decide(prediction) == target


def _quantile_losses(prediction: Tensor, target: Tensor) -> Tensor:
    short = target - prediction
    return -torch.maximum(0.9 * short, -0.1 * short).flatten(1).mean(dim=1)


def _relative_errors(prediction: Tensor, target: Tensor) -> Tensor:
    return -((prediction - target).abs() / target.abs()).flatten(1).mean(dim=1)


def _near_in_proportion(prediction: Tensor, target: Tensor) -> Tensor:
    return ((prediction - target).abs() < target.abs() / 4).flatten(1).all(dim=1)


def _costs(prediction: Tensor, target: Tensor) -> Tensor:
    """A unit too little costs three times what one too much does."""
    short = target - prediction
    return -torch.maximum(0.75 * short, -0.25 * short).flatten(1).mean(dim=1)


def measure_relative_root_mean_square(prediction: Tensor, target: Tensor) -> float:
    return -((prediction - target) / target).double().square().mean().sqrt().item()


def measure_root_mean_square_of_logs(prediction: Tensor, target: Tensor) -> float:
    return measure_root_mean_square(prediction.clamp(min=0).log1p(), target.log1p())


def _dice(prediction: Tensor, target: Tensor) -> Tensor:
    found, wanted = (mask.flatten(1).double() for mask in (decide(prediction), target))
    return 2 * (found * wanted).sum(dim=1) / (found + wanted).sum(dim=1).clamp(min=1)


def _boundary_f1(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the F1 of the borders of class 1 in each picture, with a tolerance of one pixel."""
    found, wanted = (_find_border(mask[:, None].float()) for mask in (decide(prediction), target))
    near_found, near_wanted = (F.max_pool2d(border, 3, 1, 1) for border in (found, wanted))
    matched, met = (found * near_wanted).sum(dim=(1, 2, 3)), (wanted * near_found).sum(dim=(1, 2, 3))
    precision = matched / found.sum(dim=(1, 2, 3)).clamp(min=1)
    recall = met / wanted.sum(dim=(1, 2, 3)).clamp(min=1)
    return 2 * precision * recall / (precision + recall).clamp(min=1e-12)


def _find_border(mask: Tensor) -> Tensor:
    return mask - -F.max_pool2d(-mask, 3, 1, 1)


METRICS: Mapping[str, Measure] = {
    "F1": measure_f_beta(1.0),
    "F2": measure_f_beta(2.0),
    "macro-F1": measure_macro_f1,
    "worst recall": measure_worst_recall,
    "MCC": measure_mcc,
    "AUC": measure_auc,
    "kappa": measure_kappa,
    "top-2 accuracy": average(_hits),
    "minus MAE": average(_errors),
    "Spearman": measure_spearman,
    "minus 0.9-quantile loss": average(_quantile_losses),
    "IoU": measure_iou,
    "Dice": average(_dice),
    "BF1": average(_boundary_f1),
    "F0.5": measure_f_beta(0.5),
    "geometric mean": measure_geometric_mean,
    "several MCC": measure_several_mcc,
    "minus RMSE": measure_root_mean_square,
    "minus grade error": average(_grade_errors),
    "share within 0.2": average(_near),
    "accuracy": average(_correct),
    "minus MAPE": average(_relative_errors),
    "share within a quarter": average(_near_in_proportion),
    "minus cost of 3 to 1": average(_costs),
    "minus relative RMSE": measure_relative_root_mean_square,
    "minus RMSLE": measure_root_mean_square_of_logs,
}
