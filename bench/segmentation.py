"""The published segmentation losses on real samples: g of each on its own metric (Section 3.2), and what training with it reaches.

Rows {loss, metric, g, g_relative, score}: g is the protocol's correlation score in the metric's unit, on samples of an untrained
network on digits-seg; score is the metric on the valid split after one proxy training. Cross entropy stands beside each, and every
loss negated must fail.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import autoloss
from autoloss.algorithm.rejection.protocol import ProtocolSettings, measured, simulate
from autoloss.space.expression import build
from autoloss.tasks.task import Scored
from machine import machine

METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")
CROSS_ENTROPY = "baseline/ce"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two metrics, no training")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    metrics = METRICS[::5] if arguments.quick else METRICS
    rows = [row for metric in metrics for row in _rows(metric, train=not arguments.quick)]
    result = {"machine": machine(), "task": "digits-seg", "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{'loss':<14}{'metric':<8}{'ξ₀':>7}{'g':>8}{'g rel.':>8}{'−L: g':>8}{'score':>8}")
    for row in rows:
        score = "–" if row["score"] is None else f"{row['score']:.4f}"
        print(
            f"{row['loss']:<14}{row['metric']:<8}{row['initial']:>7.3f}{row['g']:>8.3f}{row['g_relative']:>8.3f}"
            f"{row['g_negated']:>8.3f}{score:>8}"
        )


def _rows(metric: str, train: bool) -> list[dict]:
    task = autoloss.tasks.get("digits-seg", metric=metric)
    branch = task.branches["main"]
    reference = measured(branch, task.samples(5, seed=0)["main"])
    settings = ProtocolSettings(unit="absolute")
    rows = []
    for name in (f"seg/{metric}", CROSS_ENTROPY):
        tree = autoloss.zoo.get(name)["main"]
        verdict = simulate(tree, branch, reference, settings)
        negated = simulate(build("neg", tree), branch, reference, settings)
        outcome = task.train(autoloss.bind({"main": tree}, task.branches), 0) if train else None
        rows.append(
            {
                "loss": name,
                "metric": metric,
                "initial": sum(reference.initial) / len(reference.initial),
                "g": verdict.score,
                "g_relative": reference.score(verdict.gains, "relative"),
                "g_negated": negated.score,
                "score": outcome.score if isinstance(outcome, Scored) else None,
            }
        )
    return rows


if __name__ == "__main__":
    main()
