"""Cost of a loss in training: forward and backward beside `F.cross_entropy` on the same tensors, eager and compiled.

Each pair times cross entropy and a loss directly after each other, in alternating order, so that other load affects both. A row
is the median of the ratios over all pairs, with their interquartile range. Compiling is not counted, but shown.

`--only pairs` measures the loss of pairs of items alone, and keeps the other rows of `--out`: RankNet as a tree, with the listing
of the pairs of a batch, beside RankNet written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss import zoo
from autoloss.space.loss import bind
from autoloss.space.pairs import PairBranch
from machine import describe_device, synchronize
from output import Figure, emit, make_parser, parse_arguments

CLASSES = 21
LOSSES = {"-y·log(p)": "baseline/ce", "gAcc": "seg/gacc", "mIoU": "seg/miou"}
"""Label of a row → name in the zoo."""
TARGETS = {"-y·log(p)": (1.1, 1.1), "gAcc": (None, 1.1), "mIoU": (3.0, 1.3)}
"""Label of a row → targets of the eager and of the compiled ratio."""

Step = Callable[[Tensor, Tensor], Tensor]


FIGURES = {
    f"{label}, {kind}": Figure(("rows", {"loss": label}, f"ratio_{kind}"), digits=2)
    for label in LOSSES
    for kind in ("eager", "compiled")
} | {"RankNet, eager": Figure(("pairs", "ratio"), digits=2)}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.only == "pairs":
        kept = (
            json.loads(arguments.out.read_text(encoding="utf-8"))
            if arguments.out and arguments.out.exists()
            else {"rows": []}
        )
        emit({**kept, "pairs": measure_pairs(arguments.items)}, arguments, _print)
        return
    began = time.monotonic()
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.images, arguments.side, arguments.side)
    logits = torch.randn(shape[0], CLASSES, *shape[1:], generator=generator).to(arguments.device).requires_grad_()
    labels = torch.randint(CLASSES, shape, generator=generator).to(arguments.device)
    rows = [row(label, LOSSES[label], logits, labels, arguments) for label in arguments.losses]
    result: dict[str, Any] = {
        "device": describe_device(arguments.device),
        "threads": torch.get_num_threads(),
        "shape": list(logits.shape),
        "size": {name: vars(arguments)[name] for name in ("images", "side", "pairs", "eager_pairs")},
        "rows": rows,
        "pairs": measure_pairs(arguments.items),
        "seconds": round(time.monotonic() - began, 1),
    }
    emit(result, arguments, _print)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=8, help="batch size")
    parser.add_argument("--side", type=int, default=512, help="height and width in pixels")
    parser.add_argument("--pairs", type=int, default=21, help="timed pairs, compiled")
    parser.add_argument("--eager-pairs", type=int, default=5, help="timed pairs, eager")
    parser.add_argument("--only", choices=["pairs"], help="the loss of pairs of items alone")
    parser.add_argument("--items", type=int, default=256, help="items of a batch, all of whose pairs are compared")
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--threads", type=int, help="of torch; its own choice by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; pairs of items are measured on the processor")
    # Tensors above 32 MB are returned to the system after each step. With smaller ones cross entropy, which allocates more,
    # would look faster than it is.
    return parse_arguments(parser, argv, images=2, pairs=7, eager_pairs=2)


def row(label: str, name: str, logits: Tensor, labels: Tensor, size: argparse.Namespace) -> dict[str, Any]:
    """Measure one loss in both forms."""
    criterion = zoo.get(name).criterion()
    eager = ratios(criterion, logits, labels, size.eager_pairs)
    torch.compiler.reset()
    compiled = torch.compile(criterion, fullgraph=True, backend=size.backend)
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
        "target_eager": TARGETS[label][0],
        "target_compiled": TARGETS[label][1],
        "compile_seconds": round(seconds, 1),
    }


def measure_pairs(items: int, repeats: int = 60) -> dict[str, Any]:
    """Time RankNet over all pairs of a batch, beside the same written by hand over the matrix of differences."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(items, 1, generator=generator).requires_grad_()
    target = torch.rand(items, generator=generator)
    branch = PairBranch(limit=max(1, items * items))
    loss = bind(zoo.get("baseline/ranknet"), {"main": branch})["main"]

    def tree(scores: Tensor, target: Tensor) -> Tensor:
        return loss(scores, branch.make_context(scores, target))

    def by_hand(scores: Tensor, target: Tensor) -> Tensor:
        return F.softplus(scores.T - scores)[target[:, None] > target[None, :]].mean()

    torch.testing.assert_close(tree(scores, target), by_hand(scores, target))
    found = [timed(tree, scores, target) / timed(by_hand, scores, target) for _ in range(repeats)]
    return {"items": items, "pairs": items * (items - 1) // 2, "ratio": round(median(found), 3), "target": 2.0}


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
    synchronize(logits.device)
    began = time.perf_counter()
    step(logits, labels).backward()
    synchronize(logits.device)
    return time.perf_counter() - began


def _print(result: dict[str, Any]) -> None:
    if result["rows"]:
        print(f"Forward and backward at {tuple(result['shape'])} on {result['device']}, ", end="")
        print(f"{result['threads']} threads; cross entropy is 1")
        print(f"{'loss':12}{'eager':>8}{'target':>8}{'compiled':>10}{'middle half':>16}{'target':>8}")
    for row in result["rows"]:
        half = "–".join(f"{value:.2f}" for value in row["middle_half"])
        eager, compiled = (f"≤ {row[kind]}" if row[kind] else "" for kind in ("target_eager", "target_compiled"))
        print(
            f"{row['loss']:12}{row['ratio_eager']:8.2f}{eager:>8}{row['ratio_compiled']:10.2f}{half:>16}{compiled:>8}"
        )
    pairs = result["pairs"]
    print(
        f"RankNet over {pairs['pairs']:,} pairs: {pairs['ratio']:.2f} times that by hand, target ≤ {pairs['target']:g}"
    )


if __name__ == "__main__":
    main()
