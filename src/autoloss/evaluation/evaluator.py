"""The worth of a loss on a task: attempts are tested, losses trained, the standard loss judged, and all recorded (Section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from statistics import mean
from typing import Any

import torch

from autoloss import zoo
from autoloss.errors import FAILURES, RequestError, RunError, describe_user_error, join_names, quote, unknown
from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.proposing.chance import number_training_seeds
from autoloss.proposing.mutation import Kind, draw_attempt
from autoloss.proposing.records import Attempt, Job, Outcome, RejectionBatch, Train, make_training, to_record
from autoloss.rejection.engine import draw_directions
from autoloss.rejection.engines import ENGINES
from autoloss.rejection.protocol import Verdict, measure_reference
from autoloss.rejection.scale import ScaleMeasure, measure_norm, move_half_to_ideal, move_to_ideal
from autoloss.settings import Configuration
from autoloss.space.branch import Branch, BranchLoss, Criterion, Role, Sample
from autoloss.space.expression import Expression
from autoloss.space.item_weights import weigh_items
from autoloss.space.loss import bind, scale_criterion
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.ranges import AWAY, Range
from autoloss.tasks.doubts import find_doubtful_predictions
from autoloss.tasks.task import Picture, Task
from autoloss.training.loop import Execution, one_thread
from autoloss.training.training import Diverged, Observe, Stopped, Training
from autoloss.workers.process_state import preserve_state

Samples = Mapping[str, Sequence[Sample]]
"""Branch → its B samples."""


class Evaluator:
    """The worth of losses on a task: attempts are tested, losses trained, and the standard loss judged.

    Equal calls give equal results in every process. Each computes on one thread and leaves the global state as it was.

    Args:
        samples: B samples per branch, the same for the whole run; nothing where losses are only trained.
        configuration: Decides the tests and draws of attempts.
        operators: All that a formula may hold, by name.
    """

    def __init__(
        self,
        task: Task,
        samples: Samples,
        configuration: Configuration,
        operators: Mapping[str, Operator] = OPERATORS,
    ) -> None:
        if strange := sorted(configuration.search.branch_weights.keys() - task.branches.keys()):
            raise RequestError(
                f"search.weights names the branch {strange[0]}; the task {task.name} has {', '.join(task.branches)}.",
                argument="settings",
            )
        self.task = task
        self.samples = samples
        self.configuration = configuration
        self.operators = operators
        self._known: Mapping[str, Mapping[bytes, bool]] = {}
        self._standard: dict[Training, Outcome] = {}
        self._testers: dict[str, RejectionTester] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A worker makes its own testers.
        return {**self.__dict__, "_testers": {}, "_standard": {}}

    def changed(self, configuration: Configuration) -> Evaluator:
        """Return an evaluator of the same task and samples with this configuration."""
        if configuration == self.configuration:
            return self
        found = Evaluator(self.task, self.samples, configuration, self.operators)
        found._standard = self._standard
        return found

    def lengthen(self, factor: float) -> Evaluator:
        """Return an evaluator of the task with so many times its epochs, whose configuration says so."""
        length = self.configuration.search.length * factor
        configuration = self.configuration.changed({"search.length": length})
        return Evaluator(self.task.lengthen(factor), self.samples, configuration, self.operators)

    def learn(self, known: Mapping[str, Mapping[bytes, bool]]) -> None:
        """Take over the verdicts that a resumed run knows: branch → key → whether the losses with it pass."""
        self._known = {branch: dict(verdicts) for branch, verdicts in known.items()}
        self._testers = {}

    def perform(self, job: Job) -> list[Attempt] | Outcome:
        """Run one job of a worker, which restores the global state itself."""
        with one_thread():
            match job:
                case RejectionBatch():
                    return self.test(job)
                case Train():
                    return self._train(job.loss, job.training)

    def get_tester(self, branch: str) -> RejectionTester:
        """Return the tester of losses on a branch; it is made at the first call."""
        if branch not in self._testers:
            with isolate():
                self._testers[branch] = tester = self._make_tester(branch)
            tester.learn(self._known.get(branch, {}))
        return self._testers[branch]

    def _make_tester(self, branch: str) -> RejectionTester:
        form, configuration = self.task.branches[branch], self.configuration
        reference = measure_reference(form, self.samples[branch])
        make = partial(
            ENGINES[configuration.rejection.engine],
            form,
            settings=configuration.rejection,
            directions=draw_directions(reference.samples, configuration.seed),
            operator_cap=configuration.evolution.maximum_operators,
        )
        engine, scale = make(reference), None
        standard = self.find_standard(branch) if configuration.search.scale else None
        is_used = form.overshoots or standard is not None
        partly = make(move_to_ideal(form, reference, configuration.seed)) if is_used else None
        if partly is not None and standard is not None:
            norm = configuration.search.branch_weights.get(branch, 1.0) * measure_norm(standard, engine)
            if 0 < norm < math.inf:
                scale = ScaleMeasure(partly, norm, direction=configuration.search.direction)
        return RejectionTester(engine, configuration, self.operators, scale, partly if form.overshoots else None)

    def test(self, job: RejectionBatch) -> list[Attempt]:
        """Draw and test attempts, up to the last one that the job asks for."""
        tester = self.get_tester(job.branch)
        tester.learn(job.known)
        parent = None if job.parent is None else tester.parse(job.parent)
        settings, seed = self.configuration.evolution, self.configuration.seed
        done: list[Attempt] = []
        passed = 0
        while len(done) < job.count:
            first = job.first + len(done)
            numbers = range(first, min(first + tester.engine.batch_size, job.first + job.count))
            trees = [
                draw_attempt(job.candidate, job.branch, Kind(job.kind), number, parent, tester.alphabet, settings, seed)
                for number in numbers
            ]
            for tested in tester.test(first, trees):
                done.append(tested)
                passed += tester.passes(tested)
                if passed == job.passes:
                    return done
        return done

    def test_loss(self, trees: Mapping[str, Expression]) -> dict[str, Attempt]:
        """Hold a loss to the rejection protocol as the search does, each branch on its own."""
        with isolate():
            return {name: self.get_tester(name).test(0, [tree])[0] for name, tree in trees.items()}

    def judge(self, branch: str, trees: Sequence[Expression]) -> list[Verdict]:
        """Run all steps of the protocol with losses on a branch."""
        with isolate():
            return self.get_tester(branch).engine.verdicts(trees)

    def train(
        self, loss: str, training: Training, execution: Execution | None = None, observe: Observe | None = None
    ) -> Outcome:
        """Train a network with a loss and measure it.

        Args:
            loss: A formula, a loss of several branches, or a name in the zoo.
            execution: As for `Task.train`, likewise `observe`.
        """
        with isolate():
            return self._train(loss, training, execution, observe)

    def _train(
        self,
        loss: str | Mapping[str, str],
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Outcome:
        training = self._choose_fold(training)
        criterion = self.bind_loss(loss, training)
        paced = {}
        if training.paced_by:
            paced["pacing"] = self.bind_loss(training.paced_by, replace(training, item_weights=()))
        return to_record(self.task.train(criterion, training, execution, observe, **paced))

    def draw_pictures(self, loss: str, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        """Train with a loss; return the first images of the split with the network's predictions, as `Task.pictures` does."""
        with isolate():
            return self.task.pictures(self.bind_loss(loss, training), self._choose_fold(training), count)

    def _choose_fold(self, training: Training) -> Training:
        """Return it at the fold of its seed: several seeds are evaluated on different examples, all losses of one on the same."""
        folds, numbers = self.task.folds, number_training_seeds(self.configuration.seed)
        number = numbers.get(training.seed, training.seed)
        return replace(training, fold=(number + training.fold) % folds) if training.fold < folds else training

    def bind_loss(self, loss: str | Mapping[str, str], training: Training) -> Criterion:
        """Return the criterion of a training with a loss: bound to the branches, with its weights and scale."""
        losses = zoo.resolve(loss, self.task.branches, self.operators)[1]
        criterion = dict(bind(losses, self.task.branches))
        for name, grouping, weights in training.item_weights:
            criterion[name] = weigh_items(criterion[name], self.task.branches[name], grouping, weights)
        return scale_criterion(criterion, training.scale)

    def make_training(self, fidelity: float = 1.0) -> Training:
        """Return the training of the search's candidates."""
        return make_training(self.configuration, fidelity)

    def diagnose(self) -> list[str]:
        """Return warnings about the task's network or data, in sentences."""
        with isolate():
            doubts = [*find_doubtful_predictions(self.task, self.samples), *(self.task.diagnose() or ())]
            return [*filter(None, [self.task.obstacle]), *self._find_misnamed(), *doubts]

    def _find_misnamed(self) -> Iterator[str]:
        """Yield a sentence for each standard loss of what is no branch: with one, the task has no standard loss at all."""
        for name in self.task.standard:
            if name not in self.task.branches:
                known = ", ".join(self.task.branches)
                yield f"`standard` is not used: it names {name!r}, which is no branch of the task ({known}). Mend or omit it."

    @property
    def has_standard(self) -> bool:
        """True if the task names a standard loss for every branch."""
        return set(self.task.standard) == set(self.task.branches)

    def find_standard(self, branch: str) -> Expression | BranchLoss | None:
        """Return the task's standard loss on a branch; None where it has none."""
        if branch not in self.task.standard:
            return None
        one = {branch: self.task.branches[branch]}
        return zoo.resolve({branch: self.task.standard[branch]}, one, self.operators)[1][branch]

    def measure_weights(self, loss: str) -> dict[str, float]:
        """Return branch → norm of a loss's gradient beside that of the standard loss, on the samples; 1 where it is not known."""
        losses, found = zoo.resolve(loss, self.task.branches, self.operators)[1], dict[str, float]()
        for branch, one in losses.items():
            standard, norms = self.find_standard(branch), (0.0, 0.0)
            if standard is not None and branch in self.samples:
                engine = self.get_tester(branch).engine
                norms = measure_norm(one, engine), measure_norm(standard, engine)
            found[branch] = norms[0] / norms[1] if all(0 < norm < math.inf for norm in norms) else 1.0
        return found

    def judge_standard(self, branch: str) -> Verdict | None:
        """Run all steps of the protocol with the standard loss on a branch; None where it has none, or a hand-written one."""
        loss = self.find_standard(branch)
        return self.judge(branch, [loss])[0] if isinstance(loss, Expression) else None

    def train_standard(self, training: Training, observe: Observe | None = None) -> Outcome:
        """Train with the standard loss of a task that has one for every branch; without `observe`, once."""
        if observe is not None or training not in self._standard:
            advice = "Every training of a search would fail in the same way."
            with isolate(), explain_failures("The training with the standard loss", advice):
                self._standard[training] = self._train(self.task.standard, training, observe=observe)
        return self._standard[training]

    def measure_untrained(self, seed: int | None = None, split: str = "valid") -> float | None:
        """Return the score of the network with which trainings of a seed begin, the candidates' by default; None if unknown."""
        others = {} if split == "valid" else {"split": split}
        if others and "split" not in signature(self.task.untrained).parameters:
            return None
        advice = "Return NaN from the metric where it is undefined."
        with isolate(), explain_failures("Measuring the untrained network", advice):
            found = self.task.untrained(self.make_training().seed if seed is None else seed, **others)
            return None if found is None or not math.isfinite(found) else float(found)

    def measure_constant(self) -> float | None:
        """Return the best score of a constant prediction, or None where the task does not tell it."""
        advice = "It is called with predictions that are the same for all examples; return NaN where it is undefined."
        with isolate(), explain_failures("Measuring a constant prediction", advice):
            found = self.task.constant_score()
            return None if found is None or not math.isfinite(found) else float(found)

    def measure_ideal(self) -> float | None:
        """Return the mean score of the samples' targets as predictions; None for several branches, whose metrics are their own."""
        if len(self.samples) != 1:
            return None
        ((name, drawn),) = self.samples.items()
        return mean(measure_reference(self.task.branches[name], drawn).best)

    def measure_half_right(self) -> dict[str, list[float]]:
        """Return branch → metric of each sample with half of its positions right: numbers that differ from metric to metric.

        An undefined metric counts as 0; a branch whose metric fails is left out, since its tests and trainings tell that.
        """
        generator, found = torch.Generator().manual_seed(self.configuration.seed), dict[str, list[float]]()
        for name, branch in self.task.branches.items():
            with isolate(), suppress(*FAILURES):
                moved = [move_half_to_ideal(branch, sample, generator) for sample in self.samples[name]]
                values = [float(branch.metric(sample.prediction, sample.context)) for sample in moved]
                found[name] = [value if math.isfinite(value) else 0.0 for value in values]
        return found


