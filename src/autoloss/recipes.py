"""The paper's experiments on images: their settings and published figures (Sections 4.1 to 4.4, Appendix A).

Settings that a recipe does not have are the defaults of the task and of `settings.py`; `PaperRecipe.values` lists all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoloss.errors import unknown
from autoloss.tables import read_rows

METRICS: Sequence[str] = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")


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


RPN = "rpn_cls: baseline/ce; rpn_reg: baseline/l1"
CE_L1, CE_IOU, CE_GIOU = (
    f"{RPN}; rcnn_cls: baseline/ce; rcnn_reg: baseline/{boxes}" for boxes in ("l1", "iou", "giou")
)
_PUBLISHED = f"""
voc-r101-deeplabv3+ | CE | | baseline/ce | 78.7 91.3 95.2 87.3 70.6 65.3
voc-r101-deeplabv3+ | WCE | | baseline/wce | 69.6 85.6 91.1 92.6 61.8 37.6
voc-r101-deeplabv3+ | Dice | | baseline/dice | 77.8 91.3 95.1 87.5 69.9 64.4
voc-r101-deeplabv3+ | Lovász | | baseline/lovasz | 79.7 91.8 95.4 88.6 72.5 66.7
voc-r101-deeplabv3+ | DPCE | | baseline/dpce | 79.8 91.8 95.5 87.8 71.9 66.5
voc-r101-deeplabv3+ | SSIM | | baseline/ssim | 79.3 91.7 95.4 87.9 71.5 66.4
voc-r101-deeplabv3+ | ASL | miou | baseline/asl_miou | 81.0 92.1 95.7 88.2 73.4 68.9
voc-r101-deeplabv3+ | found | miou | seg/miou | 80.7 92.1 95.7 89.1 74.1 66.0
voc-r101-deeplabv3+ | ASL | fwiou | baseline/asl_fwiou | 80.0 91.9 95.4 89.2 75.1 65.7
voc-r101-deeplabv3+ | found | fwiou | seg/fwiou | 78.7 91.7 95.2 87.7 72.9 64.6
voc-r101-deeplabv3+ | ASL | gacc | baseline/asl_gacc | 79.7 91.8 95.5 89.0 74.1 64.4
voc-r101-deeplabv3+ | found | gacc | seg/gacc | 79.4 91.7 95.3 88.7 73.6 64.8
voc-r101-deeplabv3+ | ASL | macc | baseline/asl_macc | 69.8 85.9 91.3 92.7 72.9 35.6
voc-r101-deeplabv3+ | found | macc | seg/macc | 75.3 89.2 93.7 92.6 73.7 44.1
voc-r101-deeplabv3+ | ASL | biou | baseline/asl_biou | 49.0 69.9 62.6 81.3 79.2 39.0
voc-r101-deeplabv3+ | found | biou | seg/biou | 39.8 66.6 79.7 47.8 77.6 45.5
voc-r101-deeplabv3+ | ASL | bf1 | baseline/asl_bf1 | 1.9 1.0 2.7 6.5 7.4 74.8
voc-r101-deeplabv3+ | found | bf1 | seg/bf1 | 6.0 54.6 73.8 7.3 9.4 79.8
coco-r50-mask-rcnn | CE + L1 + CE + L1 + CE | | {CE_L1}; mask: baseline/ce | map 34.6
coco-r50-mask-rcnn | CE + L1 + CE + IoU + CE | | {CE_IOU}; mask: baseline/ce | map 34.4
coco-r50-mask-rcnn | CE + L1 + CE + GIoU + CE | | {CE_GIOU}; mask: baseline/ce | map 34.7
coco-r50-mask-rcnn | found | map | ins | map 34.8
coco-r50-faster-rcnn | CE + L1 + CE + L1 | | {CE_L1} | map 37.3
coco-r50-faster-rcnn | CE + L1 + CE + IoU | | {CE_IOU} | map 37.9
coco-r50-faster-rcnn | CE + L1 + CE + GIoU | | {CE_GIOU} | map 37.6
coco-r50-faster-rcnn | CE + L1 + CSE-Auto-A | | \
{RPN}; rcnn_cls: baseline/cse_auto_a_cls; rcnn_reg: baseline/cse_auto_a_reg | map 38.5
coco-r50-faster-rcnn | CE + L1 + found | map | | map 38.0
coco-r50-faster-rcnn | found | map | det | map 38.1
coco-r101-faster-rcnn | CE + L1 + CE + IoU | | {CE_IOU} | map 39.7
coco-r101-faster-rcnn | found | map | det | map 39.9
voc-r50-faster-rcnn | CE + L1 + CE + IoU | | {CE_IOU} | voc07 80.4
voc-r50-faster-rcnn | found | map | det | voc07 80.6
coco-r50-simple-baseline | MSE | | baseline/mse | map 71.5
coco-r50-simple-baseline | found | map | pose/oks | map 72.0
"""
"""Retraining, loss, metric that it was found for, name in the zoo, and figures: a metric with its figure, or those of `METRICS`.

In the row of Auto-Seg-Loss for BIoU, as printed, gAcc and mAcc look swapped. The formulas of the search for two branches are not
published.
"""
_CARRIED_OVER = """
cityscapes-r101-deeplabv3+ | 80.0 62.2  80.7 66.5  80.4 63.8  6.7 78.0  9.3 77.7
voc-r50-deeplabv3+ | 76.2 61.8  78.4 66.9  78.0 62.8  1.4 70.8  7.2 78.3
voc-r101-pspnet | 77.9 64.7  78.9 65.7  78.5 64.9  1.6 71.8  5.1 71.3
"""
"""Retraining in the table of generalisation → mIoU and BF1 of cross entropy and of the losses for these two metrics."""


def _read_published() -> dict[str, list[Published]]:
    """Return retraining → the paper's figures."""
    found: defaultdict[str, list[Published]] = defaultdict(list)
    for recipe, loss, target, name, text in read_rows(_PUBLISHED, lines=1):
        numbers = text.split()
        names, values = (METRICS, numbers) if len(numbers) == len(METRICS) else (numbers[:1], numbers[1:])
        figures = dict(zip(names, map(float, values), strict=True))
        found[recipe].append(Published(loss, figures, target or None, name or None))
    rows = [row for row in found["voc-r101-deeplabv3+"] if row.loss == "CE" or row.target in ("miou", "bf1")]
    for recipe, text in read_rows(_CARRIED_OVER, lines=1):
        values = list(map(float, text.split()))
        columns = zip(rows, values[::2], values[1::2], strict=True)
        found[recipe] = [replace(row, figures={"miou": miou, "bf1": bf1}) for row, miou, bf1 in columns]
    return found


PUBLISHED: Mapping[str, Sequence[Published]] = _read_published()
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
    return PaperRecipe(name, task, "full", source, options, published=tuple(PUBLISHED[name]))


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
