"""The table of named losses: the formulas of Appendix B and the usual baselines, as text.

Formulas are in the prediction `p` (the paper's ŷ, after the activation) and the target `y`, or in the areas `i`, `u` and `e`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from autoloss.space.loss_text import split_branches
from autoloss.tables import read_rows
from autoloss.zoo.entry import Entry
from autoloss.zoo.shelf import SHELF

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss

PAPER = "Appendix B, table of discovered loss functions"
AREAS = "areas of predicted and target box"
ORDER = "the item that should come first"
CSE = "Liu et al., 2021, Loss Function Discovery for Object Detection via Convergence-Simulation Driven Search"
NETWORKS = {
    "seg": ("Seg", "", "semantic segmentation"),
    "pose": ("Pose", "OKS mAP", "keypoint heatmaps"),
    "det": ("Det", "box mAP", "object detection"),
    "ins": ("Ins", "mask mAP", "instance segmentation"),
}
"""First part of a name → the part of the paper's table, the metric of its rows ("" if each row has its own), the task."""


def _read_published() -> Iterator[Entry]:
    """Yield an entry for each row of Appendix B."""
    for name, row, activation, target, formula, does in read_rows(_PUBLISHED, lines=2):
        part, metric, task = NETWORKS[name.partition("/")[0]]
        source = f"{PAPER}, {part}, {row}"
        yield Entry(name, f"{task}, {does}", source, metric or row, target, activation, formula=formula)


def _combine(name: str, description: str) -> Entry:
    """Return the entry of all branches of a network, made of the entries of its branches."""
    part, metric, task = NETWORKS[name]
    members = {row.name.removeprefix(f"{name}/"): row for row in _read_published() if row.name.startswith(f"{name}/")}
    description = f"{task}, {description}"
    return Entry(name, description, f"{PAPER}, {part}", metric, "by branch", "by branch", members=members)


def _defer(place: str) -> Callable[[Branch], BranchLoss]:
    """Return a factory that imports torch when a loss is made.

    Args:
        place: `module.Class` of a loss of a branch, or `module.function` of `Regions`; with arguments, of what returns one.
    """
    path, *arguments = place.split()
    module, name = path.split(".")

    def make(branch: Branch) -> BranchLoss:
        from autoloss.zoo.region_losses import RegionLoss

        found = getattr(import_module(f"autoloss.zoo.{module}"), name)
        if isinstance(found, type):
            return found(branch)
        return RegionLoss(branch, found(*arguments) if arguments else found)

    return make