def draw_samples(task: Task, count: int, seed: int, least: int | None = None) -> Samples:
    """Draw a task's samples and check that every branch has them.

    Args:
        least: Number that is enough where the task has no more; all by default.
    """
    with isolate(), explain_failures("Drawing samples of the task", "Mend its data or network."):
        found = {**task.samples(count, seed)}
    for name, branch in task.branches.items():
        if name not in found:
            raise unknown("set of samples for branch", name, found)
        found[name] = tuple(found[name])
        if not (count if least is None else least) <= len(found[name]) <= count:
            raise RequestError(f"Task {task.name!r} gave {len(found[name])} samples for {name}; asked for {count}.")
        for sample in found[name]:
            if not (isinstance(sample, Sample) and isinstance(sample.prediction, torch.Tensor)):
                raise RequestError(
                    f"A sample of branch {name} is {quote(sample)}; expected Sample(prediction, context) with tensors."
                )
            shape, finite = tuple(sample.prediction.shape), bool(sample.prediction.isfinite().all())
            if len(shape) not in (4, 5) or not finite:
                raise RequestError(
                    f"A sample of branch {name} has a prediction of shape {shape}, finite: {finite}; expected finite raw "
                    f"predictions (N, C, H, W), or (N, C, D, H, W).{'' if finite else ' Are there missing values in the inputs?'}"
                )
            with isolate(), explain_failures(f"Reading a sample of branch {name}", "What does its context lack?"):
                _check_reading(name, branch, sample)
    return {name: found[name] for name in task.branches}


