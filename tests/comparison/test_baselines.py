"""Baselines on the valid split: all at short trainings, whole ones for those that lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoloss.comparison.baselines import baselines, join_with, standard_entrant
from autoloss.comparison.climbing import CLASS_WEIGHTS, _vary, list_weighted
from autoloss.comparison.confirm import _find_untried, _list_own, _train_alike, compare_with_baselines
from autoloss.comparison.entrant import TUNING, TUNING_SEEDS, VALIDATION, VALIDATION_SEEDS, Entrant, Row, training_seeds
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.comparison.record import (
    CLOSE,
    LEARNING_RATES,
    NEAR_RATES,
    PROMISING,
    Record,
    find_promising,
    tune_learning_rates,
    write_trees,
)
from autoloss.evaluation.dispatch import Dispatcher, Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.records import Outcome, State
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.pairs import PairBranch
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.store.store import Store
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.recipe import Recipe
from autoloss.zoo.entries import OF_SHARES
from tests.comparison.test_ladder import task
from tests.run.quick import QuickTask


def test_only_baselines_that_lead_in_short_trainings_are_trained_whole():
    made = task()
    others = [Entrant(name, name, baseline=True) for name in ("baseline/dice", *CLASS_WEIGHTS["baseline/ce"])]
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
        record = Record(dispatcher)
        promising, left = find_promising(others, made, 0, record, lambda one: [one])
        assert len(others) * len(NEAR_RATES) <= len(record.outcomes) <= len(others) * len(LEARNING_RATES)
        rows = tune_learning_rates(promising, made, 0, record)
    assert [len(promising), len(left)] == [PROMISING, len(others) - PROMISING]
    assert {one.loss for one in promising}.isdisjoint(row.entrant.loss for row in left)
    second = training_seeds(0, TUNING, 2)[1]
    whole = {job.loss for job in record.outcomes if (job.training.seed, job.training.fidelity) == (second, 1.0)}
    assert whole == {row.entrant.loss for row in rows} == {one.loss for one in promising}
    assert all(row.mean is not None for row in rows)


def test_with_several_branches_known_losses_are_tried_on_one_of_them_as_they_are_written():
    made = QuickTask(("cls", "reg"))
    made._branches |= {"reg": ActivatedBranch(activation="none")}
    made.standard = {"cls": "baseline/ce", "reg": "baseline/mse"}
    names = [one.loss for one in baselines(made)]
    assert names[0] == "cls: baseline/ce; reg: baseline/mse"
    assert "cls: baseline/ce; reg: baseline/huber" in names
    assert "cls: baseline/dice; reg: baseline/mse" in names
    made.baselines = [{"reg": "shelf/cauchy"}]
    assert [one.loss for one in baselines(made)][1:] == ["cls: baseline/ce; reg: shelf/cauchy"]


def test_a_loss_under_two_names_is_trained_once():
    """The best candidate is often a known loss, which the ladder and the baselines list by its name."""
    tree = "neg(mul(y, log(p)))"
    named, found = Entrant("ce", "baseline/ce", baseline=True), Entrant("#4", f"0.500 * {tree}")
    with start_workers(Evaluator(task(), {}, Configuration()), Machines(workers=0)) as dispatcher:
        record = Record(dispatcher)

        def compare(*entrants: Entrant) -> tuple[list[Row], int]:
            before = len(set(map(id, record.outcomes.values())))
            rows = record.compare_losses(entrants, [7], "valid")
            return rows, len(set(map(id, record.outcomes.values()))) - before

        one_norm = [replace(one, step_rule="one_norm") for one in (named, found)]
        rows, ran = compare(*one_norm)
        assert (ran, rows[0].scores) == (1, rows[1].scores)
        # By the recipe's steps the factor counts; at twice the scale it is the standard loss.
        assert compare(named, found)[1] == 2
        assert compare(replace(found, scale=2.0))[1] == 0
        assert compare(replace(one_norm[1], loss=f"0.250 * {tree}"))[1] == 0


def test_the_rate_that_a_loss_comes_with_is_trained_whole_beside_the_best_of_short_trainings():
    """On 220 rows a quarter of the schedule favoured three times the rate, and the rate as it was never got a whole training."""
    made = task()
    given = Entrant("#0", "neg(mul(y, log(p)))", learning_rate=0.002)
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
        record = Record(dispatcher)
        tune_learning_rates([given], made, 0, record)
    rates: dict[tuple[int, bool], list[float]] = {}
    for job in record.outcomes:
        place = training_seeds(0, TUNING, 2).index(job.training.seed), job.training.fidelity == 1
        rates.setdefault(place, []).append(job.training.learning_rate)
    assert len(rates[1, True]) == CLOSE
    assert given.learning_rate in rates[0, True]


class Scores(Record):
    """Trainings whose scores depend on the rate and the length alone."""

    def __init__(
        self, dispatcher: Dispatcher, short: Mapping[float, float | None], whole: Mapping[float, float]
    ) -> None:
        super().__init__(dispatcher)
        self._short, self._whole = short, whole

    def run_trainings(self, jobs):
        for job in jobs:
            rate = job.training.learning_rate
            score = (self._whole if job.training.fidelity == 1 else self._short).get(rate, 0.0)
            state = State.DIVERGED if score is None else State.SCORED
            self.outcomes[job] = Outcome(state=state, score=score, fidelity=job.training.fidelity)
        return self.outcomes


@pytest.mark.parametrize(
    ("short", "whole", "best"),
    [
        # Only the largest rate has begun to learn, and it is too large.
        ({10.0: 0.1, 3.0: 0.05}, {10.0: 0.06, 3.0: 0.6}, 3.0),
        # Nothing has begun to learn.
        ({}, {0.3: 0.7, 10.0: 0.06}, 0.3),
        ({0.3: 0.6, 1.0: 0.5}, {0.3: 0.7}, 0.3),
        # Every smaller rate is better.
        ({3.0: 0.5, 1.0: 0.4}, {3.0: 0.4, 1.0: 0.5, 0.3: 0.6, 0.1: 0.55}, 0.3),
        # Every larger rate is better.
        ({0.3: 0.5, 1.0: 0.4}, {0.1: 0.1, 0.3: 0.4, 1.0: 0.5, 3.0: 0.6, 10.0: 0.2}, 3.0),
    ],
)
def test_short_trainings_alone_do_not_choose_the_rate(short, whole, best):
    made, given = task(), Entrant("ce", "baseline/ce", baseline=True)
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
        (row,) = tune_learning_rates([given], made, 0, Scores(dispatcher, short, whole))
    assert row.entrant.learning_rate == best


@pytest.mark.parametrize(
    ("scores", "tried"),
    [
        ({0.3: 0.5, 1.0: 0.6, 3.0: 0.4}, ()),
        ({0.3: 0.5, 1.0: 0.6, 3.0: 0.7}, (10.0,)),
        ({0.3: 0.7, 1.0: 0.6, 3.0: None}, (0.1,)),
        ({0.3: 0.5, 1.0: 0.5, 3.0: 0.5}, (0.1, 10.0)),
        ({0.3: None, 1.0: None, 3.0: None}, (0.1, 10.0)),
    ],
)
def test_an_end_of_the_grid_is_tried_where_the_best_rate_is_next_to_it(scores, tried):
    made, given = task(), Entrant("ce", "baseline/ce", baseline=True)
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
        record = Scores(dispatcher, scores, {})
        find_promising([given], made, 0, record, lambda one: [one])
    assert {job.training.learning_rate for job in record.outcomes} == {*NEAR_RATES, *tried}


def test_luck_on_one_seed_does_not_make_a_rival():
    lucky, *others = (Entrant(name, name, baseline=True) for name in ("a", "b", "c", "d", "e"))

    class Lucky(Record):
        def run_trainings(self, jobs):
            for job in jobs:
                is_first = job.training.seed == training_seeds(0, TUNING, 1)[0]
                score = (0.9 if is_first else 0.1) if job.loss == "a" else 0.6
                self.outcomes[job] = Outcome(state=State.SCORED, score=score, fidelity=job.training.fidelity)
            return self.outcomes

    made = task()
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
        promising, left = find_promising([lucky, *others], made, 0, Lucky(dispatcher), lambda one: [one])
    assert lucky not in promising
    assert lucky.loss in [row.entrant.loss for row in left]


def test_the_standard_loss_comes_with_the_rate_that_the_ladder_found_on_several_seeds():
    standard = Entrant("ce", "baseline/ce", baseline=True)
    tuned = [
        replace(standard, learning_rate=rate, step_rule=rule) for rate, rule in ((3.0, "recipe"), (0.3, "one_norm"))
    ]
    made = task()
    for best in tuned:
        own = _list_own([standard], Ladder((Rung(best, 1.0, (0.8,)),), 2.0, "baseline/ce"), made)
        assert (best.learning_rate, best.step_rule) in [(one.learning_rate, one.step_rule) for one in own]
        # A ladder without steps of one norm had no room for them; the comparison has.
        assert {one.step_rule for one in own} == {"recipe", "one_norm"}
        # Its rate is tuned with the threshold, which a rare class may need at every rate.
        assert [one.tuned_threshold for one in own].count(True) == made.tunes_threshold
    ladder = Ladder(
        tuple(Rung(one, 1.0, (0.8,)) for one in (*tuned, replace(standard, learning_rate=0.3))), 2.0, "baseline/ce"
    )
    assert not _find_untried(ladder, made)


def test_the_leading_rival_is_also_trained_as_the_loss_found_is():
    found = Entrant("#7 (steps of one norm, 3 × the learning rate)", "mul(y, p)", 3.0, step_rule="one_norm")
    leading = Entrant("#2 Brier score", "0.5 * square(add(p, neg(y)))", known=True)
    ranked = [Row(one, ()) for one in (found, leading, Entrant("cross entropy", "baseline/ce", baseline=True))]
    (alike,) = _train_alike(found, ranked, [row.entrant for row in ranked])
    assert (alike.loss, alike.learning_rate, alike.step_rule, alike.known) == (leading.loss, 3.0, "one_norm", True)
    assert alike.label == "#2 Brier score (steps of one norm, 3 × the learning rate)"
    # Once is enough, and a loss is no rival of itself.
    assert not list(_train_alike(found, ranked, [alike]))
    itself = replace(found, label="#2", loss="0.500 * mul(y, p)", known=True)
    assert not list(_train_alike(found, [Row(itself, ())], []))


def test_the_standard_loss_is_trained_as_the_ladders_best_with_class_weights_is():
    standard = Entrant("ce", "baseline/ce", baseline=True)
    weighted = replace(standard, loss="shelf/root_balanced_ce", learning_rate=3.0, step_rule="one_norm")
    own = _list_own([standard], Ladder((Rung(weighted, 1.0, (0.8,)),), 2.0, "baseline/ce"), task())
    assert {("baseline/ce", "one_norm"), ("shelf/root_balanced_ce", "one_norm")} <= {
        (one.loss, one.step_rule) for one in own
    }


def measure_error(prediction: Tensor, target: Tensor) -> float:
    return -(prediction - target).abs().mean().item()


def test_a_known_loss_that_was_found_again_is_not_its_own_rival(tmp_path):
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    rows = inputs, inputs.sum(dim=1, keepdim=True)
    recipe = Recipe(epochs=1, batch_size=20, learning_rate=0.1)
    made = SupervisedTask(lambda: nn.Linear(3, 1), rows, rows, "none", measure_error, test=rows, recipe=recipe)
    found = Entrant("#3", "2.02 * abs(add(p, neg(y)))", known=True)
    assert "shelf/absolute_error" in [one.loss for one in baselines(made)]
    with Store(tmp_path, write=True) as store:
        store.write_settings(
            RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        )
        with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
            record = Record(dispatcher, store)
            compared = compare_with_baselines([found], made, Configuration(), 1, store, record)
    assert found.loss in {row.entrant.loss for row in compared}
    tried = {job.loss for job in record.outcomes}
    assert "baseline/huber" in tried
    assert "shelf/absolute_error" not in tried
    # With two branches a factor on one of them is their balance, which no learning rate makes up for.
    heavy, plain = (f"cls: baseline/ce; reg: {factor}abs(add(p, neg(y)))" for factor in ("9.98 * ", ""))
    assert write_trees(heavy) != write_trees(plain) == write_trees("cls: baseline/ce; reg: shelf/absolute_error")


def test_baselines_are_tried_with_the_steps_that_candidates_have(tmp_path):
    given = standard_entrant(task())
    assert given is not None
    configuration = Configuration(evaluations=2).changed({"search.step_rule": "one_norm"})
    climbed = replace(given, step_rule="one_norm", learning_rate=0.5).spell_out()
    ladder = Ladder((Rung(climbed, 1.0, (0.6,)), Rung(given, 1.0, (0.5,))), 1.0, given.loss)
    made, found = task(), Entrant("#0", "neg(mul(y, log(p)))").follow(configuration.search)
    with Store(tmp_path, write=True) as store:
        store.write_settings(
            RunSettings(configuration=configuration, task=TaskReference("x"), title="x", branches={}, release="1")
        )
        with start_workers(Evaluator(made, {}, configuration), Machines(workers=0)) as dispatcher:
            record = Record(dispatcher, store)
            rows = compare_with_baselines([found], made, configuration, 1, store, record, ladder=ladder)
    tried = {(job.loss, job.training.step_rule) for job in record.outcomes}
    assert {("baseline/dice", "recipe"), ("baseline/dice", "one_norm")} <= tried
    # And the standard loss with the ladder's steps is tuned as they are, from the ladder's rate on.
    rates = {
        job.training.learning_rate
        for job in record.outcomes
        if (job.loss, job.training.step_rule) == (given.loss, "one_norm")
    }
    assert {*NEAR_RATES, 0.5} <= rates <= {*LEARNING_RATES, 0.5}
    (row,) = (row for row in rows if (row.entrant.loss, row.entrant.step_rule) == (given.loss, "one_norm"))
    assert row.entrant.label.count("one norm") == 1


def test_what_chose_a_rate_does_not_measure_it(tmp_path):
    """The better of ten rates by two trainings is mostly the luckier: a known loss was recommended that was 0.04 behind another."""
    made = task()
    with (
        start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher,
        Store(tmp_path, write=True) as store,
    ):
        store.write_settings(
            RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        )
        record = Record(dispatcher, store)
        found = [Entrant("#1", "neg(mul(y, log(p)))")]
        rows = compare_with_baselines(found, made, Configuration(), 2, store, record)
        chosen = set(training_seeds(0, TUNING, TUNING_SEEDS))
        measured = [
            job for job in record.outcomes if job.training.seed in training_seeds(0, VALIDATION, VALIDATION_SEEDS)
        ]
    assert all(len(row.valid.finite) == VALIDATION_SEEDS for row in rows)
    assert chosen.isdisjoint(job.training.seed for job in measured)
    assert {job.training.split for job in measured} == {"valid"}


def test_the_best_known_loss_of_a_branch_is_joined_with_those_of_the_others(tmp_path):
    """A lower and an upper quantile on two heads: one of them helps little as long as the other head has the squared error."""
    made = QuickTask(("cls", "reg"))
    made._branches |= {"reg": ActivatedBranch(activation="none")}
    made.standard = {"cls": "baseline/ce", "reg": "baseline/mse"}
    both = "cls: baseline/dice; reg: baseline/huber"
    known = {"cls: baseline/dice; reg: baseline/mse": 0.2, "cls: baseline/ce; reg: baseline/huber": 0.2, both: 0.9}

    class ByLoss(Record):
        def run_trainings(self, jobs):
            for job in jobs:
                score = known.get(job.loss, 0.1)
                self.outcomes[job] = Outcome(state=State.SCORED, score=score, fidelity=job.training.fidelity)
            return self.outcomes

    found = Entrant("#3", "cls: mul(y, p); reg: abs(add(p, neg(y)))")
    with Store(tmp_path, write=True) as store:
        store.write_settings(
            RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        )
        with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
            usual, full = (
                compare_with_baselines([found], made, Configuration(), 1, store, ByLoss(dispatcher, store), every=every)
                for every in (False, True)
            )
    assert usual[0].entrant.loss == full[0].entrant.loss == both
    assert len(full) > len(usual)
    made.baselines = [{"reg": "shelf/cauchy"}]
    assert not join_with(Entrant("a", both), [Entrant("b", "cls: baseline/dice; reg: baseline/mse")], made)


PAIRWISE = {f"baseline/{name}" for name in ("ranknet", "auc_hinge", "auc_square", "auc_exponential")}


@pytest.mark.parametrize(
    ("options", "further"),
    [
        ({}, {"listnet", "pointwise", "auc_margin"}),
        ({"activation": "none"}, {"listnet", "pointwise", "auc_margin"}),
        ({"columns": ("value", "group")}, {"listnet", "pointwise"}),
        ({"columns": ("value", "group"), "weigh": "ndcg"}, {"listnet", "pointwise", "lambdarank"}),
        ({"columns": ("value", "event")}, {"cox"}),
        ({"columns": ("value", "event", "weight"), "weigh": "item"}, {"cox", "lambdarank"}),
    ],
)
def test_losses_over_pairs_in_common_use_are_baselines_of_any_task_with_such_a_branch(
    options: dict[str, Any], further: set[str]
):
    def correlate(scores: Tensor, target: Tensor) -> float:
        values = target[:, 0] if "event" not in branch.columns else -target[:, 0]
        return float(torch.corrcoef(torch.stack([scores.to(values), values]))[0, 1])

    branch = PairBranch(**options, measure=correlate)
    columns = torch.rand(24, len(branch.columns)).round(decimals=1) + 0.1
    made = SupervisedTask(
        lambda: nn.Linear(3, 1), (torch.rand(24, 3), columns), (torch.rand(24, 3), columns), branch=branch
    )
    standard, *others = [one.loss for one in baselines(made)]
    assert standard == ("baseline/ranknet" if branch.activation == "sigmoid" else "shelf/difference_logistic")
    assert {*others, "baseline/ranknet"} == PAIRWISE | {f"baseline/{name}" for name in further}


def long_tail(batch_size: int, classes: int = 20, target: str = "classes") -> SupervisedTask:
    """Return a task of rows each of whose classes has 0.7 times as many as the one before."""
    labels = torch.multinomial(0.7 ** torch.arange(classes), 800, replacement=True, generator=torch.manual_seed(0))
    inputs = torch.randn(800, 4) + labels[:, None] / 4
    activation, outputs = "softmax", classes
    if target == "even":
        labels = torch.arange(800) % 40
        classes = outputs = 50
    if target == "decision":
        labels, activation, outputs = (labels > 12).float()[:, None], "sigmoid", 1
    if target == "labels":
        labels, activation, outputs = torch.stack([labels > 2, labels > 12], 1).float(), "sigmoid", 2

    def accuracy(prediction: Tensor, target: Tensor) -> float:
        found = prediction.argmax(1) if target.ndim == 1 else prediction > 0.5
        return (found == target).double().mean().item()

    pair = inputs, labels
    recipe = Recipe(epochs=1, batch_size=batch_size)
    return SupervisedTask(lambda: nn.Linear(4, outputs), pair, pair, activation, accuracy, recipe=recipe)


@pytest.mark.parametrize(
    ("made", "weighted"),
    [
        (long_tail(16), {"class_weighted_ce", "logit_adjusted_ce"}),
        (long_tail(16, target="decision"), {"class_weighted_bce"}),
        (long_tail(16, target="labels"), {"class_weighted_bce"}),
        # A batch shows what is rare by itself, no class is rarer than others, or the training data lack it.
        (long_tail(800, 3), set()),
        (long_tail(16, target="even"), set()),
    ],
)
def test_class_weights_of_the_training_data_take_part_where_those_of_a_batch_are_uncertain(
    made: SupervisedTask, weighted: set[str]
):
    known = {f"baseline/{name}" for name in weighted}
    assert {one.loss for one in baselines(made)} & {*OF_SHARES} == known
    (branch,) = made.branches.values()
    assert isinstance(branch, ActivatedBranch)
    assert sum(branch.shares) == pytest.approx(1, abs=0.7)
    standard = made.standard["main"]
    assert set(list_weighted(standard, made)) & {*OF_SHARES} == {name for name in known if "weighted" in name}


def test_the_ladders_best_with_class_weights_and_the_baseline_of_that_name_are_one(tmp_path):
    made, weighted = long_tail(16), "baseline/class_weighted_ce"
    best = Entrant("cross entropy with class weights", weighted, baseline=True, step_rule="one_norm")
    ladder = Ladder(
        (Rung(best, 1.0, (0.9,)), Rung(Entrant("ce", "baseline/ce", baseline=True), 1.0, (0.1,))), 4.0, "baseline/ce"
    )

    class ByWay(Record):
        def run_trainings(self, jobs):
            for job in jobs:
                way = job.loss, job.training.step_rule, job.training.learning_rate
                score = 0.9 if way == (weighted, "one_norm", 1.0) else 0.1
                self.outcomes[job] = Outcome(state=State.SCORED, score=score, fidelity=job.training.fidelity)
            return self.outcomes

    with Store(tmp_path, write=True) as store:
        store.write_settings(
            RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        )
        with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as dispatcher:
            record = ByWay(dispatcher, store)
            rows = compare_with_baselines(
                [Entrant("#3", "mul(y, p)")], made, Configuration(), 1, store, record, ladder=ladder
            )
    found = [row.entrant for row in rows if (row.entrant.loss, row.entrant.step_rule) == (weighted, "one_norm")]
    assert len(found) == len({one.learning_rate for one in found}) == 1


def test_class_weights_of_the_training_data_are_tuned_at_a_smaller_rate_too():
    found = _vary(long_tail(16), Entrant("", "baseline/ce", baseline=True, learning_rate=3.0), {})
    rates = [one.learning_rate for one in found if one.loss == "baseline/class_weighted_ce"]
    assert rates == [3.0, 1.0]
