"""Searches that train at a share of the schedule first: one history, and settings that fit the task."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoloss
import crash_points
from autoloss.errors import RequestError, RunError
from autoloss.evaluation.adapting import adapt as adapt_evaluator
from autoloss.evaluation.evaluator import Evaluator
from autoloss.recipes import DEFAULT
from autoloss.run.notes import describe_budget
from autoloss.run.request import make_request, prepare
from autoloss.run.results import Search, open_run
from autoloss.settings import Configuration
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import Task
from autoloss.training.recipe import Recipe
from autoloss.training.training import Diverged, Scored
from faults_driver import forked, waited
from histories import as_text

from .quick import PAPER, SETTINGS, QuickTask

QUICK = {
    "rejection.steps": 60,
    "rejection.samples": 2,
    "rejection.threshold": 0.3,
    "evolution.initial": 6,
    "search.promote": 0.2,
}
KINDS = {
    "default": {"search.proposer": "evolution"},
    "guided": {"search.proposer": "guided", "search.pool": 3, "search.guided_share": 0.6},
}
BUDGET = 3


def searched(directory: Path, kind: str, workers: int = 0, evaluations: int = BUDGET, **options) -> Search:
    return autoloss.search(
        autoloss.tasks.get("tabular", data="iris", metric="auc"),
        evaluations=evaluations,
        seed=3,
        workers=workers,
        directory=directory,
        settings={**QUICK, **KINDS[kind]},
        final=False,
        **options,
    )


def resumed(directory: Path, evaluations: int | None = None) -> Search:
    task = autoloss.tasks.get("tabular", data="iris", metric="auc")
    return autoloss.resume(directory, task, evaluations=evaluations, workers=0, final=False)


def lines(found: Search) -> list[str]:
    return list(as_text(found.history))


class TestOneHistory:
    @pytest.fixture(scope="class", params=KINDS)
    @staticmethod
    def run(request, tmp_path_factory) -> tuple[str, Search]:
        return request.param, searched(tmp_path_factory.mktemp("short") / "run", request.param)

    def test_most_are_trained_at_an_eighth_and_the_best_of_them_whole(self, run):
        kind, found = run
        assert {name: getattr(found.configuration.search, name) for name in ("rungs", "scale")} == {
            "rungs": DEFAULT["search.rungs"],
            "scale": True,
        }
        shares = [one.candidate.fidelity for one in found.history]
        assert set(shares) == {0.125, 1.0}
        assert shares.count(0.125) > shares.count(1.0)
        assert found.history[found.best.id].outcome.fidelity == 1
        assert any(" * " in one.formula for one in found.history)
        assert any(one.candidate.pool for one in found.history) is (kind == "guided")

    def test_two_workers_give_it(self, run, tmp_path, simulated_workers):
        kind, found = run
        assert lines(searched(tmp_path / "run", kind, workers=2)) == lines(found)

    @pytest.mark.parametrize("full", [False, True])
    def test_a_replay_derives_it(self, full, run):
        _, found = run
        task = autoloss.tasks.get("tabular", data="iris", metric="auc")
        replayed = autoloss.replay(found.directory, task, full=full)
        assert replayed.difference is None
        assert replayed.children == len(found.history)

    def test_a_resumed_run_with_a_larger_budget_gives_it(self, run, tmp_path):
        kind, found = run
        first = lines(searched(tmp_path / "run", kind, evaluations=2))
        assert first == lines(found)[: len(first)]
        assert lines(resumed(tmp_path / "run", BUDGET)) == lines(found)

    def test_a_run_that_was_killed_and_resumed_gives_it(self, run, tmp_path):
        kind, found = run
        point = {"default": "outcome-told:8", "guided": "candidate-committed:11"}[kind]

        def drive() -> None:
            crash_points.install()
            searched(tmp_path / "run", kind)

        assert waited(forked(drive, {crash_points.VARIABLE: point})) == -signal.SIGKILL
        before = lines(open_run(tmp_path / "run"))
        assert len(before) < len(found.history)
        assert lines(resumed(tmp_path / "run")) == lines(found)


def test_the_recipe_of_the_paper_is_the_settings_that_spell_it_out(tmp_path):
    quick = {name: value for name, value in SETTINGS.items() if name not in PAPER}
    found = [
        lines(
            autoloss.search(
                QuickTask(),
                evaluations=12,
                seed=3,
                workers=0,
                directory=tmp_path / name,
                settings=settings,
                recipe=recipe,
                final=False,
            )
        )
        for name, settings, recipe in (("named", quick, "paper"), ("spelt", {**quick, **PAPER}, None))
    ]
    assert found[0] == found[1]
    assert all("fidelity" not in json.loads(line) for line in found[0])


class Shortening(QuickTask):
    """Says that it can be cut short, in so many steps, and has no score below a share."""

    shortens = True

    def __init__(self, least: float = 0.0, steps: int | None = 1000, untrained: float | None = None) -> None:
        super().__init__(diverging=10**6)
        self._least, self._steps, self._untrained = least, steps, untrained

    def steps(self, training):
        return self._steps

    def untrained(self, seed):
        return self._untrained

    def train(self, criterion, training, execution=None, observe=None):
        if training.fidelity < self._least:
            return Diverged(5, "the metric is not finite")
        return super().train(criterion, training, execution, observe)


class Flat(Shortening):
    def train(self, criterion, training, execution=None, observe=None):
        return Scored(0.5)


class Standard(Shortening):
    def __init__(self, standard: dict[str, str]) -> None:
        super().__init__()
        self.standard = standard


def rows(epochs: int) -> Task:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = inputs, (inputs[:, 0] > 0).long()

    def accuracy(prediction: Tensor, target: Tensor) -> float:
        return (prediction.argmax(dim=1) == target).float().mean().item()

    recipe = Recipe(epochs=epochs, batch_size=8, learning_rate=0.1)
    return SupervisedTask(
        *(lambda: nn.Linear(3, 2), data, data, "softmax", accuracy), data=Data(rows_per_sample=16), recipe=recipe
    )


def adapt(task: Task, **settings: object) -> tuple[Configuration, list[str]]:
    changed = Configuration().changed({**SETTINGS, "search.rungs": (0.125, 1.0), "search.scale": True, **settings})
    said: list[str] = []
    runner = Evaluator(task, {name: tuple(drawn) for name, drawn in task.samples(2, seed=0).items()}, changed)
    return adapt_evaluator(runner, said.append).configuration, said


class TestAdapting:
    def test_what_fits_is_left_as_it_is_and_nothing_is_said(self):
        found, said = adapt(rows(60))
        assert (found.search.rungs, found.search.scale, said) == ((0.125, 1.0), True, [])

    def test_a_task_that_cannot_be_cut_short(self):
        found, said = adapt(QuickTask())
        assert found.search.rungs == (1.0,)
        assert said == [
            "The task quick cannot be cut short (it declares `shortens = False`). Every candidate is trained for the whole "
            "schedule."
        ]

    @pytest.mark.parametrize(
        ("standard", "obstacle"),
        [
            ({}, "the task has no standard loss for the branch main"),
            ({"main": "p - p + y"}, "the gradient of the standard loss of the branch main is zero or not finite"),
            (
                {"main": "exp(exp(exp(exp(exp(exp(y + p))))))"},
                "the gradient of the standard loss of the branch main is zero or not finite",
            ),
        ],
    )
    def test_a_standard_loss_that_gives_no_scale(self, standard, obstacle):
        found, said = adapt(Standard(standard))
        assert not found.search.scale
        assert said[0].startswith("Losses are not scaled to the gradient of the standard loss: ")
        assert obstacle in said[0]

    @pytest.mark.parametrize(
        ("epochs", "rungs", "end"),
        [
            (40, (0.16, 1.0), "Candidates are trained at a share of 0.16 first."),
            (3, (1.0,), "Every candidate is trained for the whole schedule."),
        ],
    )
    def test_too_few_steps(self, epochs, rungs, end):
        found, said = adapt(rows(epochs))
        assert found.search.rungs == rungs
        steps = 5 * epochs
        assert said == [f"A training of accuracy has {steps} steps; a share of 0.125 has fewer than 32. {end}"]

    def test_whole_trainings_keep_their_part_of_the_budget(self):
        assert adapt(Shortening(least=0.4), **{"search.promote": 0.08})[0].search.promote == pytest.approx(0.08 * 4)
        assert adapt(Shortening(least=0.4), **{"search.promote": 0.5})[0].search.promote == 1
        assert adapt(Shortening(), **{"search.promote": 0.08})[0].search.promote == 0.08

    def test_the_lag_of_promoted_candidates_shrinks_with_them(self):
        assert adapt(Shortening(least=0.4), **{"search.promoted_lag": 10})[0].search.promoted_lag == 3
        assert adapt(Shortening(), **{"search.promoted_lag": 10})[0].search.promoted_lag == 10

    def test_a_share_above_half_is_no_short_training(self):
        found, said = adapt(Shortening(least=0.4), **{"search.rungs": (0.3, 1.0)})
        assert found.search.rungs == (1.0,)
        assert said[-1].endswith("Every candidate is trained for the whole schedule.")

    def test_rungs_between_are_kept_where_they_are_large_enough(self):
        assert adapt(Shortening(least=0.2), **{"search.rungs": (0.1, 0.3, 1.0)})[0].search.rungs == (0.2, 0.3, 1.0)
        assert adapt(Shortening(least=0.4), **{"search.rungs": (0.1, 0.3, 1.0)})[0].search.rungs == (0.4, 1.0)

    @pytest.mark.parametrize(("least", "rungs"), [(0.2, (0.25, 1.0)), (0.4, (0.5, 1.0)), (0.9, (1.0,))])
    def test_a_metric_that_is_undefined_on_short_trainings(self, least, rungs):
        found, said = adapt(Shortening(least=least))
        assert found.search.rungs == rungs
        (text,) = said
        assert "The standard loss has no score at a share of " in text
        assert "of the schedule: the metric is not finite." in text

    def test_a_standard_loss_that_learns_nothing_in_so_few_steps(self):
        found, said = adapt(Shortening(untrained=5.0))
        assert found.search.rungs == (1.0,)
        assert "The standard loss learns nothing at a share of 0.5 of the schedule: the metric is" in said[0]
        assert said[0].endswith(
            "the untrained network scores 5.0000. Every candidate is trained for the whole schedule."
        )
        # Said before the search, not found out after it.
        assert "The standard loss learns nothing in a whole training" in said[1]
        assert "autoloss tune" in said[1]

    def test_a_metric_that_raises_for_the_untrained_network(self, monkeypatch):
        def raise_error(self, seed):
            raise ValueError("one class only")

        monkeypatch.setattr(Shortening, "untrained", raise_error)
        with pytest.raises(
            RunError, match=r"^Measuring the untrained network fails: ValueError: one class only"
        ) as failed:
            adapt(Shortening())
        assert str(failed.value).endswith("Return NaN from the metric where it is undefined.")

    def test_a_number_of_steps_that_nobody_knows_is_no_obstacle(self):
        assert adapt(Shortening(steps=None))[0].search.rungs == (0.125, 1.0)

    def test_a_learning_rate_that_the_task_does_not_follow(self):
        request = make_request(QuickTask(), Configuration().changed({"search.learning_rate": 2.0}))
        with pytest.raises(RequestError, match=r"search.learning_rate is 2, and the task quick does not support that"):
            prepare(request, samples=False)
        prepare(replace(request, task=rows(40)), samples=False)

    def test_a_budget_that_is_smaller_than_the_first_draws(self):
        short = Configuration().changed({"evaluations": 2, "search.rungs": (0.125, 1.0)})
        (text,) = describe_budget(short)
        assert text.startswith("The budget covers 16 candidates, and the first 20 are random")
        assert "from which nothing is evolved" in text
        assert describe_budget(short.changed({"evaluations": 3})) == []

    def test_a_search_says_what_it_changed_and_keeps_it(self, tmp_path):
        said: list[str] = []
        settings = {**SETTINGS, "search.rungs": (0.125, 1.0), "search.scale": True}
        found = autoloss.search(
            Shortening(least=0.2),
            evaluations=2,
            seed=3,
            workers=0,
            directory=tmp_path / "run",
            settings=settings,
            final=False,
            say=said.append,
        )
        assert any("Candidates are trained at a share of 0.25 first." in text for text in said)
        assert open_run(found.directory).configuration.search.rungs == (0.25, 1.0)
        assert {one.candidate.fidelity for one in found.history} <= {0.25, 1.0}
