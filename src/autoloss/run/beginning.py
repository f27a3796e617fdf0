"""The beginning of a run: its settings are written, the ladder is climbed, and the settings follow what was learnt by it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from autoloss import __version__
from autoloss.comparison.baselines import baselines, join_with, standard_entrant
from autoloss.comparison.climbing import CLASS_WEIGHTS, LEAST_BUDGET, climb_ladder
from autoloss.comparison.confirm import count_equivalents
from autoloss.comparison.entrant import LADDER, Entrant, Measurements, compare_paired, training_seeds
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.record import Record, find_promising, tune_learning_rates
from autoloss.comparison.resolution import Resolution, measure_resolution
from autoloss.errors import RequestError, RunError
from autoloss.evaluation.adapting import Say, adapt, score_standard
from autoloss.evaluation.dispatch import Dispatcher, Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.learning import NOTHING_TO_LEARN, Floor, measure_floor
from autoloss.numbers import figure
from autoloss.run.loop import Forecast, ObserveSearch, describe_rest
from autoloss.run.notes import (
    describe_budget,
    describe_idle_workers,
    describe_starts,
    read_recipe,
    read_untrained_on_test,
)
from autoloss.run.request import Request, branch_forms
from autoloss.run.starting_losses import NamedLoss, parse_starting_losses, try_starting_losses
from autoloss.run.user_files import sign_code
from autoloss.settings import SearchSettings
from autoloss.space.loss import Loss
from autoloss.space.loss_text import join_losses
from autoloss.store import samples as sample_files
from autoloss.store.database import resume_command
from autoloss.store.run_settings import RunSettings, StartVerdict, TaskReference
from autoloss.store.store import Store
from autoloss.tasks.catalogue import find_factory
from autoloss.tasks.task import Task
from autoloss.training.recipe import USUAL_STEPS
from autoloss.training.training import Training
from autoloss.workers.leases import build
from autoloss.zoo.entries import say_loss

LONGER = 3
"""Factor on the longest trainings that were tried, which is advised where nothing learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """What a search is driven with.

    Args:
        store: Of the run, for writing.
        observe: Called with a `Progress` about twice a second, and with a `Finale` after each training that follows the search.
        say: Called with a sentence about what the run does next.
    """

    store: Store
    machines: Machines
    forecast: Forecast
    observe: ObserveSearch
    say: Say

    def start_workers(self, evaluator: Evaluator) -> Dispatcher:
        """Start the machines; while nothing can be written, they rest."""
        dispatcher = start_workers(evaluator, self.machines, resume_command(self.store.path.parent))
        self.store.database.rest = dispatcher.queue.rest
        return dispatcher


def write_start(request: Request, evaluator: Evaluator, final: bool, drive: Drive) -> RunSettings:
    """Save the samples of a new run, then its settings, from which it can be resumed; return these.

    Raises:
        RunError: There is no room for the samples, or the task's own code fails.
    """
    task, store = evaluator.task, drive.store
    settings = RunSettings(
        configuration=evaluator.configuration,
        task=request.reference,
        title=task.name,
        branches=branch_forms(task, evaluator.samples),
        release=__version__,
        build=build(),
        recipe=read_recipe(task),
        also=request.also,
        # Not tested yet: what a resumed run calls them.
        start=tuple(StartVerdict(label, str(loss), {}, None) for loss, label in request.start.items()),
        final=final,
        workers=drive.machines.workers,
        standard_loss=dict(task.standard),
        data=tuple(task.choices()),
        author=sign_code(request.reference, evaluator.configuration.space.operators),
        alphabets={name: evaluator.get_tester(name).alphabet.to_dict() for name in task.branches},
        untrained=evaluator.measure_untrained(),
        untrained_on_test=read_untrained_on_test(evaluator),
        half_right=evaluator.measure_half_right(),
        fingerprints={split: [*map(float, numbers)] for split, numbers in task.fingerprints().items()},
        samples_digest=sample_files.save(store.path.parent, evaluator.samples),
    )
    store.write_settings(settings)
    return settings


