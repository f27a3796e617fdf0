"""The program of each process of `test_distribution`: one training whole, and one killed and taken up again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.loss import Loss, bind
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training import distribution
from autoloss.training.checkpoints import Checkpoints, list_checkpoints
from autoloss.training.loop import Execution
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training
from tests.training.drawing import certainty

KILLED_AT, STEPS = 7, 12


def shared_task() -> SupervisedTask:
    """Return a task without draws in the forward pass and without batch statistics: each process has its own of those."""
    return SupervisedTask(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        rows(0),
        rows(1),
        "softmax",
        certainty,
        data=Data(rows_per_sample=8),
        recipe=Recipe(epochs=2, batch_size=16, learning_rate=0.1),
    )


def rows(seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(96, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


def due(step: int) -> bool:
    # Only what the first process says counts.
    return step % 3 == 0 and distribution.rank() == 0


def train(directory: Path | None = None, kill_at: int = 0) -> Scored:
    task, execution = shared_task(), Execution(checkpoints=directory and Checkpoints(directory=directory, is_due=due))

    def observe(step: int, loss: float) -> None:
        if step == kill_at:
            raise InterruptedError

    outcome = task.train(bind(Loss("-y * log(p)"), task.branches), Training(seed=5), execution, observe)
    assert isinstance(outcome, Scored)
    return outcome


def report(outcome: Scored) -> dict[str, object]:
    return {"score": outcome.score, "curve": [list(point) for point in outcome.curve]}


def main(directory: Path) -> None:
    """Run in each process."""
    with distribution.process_group("cpu"):
        whole = report(train(directory / "whole"))
        try:
            train(directory / "killed", kill_at=KILLED_AT)
        except InterruptedError:
            kept = [path.name[:20] for path in list_checkpoints(directory / "killed")]
        resumed = report(train(directory / "killed"))
        try:
            distribution.take_shares([torch.arange(3)])
        except RequestError as error:
            refused = str(error)
        rank = distribution.rank()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    found = {"whole": whole, "kept": kept, "resumed": resumed, "refused": refused, "threads": threads}
    (directory / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
