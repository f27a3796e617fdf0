"""The one table of named losses: Appendix B's formulas and the baselines of the field, as text.

Formulas are in the prediction `p` (the paper's ŷ, after the activation) and the target `y`, or in the areas `i`, `u` and `e`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from autoloss.zoo.entry import Entry

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss


def _regional(module: str, function: str, *arguments: str) -> Callable[[Branch], BranchLoss]:
    """Return the factory of a hand-written loss; its module, which needs torch, is imported when the loss is made.

    Args:
        arguments: Where there are any, the function is called with them to give the loss.
    """

    def made(branch: Branch) -> BranchLoss:
        from autoloss.zoo.regions import RegionLoss

        value = getattr(import_module(f"autoloss.zoo.{module}"), function)
        return RegionLoss(branch, value(*arguments) if arguments else value)

    return made


def _smooth_l1(branch: Branch) -> BranchLoss:
    from autoloss.zoo.boxes import SmoothL1

    return SmoothL1(branch)


def _weighted_by_overlap(branch: Branch) -> BranchLoss:
    from autoloss.zoo.boxes import WeightedByOverlap

    return WeightedByOverlap(branch)


PAPER = "Appendix B, table of discovered loss functions"
AREAS = "areas of predicted and target box"
CSE = "Liu et al., 2021, Loss Function Discovery for Object Detection via Convergence-Simulation Driven Search"

_PUBLISHED = (
    Entry(
        name="seg/miou",
        metric="mIoU",
        formula="-1/2 * log(tanh(y / (1 + y) * sqrt(p)) * (p**2 + y))",
        description="semantic segmentation, found for mean IoU",
        source=f"{PAPER}, Seg, mIoU",
    ),
    Entry(
        name="seg/fwiou",
        metric="FWIoU",
        formula="log(y * log(y + (y + p) / p))",
        description="semantic segmentation, found for frequency-weighted IoU",
        source=f"{PAPER}, Seg, FWIoU",
    ),
    Entry(
        name="seg/gacc",
        metric="gAcc",
        formula="exp((y - sqrt(p))**2)",
        description="semantic segmentation, found for global accuracy",
        source=f"{PAPER}, Seg, gAcc",
    ),
    Entry(
        name="seg/macc",
        metric="mAcc",
        formula="tanh(sqrt(mean_nhw(-log(p) * sqrt(max_pool(sqrt(2 * y))))))",
        description="semantic segmentation, found for mean accuracy over classes",
        source=f"{PAPER}, Seg, mAcc",
    ),
    Entry(
        name="seg/biou",
        metric="BIoU",
        target="band",
        formula="-log(p**3 * y * sqrt(-min_pool(-p)) * exp((p * exp(p))**2))",
        description="semantic segmentation, found for IoU in the band around class borders",
        source=f"{PAPER}, Seg, BIoU",
    ),
    Entry(
        name="seg/bf1",
        metric="BF1",
        target="edge",
        formula="exp(mean_nhw(-max_pool(y) * log(max_pool(p))) + tanh(mean_nhw(2 * p + 1)))",
        description="semantic segmentation, found for the F1 score of class borders",
        source=f"{PAPER}, Seg, BF1",
    ),
    Entry(
        name="pose/oks",
        metric="OKS mAP",
        target="heatmap",
        activation="none",
        formula="(p - 16 * y**4)**2 + p**4",
        description="keypoint heatmaps, found for mean AP under object keypoint similarity",
        source=f"{PAPER}, Pose, mAP",
    ),
    Entry(
        name="det/rpn_cls",
        metric="box mAP",
        formula="exp(tanh(y)) / p",
        description="object detection, objectness of the region proposals",
        source=f"{PAPER}, Det, Cls RPN",
    ),
    Entry(
        name="det/rpn_reg",
        metric="box mAP",
        target=AREAS,
        activation="box",
        formula="e / (i + u)",
        description="object detection, boxes of the region proposals",
        source=f"{PAPER}, Det, Reg RPN",
    ),
    Entry(
        name="det/rcnn_cls",
        metric="box mAP",
        formula="-y * log(p)",
        description="object detection, classes of the final boxes",
        source=f"{PAPER}, Det, Cls RCNN",
    ),
    Entry(
        name="det/rcnn_reg",
        metric="box mAP",
        target=AREAS,
        activation="box",
        formula="-log(i / e)",
        description="object detection, coordinates of the final boxes",
        source=f"{PAPER}, Det, Reg RCNN",
    ),
    Entry(
        name="ins/rpn_cls",
        metric="mask mAP",
        formula="-y * p / tanh(p)",
        description="instance segmentation, objectness of the region proposals",
        source=f"{PAPER}, Ins, Cls RPN",
    ),
    Entry(
        name="ins/rpn_reg",
        metric="mask mAP",
        target=AREAS,
        activation="box",
        formula="e / (i + u)",
        description="instance segmentation, boxes of the region proposals",
        source=f"{PAPER}, Ins, Reg RPN",
    ),
    Entry(
        name="ins/rcnn_cls",
        metric="mask mAP",
        formula="-y * log(p)",
        description="instance segmentation, classes of the final boxes",
        source=f"{PAPER}, Ins, Cls RCNN",
    ),
    Entry(
        name="ins/rcnn_reg",
        metric="mask mAP",
        target=AREAS,
        activation="box",
        formula="-sqrt(i) / sqrt(e)",
        description="instance segmentation, coordinates of the final boxes",
        source=f"{PAPER}, Ins, Reg RCNN",
    ),
    Entry(
        name="ins/mask",
        metric="mask mAP",
        formula="abs(log(y * p))",
        description="instance segmentation, foreground masks",
        source=f"{PAPER}, Ins, Mask",
    ),
)

_BASELINES = (
    Entry(
        name="baseline/ce",
        formula="-y * log(p)",
        description="cross entropy",
        source="the standard loss of classification; Section 4 compares with it",
    ),
    Entry(
        name="baseline/bce",
        activation="sigmoid",
        target="one_hot, or any set of classes",
        formula="-(y * log(p) + (1 - y) * log(1 - p))",
        description="binary cross entropy of each channel, for several labels at once",
        source="the standard loss of multi-label classification",
    ),
    Entry(
        name="baseline/mse",
        activation="none",
        target="values",
        formula="(p - y)**2",
        description="squared error",
        source="the standard loss of regression and of heatmaps (SimpleBaseline, Xiao et al., 2018)",
    ),
    Entry(
        name="baseline/focal",
        formula="-(1 - p)**2 * y * log(p)",
        description="focal loss with γ = 2, without class weights",
        source="Lin et al., 2017, Focal Loss for Dense Object Detection, Eq. 4",
    ),
    Entry(
        name="baseline/dice",
        metric="Dice coefficient",
        factory=_regional("dice", "soft_dice"),
        description="soft Dice over the classes of a batch; written by hand, since a quotient of two sums is no tree",
        source="Milletari et al., 2016, V-Net, Section 3; per class and with plain sums as in segmentation-models-pytorch",
    ),
    Entry(
        name="baseline/wce",
        metric="mAcc",
        factory=_regional("cross_entropies", "weighted_cross_entropy"),
        description="cross entropy weighted by the inverse frequencies of the classes in a batch",
        source="Ronneberger et al., 2015, U-Net, Eq. 1 and 2, without the term for touching cells",
    ),
    Entry(
        name="baseline/lovasz",
        metric="mIoU",
        factory=_regional("lovasz", "lovasz_softmax"),
        description="Lovász-Softmax over the classes that a batch holds",
        source="Berman et al., 2018, The Lovász-Softmax loss, Eq. 9 to 11",
    ),
    Entry(
        name="baseline/dpce",
        factory=_regional("cross_entropies", "distance_penalised"),
        description="cross entropy weighted by how near the border of the target's region is",
        source="Caliva et al., 2019, Distance Map Loss Penalty Term for Semantic Segmentation",
    ),
    Entry(
        name="baseline/ssim",
        factory=_regional("ssim", "dissimilarity"),
        description="structural similarity of probabilities and classes in windows of 11 pixels",
        source="Wang et al., 2004, Eq. 13; Qin et al., 2019, BASNet, Eq. 4",
    ),
    Entry(
        name="baseline/ce_ssim",
        factory=_regional("ssim", "with_cross_entropy"),
        description="cross entropy plus structural similarity",
        source="Qin et al., 2019, BASNet, Eq. 2, without IoU",
    ),
    *(
        Entry(
            name=f"baseline/asl_{metric.lower()}",
            metric=metric,
            factory=_regional("auto_seg", "published", metric.lower()),
            description=f"Auto-Seg-Loss: {metric} with curves for its logical operations, as found on VOC",
            source="Li et al., 2021, Auto Seg-Loss, and the curves of its authors' configurations",
        )
        for metric in ("mIoU", "FWIoU", "gAcc", "mAcc", "BIoU", "BF1")
    ),
    Entry(
        name="baseline/l1",
        target="deltas of the target box",
        activation="box",
        factory=_smooth_l1,
        description="smooth L1 on box deltas, with the threshold and divisor of Faster R-CNN; no tree: areas know no deltas",
        source="Girshick, 2015, Fast R-CNN, Eq. 3, as in torchvision",
    ),
    Entry(
        name="baseline/iou",
        target=AREAS,
        activation="box",
        formula="-log(i / u)",
        description="IoU loss of boxes",
        source="Yu et al., 2016, UnitBox, Eq. 2",
    ),
    Entry(
        name="baseline/giou",
        target=AREAS,
        activation="box",
        formula="1 - i / u + (e - u) / e",
        description="generalised IoU loss of boxes",
        source="Rezatofighi et al., 2019, Generalized Intersection over Union, Algorithm 1",
    ),
    Entry(
        name="baseline/cse_auto_a_cls",
        target="one_hot, and the IoU of each predicted box",
        factory=_weighted_by_overlap,
        description="classes of boxes: cross entropy times 1 + sin(IoU); written by hand: it needs a sine and the detached IoU",
        source=f"{CSE}, CSE-AutoLoss-A",
    ),
    Entry(
        name="baseline/cse_auto_a_reg",
        target=AREAS,
        activation="box",
        formula="(1 - i / u) + (1 - (i + 2) / e)",
        description="coordinates of boxes, found together with baseline/cse_auto_a_cls",
        source=f"{CSE}, CSE-AutoLoss-A",
    ),
)


def _together(name: str, metric: str, description: str, source: str) -> Entry:
    """Return the entry of all branches of a network, from those of its branches."""
    members = {row.name.removeprefix(f"{name}/"): row for row in _PUBLISHED if row.name.startswith(f"{name}/")}
    several = "by branch"
    return Entry(
        name=name,
        metric=metric,
        target=several,
        activation=several,
        members=members,
        description=description,
        source=source,
    )


def _by_name(rows: Iterable[Entry]) -> dict[str, Entry]:
    return {row.name: row for row in rows}


_DETECTION = _together("det", "box mAP", "object detection, all four branches", f"{PAPER}, Det")
_INSTANCES = _together("ins", "mask mAP", "instance segmentation, all five branches", f"{PAPER}, Ins")
ENTRIES = _by_name((*_PUBLISHED, _DETECTION, _INSTANCES, *_BASELINES))
