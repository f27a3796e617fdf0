"""Losses that searches of this project found and that held on held-out data, by the metric that they were found for."""

from __future__ import annotations

from autoloss.tables import read_rows
from autoloss.zoo.entry import Entry

SOURCE = "found by a search of this project; its files under bench/results say where it was ahead"
TARGETS = {"none": "values"}
_TVERSKY = "mean_nhw(y * p) / mean_nhw(2 * y + p)"
_BOTH = "-(y * log(p) + (1 - y) * log(y * (1 - p)))"
_TABLE = f"""
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
FOUND = tuple(
    Entry(f"found/{name}", does, SOURCE, metric, TARGETS.get(activation, "one_hot"), activation, formula=formula)
    for name, metric, activation, formula, does in read_rows(_TABLE, lines=2)
)
