"""The engines by their names in the settings, and the correlation score g (Section 3.2, Eq. 5 and 6) of one loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.engine import Engine
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reference import ReferenceEngine
from autoloss.settings import EngineName, ProtocolSettings, Threshold
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression

ENGINES: Mapping[EngineName, type[Engine]] = {"fast": CompiledEngine, "reference": ReferenceEngine}


def correlation_score(
    expression: Expression,
    branch: Branch,
    samples: Sequence[Sample],
    engine: EngineName = "reference",
    threshold: Threshold = "relative",
) -> float | None:
    """Measure how much gradient descent on the predictions with `expression` raises the branch's metric.

    Args:
        samples: B samples of an untrained network; predictions are raw, (N, C, H, W).
        engine: `reference` is plain autograd; `fast` is the compiled engine.
        threshold: The unit of g: `absolute`, the metric's own, or `relative` to what the samples can gain.

    Returns:
        g, or None if the loss or its gradient became non-finite or there was no gradient at all.

    Raises:
        RequestError: An unknown unit or engine, or samples that can gain nothing.

    Source: Section 3.2, Eq. 5 and 6.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", metric="auc")
    >>> samples = task.samples(2, seed=0)["main"]
    >>> g = autoloss.correlation_score(autoloss.parse("-y * log(p)"), task.branches["main"], samples)
    >>> g > 0.6
    True
    """
    settings = ProtocolSettings(samples=len(samples), unit=threshold, engine=engine)
    return ENGINES[engine](branch, measure_reference(branch, samples), settings).verdicts([expression])[0].score
