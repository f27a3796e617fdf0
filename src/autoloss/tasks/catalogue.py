"""The built-in tasks by name; listing them imports neither torch nor data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoloss.errors import RequestError, unknown

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

    @property
    def metric(self) -> str:
        """The default metric."""
        return self.metrics[0]


POSE = ("map", "ap50", "ap75", "map_medium", "map_large", "mar", "oks")
SEGMENTATION = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")

CATALOGUE: Mapping[str, CatalogueEntry] = {
    "digits-seg": CatalogueEntry(
        "Segmentation of scenes composed of real handwritten digits, 32×32, 10 classes and background",
        SEGMENTATION,
        "autoloss.tasks.segmentation.digits:digits_seg",
    ),
    "voc-seg": CatalogueEntry(
        "Segmentation of PASCAL VOC 2012, with or without SBD: 20 classes and background",
        SEGMENTATION,
        "autoloss.tasks.segmentation.task:voc_seg",
        "vision",
    ),
    "cityscapes-seg": CatalogueEntry(
        "Segmentation of Cityscapes, 19 classes",
        SEGMENTATION,
        "autoloss.tasks.segmentation.task:cityscapes_seg",
        "vision",
    ),
    "folder-seg": CatalogueEntry(
        "Segmentation of a folder of your own, with images and masks",
        SEGMENTATION,
        "autoloss.tasks.segmentation.task:folder_seg",
        "vision",
    ),
    "digits-det": CatalogueEntry(
        "Detection in scenes of real handwritten digits, 96×96, 10 classes; Faster R-CNN with four branches",
        ("map", "ap50", "voc07"),
        "autoloss.tasks.detection.digits:digits_det",
        "vision",
    ),
    "coco-det": CatalogueEntry(
        "Detection on COCO 2017, 80 classes; Faster R-CNN with four branches, the paper's proxy and retraining",
        ("map", "ap50", "voc07"),
        "autoloss.tasks.detection.task:coco_det",
        "vision",
    ),
    "voc-det": CatalogueEntry(
        "Detection on PASCAL VOC 2007 and 2012, 20 classes; as coco-det",
        ("voc07", "ap50", "map"),
        "autoloss.tasks.detection.task:voc_det",
        "vision",
    ),
    "digits-ins": CatalogueEntry(
        "Instance segmentation in the scenes of digits-det, with exact masks; Mask R-CNN with five branches",
        ("map", "ap50", "box_map", "box_ap50"),
        "autoloss.tasks.detection.digits:digits_ins",
        "vision",
    ),
    "coco-ins": CatalogueEntry(
        "Instance segmentation on COCO 2017, 80 classes; Mask R-CNN with five branches, the paper's proxy and retraining",
        ("map", "ap50", "box_map", "box_ap50"),
        "autoloss.tasks.detection.task:coco_ins",
        "vision",
    ),
    "figures-pose": CatalogueEntry(
        "Poses of drawn figures over photographs, 17 joints in COCO's order; heatmaps as in SimpleBaseline",
        POSE,
        "autoloss.tasks.pose.figures:figures_pose",
        "vision",
    ),
    "coco-pose": CatalogueEntry(
        "Poses on COCO 2017, 17 joints; SimpleBaseline, the paper's proxy and retraining",
        POSE,
        "autoloss.tasks.pose.task:coco_pose",
        "vision",
    ),
    "tabular": CatalogueEntry(
        "Classification or regression of the rows of a bundled data set or a CSV file",
        ("f1", "auc", "average_precision", "balanced_accuracy", "mcc", "r2", "spearman"),
        "autoloss.tasks.tabular.task:tabular",
    ),
    "ranking": CatalogueEntry(
        "Ranking of the rows of a CSV file or a bundled data set: by queries with a graded relevance, or all together",
        ("ndcg", "ndcg5", "ndcg10", "map", "mrr", "auc", "average_precision"),
        "autoloss.tasks.ranking:ranking",
    ),
    "survival": CatalogueEntry(
        "Survival: the order of the times of an event, some censored, of the rows of a CSV file or a bundled data set",
        ("c_index", "uno_c", "time_auc"),
        "autoloss.tasks.survival:survival",
    ),
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
    if metric is not None and metric not in CATALOGUE[name].metrics:
        raise unknown(f"metric of the task {name}", metric, CATALOGUE[name].metrics)
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