_PUBLISHED = f"""
seg/miou | mIoU | softmax | one_hot | -1/2 * log(tanh(y / (1 + y) * sqrt(p)) * (p**2 + y))
    found for mean IoU
seg/fwiou | FWIoU | softmax | one_hot | log(y * log(y + (y + p) / p))
    found for frequency-weighted IoU
seg/gacc | gAcc | softmax | one_hot | exp((y - sqrt(p))**2)
    found for global accuracy
seg/macc | mAcc | softmax | one_hot | tanh(sqrt(mean_nhw(-log(p) * sqrt(max_pool(sqrt(2 * y))))))
    found for mean accuracy over classes
seg/biou | BIoU | softmax | band | -log(p**3 * y * sqrt(-min_pool(-p)) * exp((p * exp(p))**2))
    found for IoU in the band around class borders
seg/bf1 | BF1 | softmax | edge | exp(mean_nhw(-max_pool(y) * log(max_pool(p))) + tanh(mean_nhw(2 * p + 1)))
    found for the F1 score of class borders
pose/oks | mAP | none | heatmap | (p - 16 * y**4)**2 + p**4
    found for mean AP under object keypoint similarity
det/rpn_cls | Cls RPN | softmax | one_hot | exp(tanh(y)) / p
    objectness of the region proposals
det/rpn_reg | Reg RPN | box | {AREAS} | e / (i + u)
    boxes of the region proposals
det/rcnn_cls | Cls RCNN | softmax | one_hot | -y * log(p)
    classes of the final boxes
det/rcnn_reg | Reg RCNN | box | {AREAS} | -log(i / e)
    coordinates of the final boxes
ins/rpn_cls | Cls RPN | softmax | one_hot | -y * p / tanh(p)
    objectness of the region proposals
ins/rpn_reg | Reg RPN | box | {AREAS} | e / (i + u)
    boxes of the region proposals
ins/rcnn_cls | Cls RCNN | softmax | one_hot | -y * log(p)
    classes of the final boxes
ins/rcnn_reg | Reg RCNN | box | {AREAS} | -sqrt(i) / sqrt(e)
    coordinates of the final boxes
ins/mask | Mask | softmax | one_hot | abs(log(y * p))
    foreground masks
"""
"""Name, row of the paper's table, activation, target and formula; description."""
_ASL = "\n".join(
    f"asl_{metric.lower()} | softmax | one_hot | {metric} | Auto-Seg-Loss for {metric} | @auto_seg.get_published {metric.lower()}\n"
    f"Auto-Seg-Loss: {metric} with curves for its logical operations, as found on VOC\n"
    "Li et al., 2021, Auto Seg-Loss, and the curves of its authors' configurations"
    for metric in ("mIoU", "FWIoU", "gAcc", "mAcc", "BIoU", "BF1")
)
_BASELINES = f"""
ce | softmax | one_hot | — | cross entropy | -y * log(p)
    cross entropy
    the standard loss of classification; Section 4 compares with it
bce | sigmoid | one_hot, or any set of classes | — | binary cross entropy | -(y * log(p) + (1 - y) * log(1 - p))
    binary cross entropy of each channel, for several labels at once
    the standard loss of multi-label classification
mse | none | values | — | squared error | (p - y)**2
    squared error
    the standard loss of regression and of heatmaps (SimpleBaseline, Xiao et al., 2018)
huber | none | values | — | Huber loss | \
(1 + abs(p - y) - abs(1 - abs(p - y))) * (3 * abs(p - y) - 1 + abs(1 - abs(p - y))) / 8
    square where the error is below 1, absolute beyond
    Huber, 1964, Robust Estimation of a Location Parameter
quantile_5 | none | values | — | 5 % quantile loss | abs(p - y) / 2 + 9 * (p - y) / 20
    quantile loss: the prediction is exceeded by 95 % of the values
    Koenker & Bassett, 1978, Regression Quantiles
quantile_10 | none | values | — | 10 % quantile loss | abs(p - y) / 2 + 2 * (p - y) / 5
    quantile loss: the prediction is exceeded by 90 % of the values
    Koenker & Bassett, 1978, Regression Quantiles
quantile_90 | none | values | — | 90 % quantile loss | abs(p - y) / 2 + 2 * (y - p) / 5
    quantile loss: the prediction is exceeded by 10 % of the values
    Koenker & Bassett, 1978, Regression Quantiles
quantile_95 | none | values | — | 95 % quantile loss | abs(p - y) / 2 + 9 * (y - p) / 20
    quantile loss: the prediction is exceeded by 5 % of the values
    Koenker & Bassett, 1978, Regression Quantiles
focal | softmax | one_hot | — | focal loss | -(1 - p)**2 * y * log(p)
    focal loss with γ = 2, without class weights
    Lin et al., 2017, Focal Loss for Dense Object Detection, Eq. 4
dice | softmax | one_hot | Dice coefficient | Dice | @region_losses.soft_dice
    soft Dice over the classes of a batch; written by hand, since a quotient of two sums is not a tree
    Milletari et al., 2016, V-Net, Section 3; per class and with plain sums as in segmentation-models-pytorch
wce | softmax | one_hot | mAcc | weighted cross entropy | @region_losses.weighted_cross_entropy
    cross entropy weighted by the inverse frequencies of the classes in a batch
    Ronneberger et al., 2015, U-Net, Eq. 1 and 2, without the term for touching cells
class_weighted_ce | softmax | one_hot | — | cross entropy with class weights | @region_losses.class_weighted_cross_entropy
    nn.CrossEntropyLoss(weight=1 / shares), with the shares of the classes in the training data
    King & Zeng, 2001, Logistic Regression in Rare Events Data, Section 5.2
class_weighted_bce | sigmoid | one_hot | — | binary cross entropy with class weights | \
@region_losses.class_weighted_binary_cross_entropy
    nn.BCEWithLogitsLoss with the inverse shares of yes and no in the training data as weights, for each label
    King & Zeng, 2001, Logistic Regression in Rare Events Data, Section 5.2
logit_adjusted_ce | softmax | one_hot | — | logit-adjusted cross entropy | @region_losses.logit_adjusted_cross_entropy
    cross entropy of the logits plus the logarithms of the shares of the classes in the training data
    Menon et al., 2021, Long-tail learning via logit adjustment, Eq. 10, with τ = 1
lovasz | softmax | one_hot | mIoU | Lovász | @region_losses.lovasz_softmax
    Lovász-Softmax over the classes that a batch holds
    Berman et al., 2018, The Lovász-Softmax loss, Eq. 9 to 11
dpce | softmax | one_hot | — | distance-penalised cross entropy | @region_losses.distance_penalised_cross_entropy
    cross entropy weighted by the proximity to the border of the target's region
    Caliva et al., 2019, Distance Map Loss Penalty Term for Semantic Segmentation
ssim | softmax | one_hot | — | SSIM | @region_losses.ssim_loss
    structural similarity of probabilities and classes in windows of 11 pixels
    Wang et al., 2004, Eq. 13; Qin et al., 2019, BASNet, Eq. 4
ce_ssim | softmax | one_hot | — | cross entropy with SSIM | @region_losses.ssim_with_cross_entropy
    cross entropy plus structural similarity
    Qin et al., 2019, BASNet, Eq. 2, without IoU
ranknet | pair_probability | {ORDER} | — | RankNet | -y * log(p)
    pairs of items: logistic loss of the difference of scores; on pairs of one user it is BPR
    Burges et al., 2005, Learning to Rank using Gradient Descent; Rendle et al., 2009, BPR, Section 4
lambdarank | pair_probability | {ORDER} | NDCG | LambdaRank | -w * log(p)
    pairs of items: RankNet, each pair times its weight w, the change of NDCG if the items change places
    Burges, 2010, From RankNet to LambdaRank to LambdaMART, Section 4
auc_hinge | pair_difference | {ORDER} | AUC | pairwise hinge loss | (1 - p + abs(1 - p)) / 2
    pairs of items: hinge loss of the difference of scores, p
    Joachims, 2005, A Support Vector Method for Multivariate Performance Measures
auc_square | pair_difference | {ORDER} | AUC | pairwise squared loss | (1 - p)**2
    pairs of items: squared distance of the difference of scores, p, from 1
    Gao et al., 2013, One-Pass AUC Optimization
auc_exponential | pair_difference | {ORDER} | AUC | pairwise exponential loss | exp(-p)
    pairs of items: exponential loss of the difference of scores, p
    Freund et al., 2003, An Efficient Boosting Algorithm for Combining Preferences (RankBoost)
cox | pair_probability | times and events | concordance index | Cox loss | @written.Cox
    negative partial likelihood of proportional hazards; written by hand, since its sum over a risk set is no tree
    Cox, 1972, Regression Models and Life-Tables; Katzman et al., 2018, DeepSurv, Eq. 4
listnet | pair_probability | {ORDER} | NDCG | ListNet | @written.ListNet
    softmax cross entropy over the items of each query; written by hand: its sum over a list is no tree
    Cao et al., 2007, Learning to Rank: From Pairwise Approach to Listwise Approach
auc_margin | pair_probability | {ORDER} | AUC | AUC margin loss | @written.AucMargin
    LibAUC's margin loss with the best a, b and α of the batch; written by hand: it needs means of both classes
    Yuan et al., 2021, Large-scale Robust Deep AUC Maximization, Eq. 5
pointwise | pair_probability | {ORDER} | — | pointwise cross entropy | @written.Pointwise
    binary cross entropy of the scores of single items; written by hand, since leaves are those of pairs
    the standard loss of click prediction
{_ASL}
l1 | box | deltas of the target box | — | smooth L1 | @written.SmoothL1
    smooth L1 on box deltas, with the threshold and divisor of Faster R-CNN; written by hand: leaves are areas
    Girshick, 2015, Fast R-CNN, Eq. 3, as in torchvision
iou | box | {AREAS} | — | IoU loss | log(inv(i / u))
    IoU loss of boxes: -log(i / u), finite if they do not overlap (the signed logarithm of 0 would be 0)
    Yu et al., 2016, UnitBox, Eq. 2
giou | box | {AREAS} | — | GIoU loss | 1 - i / u + (e - u) / e
    generalised IoU loss of boxes
    Rezatofighi et al., 2019, Generalized Intersection over Union, Algorithm 1
cse_auto_a_cls | softmax | one_hot, and the IoU of each predicted box | — | CSE-AutoLoss-A of classes | @written.WeightedByOverlap
    classes of boxes: cross entropy times 1 + sin(IoU); written by hand: it needs a sine and the detached IoU
    {CSE}, CSE-AutoLoss-A
cse_auto_a_reg | box | {AREAS} | — | CSE-AutoLoss-A of boxes | (1 - i / u) + (1 - (i + 2) / e)
    coordinates of boxes, found together with baseline/cse_auto_a_cls
    {CSE}, CSE-AutoLoss-A
"""
"""Name, activation, target, metric, title, and the formula, or after `@` the function that is the loss; description; source."""


