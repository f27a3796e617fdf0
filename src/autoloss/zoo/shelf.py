"""The shelf: known losses as trees of the space, in families, from which a search starts.

Class weights are those of the batch: `mean_nhw(y)` is the share of a class in it.
"""

from __future__ import annotations

from autoloss.zoo.entry import Entry

BALANCED = "Japkowicz & Stephen, 2002, The Class Imbalance Problem: costs by the inverse share"
ROOT = "Mahajan et al., 2018, Exploring the Limits of Weakly Supervised Pretraining: the root of the share"
EFFECTIVE = (
    "Cui et al., 2019, Class-Balanced Loss Based on Effective Number of Samples; here a tanh of the share levels off"
)
FOCAL = "Lin et al., 2017, Focal Loss for Dense Object Detection, Eq. 4"
BRIER = "Brier, 1950, Verification of Forecasts Expressed in Terms of Probability"
ABSOLUTE = "Ghosh et al., 2017, Robust Loss Functions under Label Noise for Deep Neural Networks"
BOOST = "Freund et al., 2003, An Efficient Boosting Algorithm for Combining Preferences"
SMOOTH = (
    "Yan et al., 2003, Optimizing Classifier Performance via an Approximation to the Wilcoxon-Mann-Whitney Statistic"
)
DICE = "Milletari et al., 2016, V-Net, Section 3, with plain sums"
TVERSKY = "Salehi et al., 2017, Tversky Loss Function for Image Segmentation, with α = 1/3 and β = 2/3"
COMPOUND = "Isensee et al., 2021, nnU-Net: cross entropy plus Dice"
BOTH = "-(y * log(p) + (1 - y) * log(1 - p))"

