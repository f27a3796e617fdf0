"""The shelf: known losses as trees of the space, in families, from which a search starts.

Class weights are those of the batch: `mean_nhw(y)` is the share of a class in it.
"""

from __future__ import annotations

from autoloss.tables import read_rows
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
GENERALISED = (
    "after Sudre et al., 2017, Generalised Dice Overlap as a Deep Learning Loss: weights by the size of a class"
)
TVERSKY = "Salehi et al., 2017, Tversky Loss Function for Image Segmentation, with α = 1/3 and β = 2/3"
COMPOUND = "Isensee et al., 2021, nnU-Net: cross entropy plus Dice"
_TABLES = {
    "softmax": f"""
balanced_ce | balanced cross entropy | cross entropy over the share of the class | -y * log(p) / mean_nhw(y)
    {BALANCED}
root_balanced_ce | root-balanced cross entropy | cross entropy over the root of a class's share | -y * log(p) / sqrt(mean_nhw(y))
    {ROOT}
effective_ce | effective-number cross entropy | cross entropy over a class's effective number | -y * log(p) / tanh(8 * mean_nhw(y))
    {EFFECTIVE}
root_balanced_focal | root-balanced focal loss | focal loss over the root of a class's share | \
-(1 - p)**2 * y * log(p) / sqrt(mean_nhw(y))
    {FOCAL}; {ROOT}
brier | Brier score | squared error of the probabilities | (p - y)**2
    {BRIER}
absolute | absolute error of probabilities | absolute error of the right class's probability | -y * p
    {ABSOLUTE}
generalized_ce | generalized cross entropy | bounded cross entropy for wrong labels, q = 1/2 | -y * sqrt(p)
    Zhang & Sabuncu, 2018, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, Eq. 6
dice | Dice by class | soft Dice of each class in the batch | -mean_nhw(y * p) / mean_nhw(y + p)
    {DICE}
tversky | Tversky loss | soft Tversky index of each class | -mean_nhw(y * p) / mean_nhw(2 * y + p)
    {TVERSKY}
root_balanced_dice | root-balanced Dice | soft Dice of each class over the root of its share | \
-mean_nhw(y * p) / (mean_nhw(y + p) * sqrt(mean_nhw(y)))
    {GENERALISED}
root_balanced_tversky | root-balanced Tversky loss | soft Tversky index of each class over the root of its share | \
-mean_nhw(y * p) / (mean_nhw(2 * y + p) * sqrt(mean_nhw(y)))
    {TVERSKY}; {GENERALISED}
dice_ce | cross entropy with Dice | cross entropy plus soft Dice | -y * log(p) - mean_nhw(y * p) / mean_nhw(y + p)
    {COMPOUND}
smoothed_ce | label smoothing | cross entropy, a tenth of each label spread over all classes | -(9 * y + mean_c(y)) * log(p) / 10
    Szegedy et al., 2016, Rethinking the Inception Architecture for Computer Vision, Section 7, with ε = 0.1
""",
    "sigmoid": f"""
balanced_bce | balanced binary cross entropy | binary cross entropy over the shares of yes and no | \
-(y * log(p) / mean_nhw(y) + (1 - y) * log(1 - p) / mean_nhw(1 - y))
    {BALANCED}
root_balanced_bce | root-balanced binary cross entropy | binary cross entropy over the roots of the shares of yes and no | \
-(y * log(p) / sqrt(mean_nhw(y)) + (1 - y) * log(1 - p) / sqrt(mean_nhw(1 - y)))
    {ROOT}
effective_bce | effective-number binary cross entropy | binary cross entropy over the effective numbers of yes and no | \
-(y * log(p) / tanh(8 * mean_nhw(y)) + (1 - y) * log(1 - p) / tanh(8 * mean_nhw(1 - y)))
    {EFFECTIVE}
focal_bce | binary focal loss | focal loss of each label | -((1 - p)**2 * y * log(p) + p**2 * (1 - y) * log(1 - p))
    {FOCAL}
brier_bce | binary Brier score | squared error of the probabilities | (p - y)**2
    {BRIER}
generalized_bce | generalized binary cross entropy | bounded cross entropy for wrong labels, q = 1/2 | \
-(y * sqrt(p) + (1 - y) * sqrt(1 - p))
    Zhang & Sabuncu, 2018, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, Eq. 6
dice_bce | Dice by label | soft Dice of each label in the batch | -mean_nhw(y * p) / mean_nhw(y + p)
    {DICE}
tversky_bce | Tversky loss by label | soft Tversky index of each label | -mean_nhw(y * p) / mean_nhw(2 * y + p)
    {TVERSKY}
root_balanced_dice_bce | root-balanced Dice by label | soft Dice of each label over the root of its share | \
-mean_nhw(y * p) / (mean_nhw(y + p) * sqrt(mean_nhw(y)))
    {GENERALISED}
root_balanced_tversky_bce | root-balanced Tversky loss by label | soft Tversky index of each label over the root of its share | \
-mean_nhw(y * p) / (mean_nhw(2 * y + p) * sqrt(mean_nhw(y)))
    {TVERSKY}; {GENERALISED}
dice_with_bce | binary cross entropy with Dice | binary cross entropy plus soft Dice | \
-(y * log(p) + (1 - y) * log(1 - p)) - mean_nhw(y * p) / mean_nhw(y + p)
    {COMPOUND}
""",
    "none": """
absolute_error | absolute error | absolute error | abs(p - y)
    Laplace, 1774; least absolute deviations
pseudo_huber | pseudo-Huber loss | square near 0, absolute far from it | sqrt(1 + (p - y)**2)
    Charbonnier et al., 1994, Two Deterministic Half-Quadratic Regularization Algorithms
cauchy | Cauchy loss | logarithm of one plus the square | log(1 + (p - y)**2)
    Black & Anandan, 1996, The Robust Estimation of Multiple Motions, Lorentzian
welsch | Welsch loss | bounded: a far outlier has no gradient | -exp(-(p - y)**2)
    Dennis & Welsch, 1978, Techniques for Nonlinear Least Squares and Robust Regression
log_absolute | log absolute error | logarithm of one plus the absolute error | log(1 + abs(p - y))
    Feng et al., 2018, Wing Loss for Robust Facial Landmark Localisation: its logarithm, with w = ε = 1
quantile_25 | 25 % quantile loss | quantile loss: a prediction too high costs three times one too low | abs(p - y) / 2 + (p - y) / 4
    Koenker & Bassett, 1978, Regression Quantiles
quantile_75 | 75 % quantile loss | quantile loss: a prediction too low costs three times one too high | abs(p - y) / 2 + (y - p) / 4
    Koenker & Bassett, 1978, Regression Quantiles
weighted_squares | weighted squared error | squared error weighted by one plus the target, for heatmaps | (1 + y) * (p - y)**2
    Wang et al., 2019, Adaptive Wing Loss, weighted loss map
""",
    "none, several outputs": """
euclidean | Euclidean distance | distance of the vector of all outputs from the target's | sqrt(mean_c((p - y)**2))
    Weber, 1909, On the Location of Industries: the sum of distances, whose minimum is the geometric median
cosine | cosine distance | angle between the vector of all outputs and the target's, as its cosine | \
-mean_c(p * y) / (sqrt(mean_c(p**2)) * sqrt(mean_c(y**2)))
    Salton & McGill, 1983, Introduction to Modern Information Retrieval: the cosine of two vectors
""",
    "none, positive targets": """
absolute_percentage | absolute percentage error | absolute error in proportion to the target | abs((p - y) / y)
    de Myttenaere et al., 2016, Mean Absolute Percentage Error for Regression Models
""",
    "none, positive, positive targets": """
log_ratio | absolute log ratio | absolute error of the logarithms | abs(log(p) - log(y))
    Tofallis, 2015, A Better Measure of Relative Prediction Accuracy for Model Selection and Model Estimation
symmetric_percentage | symmetric percentage error | absolute error in proportion to prediction and target | abs(p - y) / (p + y)
    Makridakis, 1993, Accuracy Measures: Theoretical and Practical Concerns
""",
    "none, positive": """
poisson | Poisson loss | negative log-likelihood of counts | p - y * log(p)
    Cameron & Trivedi, 1998, Regression Analysis of Count Data
squared_log | squared logarithmic error | squared error of the logarithms of one more | (log(1 + p) - log(1 + y))**2
    Hyndman & Koehler, 2006, Another Look at Measures of Forecast Accuracy: errors on a logarithmic scale
""",
    "pair_probability": f"""
pair_exponential | exponential loss of pairs | exponential loss of the difference of scores | y * (1 - p) / p
    {BOOST}
pair_sigmoid | smooth AUC | smooth share of pairs in order | -y * p
    {SMOOTH}
pair_brier | Brier score of pairs | squared error of the probability of a pair | (y - p)**2
    {BRIER}
pair_focal | focal loss of pairs | focal loss of pairs | -(1 - p)**2 * y * log(p)
    {FOCAL}
pair_weighted_sigmoid | weighted smooth AUC | weighted smooth share of pairs in order | -w * p
    {SMOOTH}
""",
    "pair_difference": f"""
difference_logistic | RankNet of differences | RankNet, of the difference of scores | y * log(1 + exp(-p))
    Burges et al., 2005, Learning to Rank using Gradient Descent, Eq. 3
difference_exponential | exponential loss of differences | exponential loss of the difference of scores | y * exp(-p)
    {BOOST}
difference_square | squared loss of differences | squared distance of the difference of scores from 1 | (y - p)**2
    Gao et al., 2013, One-Pass AUC Optimization
difference_hinge | hinge loss of differences | hinge loss of the difference of scores | y - p + abs(y - p)
    Joachims, 2005, A Support Vector Method for Multivariate Performance Measures
""",
}
"""Activation, and what predictions have to be, → name, title, description and formula of each loss, with its source below."""

SHELF = tuple(
    Entry(
        f"shelf/{name}",
        description,
        source,
        activation=activation,
        formula=formula,
        title=title,
        positive=positive,
    )
    for (activation, _, positive), table in ((key.partition(", "), table) for key, table in _TABLES.items())
    for name, title, description, formula, source in read_rows(table, lines=2)
)