def _read_baselines() -> Iterator[Entry]:
    for name, activation, target, metric, title, loss, description, source in read_rows(_BASELINES, lines=3):
        known = Entry(f"baseline/{name}", description, source, metric, target, activation, title=title)
        yield replace(known, factory=_defer(loss[1:])) if loss.startswith("@") else replace(known, formula=loss)


_TVERSKY = "mean_nhw(y * p) / mean_nhw(2 * y + p)"
_BOTH = "-(y * log(p) + (1 - y) * log(y * (1 - p)))"
_FOUND = f"""
miou | mIoU | softmax | -log(y * (mean_nhw(y) + p))
    cross entropy softened by the share of the class; cross entropy with steps of one norm does as well
bf1 | BF1 | softmax | -y * log(p) / tanh(4 * mean_nhw(y)) - 1/2 * y * log(p) / tanh(12 * mean_nhw(y)) - 6 * {_TVERSKY}
    cross entropy with weights of the classes plus soft Tversky
f1 | F1 | softmax | log(sqrt(y * mean_nhw(y * sqrt(p))))**2
    the squared logarithm of the mean of √p over each class: the recall of the whole batch, not of single rows
iou | IoU | sigmoid | {_BOTH} - log(tanh(mean_nhw(p * y)) / mean_nhw(p + y))
    binary cross entropy plus the logarithm of soft Dice
worst_recall | recall of the worst class | softmax | -mean_nhw(p * tanh(y)) / mean_nhw(tanh(y) + p + y)
    soft Tversky with a larger weight of the target than of the prediction
quantile | 0.9-quantile loss, negative | none | (1 + y) * (p - y)**2 / (4 * tanh(2)) - y**2 * sqrt(p)
    squared error weighted by one plus the target, and a growing push upwards; the quantile loss does as well
"""
"""Losses that searches of this project found and that held on held-out data: name, metric, activation and formula; description."""