_ROWS = (
    ("softmax", "balanced_ce", "cross entropy over the share of the class", BALANCED, "-y * log(p) / mean_nhw(y)"),
    (
        "softmax",
        "root_balanced_ce",
        "cross entropy over the root of the share of the class",
        ROOT,
        "-y * log(p) / sqrt(mean_nhw(y))",
    ),
    (
        "softmax",
        "effective_ce",
        "cross entropy over the effective number of the class",
        EFFECTIVE,
        "-y * log(p) / tanh(8 * mean_nhw(y))",
    ),
    (
        "softmax",
        "root_balanced_focal",
        "focal loss over the root of the share of the class",
        f"{FOCAL}; {ROOT}",
        "-(1 - p)**2 * y * log(p) / sqrt(mean_nhw(y))",
    ),
    ("softmax", "brier", "squared error of the probabilities", BRIER, "(p - y)**2"),
    ("softmax", "absolute", "absolute error of the right class's probability", ABSOLUTE, "-y * p"),
    ("softmax", "dice", "soft Dice of each class in the batch", DICE, "-mean_nhw(y * p) / mean_nhw(y + p)"),
    ("softmax", "tversky", "soft Tversky index of each class", TVERSKY, "-mean_nhw(y * p) / mean_nhw(2 * y + p)"),
    (
        "softmax",
        "dice_ce",
        "cross entropy plus soft Dice",
        COMPOUND,
        "-y * log(p) - mean_nhw(y * p) / mean_nhw(y + p)",
    ),
    (
        "sigmoid",
        "balanced_bce",
        "binary cross entropy over the shares of yes and no",
        BALANCED,
        "-(y * log(p) / mean_nhw(y) + (1 - y) * log(1 - p) / mean_nhw(1 - y))",
    ),
    (
        "sigmoid",
        "root_balanced_bce",
        "binary cross entropy over the roots of the shares of yes and no",
        ROOT,
        "-(y * log(p) / sqrt(mean_nhw(y)) + (1 - y) * log(1 - p) / sqrt(mean_nhw(1 - y)))",
    ),
    (
        "sigmoid",
        "effective_bce",
        "binary cross entropy over the effective numbers of yes and no",
        EFFECTIVE,
        "-(y * log(p) / tanh(8 * mean_nhw(y)) + (1 - y) * log(1 - p) / tanh(8 * mean_nhw(1 - y)))",
    ),
    (
        "sigmoid",
        "focal_bce",
        "focal loss of each label",
        FOCAL,
        "-((1 - p)**2 * y * log(p) + p**2 * (1 - y) * log(1 - p))",
    ),
    ("sigmoid", "brier_bce", "squared error of the probabilities", BRIER, "(p - y)**2"),
    ("sigmoid", "dice_bce", "soft Dice of each label in the batch", DICE, "-mean_nhw(y * p) / mean_nhw(y + p)"),
    ("sigmoid", "tversky_bce", "soft Tversky index of each label", TVERSKY, "-mean_nhw(y * p) / mean_nhw(2 * y + p)"),
    (
        "sigmoid",
        "dice_with_bce",
        "binary cross entropy plus soft Dice",
        COMPOUND,
        f"{BOTH} - mean_nhw(y * p) / mean_nhw(y + p)",
    ),
    ("none", "absolute_error", "absolute error", "Laplace, 1774; least absolute deviations", "abs(p - y)"),
    (
        "none",
        "pseudo_huber",
        "square near 0, absolute far from it",
        "Charbonnier et al., 1994, Two Deterministic Half-Quadratic Regularization Algorithms",
        "sqrt(1 + (p - y)**2)",
    ),
    (
        "none",
        "cauchy",
        "logarithm of one plus the square",
        "Black & Anandan, 1996, The Robust Estimation of Multiple Motions, Lorentzian",
        "log(1 + (p - y)**2)",
    ),
    (
        "none",
        "welsch",
        "bounded: a far outlier has no gradient",
        "Dennis & Welsch, 1978, Techniques for Nonlinear Least Squares and Robust Regression",
        "-exp(-(p - y)**2)",
    ),
    (
        "none",
        "log_absolute",
        "logarithm of one plus the absolute error",
        "Feng et al., 2018, Wing Loss for Robust Facial Landmark Localisation: its logarithm, with w = ε = 1",
        "log(1 + abs(p - y))",
    ),
    (
        "none",
        "weighted_squares",
        "squared error weighted by one plus the target, for heatmaps",
        "Wang et al., 2019, Adaptive Wing Loss, weighted loss map",
        "(1 + y) * (p - y)**2",
    ),
    ("pair_probability", "pair_exponential", "exponential loss of the difference of scores", BOOST, "y * (1 - p) / p"),
    ("pair_probability", "pair_sigmoid", "smooth share of pairs in order", SMOOTH, "-y * p"),
    ("pair_probability", "pair_brier", "squared error of the probability of a pair", BRIER, "(y - p)**2"),
    ("pair_probability", "pair_focal", "focal loss of pairs", FOCAL, "-(1 - p)**2 * y * log(p)"),
    ("pair_probability", "pair_weighted_sigmoid", "weighted smooth share of pairs in order", SMOOTH, "-w * p"),
    (
        "pair_difference",
        "difference_logistic",
        "RankNet, of the difference of scores",
        "Burges et al., 2005, Learning to Rank using Gradient Descent, Eq. 3",
        "y * log(1 + exp(-p))",
    ),
    ("pair_difference", "difference_exponential", "exponential loss of the difference of scores", BOOST, "y * exp(-p)"),
    (
        "pair_difference",
        "difference_square",
        "squared distance of the difference of scores from 1",
        "Gao et al., 2013, One-Pass AUC Optimization",
        "(y - p)**2",
    ),
    (
        "pair_difference",
        "difference_hinge",
        "hinge loss of the difference of scores",
        "Joachims, 2005, A Support Vector Method for Multivariate Performance Measures",
        "y - p + abs(y - p)",
    ),
)
SHELF = tuple(
    Entry(f"shelf/{name}", description, source, activation=activation, formula=formula)
    for activation, name, description, source, formula in _ROWS
)
