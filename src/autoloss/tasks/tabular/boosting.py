"""The usual alternative to a network on a table: scikit-learn's gradient boosting with its defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from autoloss.numbers import figure


def describe_boosting(
    splits: Mapping[str, tuple[Tensor, Tensor]], measure: Callable[[Tensor, Tensor], float], classes: int, split: str
) -> str:
    """Fit on the train split and say what the metric of the predictions on another one is.

    Args:
        splits: Inputs (N, F) and targets (N,) by name.
        measure: (raw prediction (N, C), target) → metric; the logarithms of probabilities are logits.
        classes: Their number; 0 for a regression.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    inputs, target = (tensor.numpy() for tensor in splits["train"])
    held_out, truth = splits[split]
    if classes:
        model = HistGradientBoostingClassifier(random_state=0).fit(inputs, target)
        raw = np.full((len(held_out), classes), -30.0, dtype=np.float32)
        raw[:, model.classes_.astype(int)] = np.log(model.predict_proba(held_out.numpy()) + 1e-12)
    else:
        raw = HistGradientBoostingRegressor(random_state=0).fit(inputs, target).predict(held_out.numpy())
        raw = raw.astype(np.float32)[:, None]
    return (
        f"For reference, scikit-learn's gradient boosting with its defaults, the usual alternative on a table, has "
        f"{figure(measure(torch.from_numpy(raw), truth))} on the {split} split."
    )