def _read_found() -> Iterator[Entry]:
    source = "found by a search of this project; its files under bench/results say where it was ahead"
    for name, metric, activation, formula, does in read_rows(_FOUND, lines=2):
        target = "values" if activation == "none" else "one_hot"
        yield Entry(f"found/{name}", does, source, metric, target, activation, formula=formula)


OF_SHARES = tuple(f"baseline/{name}" for name in ("class_weighted_ce", "class_weighted_bce", "logit_adjusted_ce"))
"""Losses with the shares of the classes in the training data."""
COMPARED: Mapping[str, tuple[Literal["usual", "full"], Literal["any", "space", "rows", "groups"]]] = {
    "baseline/dice": ("usual", "any"),
    "baseline/lovasz": ("usual", "space"),
    "shelf/tversky": ("usual", "space"),
    "shelf/root_balanced_tversky": ("usual", "space"),
    "shelf/dice_bce": ("usual", "any"),
    "shelf/balanced_bce": ("usual", "rows"),
    "shelf/tversky_bce": ("usual", "space"),
    "shelf/root_balanced_tversky_bce": ("usual", "space"),
    "baseline/huber": ("usual", "any"),
    "shelf/absolute_error": ("usual", "any"),
    "shelf/euclidean": ("usual", "rows"),
    "shelf/poisson": ("usual", "any"),
    "shelf/squared_log": ("usual", "any"),
    "shelf/absolute_percentage": ("usual", "any"),
    "shelf/log_ratio": ("usual", "any"),
    "shelf/symmetric_percentage": ("usual", "any"),
    **{f"baseline/quantile_{share}": ("usual", "rows") for share in (5, 10, 90, 95)},
    **{f"baseline/{name}": ("usual", "any") for name in ("ranknet", "auc_hinge", "auc_square", "auc_exponential")},
    **{f"baseline/{name}": ("usual", "any") for name in ("lambdarank", "listnet", "pointwise", "cox")},
    "baseline/auc_margin": ("usual", "rows"),
    **dict.fromkeys(OF_SHARES, ("usual", "any")),
    "baseline/wce": ("full", "any"),
    "baseline/dpce": ("full", "space"),
    "baseline/ssim": ("full", "space"),
    "baseline/ce_ssim": ("full", "space"),
}
"""Losses that are baselines beside the standard loss of a branch that they fit → whether of every comparison or only of one with
all of them, and of which items: those with space, such as images, single rows, those of groups, such as queries, or any."""
_WHOLE = (_combine("det", "all four branches"), _combine("ins", "all five branches"))
ENTRIES = {row.name: row for row in (*_read_published(), *_WHOLE, *_read_baselines(), *SHELF, *_read_found())}


def say_loss(loss: str) -> str:
    """Return what a person calls a loss: the title of each named loss in it; a formula stays as it is.

    >>> say_loss("baseline/lovasz"), say_loss("cls: baseline/ce; reg: baseline/l1"), say_loss("y * p")
    ('Lovász', 'cross entropy + smooth L1', 'y * p')
    """
    names = split_branches(loss).values()
    return " + ".join(ENTRIES[name].title or name for name in names) if set(names) <= set(ENTRIES) else loss
