"""`autoloss explain`: why a loss of a run is ahead of the standard loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from autoloss.comparison.entrant import Entrant
from autoloss.comparison.explain import explain_loss
from autoloss.comparison.explanation import Explanation
from autoloss.comparison.record import Record
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.run.notes import describe_changes
from autoloss.run.request import prepare, restore_request
from autoloss.run.results import find_learning_rate, open_run
from autoloss.run.user_files import importable_files
from autoloss.space.operators import Operator
from autoloss.store.lock import lock_run
from autoloss.store.store import Store
from autoloss.tasks.task import Task

SEEDS = 5


@importable_files()
def explain(
    directory: str | Path,
    number: int | None = None,
    task: Task | None = None,
    *,
    seeds: int = SEEDS,
    workers: int = 2,
    operators: Sequence[Operator] = (),
    trust: bool = False,
    say: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain why a loss of a run is ahead of the standard loss.

    The loss is trained beside controls: the standard loss with its steps, with its weights of classes or by confidence, with other
    recipes, and simpler forms of the loss. What was trained before under the same seeds is not trained again.

    Args:
        directory: Folder of the run.
        number: Number of the loss; the best if None.
        task: The task of a run that was started with an object.
        seeds: Training seeds of the loss and of each control, at least 2.
        workers: Processes that train; 0 trains in this process.
        operators: Those of a run that was started with objects.
        trust: Run the files that the run names, even if another user started it.
        say: Called with a sentence about what is trained next.

    Returns:
        The share of each cause in the gain, and the simplest change with the same effect; stored in the run.

    Raises:
        RequestError: There is no run or no such loss, `seeds` is below 2, or the task has no standard loss.
        OwnedError: Another process drives the run.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=4)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> _ = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="iris")
    >>> found = autoloss.explain("iris", task=task, seeds=2, workers=0)
    >>> found.causes[-1].name
    'none of these'
    """
    if seeds < 2:
        raise RequestError(f"seeds is {seeds}; expected at least 2 to find a cause.", argument="seeds")
    path = Path(directory)
    Store(path).close()
    with lock_run(path), Store(path, write=True) as store:
        found = open_run(path)
        chosen = found.choose(number)
        request = restore_request(found.settings, path, task, operators, trust)
        evaluator = prepare(request)
        entrant = find_learning_rate(found, Entrant(f"#{chosen.id}", chosen.formula))
        tell = say or (lambda text: None)
        for text in describe_changes(evaluator, found.settings):
            tell(text)
        with start_workers(evaluator, Machines(workers=workers)) as dispatcher:
            explanation, plan = explain_loss(entrant, evaluator, seeds, Record(dispatcher, store), tell)
        store.change_setting("explanation", asdict(plan))
        return explanation
