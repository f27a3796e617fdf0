"""The paper's experiments on images: their settings and published figures (Sections 4.1 to 4.4, Appendix A).

Settings that a recipe does not have are the defaults of the task and of `settings.py`; `PaperRecipe.values` lists all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoloss.errors import unknown
from autoloss.space.loss_text import join_branches
from autoloss.tables import read_rows

METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")


@dataclass(frozen=True, slots=True)
class Published:
    """A row of one of the paper's tables.

    Args:
        loss: Name of the loss in the paper.
        figures: Metric → percent.
        target: Metric that the loss was found for; None for a hand-written one.
        name: Name of the loss in the zoo; of several branches, `branch: name` for each, separated by semicolons.
    """

    loss: str
    figures: Mapping[str, float]
    target: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The loss and, where it was found, what for."""
        return self.loss if self.target is None else f"{self.loss} for {self.target}"


@dataclass(frozen=True, slots=True)
class PaperRecipe:
    """One experiment of the paper.

    Args:
        task: Name in the catalogue.
        schedule: `proxy` for a search, `full` for a retraining.
        source: Section of the paper.
        options: Options that differ from the task's defaults.
        settings: Settings that differ from a run's defaults.
        frozen: Branches that keep the task's standard loss, by name.
        published: The paper's figures.
    """

    name: str
    task: str
    schedule: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return every value of the schedule by its name, except the folder of the data."""
        from inspect import signature

        from autoloss.tasks import catalogue

        options = signature(catalogue.find_factory(self.task)).parameters
        defaults = {name: option.default for name, option in options.items()}
        own = {name: value for name, value in {**defaults, **self.options}.items() if name not in ("metric", "data")}
        full = {name: value for name, value in own.items() if name.startswith("full_")}
        if self.schedule == "full":
            return full
        return {**{name: value for name, value in own.items() if name not in full}, **self.settings}


def _make_segmentation_row(loss: str, figures: str, target: str | None = None, name: str | None = None) -> Published:
    return Published(loss, dict(zip(METRICS, map(float, figures.split()), strict=True)), target, name)


ON_VOC = (
    _make_segmentation_row("CE", "78.7 91.3 95.2 87.3 70.6 65.3", name="baseline/ce"),
    _make_segmentation_row("WCE", "69.6 85.6 91.1 92.6 61.8 37.6", name="baseline/wce"),
    _make_segmentation_row("Dice", "77.8 91.3 95.1 87.5 69.9 64.4", name="baseline/dice"),
    _make_segmentation_row("Lovász", "79.7 91.8 95.4 88.6 72.5 66.7", name="baseline/lovasz"),
    _make_segmentation_row("DPCE", "79.8 91.8 95.5 87.8 71.9 66.5", name="baseline/dpce"),
    _make_segmentation_row("SSIM", "79.3 91.7 95.4 87.9 71.5 66.4", name="baseline/ssim"),
    _make_segmentation_row("ASL", "81.0 92.1 95.7 88.2 73.4 68.9", "miou", "baseline/asl_miou"),
    _make_segmentation_row("found", "80.7 92.1 95.7 89.1 74.1 66.0", "miou", "seg/miou"),
    _make_segmentation_row("ASL", "80.0 91.9 95.4 89.2 75.1 65.7", "fwiou", "baseline/asl_fwiou"),
    _make_segmentation_row("found", "78.7 91.7 95.2 87.7 72.9 64.6", "fwiou", "seg/fwiou"),
    _make_segmentation_row("ASL", "79.7 91.8 95.5 89.0 74.1 64.4", "gacc", "baseline/asl_gacc"),
    _make_segmentation_row("found", "79.4 91.7 95.3 88.7 73.6 64.8", "gacc", "seg/gacc"),
    _make_segmentation_row("ASL", "69.8 85.9 91.3 92.7 72.9 35.6", "macc", "baseline/asl_macc"),
    _make_segmentation_row("found", "75.3 89.2 93.7 92.6 73.7 44.1", "macc", "seg/macc"),
    # As printed; gAcc and mAcc look swapped in this row.
    _make_segmentation_row("ASL", "49.0 69.9 62.6 81.3 79.2 39.0", "biou", "baseline/asl_biou"),
    _make_segmentation_row("found", "39.8 66.6 79.7 47.8 77.6 45.5", "biou", "seg/biou"),
    _make_segmentation_row("ASL", "1.9 1.0 2.7 6.5 7.4 74.8", "bf1", "baseline/asl_bf1"),
    _make_segmentation_row("found", "6.0 54.6 73.8 7.3 9.4 79.8", "bf1", "seg/bf1"),
)


def _carry_over(figures: str) -> tuple[Published, ...]:
    """Return the rows of one network in the table of generalisation; the text has mIoU and BF1 of each loss."""
    values = list(map(float, figures.split()))
    rows = [row for row in ON_VOC if row.loss == "CE" or row.target in ("miou", "bf1")]
    columns = zip(rows, values[::2], values[1::2], strict=True)
    return tuple(replace(row, figures={"miou": miou, "bf1": bf1}) for row, miou, bf1 in columns)


ON_COCO_POSES = (
    Published("MSE", {"map": 71.5}, name="baseline/mse"),
    Published("found", {"map": 72.0}, "map", "pose/oks"),
)


def _make_detection_row(
    loss: str, figure: float, *, metric: str = "map", target: str | None = None, name: str | None = None, **others: str
) -> Published:
    """Return a row of a table of detection.

    Args:
        name: Name in the zoo of a loss for all branches.
        others: Branch → name in the zoo of its loss, if that is not the usual one of Faster R-CNN; further branches come last.
    """
    usual = {"rpn_cls": "ce", "rpn_reg": "l1", "rcnn_cls": "ce", "rcnn_reg": "l1"}
    named = {branch: f"baseline/{short}" for branch, short in usual.items()} | others
    return Published(loss, {metric: figure}, target, name or join_branches(named))


WITH_IOU = {"rcnn_reg": "baseline/iou"}
ON_COCO = (
    _make_detection_row("CE + L1 + CE + L1", 37.3),
    _make_detection_row("CE + L1 + CE + IoU", 37.9, **WITH_IOU),
    _make_detection_row("CE + L1 + CE + GIoU", 37.6, rcnn_reg="baseline/giou"),
    _make_detection_row(
        "CE + L1 + CSE-Auto-A", 38.5, rcnn_cls="baseline/cse_auto_a_cls", rcnn_reg="baseline/cse_auto_a_reg"
    ),
    # The formulas of the search for two branches are not published.
    Published("CE + L1 + found", {"map": 38.0}, "map"),
    _make_detection_row("found", 38.1, target="map", name="det"),
)
MASK_CE = {"mask": "baseline/ce"}
MASKS_ON_COCO = (
    _make_detection_row("CE + L1 + CE + L1 + CE", 34.6, **MASK_CE),
    _make_detection_row("CE + L1 + CE + IoU + CE", 34.4, **WITH_IOU, **MASK_CE),
    _make_detection_row("CE + L1 + CE + GIoU + CE", 34.7, rcnn_reg="baseline/giou", **MASK_CE),
    _make_detection_row("found", 34.8, target="map", name="ins"),
)

PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "voc-r101-deeplabv3+": ON_VOC,
    "cityscapes-r101-deeplabv3+": _carry_over("80.0 62.2  80.7 66.5  80.4 63.8  6.7 78.0  9.3 77.7"),
    "voc-r50-deeplabv3+": _carry_over("76.2 61.8  78.4 66.9  78.0 62.8  1.4 70.8  7.2 78.3"),
    "voc-r101-pspnet": _carry_over("77.9 64.7  78.9 65.7  78.5 64.9  1.6 71.8  5.1 71.3"),
    "coco-r50-mask-rcnn": MASKS_ON_COCO,
    "coco-r50-faster-rcnn": ON_COCO,
    "coco-r101-faster-rcnn": (
        _make_detection_row("CE + L1 + CE + IoU", 39.7, **WITH_IOU),
        _make_detection_row("found", 39.9, target="map", name="det"),
    ),
    "voc-r50-faster-rcnn": (
        _make_detection_row("CE + L1 + CE + IoU", 80.4, metric="voc07", **WITH_IOU),
        _make_detection_row("found", 80.6, metric="voc07", target="map", name="det"),
    ),
    "coco-r50-simple-baseline": ON_COCO_POSES,
}
"""Retraining → the paper's figures."""
_RECIPES = """
voc-seg | voc-seg | absolute | Appendix A.1
cityscapes-seg | cityscapes-seg | absolute | Appendix A.1, on the data of Section 4.1
voc-r101-deeplabv3+ | voc-seg | | Section 4.1, table of semantic segmentation
cityscapes-r101-deeplabv3+ | cityscapes-seg | | Section 4.1, table of generalisation
voc-r50-deeplabv3+ | voc-seg | full_backbone=resnet50 | Section 4.1, table of generalisation
voc-r101-pspnet | voc-seg | full_network=pspnet | Section 4.1, table of generalisation
coco-det | coco-det | relative | Appendix A.2
coco-det-two-branches | coco-det | relative | Section 4.2, Appendix A.2
voc-det | voc-det | relative | Appendix A.2, on the data of Section 4.2
coco-ins | coco-ins | relative | Appendix A.3
coco-r50-mask-rcnn | coco-ins | | Section 4.3, table of instance segmentation
coco-r50-faster-rcnn | coco-det | | Section 4.2, table of object detection
coco-r101-faster-rcnn | coco-det | full_backbone=resnet101 | Section 4.2, table of generalisation
voc-r50-faster-rcnn | voc-det | | Section 4.2, table of generalisation
coco-pose | coco-pose | absolute | Appendix A.4
coco-r50-simple-baseline | coco-pose | | Section 4.4, table of pose estimation
"""
"""Name, task, the unit of η in a search or the further option of a retraining, and section.

η is in the unit of the metric (Section 3.2), or the same number as a share of the largest possible gain: on real samples no loss
of the R-CNN's boxes can gain 0.6 of AP, since regions start near their objects.
"""


