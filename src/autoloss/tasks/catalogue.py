"""The built-in tasks by name; listing them imports neither torch nor data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoloss.errors import RequestError, unknown
from autoloss.tables import read_rows

if TYPE_CHECKING:
    from autoloss.tasks.task import Task


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A built-in task.

    Args:
        description: One line for tables.
        metrics: Names of the metrics that losses can be searched for, the default first.
        factory: `module:name` of the `TaskFactory`.
        extra: Extra of the package that the task needs; empty if none.
    """

    description: str
    metrics: tuple[str, ...]
    factory: str
    extra: str = ""


_TASKS = """
digits-seg | segmentation.digits | miou fwiou gacc macc biou bf1 |
    Segmentation of scenes composed of real handwritten digits, 32×32, 10 classes and background
voc-seg | segmentation.task | miou fwiou gacc macc biou bf1 | vision
    Segmentation of PASCAL VOC 2012, with or without SBD: 20 classes and background
cityscapes-seg | segmentation.task | miou fwiou gacc macc biou bf1 | vision
    Segmentation of Cityscapes, 19 classes
folder-seg | segmentation.task | miou fwiou gacc macc biou bf1 | vision
    Segmentation of a folder of your own, with images and masks
digits-det | detection.digits | map ap50 voc07 | vision
    Detection in scenes of real handwritten digits, 96×96, 10 classes; Faster R-CNN with four branches
coco-det | detection.task | map ap50 voc07 | vision
    Detection on COCO 2017, 80 classes; Faster R-CNN with four branches, the paper's proxy and retraining
voc-det | detection.task | voc07 ap50 map | vision
    Detection on PASCAL VOC 2007 and 2012, 20 classes; as coco-det
digits-ins | detection.digits | map ap50 box_map box_ap50 | vision
    Instance segmentation in the scenes of digits-det, with exact masks; Mask R-CNN with five branches
coco-ins | detection.task | map ap50 box_map box_ap50 | vision
    Instance segmentation on COCO 2017, 80 classes; Mask R-CNN with five branches, the paper's proxy and retraining
figures-pose | pose.figures | map ap50 ap75 map_medium map_large mar oks | vision
    Poses of drawn figures over photographs, 17 joints in COCO's order; heatmaps as in SimpleBaseline
coco-pose | pose.task | map ap50 ap75 map_medium map_large mar oks | vision
    Poses on COCO 2017, 17 joints; SimpleBaseline, the paper's proxy and retraining
tabular | tabular.task | f1 auc average_precision balanced_accuracy mcc r2 spearman |
    Classification or regression of the rows of a bundled data set or a CSV file
ranking | ranking | ndcg ndcg5 ndcg10 map mrr auc average_precision |
    Ranking of the rows of a CSV file or a bundled data set: by queries with a graded relevance, or all together
survival | survival | c_index uno_c time_auc |
    Survival: the order of the times of an event, some censored, of the rows of a CSV file or a bundled data set
"""
"""Name, module of the factory, metrics and extra; below them the description."""

CATALOGUE: Mapping[str, CatalogueEntry] = {
    name: CatalogueEntry(
        description, tuple(metrics.split()), f"autoloss.tasks.{module}:{name.replace('-', '_')}", extra
    )
    for name, module, metrics, extra, description in read_rows(_TASKS, lines=2)
}


def names() -> list[str]:
    """Return the names of all tasks."""
    return list(CATALOGUE)


def get(name: str, metric: str | None = None, **options: Any) -> Task:
    """Build a task by its name.

    Args:
        name: One of `names()`.
        metric: Metric that losses are searched for; the task's default if None.
        options: Options of the task, such as `data` and `target` of a table.

    Raises:
        RequestError: An unknown name, metric or option, a value that the task cannot use, or an extra that is not installed.

    >>> task = get("digits-seg", metric="miou", train=64, valid=16, test=16)
    >>> task.samples(5, seed=0)["main"][0].prediction.shape
    torch.Size([1, 11, 32, 32])
    """
    return find_factory(name, metric)(metric, **options)


def inspect(name: str, metric: str | None = None, **options: Any) -> None:
    """Inspect the files of a task's data, if it has any; arguments as for `get`, and up to twenty faults in the RequestError."""
    find_factory(name, metric).inspect(metric, **options)


def find_entry(name: str, metric: str | None = None) -> CatalogueEntry:
    """Return the entry of a task without importing torch; a RequestError if the name or the metric is unknown."""
    if name not in CATALOGUE:
        raise RequestError(f"{unknown('task', name, CATALOGUE)} A task of your own is named file.py:name.")
    if metric is not None and metric not in (known := CATALOGUE[name].metrics):
        raise RequestError(f"{unknown(f'metric of the task {name}', metric, known)} For your own: docs/my-task.md.")
    return CATALOGUE[name]


def find_factory(name: str, metric: str | None = None) -> Any:
    """Return the `TaskFactory` of a task; `inspect.signature` lists its options with their defaults."""
    row = find_entry(name, metric)
    module, _, factory = row.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)
    # torchvision of another build than torch raises RuntimeError.
    except (ImportError, RuntimeError, OSError) as error:
        if not row.extra:
            raise
        raise RequestError(
            f"The task {name} cannot be loaded ({error}). It needs the extra {row.extra!r}: pip install autoloss[{row.extra}]."
        ) from error
