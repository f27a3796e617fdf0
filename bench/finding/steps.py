"""Which step keeps the order of losses: as the recipe says, one gradient norm per step, a running norm, or Adam?

python bench/finding/steps.py --out bench/results/steps.json

Each loss of the shelf and the standard loss is trained on the known tasks of `awaytasks.py` under each rule, at the best of three
learning rates on the valid split, by a training loop of this script alone. The audit split then says how alike two rules order
the losses, and what is lost by choosing under one and training under another.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import autoloss
from awaytasks import BY_NAME, TASKS, AwayTask
from output import Figure, emit, make_parser, parse_arguments
from searches import tell

RULES = ("recipe", "one norm", "running norm", "Adam")
FACTORS = (0.3, 1.0, 3.0)
ADAM_RATE, MOMENTUM, DECAY = 1e-3, 0.9, 0.9
STANDARD = {"softmax": "baseline/ce", "sigmoid": "baseline/bce", "none": "baseline/mse"}
FIGURES = {
    f"order kept from {one} to {other}": Figure(("order", {"from": one, "to": other}, "correlation"))
    for one, other in itertools.permutations(("one norm", "running norm", "Adam"), 2)
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, seeds=3)
    known = [task.name for task in TASKS if task.part == "known"]
    asked.add_argument("--tasks", nargs="+", choices=BY_NAME, default=known)
    asked.add_argument("--losses", type=int, default=100, help="losses of the shelf at most")
    arguments = parse_arguments(asked, argv, tasks=["titanic"], losses=2, seeds=1)
    torch.set_num_threads(1)
    rows = [row for name in arguments.tasks for row in _measure_task(BY_NAME[name], arguments)]
    emit({"rows": rows, "order": list(_compare_orders(rows))}, arguments, _print)


def _measure_task(task: AwayTask, arguments: Any) -> Iterator[dict[str, Any]]:
    splits = task.split()
    fitting = [entry for entry in autoloss.zoo.SHELF if entry.activation == task.activation]
    names = [STANDARD[task.activation], *(entry.name for entry in fitting[: arguments.losses])]
    for name, rule in itertools.product(names, RULES):
        loss = autoloss.zoo.get(name).criterion(task.activation)
        tried = {rate: _train(task, splits, loss, rule, rate, 0, "valid") for rate in FACTORS}
        best = max(tried, key=lambda rate: tried[rate])
        audited = [_train(task, splits, loss, rule, best, seed, "audit") for seed in range(1, arguments.seeds + 1)]
        yield {"task": task.name, "loss": name, "rule": rule, "factor": best, "audit": fmean(audited)}
    tell(f"{task.name}: done, {len(names)} losses")


def _train(task: AwayTask, splits: Any, loss: nn.Module, rule: str, factor: float, seed: int, split: str) -> float:
    """Train from nothing; return the metric on a split, minus infinity where the network is not finite any more."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = task.make_network(splits["train"])
        inputs, target = splits["train"].inputs, splits["train"].target
        size = 16 if inputs.ndim == 4 else 64
        adam = rule == "Adam" or task.optimizer == "adam"
        rate = factor * (ADAM_RATE if rule == "Adam" else task.learning_rate)
        optimizer = (
            torch.optim.Adam(network.parameters(), lr=rate)
            if adam
            else torch.optim.SGD(network.parameters(), lr=rate, momentum=MOMENTUM)
        )
        steps = task.epochs * (len(target) // size)
        running = 0.0
        for step in range(steps):
            if step % (len(target) // size) == 0:
                order = torch.randperm(len(target))
            rows = order[step % (len(target) // size) * size :][:size]
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / steps) ** 0.9
            optimizer.zero_grad()
            loss(network(inputs[rows]), target[rows]).backward()
            norm = float(nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None]))
            running = norm if step == 0 else DECAY * running + (1 - DECAY) * norm
            by = {"one norm": norm, "running norm": running}.get(rule, 1.0)
            for parameter in network.parameters():
                if parameter.grad is not None and by > 0:
                    parameter.grad /= by
            optimizer.step()
    return _evaluate(task, network, splits[split])


@torch.no_grad()
def _evaluate(task: AwayTask, network: nn.Module, items: Any) -> float:
    prediction: Tensor = torch.cat([network(part) for part in items.inputs.split(1000)])
    if not bool(prediction.isfinite().all()):
        return float("-inf")
    activated = {"softmax": lambda raw: raw.softmax(1), "sigmoid": torch.sigmoid, "none": lambda raw: raw}
    return float(task.measure(activated[task.activation](prediction), items.target))


def _compare_orders(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return, for each pair of rules, the mean over tasks of the rank correlation and of the share of the spread that is lost."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for one, other in itertools.permutations(RULES, 2):
        correlations, lost = [], []
        for task in tasks:
            first, second = (
                {row["loss"]: row["audit"] for row in rows if row["task"] == task and row["rule"] == rule}
                for rule in (one, other)
            )
            values = [[max(scores[name], -1e9) for name in first] for scores in (first, second)]
            correlation = float(spearmanr(*values).statistic)
            correlations.append(0.0 if correlation != correlation else correlation)
            chosen = max(first, key=lambda name: first[name])
            spread = max(values[1]) - sorted(values[1])[len(values[1]) // 2]
            lost.append((max(values[1]) - second[chosen]) / spread if spread > 0 else 0.0)
        yield {"from": one, "to": other, "correlation": fmean(correlations), "lost": fmean(lost)}


def _print(result: Mapping[str, Any]) -> None:
    print(f"{'order under':<14} {'asked under':<14} rank correlation  lost by choosing")
    for row in result["order"]:
        print(f"{row['from']:<14} {row['to']:<14} {row['correlation']:>16.2f} {row['lost']:>17.2f}")


if __name__ == "__main__":
    main()