def prepare_search(
    evaluator: Evaluator, settings: RunSettings, losses: Mapping[Loss, str], drive: Drive
) -> tuple[Evaluator, RunSettings]:
    """Climb the ladder, adapt the settings of the search to what its task can follow, and test the losses to start from.

    Returns:
        What tests and trains the candidates, and the settings of the run from here on.

    Raises:
        RunError: The task's own code fails, or the standard loss learns nothing in any way that was tried.
    """
    say = drive.say
    if evaluator.configuration.ladder.share:
        evaluator = settle_length(evaluator, drive.machines, say)
    ladder = None
    if evaluator.configuration.ladder_trainings >= LEAST_BUDGET and evaluator.has_standard:
        floor = Floor(settings.untrained, evaluator.measure_constant(), ideal=evaluator.measure_ideal())
        ladder, resolution = _climb_ladder(evaluator, floor, settings.final, drive)
        for text in ladder.describe():
            say(text)
        noise = 0.0 if resolution is None else resolution.single
        evaluator, known = follow_ladder(evaluator, ladder, resolution), None
        learns = floor.is_clearly_beaten(ladder.highest, noise)
        if (len(evaluator.task.branches) > 1 or not learns) and not _is_chosen(settings.configuration.search):
            evaluator, losses, known = follow_known_loss(evaluator, losses, resolution, drive)
        if not floor.is_beaten(known, noise=noise):
            check_learning(ladder, floor, evaluator.task, settings.task, say, resolution)
        if changes := ", ".join(Entrant("", "").follow(evaluator.configuration.search).list_changes()):
            say(f"Candidates are trained with {changes}.")
    evaluator = adapt(evaluator, say, tuned=ladder is not None)
    left = drive.forecast.tell(evaluator.configuration.evaluations, evaluator.configuration.search.rungs[0])
    if left is not None:
        say(f"The search and what follows it: {describe_rest(left)}.")
    start = try_starting_losses(losses, evaluator)
    for text in (
        *describe_idle_workers(drive.machines.workers, evaluator.configuration),
        *describe_starts(start),
        *describe_budget(evaluator.configuration),
    ):
        say(text)
    prepared = replace(
        settings,
        configuration=evaluator.configuration,
        start=start,
        standard=score_standard(evaluator),
        ladder=None if ladder is None else ladder.to_dict(),
        recipe=read_recipe(evaluator.task),
        data=tuple(evaluator.task.choices()),
        prepared=True,
    )
    drive.store.write_settings(prepared, replace=True)
    return evaluator, prepared


def settle_length(evaluator: Evaluator, machines: Machines, say: Say) -> Evaluator:
    """Return the evaluator with a task whose trainings are long enough for the standard loss, where the task chose their epochs.

    These trainings are not recorded: those of the run have another length.
    """
    if not (evaluator.task.chooses_length and evaluator.has_standard) or evaluator.configuration.search.length != 1:
        return evaluator
    say("Choosing the length of trainings with the standard loss: the recipe gives no epochs.")
    with start_workers(evaluator, machines) as dispatcher:
        length, tried = choose_length(evaluator, evaluator.configuration.seed, Record(dispatcher))
    if length == 1:
        return evaluator
    found = evaluator.lengthen(length)
    scores = ", ".join(f"{steps} steps {figure(score)}" for steps, score in tried)
    say(
        f"Trainings are {length:g} times as long as chosen first: epochs={found.task.recipe('proxy')['epochs']}. The standard loss "
        f"on the valid split: {scores}."
    )
    return found


def follow_ladder(evaluator: Evaluator, ladder: Ladder, resolution: Resolution | None) -> Evaluator:
    """Return the evaluator with the settings under which candidates are compared with the best of the ladder."""
    search = evaluator.configuration.search
    if _is_chosen(search):
        return evaluator
    changes = ladder.choose_settings(evaluator.task.step_rules)
    if resolution is not None and not search.resolution:
        changes["search.resolution"] = float(f"{resolution.error:.2g}")
    return evaluator.changed(evaluator.configuration.changed(changes))


def _is_chosen(search: SearchSettings) -> bool:
    """Return True if the user or the task's recipe chose how candidates are trained, which then stays."""
    return search.learning_rate != 1 or search.step_rule != "recipe"