def _read_recipe(name: str, task: str, differs: str, source: str) -> PaperRecipe:
    """Return an experiment; weights are pre-trained as in the training of DeepLabv3+ (Chen et al., 2018), which the paper follows.

    The default of the tasks is no weights, which needs no download.
    """
    if differs in ("absolute", "relative"):
        settings, frozen = (
            {"rejection.unit": differs, "rejection.threshold": 0.6},
            ("rpn",) * name.endswith("-branches"),
        )
        return PaperRecipe(name, task, "proxy", source, {"weights": "imagenet"}, settings, frozen)
    options = {"full_weights": "imagenet", **dict(part.split("=") for part in differs.split())}
    return PaperRecipe(name, task, "full", source, options, published=PUBLISHED[name])


RECIPES: Mapping[str, PaperRecipe] = {row[0]: _read_recipe(*row) for row in read_rows(_RECIPES, lines=1)}


def names() -> list[str]:
    """Return the names of all recipes.

    >>> names()[:2]
    ['voc-seg', 'cityscapes-seg']
    """
    return list(RECIPES)


def get(name: str) -> PaperRecipe:
    """Return a recipe by name.

    Raises:
        RequestError: The name is unknown; the message lists all names.

    >>> get("voc-seg").schedule
    'proxy'
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


SEARCH_RECIPES = ("default", "paper")
DEFAULT: Mapping[str, Any] = {
    "search.proposer": "guided",
    "search.guided_share": 0.5,
    "search.prior": "default",
    "search.rungs": (0.125, 1.0),
    "search.promote": 0.08,
    "search.scale": True,
    "search.promoted_lag": 12,
    "search.promote_start": 0.5,
    "rejection.admit_standard": True,
    "evolution.population": 500,
    "evolution.tournament": 0.25,
    "offspring.fresh": 0.25,
    "offspring.sum": 0.35,
    "offspring.refine": 0.25,
    "evolution.start": ("shelf",),
    "evolution.valid_draws": True,
    "evolution.fresh_attempts": 500,
    "ladder.share": 0.2,
}
"""Settings of a search that has some tens of trainings; docs/measurements.md shows what each of them gains.

