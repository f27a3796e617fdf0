"""The settings of a search, adapted to what its task can do before the first candidate: each change is said, and stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from autoloss import zoo
from autoloss.errors import RequestError, RunError, describe_user_error, keep_text
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.records import Outcome, State
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss import bind
from autoloss.tasks.task import Task
from autoloss.training.threads import one_thread
from autoloss.training.training import Scored, Training
from autoloss.workers.process_state import restored_state

FEW_LOSSES = 100
"""Losses after which a search says that none is ahead of the standard one."""
MANY_FAILED, FAILED_SHARE = 5, 0.2
"""A search says that trainings fail when so many did, and this share of all."""
LEAST_STEPS = 32
"""Optimizer steps of the shortest training that losses are compared by; docs/results.md shows how losses rank after so many."""
NEAR, SHARE_OF_STANDARD = 0.5, 0.9
"""η is lowered where the standard loss has such a share of it, to such a share of what the standard loss has."""
LARGEST_SHARE = 0.5
"""Of a schedule; a longer training is no cheap trial of a whole one."""
Say = Callable[[str], None]


def check_learning_rate(task: Task, rate: float, name: str, argument: str) -> None:
    """Refuse a factor on the learning rate that a task does not follow.

    Args:
        name: What a message calls the factor.
        argument: Argument of the caller that holds it.

    Raises:
        RequestError: It is not 1, and the task trains at 1 only.
    """
    if rate != 1 and not task.tunes_learning_rate:
        raise RequestError(
            f"{name} is {rate:g}, and the task {task.name} trains at 1 only. Leave it at 1, or "
            "follow Training.learning_rate in train() and declare `tunes_learning_rate = True`.",
            argument=argument,
        )


def adapt_configuration(
    task: Task, configuration: Configuration, runner: Evaluator, say: Say
) -> tuple[Configuration, float | None]:
    """Return the configuration that a run is driven and stored with, and the standard loss's score at the first of several rungs.

    Args:
        runner: Of the configuration as it was asked for, with the run's samples.
        say: Called with a sentence about each setting that is changed.

    Raises:
        RequestError: The task does not follow the learning rate that was asked for.
    """
    settings = configuration.search
    check_learning_rate(task, settings.learning_rate, "search.learning_rate", "settings")
    if configuration.rejection.admit_standard:
        configuration = _lower_threshold(task, configuration, runner, say)
    if settings.scale and (obstacle := _find_obstacle_of_scale(task, runner)):
        say(f"Losses are trained at the scale that they are drawn with: {obstacle}.")
        configuration = _change(configuration, scale=False)
    standard = None
    if len(settings.rungs) > 1:
        rungs, reason, standard = _choose_rungs(task, configuration)
        if rungs != settings.rungs:
            say(f"{reason} {_describe_rungs(rungs)}")
            configuration = _change(configuration, rungs=rungs)
            if len(rungs) > 1:
                # A larger share means fewer candidates: whole trainings keep their part of the budget.
                longer = rungs[0] / settings.rungs[0]
                promote, lag = min(1.0, settings.promote * longer), math.ceil(settings.promoted_lag / longer)
                configuration = _change(configuration, promote=promote, promoted_lag=lag)
            # Where nothing is learned in short trainings, a whole one tells whether anything is.
            if len(rungs) == 1 and task.shortens and isinstance(found := _try_standard(task, configuration, 1.0), str):
                say(
                    f"{found} A search finds little there. Try another learning rate (`autoloss check`) or a longer schedule."
                )
    return configuration, standard


def describe_budget(configuration: Configuration) -> list[str]:
    """Say whether the budget ends before the first candidate with a parent.

    >>> describe_budget(Configuration(evaluations=10))
    ['The budget holds 10 candidates, and the first 20 are drawn from nothing (evolution.initial): this is a random search. ...']
    """
    candidates = int(configuration.evaluations / configuration.search.rungs[0])
    if candidates > configuration.evolution.initial:
        return []
    return [
        f"The budget holds {candidates} candidates, and the first {configuration.evolution.initial} are drawn from nothing "
        "(evolution.initial): this is a random search. Raise the budget, also later by `autoloss resume`, or lower "
        "evolution.initial."
    ]


def describe_prospects(scores: Sequence[float], standard: float) -> str | None:
    """Say that nothing may be found where no loss is ahead of the standard one in short trainings; None where one is.

    >>> describe_prospects([0.5, 0.7], standard=0.6)
    """
    if max(scores) > standard:
        return None
    return (
        f"None of {len(scores)} losses is ahead of the standard loss in short trainings so far ({max(scores):.4f} against "
        f"{standard:.4f}). That is so where the loss is not what limits a task, and for a while in some searches that end well. "
        "`autoloss check` tells whether another learning rate helps. Ctrl-C ends the search; what was found is saved."
    )


def describe_failures(outcomes: Sequence[Outcome], directory: object) -> str | None:
    """Say that many trainings fail, and why the last one did; None where few do.

    >>> describe_failures([Outcome(state=State.SCORED, score=1.0)] * 20, "runs/x")
    """
    failed = [outcome for outcome in outcomes if outcome.state is State.FAILED]
    if len(failed) < MANY_FAILED or len(failed) < FAILED_SHARE * len(outcomes):
        return None
    reason = keep_text(next(iter(failed[-1].reason.splitlines()), "no reason was given"), 300)
    return (
        f"{len(failed)} of {len(outcomes)} trainings failed so far, and have no score. The last one: {reason} — "
        f"`autoloss failures {directory}` lists them. Ctrl-C ends the search; what was found is saved."
    )


def _change(configuration: Configuration, **settings: object) -> Configuration:
    return replace(configuration, search=replace(configuration.search, **settings))  # type: ignore[arg-type]


def _lower_threshold(task: Task, configuration: Configuration, runner: Evaluator, say: Say) -> Configuration:
    """Return the configuration with an η that the standard loss reaches on the branches where it comes near."""
    settings = configuration.rejection
    rejected: dict[str, float] = {}
    for branch, form in task.branches.items():
        if not (isinstance(form, ActivatedBranch) and form.activation != "none"):
            # There g depends on the unit of the targets, and a low one says nothing of other losses.
            continue
        with one_thread():
            verdict = runner.judge_standard(branch)
        score = None if verdict is None else verdict.score
        # Far below η it is no measure of the losses that are wanted.
        if score is not None and NEAR * settings.threshold <= score < settings.threshold:
            rejected[branch] = score
    if not rejected:
        return configuration
    branch = min(rejected, key=lambda name: rejected[name])
    threshold = lower_to(rejected[branch])
    say(
        f"The standard loss of the branch {branch} has g {rejected[branch]:.3g} on the samples, just below rejection.threshold = "
        f"{settings.threshold:g}. The threshold is lowered to {threshold:g}, so that losses like it pass."
    )
    return replace(configuration, rejection=replace(settings, threshold=threshold))


def lower_to(g: float) -> float:
    """Return the threshold that admits a standard loss with this g, and losses like it.

    >>> lower_to(0.573)
    0.516
    """
    return float(f"{SHARE_OF_STANDARD * g:.3g}")


def _find_obstacle_of_scale(task: Task, runner: Evaluator) -> str | None:
    """Return why losses cannot be brought to the scale of the standard loss."""
    for branch in task.branches:
        if branch not in task.standard:
            return f"the task names no standard loss for the branch {branch}, whose scale they could be brought to"
        with one_thread():
            if not runner.get_tester(branch).scales:
                return f"on the samples, the gradient of the standard loss of the branch {branch} is zero or not finite"
    return None


def _choose_rungs(task: Task, configuration: Configuration) -> tuple[tuple[float, ...], str, float | None]:
    """Return the rungs at which the task can be trained and measured, why they are others than those asked for, and the standard
    loss's score at the first.
    """
    rungs = configuration.search.rungs
    if not task.shortens:
        return (1.0,), f"The task {task.name} cannot be cut short (it declares `shortens = False`).", None
    steps = task.steps(Training(seed=0))
    if steps is not None and steps * rungs[0] < LEAST_STEPS:
        least = LEAST_STEPS / steps
        reason = f"A training of {task.name} has {steps} steps; a share of {rungs[0]:g} is fewer than {LEAST_STEPS}."
        rungs = tuple(rung for rung in rungs if rung > least)
        rungs = (least, *rungs) if least <= LARGEST_SHARE else (1.0,)
    else:
        reason = ""
    while len(rungs) > 1:
        score = _try_standard(task, configuration, rungs[0])
        if not isinstance(score, str):
            return rungs, reason, score
        reason = score
        doubled = 2 * rungs[0]
        rungs = tuple(rung for rung in rungs if rung > doubled)
        rungs = (doubled, *rungs) if doubled <= LARGEST_SHARE else (1.0,)
    return rungs, reason, None


def _try_standard(task: Task, configuration: Configuration, fidelity: float) -> float | str | None:
    """Train with the standard loss at a share of the schedule; return its score, or why losses cannot be compared there."""
    if set(task.standard) != set(task.branches):
        return None
    criterion = bind(zoo.resolve(task.standard, task.branches)[1], task.branches)
    seed = derive_seed(configuration.seed, "training")
    training = Training(seed=seed, fidelity=fidelity, learning_rate=configuration.search.learning_rate)
    with restored_state(), one_thread():
        with explain_failures():
            outcome = task.train(criterion, training)
        with explain_failures("Measuring the untrained network", "Return NaN from the metric where it is undefined."):
            untrained = task.untrained(seed)
    at = f"at a share of {fidelity:.3g} of the schedule" if fidelity < 1 else "in a whole training"
    if not isinstance(outcome, Scored):
        return f"The standard loss has no score {at}: {outcome.reason}."
    if untrained is not None and not outcome.score > untrained:
        return (
            f"The standard loss learns nothing {at}: the metric is {outcome.score:.4f}, and {untrained:.4f} untrained."
        )
    return outcome.score


@contextmanager
def explain_failures(
    what: str = "The training with the standard loss", advice: str = "A search would lose every training to it."
) -> Iterator[None]:
    """Turn what a task's own code raises into sentences that name the line."""
    try:
        yield
    except (RequestError, RunError, MemoryError):
        raise
    except Exception as error:
        raise RunError(f"{what} fails: {describe_user_error(error)}. {advice}") from error


def _describe_rungs(rungs: tuple[float, ...]) -> str:
    if len(rungs) == 1:
        return "Every candidate is trained whole."
    return f"Candidates are trained at a share of {rungs[0]:.3g} first."