def follow_known_loss(
    evaluator: Evaluator, losses: Mapping[Loss, str], resolution: Resolution | None, drive: Drive
) -> tuple[Evaluator, Mapping[Loss, str], float | None]:
    """Return the evaluator with the rate and the weights of a known loss that is ahead of the standard one, and its score.

    The loss itself joins those to start from, which change one branch each: what is found from these stays behind it. The score is
    None where none is ahead.

    A single branch has a rate alone, which the ladder finds where the standard loss learns. With several, the balance counts as
    well, and the standard loss may be far from a good one: squared errors of outliers are a hundred times as steep as what others
    weigh against a second branch. The known losses are those that end the search, as they are written, in trainings that are
    needed there anyway.
    """
    task, search = evaluator.task, evaluator.configuration.search
    standard, *others = baselines(task)
    if not others:
        return evaluator, losses, None

    def follow(one: Entrant) -> list[Entrant]:
        return [one.follow(search)]

    own = replace(standard, weights=tuple(search.branch_weights.items()))
    with drive.start_workers(evaluator) as dispatcher:
        record, seed = Record(dispatcher, drive.store), evaluator.configuration.seed
        (best, *_), _ = find_promising(others, task, seed, record, follow)
        promising, _ = find_promising([best, *join_with(best, others, task)], task, seed, record, follow)
        best = promising[0]
        before, known = tune_learning_rates([own, best], task, seed, record, vary=follow)
    least = 0.0 if resolution is None else AHEAD * resolution.error
    # One seed would follow the luckier of the two.
    pairs = zip(before.scores, known.scores, strict=False)
    if known.mean is None or not all(one is None or (two is not None and two > one + least) for one, two in pairs):
        return evaluator, losses, None
    best = known.entrant
    drive.say(
        f"Losses are compared at the learning rate and weights of a known loss, {best.label}: it has {figure(known.mean)} on the "
        f"valid split, the standard loss {figure(before.mean)}."
    )
    weights = evaluator.measure_weights(best.loss)
    named = tuple(f"{branch}={weight * best.scale:.2g}" for branch, weight in weights.items())
    losses = losses and _put_second([one.loss for one in promising], losses, evaluator)
    changes = {"search.learning_rate": best.learning_rate, "search.weights": named}
    # Those that a user gave may be as many as there is room for.
    initial = max(evaluator.configuration.evolution.initial, len(losses))
    changes |= {"evolution.start": tuple(map(str, losses)), "evolution.initial": initial}
    return evaluator.changed(evaluator.configuration.changed(changes)), losses, known.mean


def _put_second(known: Sequence[str], losses: Mapping[Loss, str], evaluator: Evaluator) -> Mapping[Loss, str]:
    """Return losses to start from with the first known one that is a formula, behind the standard one: not all may be reached."""
    for text in known:
        with suppress(RequestError):
            own, _ = parse_starting_losses([NamedLoss(text)], evaluator.task, evaluator.operators, 1)
            first, *others = losses.items()
            return dict([first, *own.items(), *others])
    return losses


def check_learning(
    ladder: Ladder, floor: Floor, task: Task, reference: TaskReference, say: Say, resolution: Resolution | None = None
) -> None:
    """End a search whose task no known loss learns: candidates could not be told apart.

    Where the standard loss learns something else than the metric asks for, the search goes on: that is where a loss helps. The best
    of many trainings that learn nothing is a little ahead of the floor by chance.

    Raises:
        RunError: In no way of training with the standard loss that was tried has the network learned more than a constant
            prediction, or than an untrained one.
    """
    highest, noise = ladder.highest, 0.0 if resolution is None else resolution.single
    if floor.is_beaten(highest, noise=noise):
        if highest is not None and floor.constant is not None and highest <= floor.constant:
            say(
                f"On the valid split, the best constant prediction scores {figure(floor.constant)}, {say_loss(ladder.standard)} "
                f"{figure(highest)}: its training does not improve the metric. "
                + (NOTHING_TO_LEARN if floor.is_ideal else "A useful loss must score above that constant.")
            )
        return
    without = "no training has a score" + f" ({ladder.reason})" * bool(ladder.reason)
    best = without if highest is None else f"the best score on the valid split is {figure(highest)}"
    uncertain = f"a score on it is uncertain by {figure(noise)}" if noise else ""
    advice = NOTHING_TO_LEARN if floor.is_ideal else _advise(task, reference)
    raise RunError(
        f"The standard loss, {say_loss(ladder.standard)}, learns nothing in any of {len(ladder.rungs)} ways to train it, nor does "
        f"a known loss that was tried: {'; '.join(filter(None, [best, floor.describe(), uncertain]))}. {advice} "
        "To search anyway: --set ladder.share=0"
    )