With first trainings at an eighth of the schedule, the budget holds several times as many candidates; about one of twelve is
trained whole, which distinguishes good losses from those that only learn fast. The paper's tournament of 5 % would have one to
five contestants among 20 to 100 losses, which hardly selects; 25 % is the share of Real et al., Regularized Evolution, AAAI
2019 (25 of 100). With the paper's half of all candidates drawn at random, few would improve on earlier ones. The population is
bounded for the time that it takes to value its members at each step. The model chooses the mutations of every other candidate:
with all of them a search finds a good family of losses on images, and less than the plain evolution does on the two cheap
tasks; with half it does well on all three. About every twelfth candidate is a promotion: with a lag of 12 for these, each still
depends on the outcome of the one before, and two workers need not wait for it. A threshold that the standard loss misses by a
little is lowered for it: a search for border scores that rejected cross entropy, and all losses like it, ended below it.
Before all this stands what an expert would try with the standard loss: much of what searches gained before was the size of the
steps. The first candidates are known losses, which a search has to improve on; each is trained whole, since an eighth of the
schedule misleads about some (Dice under a border score). A third of the mutations add two good losses, and a quarter change one
factor or power: under a border score, sums of known losses are what was found ahead of Dice. On some regressions one random tree in
thousands passes, and is a known loss: after 500 attempts a mutation takes its place."""
OF_DETECTORS: Mapping[str, Any] = {"offspring.fresh": 0.5, "offspring.copy": 0.5}
"""Copying half of the branches changes two of four on average, and two or three of five."""
OF_FIGURES: Mapping[str, Any] = {"search.rungs": (0.0625, 1.0), "search.promote": 0.04, "search.promoted_lag": 24}
"""About one in a hundred losses of raw heatmaps that pass learns anything (measured), and a sixteenth of the schedule shows it."""
OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("digits-det", "coco-det", "voc-det", "digits-ins", "coco-ins"), OF_DETECTORS),
    "figures-pose": OF_FIGURES,
}


def get_search_settings(task: object, recipe: str | None = None) -> Mapping[str, Any]:
    """Return the settings of a search that differ from those of `settings.py`, which are the paper's.

    Args:
        task: A task, or its name in the catalogue.
        recipe: One of `SEARCH_RECIPES`; `default` when None.

    Raises:
        RequestError: There is no such recipe.

    >>> dict(get_search_settings("voc-seg", "paper"))
    {'rejection.unit': 'absolute', 'rejection.threshold': 0.6}
    """
    if recipe not in (None, *SEARCH_RECIPES):
        raise unknown("recipe of a search", recipe, SEARCH_RECIPES)
    name = task if isinstance(task, str) else ""
    paper = RECIPES[name].settings if name in RECIPES and RECIPES[name].schedule == "proxy" else {}
    return paper if recipe == "paper" else {**DEFAULT, **OWN.get(name, {}), **paper}
