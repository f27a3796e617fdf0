"""COCO's metrics by faster-coco-eval, which reproduces pycocotools faster (Sections 4.2 to 4.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from faster_coco_eval import COCO, COCOeval_faster

ABSENT = -1
"""Value of faster-coco-eval if there is no object of that size."""


def measure_coco(
    truth: Mapping[str, Iterable[Any]],
    results: Iterable[Mapping[str, Any]],
    kind: Literal["bbox", "segm", "keypoints"],
    names: Mapping[str, str],
) -> dict[str, float]:
    """Return COCO's metrics (name → its name in faster-coco-eval) of results; NaN if there is no object of that size."""
    dataset: Any = COCO({part: list(rows) for part, rows in truth.items()}, print_function=_ignore)
    evaluation: Any = COCOeval_faster(dataset, dataset.loadRes(list(results)), kind, print_function=_ignore)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    found = {name: float(evaluation.stats_as_dict[theirs]) for name, theirs in names.items()}
    return {name: value if value > ABSENT else math.nan for name, value in found.items()}


def _ignore(*_: object) -> None:
    """Discard the library's output."""