def _advise(task: Task, reference: TaskReference) -> str:
    """Return the option that makes trainings longer, as typed."""
    longest = task.lengthen(LONGEST) if task.chooses_length else task
    name, epochs = reference.name or "", longest.recipe("proxy").get("epochs")
    options = {} if not name or ".py:" in name else inspect.signature(find_factory(name)).parameters
    if "steps" in options:
        longer = f"--set steps={LONGER * int(reference.options.get('steps', options['steps'].default))}"
    elif epochs is None:
        longer = "in its train()"
    else:
        longer = f"--set epochs={LONGER * epochs}" if "epochs" in options else f"Recipe(epochs={LONGER * epochs}, …)"
    typed = f" {' '.join(reference.to_arguments())}" if name else "(task)"
    tune, check = (f"autoloss{' ' if name else '.'}{verb}{typed}" for verb in ("tune", "check"))
    return (
        f"To try other ways to train: {tune}. To train longer: {longer}. To check inputs, targets and network: {check}."
    )


LONGEST = 8.0
"""Largest factor on the epochs."""
AHEAD = 2.0
"""Standard errors by which a training twice as long has to be ahead."""


def choose_length(evaluator: Evaluator, seed: int, record: Record) -> tuple[float, list[tuple[int, float]]]:
    """Double the length until the standard loss learns, and further while that helps and no training is long.

    It has learned something when its score is neither that of an untrained network nor of a constant prediction (`Floor`). From
    there on, twice the length has to be ahead by more than the noise of the examples, and to have at most `USUAL_STEPS` steps.

    Args:
        evaluator: Of a task that `chooses_length`.

    Returns:
        The factor on the epochs, 1 where nothing learns at any length; and (steps, score) of each training.
    """
    task, given = evaluator.task, standard_entrant(evaluator.task)
    assert given is not None
    (first,), tried = training_seeds(seed, LADDER, 1), list[tuple[int, float]]()
    floor = measure_floor(evaluator, [first])

    def train(length: float) -> Measurements:
        job = replace(given, length=length).job(first, "valid")
        found = Measurements.of([record.run_trainings([job])[job]])
        if found.mean is not None:
            tried.append((task.steps(job.training) or 0, found.mean))
        return found

    length, best = 1.0, train(1.0)
    while length < LONGEST:
        learns = floor.is_beaten(best.mean)
        if learns and (task.steps(Training(seed=first, length=2 * length)) or 0) > USUAL_STEPS:
            break
        longer = train(2 * length)
        lead = compare_paired(longer, best)
        if learns and (lead is None or lead.value <= AHEAD * lead.least_error):
            break
        length, best = 2 * length, longer
    return length if floor.is_beaten(best.mean) else 1.0, tried


def describe_tries(task: Task, budget: float) -> str:
    """Describe what is tried with the standard loss, in training equivalents of the budget."""
    many = len(task.step_rules) > 1
    ways = {
        "learning rates": task.tunes_learning_rate,
        "step rules": many,
        "class weights": len(task.branches) == 1 and join_losses(task.standard) in CLASS_WEIGHTS,
        "weights of the branches": len(task.branches) > 1,
        "a threshold": task.tunes_threshold,
        "a longer training": task.lengthens,
    }
    tried = [name for name, is_tried in ways.items() if is_tried]
    fixed = "" if many else " The task's optimizer is used as given: it has no other step rule."
    return f"Tuning the standard loss: {', '.join(tried)}; at most {budget:.3g} whole trainings.{fixed}"


def _climb_ladder(evaluator: Evaluator, floor: Floor, final: bool, drive: Drive) -> tuple[Ladder, Resolution | None]:
    """Tune the standard loss; trainings from before an interruption are reused."""
    task, configuration, say = evaluator.task, evaluator.configuration, drive.say
    budget = configuration.ladder_trainings
    say(f"{describe_tries(task, budget)} To leave this out: --set ladder.share=0")
    with drive.start_workers(evaluator) as dispatcher:
        record = Record(dispatcher, drive.store)
        ladder = climb_ladder(evaluator, configuration.seed, budget, record)
    gain = floor.measure_gain(ladder.highest)
    resolution = measure_resolution(record.outcomes, gain)
    if resolution is not None:
        say(resolution.describe(gain))
    drive.forecast.expect(count_equivalents(configuration.final, task, ladder) if final else 0.0, record.outcomes)
    return ladder, resolution
