"""Test images with the predictions of networks trained with several losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoloss import zoo
from autoloss.comparison.entrant import Entrant
from autoloss.errors import RequestError
from autoloss.space.loss import bind, scale_criterion
from autoloss.tasks.task import Picture, Task
from autoloss.training.threads import one_thread
from autoloss.training.training import Diverged, Stopped


def train_pictures(
    task: Task,
    losses: Mapping[str, Entrant],
    seed: int,
    split: str,
    count: int,
    say: Callable[[str], None],
) -> list[Sequence[Picture]]:
    """Train once with each loss, and return the first images of the split with what each network predicts.

    Args:
        losses: What a message calls it → the loss.
        seed: Training seed.
        say: Called with a sentence before each training.

    Raises:
        RequestError: The task has no pictures, or a training has no score.
    """
    found: list[Sequence[Picture]] = []
    for name, entrant in losses.items():
        say(f"Training once with {name}, for the pictures of the report.")
        training = entrant.job(seed, split).training
        criterion = scale_criterion(bind(zoo.resolve(entrant.loss, task.branches)[1], task.branches), training.scale)
        with one_thread():
            pictures = task.pictures(criterion, training, count)
        if isinstance(pictures, Diverged | Stopped):
            ended = "diverged" if isinstance(pictures, Diverged) else "was stopped"
            raise RequestError(
                f"The training with {name} {ended} at step {pictures.step}: {pictures.reason}. Write the report without scenes."
            )
        found.append(pictures)
    return found
