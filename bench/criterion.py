"""What a tree costs in a training: forward and backward beside `F.cross_entropy` on the same tensors, eager and compiled.

Each pair is one cross entropy and one loss, one right after the other and in changing order, so that other load meets both;
a row is the median of the ratios of all pairs, with the middle half of them beside it. Compiling is not counted, but shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss import zoo
from machine import machine
from output import emit

CLASSES = 21
LOSSES = {"-y·log(p)": "baseline/ce", "gAcc": "seg/gacc", "mIoU": "seg/miou"}
"""What a row is called → name in the zoo."""
TARGETS = {"-y·log(p)": 1.1, "gAcc": 1.1, "mIoU": 1.6}
"""Of the compiled ratio."""

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    images: int
    side: int
    pairs: int
    eager_pairs: int


# Tensors beyond 32 MB are given back to the system after each step: smaller ones would flatter cross entropy, which
# allocates more.
QUICK = Size(images=2, side=512, pairs=11, eager_pairs=2)
USUAL = Size(images=8, side=512, pairs=21, eager_pairs=5)


def main() -> None:
    arguments = _arguments()
    size = QUICK if arguments.quick else USUAL
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    began = time.monotonic()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size.images, CLASSES, size.side, size.side, generator=generator).requires_grad_()
    labels = torch.randint(CLASSES, (size.images, size.side, size.side), generator=generator)
    rows = [row(label, name, logits, labels, size) for label, name in LOSSES.items()]
    result: dict[str, Any] = {
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "shape": list(logits.shape),
        "size": asdict(size),
        "rows": rows,
        "seconds": round(time.monotonic() - began, 1),
    }
    emit(result, arguments, _print)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a loss costs in training, beside cross entropy.")
    parser.add_argument("--quick", action="store_true", help="smaller tensors, at most a minute on a quiet machine")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, help="of torch; as many as it takes by itself when left out")
    return parser.parse_args()


def row(label: str, name: str, logits: Tensor, labels: Tensor, size: Size) -> dict[str, Any]:
    """Measure one loss in both forms."""
    criterion = zoo.get(name).criterion()
    eager = ratios(criterion, logits, labels, size.eager_pairs)
    torch.compiler.reset()
    compiled = torch.compile(criterion, fullgraph=True)
    began = time.monotonic()
    timed(compiled, logits, labels)
    seconds = time.monotonic() - began
    fast = ratios(compiled, logits, labels, size.pairs)
    low, _, high = quantiles(fast, n=4)
    return {
        "loss": label,
        "name": name,
        "ratio_eager": round(median(eager), 3),
        "ratio_compiled": round(median(fast), 3),
        "middle_half": [round(low, 3), round(high, 3)],
        "target": TARGETS[label],
        "compile_seconds": round(seconds, 1),
    }


def ratios(step: Step, logits: Tensor, labels: Tensor, pairs: int) -> list[float]:
    """Time a loss over cross entropy, pair by pair."""
    for warm in (F.cross_entropy, step):
        timed(warm, logits, labels)
    found = []
    for number in range(pairs):
        order = (F.cross_entropy, step) if number % 2 else (step, F.cross_entropy)
        seconds = {each: timed(each, logits, labels) for each in order}
        found.append(seconds[step] / seconds[F.cross_entropy])
    return found


def timed(step: Step, logits: Tensor, labels: Tensor) -> float:
    logits.grad = None
    began = time.perf_counter()
    step(logits, labels).backward()
    return time.perf_counter() - began


def _print(result: dict[str, Any]) -> None:
    print(f"Forward and backward at {tuple(result['shape'])}, {result['threads']} threads; cross entropy is 1")
    print(f"{'loss':12}{'eager':>8}{'compiled':>10}{'middle half':>16}{'target':>8}")
    for row in result["rows"]:
        half = "–".join(f"{value:.2f}" for value in row["middle_half"])
        print(
            f"{row['loss']:12}{row['ratio_eager']:8.2f}{row['ratio_compiled']:10.2f}{half:>16}{'≤ ' + str(row['target']):>8}"
        )


if __name__ == "__main__":
    main()