@contextmanager
def isolate() -> Iterator[None]:
    """Compute on one thread, and restore the global state of the process afterwards."""
    with preserve_state(), one_thread():
        try:
            yield
        except SystemExit as error:
            problem = f"The task's code exits: {describe_user_error(error)}. Let it raise an exception instead."
            raise RunError(problem) from error


@contextmanager
def explain_failures(what: str, advice: str) -> Iterator[None]:
    """Turn an exception of a task's own code into a sentence that names the line."""
    try:
        yield
    except (RequestError, RunError, MemoryError):
        raise
    except FAILURES as error:
        raise RunError(f"{what} fails: {describe_user_error(error)}. {advice}") from error


def _check_reading(name: str, branch: Branch, sample: Sample) -> None:
    """Check what a branch reads of a sample: a wrong shape or divisor would train with another loss, without an error."""
    leaves, roles = branch.leaves(sample.prediction, sample.context), {*branch.leaves_and_roles.values()}
    if not ({*Role} >= roles and (Role.BOTH in roles or {Role.PREDICTION, Role.TARGET} <= roles)):
        raise RequestError(
            f"The leaves of branch {name} have the roles {join_names([*map(str, branch.leaves_and_roles.values())])}; expected "
            "Role.PREDICTION for one and Role.TARGET for another, or Role.BOTH: a loss depends on both."
        )
    if not leaves.keys() >= branch.leaves_and_roles.keys():
        raise RequestError(
            f"The leaves of a sample of branch {name} are {join_names([*leaves])}; expected those of its roles, "
            f"{join_names([*branch.leaves_and_roles])}."
        )
    if not 0 <= branch.weight < math.inf:
        raise RequestError(f"The weight of branch {name} is {branch.weight}; expected a number, at least 0.")
    shape = next(iter(leaves.values())).shape
    for leaf, value in leaves.items():
        if not value.is_floating_point():
            raise RequestError(f"The leaf {leaf} of branch {name} is {value.dtype}; expected floating-point numbers.")
    mask, divisor = branch.mask(sample.context), float(branch.divisor(sample.context))
    if mask is not None and torch.broadcast_shapes(mask.shape, shape) != shape:
        raise RequestError(
            f"The mask of branch {name} has the shape {tuple(mask.shape)}; expected one that is broadcast to its leaves, "
            f"{tuple(shape)}."
        )
    if not divisor > 0 and not branch.is_empty(sample.context):
        raise RequestError(f"The divisor of branch {name} is {divisor:g} on a sample; expected a positive number.")
    for leaf, known in branch.ranges.items():
        values = leaves[leaf] if mask is None else leaves[leaf][mask.bool().expand(shape)]
        # What a formula is simplified by is believed of all data.
        if not isinstance(known, Range) or bool(((values < known.low - AWAY) | (values > known.high + AWAY)).any()):
            found = f", and the sample has values from {values.min():g} to {values.max():g}" if values.numel() else ""
            raise RequestError(
                f"The range of the leaf {leaf} of branch {name} is {known}{found}; expected a Range that holds all of its values."
            )
