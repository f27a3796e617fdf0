"""A search as its caller sees it: what it returns, what it refuses, and what trainings that go wrong do to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autoloss
from autoloss import recipes
from autoloss.comparison.baselines import baselines
from autoloss.comparison.entrant import TUNING_SEEDS, Entrant, training_seeds
from autoloss.comparison.record import CLOSE, LEARNING_RATES, NEAR_RATES, count_tuning_trainings
from autoloss.errors import OwnedError, RequestError, RunError
from autoloss.evaluation.dispatch import start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.records import Origin, State, Train
from autoloss.report.leaderboard import describe_never_trained
from autoloss.report.state import state_of
from autoloss.report.summary import summarize
from autoloss.report.take_home import export_loss
from autoloss.run import beginning
from autoloss.run.loop import Finale, Progress
from autoloss.run.notes import describe_idle_workers
from autoloss.run.resolving import freeze_branches
from autoloss.run.results import NeverTrained, Search, open_run, training_command
from autoloss.run.scoring import compare, score
from autoloss.settings import Configuration
from autoloss.space.loss import bind
from autoloss.store.store import FILE, Store, lock_run
from autoloss.training.training import Scored, Training

from .quick import SETTINGS, QuickTask

FINAL = {
    **SETTINGS,
    "final.confirm": 3,
    "final.finalists": 2,
    "final.finalist_seeds": 1,
    "final.compare": 2,
    "final.compare_seeds": 2,
}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("search") / "run"
    autoloss.search(QuickTask(), evaluations=15, seed=1, workers=0, directory=directory, settings=FINAL)
    return directory


@pytest.fixture
def own_copy(run_directory, tmp_path):
    """The same run for a test that adds to it: tests come in any order."""
    return shutil.copytree(run_directory, tmp_path / "run")


def test_the_best_ten_trained_again_agree_exactly_with_their_stored_scores(run_directory):
    found = open_run(run_directory)
    task = QuickTask()
    seed = derive_seed(1, "training")
    for best in found.top(10):
        outcome = task.train(bind(autoloss.Loss.parse(best.formula), task.branches), Training(seed=seed))
        assert isinstance(outcome, Scored)
        assert outcome.score == best.score


def test_digits_trained_again_from_text_agree_exactly():
    task = autoloss.tasks.get("digits-seg", train=64, valid=16, test=16, epochs=1)
    workshop = Evaluator(task, {}, autoloss.settings.Configuration())
    jobs = [Train(formula, Training(seed=5)) for formula in ("neg(mul(y, log(p)))", "-y * log(p)")]
    first, second = (workshop.perform(job) for job in jobs)
    assert first == second
    assert first.state is State.SCORED


def test_the_top_is_sorted_and_names_each_loss_once(run_directory):
    top = open_run(run_directory).top(10)
    assert [best.score for best in top] == sorted((best.score for best in top), reverse=True)
    assert len({best.formula for best in top}) == len(top)
    history = open_run(run_directory).history
    assert all(history[best.id].candidate.origin is Origin.TRAINED for best in top)


def test_the_winner_is_named_on_fresh_seeds_and_stands_beside_the_baselines(run_directory):
    found = open_run(run_directory)
    assert len(found.confirmed) == 3
    assert [len(row.scores) for row in found.confirmed] == [3, 3, 2]
    finalists = [row.mean for row in found.confirmed[:2]]
    assert found.best.confirmed == finalists[0] == max(finalists)
    assert found.best.fresh_seeds == 3
    labels = {row.entrant.label for row in found.comparison}
    assert "cross entropy" in labels
    assert any(label.startswith("Dice") for label in labels)
    assert sum(not row.entrant.baseline for row in found.comparison) == 2


def test_the_search_never_measured_the_test_split(run_directory):
    with Store(run_directory) as store:
        trials = store.trainings()
    # Outcomes of children are all of the valid split; test scores exist as trials only, on seeds of their own.
    fresh = {job.training.seed for job in trials if job.training.split == "test"}
    assert derive_seed(1, "training") not in fresh
    assert not fresh & {job.training.seed for job in trials if job.training.split == "valid"}


def test_a_finished_run_is_resumed_without_training_anything_again(own_copy):
    with Store(own_copy) as store:
        before = store.trainings(), store.outcomes()
    again = autoloss.resume(own_copy, QuickTask(), workers=0)
    with Store(own_copy) as store:
        assert (store.trainings(), store.outcomes()) == before
    assert again.best == open_run(own_copy).best


def test_compare_trains_on_more_seeds_and_keeps_what_it_found(own_copy):
    rows = compare(own_copy, task=QuickTask(), top=1, seeds=3, workers=0)
    assert all(len(row.scores) == 3 for row in rows)
    assert [row.scores for row in open_run(own_copy).comparison] == [row.scores for row in rows]


def test_compare_takes_the_best_known_loss_too_as_the_end_of_a_search_does(own_copy, monkeypatch):
    best, enter = open_run(own_copy).best.id, Search.enter
    monkeypatch.setattr(Search, "enter", lambda run, id, loss: replace(enter(run, id, loss), known=id != best))
    rows = compare(own_copy, task=QuickTask(), top=1, seeds=2, workers=0)
    assert [row.entrant.known for row in rows if row.entrant.number is not None].count(True) == 1


def test_compare_with_all_baselines_adds_those_that_fit_and_keeps_the_rest(own_copy):
    usual = compare(own_copy, task=QuickTask(), top=1, seeds=2, workers=0)
    every = compare(own_copy, task=QuickTask(), top=1, seeds=2, workers=0, baselines="all")
    assert {row.entrant for row in usual} < {row.entrant for row in every}
    # Rows have no space, so nothing that is said of borders is among them.
    assert {row.entrant.loss for row in every} - {row.entrant.loss for row in usual} == {"baseline/wce"}
    with pytest.raises(RequestError, match="baselines is 'everything'; expected 'usual' or 'all'"):
        compare(own_copy, task=QuickTask(), baselines="everything")


def test_all_baselines_of_a_segmentation_task():
    task = autoloss.tasks.get("digits-seg", train=16, valid=4, test=4)
    regions = {"baseline/dice", "baseline/lovasz", "shelf/tversky", "shelf/root_balanced_tversky"}
    usual = {"baseline/ce", *regions, "baseline/asl_miou"}
    assert {entrant.loss for entrant in baselines(task)} == usual
    further = {"baseline/wce", "baseline/dpce", "baseline/ssim", "baseline/ce_ssim"}
    assert {entrant.loss for entrant in baselines(task, every=True)} == usual | further
    assert (
        baselines(autoloss.tasks.get("digits-seg", metric="bf1", train=16, valid=4, test=4))[-1].loss
        == "baseline/asl_bf1"
    )


def test_baselines_of_tables_are_those_of_rows():
    numbers = baselines(autoloss.tasks.get("tabular", metric="r2", data="diabetes"))
    others = {"baseline/huber", "shelf/absolute_error", *(f"baseline/quantile_{share}" for share in (5, 10, 90, 95))}
    assert numbers[0].loss == "baseline/mse"
    assert {entrant.loss for entrant in numbers[1:]} == others
    classes = baselines(autoloss.tasks.get("tabular", metric="f1", data="breast_cancer_hard"))
    rare = ["baseline/class_weighted_ce", "baseline/logit_adjusted_ce"]
    assert [entrant.loss for entrant in classes] == ["baseline/ce", "baseline/dice", *rare]
    # A heatmap has space: a quantile of single values is no baseline of it.
    heatmaps = {entrant.loss for entrant in baselines(autoloss.tasks.get("figures-pose", train=4, valid=2, test=2))}
    assert heatmaps == {"baseline/mse", "baseline/huber", "shelf/absolute_error", "baseline/l1_ssim", "pose/oks"}


@pytest.mark.parametrize(
    ("frozen", "labels"),
    [
        (
            [],
            [
                "cross entropy + smooth L1 + cross entropy + smooth L1",
                "cross entropy + smooth L1 + cross entropy + IoU loss",
                "cross entropy + smooth L1 + cross entropy + GIoU loss",
                "cross entropy + smooth L1 + CSE-AutoLoss-A of classes + CSE-AutoLoss-A of boxes",
            ],
        ),
        (
            ["rpn"],
            [
                "cross entropy + smooth L1",
                "cross entropy + IoU loss",
                "cross entropy + GIoU loss",
                "CSE-AutoLoss-A of classes + CSE-AutoLoss-A of boxes",
            ],
        ),
        (["rpn", "rcnn_cls"], ["smooth L1", "IoU loss", "GIoU loss"]),
    ],
)
def test_baselines_of_detectors_are_the_papers_rows(frozen, labels):
    task = autoloss.tasks.get("digits-det", train=2, valid=1, test=1, size=64)
    task = freeze_branches(task, dict.fromkeys(frozen, ""))
    every = baselines(task, every=True)
    assert [entrant.label for entrant in every] == labels
    assert baselines(task) == every
    for entrant in every:
        autoloss.zoo.resolve(entrant.loss, task.branches)


def test_score_repeats_a_search_exactly(run_directory):
    best = open_run(run_directory).top(1)[0]
    (row,) = score(QuickTask(), [best.formula], seed=1, workers=0)
    assert row.scores == (best.score,)


def test_score_and_the_command_of_show_train_at_the_learning_rate_of_the_search(tmp_path):
    table = {"data": "iris", "steps": 20}
    settings = {**SETTINGS, "rejection.threshold": 0.01, "search.learning_rate": 0.5}
    found = autoloss.search(
        "tabular", options=table, evaluations=3, seed=2, workers=0, directory=tmp_path, settings=settings, final=False
    )
    best = found.top(1)[0]
    at_half = {"search.learning_rate": 0.5}
    (row,) = score("tabular", [best.formula], options=table, settings=at_half, seed=2, workers=0)
    assert row.scores == (best.score,)
    assert row.entrant.label.endswith(" (0.5 × the learning rate)")
    assert " --set search.learning_rate=0.5 --seed 2" in training_command(found, best.formula)


def test_score_refuses_a_learning_rate_that_the_task_does_not_follow():
    with pytest.raises(RequestError, match=r"search\.learning_rate is 3, and the task quick does not support that"):
        score(QuickTask(), ["baseline/ce"], settings={"search.learning_rate": 3.0}, workers=0)


def test_the_scale_of_a_loss_is_used_on_a_branch_of_any_name():
    task = QuickTask(branches=("cls",), diverging=10**9)
    runner = Evaluator(task, {}, Configuration())
    one, ten = (
        Entrant("baseline/ce", "baseline/ce", scale=scale, baseline=True).job(0, "valid") for scale in (1.0, 10.0)
    )
    named = Entrant("cls: baseline/ce", "cls: baseline/ce", scale=10.0, baseline=True).job(0, "valid")
    curves = [runner.perform(job).curve for job in (ten, named, one)]
    assert curves[0] == curves[1] != curves[2]


def test_a_loss_named_for_each_branch_is_scored_as_it_is_named(tmp_path, monkeypatch):
    small = {"train": 2, "valid": 1, "test": 1, "size": 64, "epochs": 1}
    names = "rpn_cls: baseline/ce; rpn_reg: baseline/l1; rcnn_cls: baseline/ce; rcnn_reg: baseline/giou"
    mixed = "rpn_cls: baseline/ce; rpn_reg: sqrt(e); rcnn_cls: baseline/ce; rcnn_reg: det/rcnn_reg"
    monkeypatch.chdir(tmp_path)
    Path("four.txt").write_text("rpn_cls: -y*log(p); rpn_reg: sqrt(e); rcnn_cls: -y*log(p); rcnn_reg: -log(i/e)\n")
    settings = {"search.learning_rate": 0.001}
    rows = score("digits-det", [names, mixed, "four.txt"], options=small, settings=settings, workers=0)
    assert not [row.entrant.loss for row in rows if "four.txt" in row.entrant.loss]
    assert {row.entrant.label: (row.entrant.baseline, row.failed) for row in rows} == {
        "cross entropy + smooth L1 + cross entropy + GIoU loss (0.001 × the learning rate)": (True, 0),
        f"{mixed} (0.001 × the learning rate)": (False, 0),
        "four.txt (0.001 × the learning rate)": (False, 0),
    }


def test_a_search_ends_with_its_best_loss_beside_the_baselines_on_eight_seeds(tmp_path):
    said: list[str] = []
    task = QuickTask(diverging=10**9)
    found = autoloss.search(
        task, evaluations=12, seed=1, workers=0, directory=tmp_path, settings=SETTINGS, say=said.append
    )
    assert any(line.startswith("Comparing the best with the baselines: ") for line in said)
    (mine,) = [row for row in found.comparison if not row.entrant.baseline]
    assert mine.entrant.number == found.best.id
    assert {len(row.scores) for row in found.comparison} == {8}
    rivals = [row.entrant for row in found.comparison if row.entrant.baseline]
    assert found.judgement.p_values.keys() == {one.label for one in rivals}
    # Cross entropy as the recipe says and at its best scale is one hypothesis.
    assert found.judgement.baselines == len({one.loss for one in rivals}) == 2


def test_a_run_is_never_overwritten(run_directory):
    with pytest.raises(
        RequestError, match=f"already contains a run. Resume it: autoloss resume {run_directory}"
    ) as refused:
        autoloss.search(QuickTask(), evaluations=5, workers=0, directory=run_directory)
    # One text, and the argument beside it.
    assert str(refused.value).startswith(str(run_directory))
    assert refused.value.argument == "directory"


def test_a_threshold_out_of_reach_is_refused_before_anything_is_drawn(tmp_path):
    settings = {**SETTINGS, "rejection.unit": "absolute", "rejection.threshold": 1.5}
    with pytest.raises(
        RequestError, match=r"g is at most 1\.00 \(absolute\), below η = 1\.5.*rejection\.unit=relative"
    ):
        autoloss.search(QuickTask(), evaluations=5, workers=0, directory=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run" / "run.sqlite").exists()


def test_a_resumed_run_keeps_its_workers_and_whether_it_is_compared(tmp_path, monkeypatch):
    used = []
    start = lambda runner, machines, *rest: used.append(machines) or start_workers(runner, machines, *rest)  # noqa: E731
    monkeypatch.setattr(beginning, "start_workers", start)
    directory = tmp_path / "run"
    autoloss.search(QuickTask(), evaluations=3, workers=0, directory=directory, settings=FINAL, final=False)
    longer = autoloss.resume(directory, QuickTask(), evaluations=4)
    assert [machines.workers for machines in used] == [0, 0]
    assert not longer.confirmed
    assert not longer.comparison
    # What is asked for anew is kept from then on.
    assert autoloss.resume(directory, QuickTask(), final=True).comparison
    assert open_run(directory).settings.final
    assert state_of(open_run(directory)).word == "finished"


def test_the_trainings_that_follow_a_search_are_counted(tmp_path):
    seen: list[Progress | Finale] = []
    directory = tmp_path / "run"
    autoloss.search(
        QuickTask(), evaluations=6, seed=1, workers=0, directory=directory, settings=FINAL, observe=seen.append
    )
    with Store(directory) as store:
        count = len(store.trainings())
    seen = [one for one in seen if isinstance(one, Finale)]
    assert [one.done for one in seen] == list(range(count + 1))
    assert seen[-1].expected >= count
    assert None not in [one.eta_seconds for one in seen]
    # A finished finale is not counted again.
    again: list[Progress | Finale] = []
    autoloss.resume(directory, QuickTask(), observe=again.append)
    assert [one.done for one in again if isinstance(one, Finale)] == [count]


class Untrainable(QuickTask):
    """Its untrained network has a score that few losses improve."""

    def untrained(self, seed: int) -> float:
        return 0.5


def test_losses_that_learned_nothing_are_not_trained_again(tmp_path):
    directory, settings = tmp_path / "run", {**FINAL, "final.confirm": 10}
    found = autoloss.search(Untrainable(), evaluations=12, seed=1, workers=0, directory=directory, settings=settings)
    scores = [one.score for one in found.top(15)]
    enough = 0.5 + 0.1 * max(0.0, max(scores) - 0.5)
    assert min(scores) < enough
    confirmed = [one.score for one in found.top(15) if one.confirmed is not None]
    assert confirmed == [score for score in scores if score > enough][:10]


def test_without_confirmation_the_highest_scores_are_compared(tmp_path):
    said: list[str] = []
    found = autoloss.search(
        QuickTask(),
        evaluations=6,
        seed=1,
        workers=0,
        directory=tmp_path / "run",
        settings={**FINAL, "final.confirm": 0},
        say=said.append,
    )
    assert not found.confirmed
    highest = {one.id for one in found.top(2)}
    assert highest <= {row.entrant.number for row in found.comparison}
    assert not any("No loss improved" in text or "Confirming" in text for text in said)


def test_where_nothing_learned_nothing_is_confirmed_and_no_loss_gets_a_star(tmp_path):
    class Lost(QuickTask):
        def untrained(self, seed: int) -> float:
            return 100.0

    said: list[str] = []
    found = autoloss.search(
        Lost(), evaluations=4, seed=1, workers=0, directory=tmp_path / "run", settings=FINAL, say=said.append
    )
    assert said[-1] == "No loss improved the untrained network, so nothing is confirmed or compared."
    assert not found.confirmed
    assert not found.reader.trainings


def test_a_budget_cannot_shrink(run_directory):
    with pytest.raises(RequestError, match="budget is 15 trainings, and 4 is less"):
        autoloss.resume(run_directory, QuickTask(), evaluations=4, workers=0)


def test_a_task_object_is_asked_for_on_resume(run_directory):
    with pytest.raises(RequestError, match=r"give it again, as in autoloss.resume\(directory, task=…\)"):
        autoloss.resume(run_directory, workers=0)


def test_a_second_driver_is_refused_and_told_the_owner(run_directory):
    owner = lock_run(run_directory)
    try:
        with pytest.raises(OwnedError, match=f"is driven by process {os.getpid()} on "):
            autoloss.resume(run_directory, QuickTask(), workers=0)
    finally:
        owner.close()


class Hanging(QuickTask):
    """Its third training, counted by a file, never ends."""

    def __init__(self, counter) -> None:
        super().__init__(diverging=10**6)
        self.counter = str(counter)

    def train(self, criterion, training, execution=None, observe=None):
        with open(self.counter, "a", encoding="utf-8") as file:
            file.write("x")
        if os.path.getsize(self.counter) == 3:
            time.sleep(600)
        return super().train(criterion, training, execution, observe)


def test_a_hanging_training_is_killed_at_its_deadline_and_the_search_goes_on(tmp_path):
    settings = {**SETTINGS, "limits.training_seconds": 2}
    task = Hanging(tmp_path / "count")
    found = autoloss.search(
        task, evaluations=5, seed=1, workers=1, directory=tmp_path / "run", settings=settings, final=False
    )
    states = [one.outcome.state for one in found.history if one.candidate.origin is Origin.TRAINED]
    assert states.count(State.FAILED) == 1
    assert states.count(State.SCORED) == 5
    failed = next(one for one in found.history if one.outcome.state is State.FAILED)
    assert failed.outcome.reason.startswith("deadline of limits.training_seconds: The job was still running after 2 s.")
    assert failed.outcome.score is None
    assert failed.id not in {best.id for best in found.top(100)}


class Raising(QuickTask):
    def train(self, criterion, training, execution=None, observe=None):
        raise OSError("no such disk")


def test_a_task_that_only_raises_ends_the_run_with_its_message(tmp_path):
    with pytest.raises(RunError, match=r"(?s)None of the first 3 candidates has a score.*no such disk"):
        autoloss.search(Raising(), evaluations=5, workers=0, directory=tmp_path / "run", settings=SETTINGS)


class NotANumber(QuickTask):
    """Scores that are no numbers: half NaN, half infinite."""

    def train(self, criterion, training, execution=None, observe=None):
        outcome = super().train(criterion, training, execution, observe)
        if isinstance(outcome, Scored) and outcome.also["digest"] > 0.5:
            return Scored(float("nan") if outcome.also["digest"] > 0.75 else float("inf"))
        return outcome


def test_a_score_that_is_no_number_never_wins_and_is_never_a_parent(tmp_path):
    found = autoloss.search(
        NotANumber(), evaluations=15, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    diverged = {one.id for one in found.history if "the metric is" in one.outcome.reason}
    assert diverged
    assert all(found.history[number].outcome.state is State.DIVERGED for number in diverged)
    assert not diverged & {one.candidate.parent for one in found.history}
    assert found.best.score == max(one.score for one in found.history)


class Hopeless(QuickTask):
    """A metric that nothing can raise by much: every loss is rejected."""

    def samples(self, count, seed):
        import dataclasses

        from autoloss.space.branch import Sample

        found = super().samples(count, seed)
        far = {name: [Sample(1000 * one.prediction, one.context) for one in many] for name, many in found.items()}
        return {name: [dataclasses.replace(one) for one in many] for name, many in far.items()}


def test_a_search_that_finds_nothing_ends_with_the_funnel_and_what_to_change(tmp_path):
    settings = {**SETTINGS, "evolution.attempts": 300}
    with pytest.raises(RunError, match=r"Of 300 losses drawn .* none passed .* simulated.*Run `autoloss check`"):
        autoloss.search(Hopeless(), evaluations=5, workers=0, directory=tmp_path / "run", settings=settings)


def test_a_search_of_copies_ends_and_says_so(tmp_path):
    settings = {**SETTINGS, "offspring.copy": 1.0, "evolution.idle_children": 20}
    found = autoloss.search(
        QuickTask(), evaluations=50, workers=0, directory=tmp_path / "run", settings=settings, final=False
    )
    assert "20 candidates in a row were copies or twins" in found.end


def test_the_explored_limit_ends_a_search_at_the_same_child_for_any_workers(tmp_path, simulated_workers):
    settings = {**SETTINGS, "limits.explored": 150}
    ends = [
        autoloss.search(
            QuickTask(),
            evaluations=50,
            workers=workers,
            directory=tmp_path / str(workers),
            settings=settings,
            final=False,
        )
        for workers in (0, 2)
    ]
    assert len(ends[0].history) == len(ends[1].history)
    assert "150" in ends[0].end


def test_the_wall_clock_limit_ends_a_search_and_it_can_go_on(tmp_path):
    settings = {**FINAL, "limits.wall_clock_seconds": 1.0}
    task = QuickTask(delay_seconds=0.3)
    found = autoloss.search(
        task, evaluations=400, workers=0, directory=tmp_path / "run", settings=settings, final=False
    )
    assert "wall-clock limit" in found.end
    assert len(found.history) < 400
    more = autoloss.resume(tmp_path / "run", task, workers=0, final=False)
    assert len(more.history) > len(found.history)
    assert more.history[: len(found.history)] == found.history


def test_an_interrupt_leaves_a_run_that_says_how_it_is_resumed(tmp_path):
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        autoloss.search(
            QuickTask(delay_seconds=0.2), evaluations=10_000, workers=0, directory=tmp_path / "run", settings=SETTINGS
        )
    assert f"autoloss resume {tmp_path / 'run'}" in interrupted.value.__notes__[0]
    assert open_run(tmp_path / "run").history


def test_one_in_a_thousand_of_the_rejected_keeps_its_text(run_directory):
    connection = sqlite3.connect(run_directory / "run.sqlite")
    sampled = sum(
        json.loads(counts)["sampled"]
        for (counts,) in connection.execute("SELECT counts FROM candidate")
        if counts != "{}"
    )
    kept = connection.execute("SELECT formula, reason FROM rejected").fetchall()
    connection.close()
    assert len(kept) <= max(5, sampled / 100)
    for formula, reason in kept:
        assert str(autoloss.parse(formula)) == formula
        assert reason


class SlowThenRaising(QuickTask):
    """Its first training is slow and good, all others raise at once: which is done first depends on the workers."""

    def __init__(self, marker) -> None:
        super().__init__(diverging=10**6)
        self.marker = str(marker)

    def train(self, criterion, training, execution=None, observe=None):
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise OSError("no such disk") from None
        time.sleep(3)
        return super().train(criterion, training, execution, observe)


def test_whether_a_run_is_hopeless_does_not_depend_on_which_worker_is_faster(tmp_path):
    settings = {**SETTINGS, "limits.explored": 300}
    task = SlowThenRaising(tmp_path / "first")
    found = autoloss.search(
        task, evaluations=9, seed=1, workers=2, directory=tmp_path / "run", settings=settings, final=False
    )
    states = [one.outcome.state for one in found.history if one.candidate.origin is Origin.TRAINED]
    # The first two begin together, and either may be the first.
    assert set(states[:2]) == {State.SCORED, State.FAILED}
    assert set(states[2:]) == {State.FAILED}


class Plain(QuickTask):
    """Returns what is no outcome at all."""

    def train(self, criterion, training, execution=None, observe=None):
        return 0.5


def test_a_training_that_returns_no_outcome_is_named(tmp_path):
    with pytest.raises(RunError, match=r"train\(\) returned a float; expected Scored, Diverged or Stopped"):
        autoloss.search(Plain(), evaluations=3, workers=0, directory=tmp_path / "run", settings=SETTINGS)


class Numpy(QuickTask):
    """Returns numbers as other libraries make them."""

    def train(self, criterion, training, execution=None, observe=None):
        outcome = super().train(criterion, training, execution, observe)
        if isinstance(outcome, Scored):
            return Scored(np.float32(outcome.score), {"accuracy": np.float32(0.5)}, ((np.int64(1), np.float32(2.0)),))
        return outcome


def test_numbers_of_other_libraries_are_kept_as_plain_ones(tmp_path):
    found = autoloss.search(
        Numpy(), evaluations=4, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    assert found.best.score == open_run(tmp_path / "run").best.score
    assert any(one.outcome.also == {"accuracy": 0.5} for one in found.history)


def stop_after_making_the_tables(file: Path) -> None:
    Store(file.parent, write=True).close()


def stop_while_making_the_file(file: Path) -> None:
    """Leave the file and its rollback journal as a killed process does, in the milliseconds before SQLite keeps a log."""
    elsewhere = file.parent.with_name("killed")
    killed = sqlite3.connect(elsewhere, isolation_level=None)
    for statement in ("PRAGMA cache_size = 1", "BEGIN", "CREATE TABLE one (x)"):
        killed.execute(statement)
    killed.executemany("INSERT INTO one VALUES (?)", [("x" * 4000,)] * 20)
    for name in ("", "-journal"):
        shutil.copy(f"{elsewhere}{name}", f"{file}{name}")
    killed.close()


@pytest.mark.parametrize("stop", [stop_while_making_the_file, stop_after_making_the_tables])
def test_a_run_that_was_stopped_before_it_began_is_started_again(stop, tmp_path):
    (tmp_path / "run").mkdir()
    stop(tmp_path / "run" / FILE)
    with pytest.raises(RequestError, match="stopped before it began; start it again"):
        open_run(tmp_path / "run")
    found = autoloss.search(
        QuickTask(), evaluations=2, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    assert len(found.history) >= 2


def test_another_task_is_not_mixed_into_a_run(run_directory):
    with pytest.raises(RequestError, match="was started with another task"):
        autoloss.resume(run_directory, QuickTask(("cls", "reg")), workers=0)


@pytest.mark.parametrize(
    ("scores", "diverged", "untrained", "expected"),
    [
        # A tenth of the way from 0.3 to 0.8 is 0.35.
        ([0.8, 0.35, 0.36, 0.1], 1, 0.3, NeverTrained(5, 1, 2, 0.3)),
        ([0.8, 0.35, 0.36, 0.1], 1, None, NeverTrained(5, 1, None, None)),
        ([0.8, 0.35, 0.36, 0.1], 1, 0.9, NeverTrained(5, 1, 4, 0.9)),
        ([], 1, 0.3, NeverTrained(1, 1, None, 0.3)),
        ([], 0, 0.3, NeverTrained(0, 0, None, 0.3)),
    ],
)
def test_losses_that_passed_and_trained_nothing_are_counted(scores, diverged, untrained, expected):
    assert NeverTrained.of(scores, diverged, untrained) == expected


class StartingTask(QuickTask):
    """Tells where its trainings begin."""

    def untrained(self, seed: int) -> float:
        assert seed == derive_seed(1, "training")
        return -0.25


def test_a_run_says_how_many_losses_never_trained(run_directory, tmp_path):
    found = autoloss.search(
        StartingTask(), evaluations=6, seed=1, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    trained = [one for one in found.history if one.candidate.origin is Origin.TRAINED]
    diverged = sum(one.outcome.state is State.DIVERGED for one in trained)
    assert (found.never_trained.trained, found.never_trained.diverged, found.never_trained.untrained) == (
        len(trained),
        diverged,
        -0.25,
    )
    assert "-0.2500" in describe_never_trained(found)
    assert f"Of {len(trained)} trained losses, " in describe_never_trained(found)
    # A task that cannot tell has its diverged losses counted alone.
    other = open_run(run_directory)
    assert other.never_trained.standing is None
    assert describe_never_trained(other).endswith(
        f"{other.never_trained.diverged} did not learn: {other.never_trained.diverged} diverged."
    )


def test_a_task_of_the_catalogue_knows_what_an_untrained_network_scores():
    task = autoloss.tasks.get("tabular", data="iris", metric="balanced_accuracy")
    criterion = bind(autoloss.Loss("-y * log(p)"), task.branches)
    without = task.train(criterion, Training(seed=3, learning_rate=1e-30))
    assert isinstance(without, Scored)
    assert task.untrained(3) == without.score


def test_workers_that_will_never_train_are_told_of():
    whole = Configuration().changed({"evolution.lag": 4})
    assert describe_idle_workers(4, whole) == []
    (told,) = describe_idle_workers(8, whole)
    assert told.startswith("With evolution.lag=4, some of the 8 workers will often wait")
    assert "Set evolution.lag=16 to keep" in told
    # A whole training holds up the short ones after it.
    short = whole.changed({"search.rungs": (0.125, 1.0)})
    assert describe_idle_workers(1, short.changed({"evolution.lag": 1})) == []
    (told,) = describe_idle_workers(4, short)
    assert "With evolution.lag=4 and search.promoted_lag=4," in told
    assert "Set evolution.lag=8 and search.promoted_lag=32 to keep" in told
    assert describe_idle_workers(4, short.changed({"evolution.lag": 8, "search.promoted_lag": 32})) == []
    # A whole training lasts as long as eight others, or three where the first share is a third: the adapted settings are enough.
    adapted = {"search.rungs": (1 / 3, 1.0), "search.promoted_lag": 5}
    assert describe_idle_workers(2, short.changed(adapted)) == []
    assert "search.promoted_lag=12" in describe_idle_workers(4, short.changed(adapted))[0]
    assert describe_idle_workers(2, Configuration().changed(recipes.get_search_settings("figures-pose"))) == []
    # A lag for all is one for those that are promoted, too.
    assert describe_idle_workers(4, short.changed({"evolution.lag": 32})) == []
    assert describe_idle_workers(2, Configuration().changed(recipes.DEFAULT)) == []


def test_losses_and_baselines_are_tuned_on_the_same_grid_and_the_best_two_on_all_seeds(run_directory):
    found = open_run(run_directory)
    first, second = training_seeds(1, "tuning", TUNING_SEEDS)
    with Store(run_directory) as store:
        tuned = [job for job in store.trainings() if job.training.seed in (first, second)]
    losses = {row.entrant.loss for row in found.comparison}
    assert {job.loss for job in tuned} == losses
    for loss in losses:
        rates = [
            sorted(
                job.training.scale.get("main", 1.0) for job in tuned if (job.loss, job.training.seed) == (loss, seed)
            )
            for seed in (first, second)
        ]
        assert set(NEAR_RATES) <= set(rates[0]) <= set(LEARNING_RATES)
        assert len(rates[1]) == CLOSE
        assert set(rates[1]) <= set(rates[0])
    # This task cannot be cut short: what was tried first is whole, on one of the two seeds.
    assert abs(len(tuned) - (count_tuning_trainings(len(losses)) - (CLOSE + 1) * len(losses))) <= len(losses)
    # This task has no learning rate, so the scale is tuned; the labels of losses and of baselines say so alike.
    for row in found.comparison:
        if row.entrant.number is not None:
            expected = "" if row.entrant.scale == 1 else f" ({row.entrant.scale:g} × the loss)"
            assert row.entrant.label == f"#{row.entrant.number}{expected}"


def test_a_comparison_with_fewer_seeds_does_not_replace_the_verdict(own_copy):
    said: list[str] = []
    compare(own_copy, task=QuickTask(), top=1, seeds=5, workers=0)
    before = open_run(own_copy).judgement
    rows = compare(own_copy, task=QuickTask(), top=1, seeds=2, workers=0, say=said.append)
    assert {len(row.scores) for row in rows} == {2}
    found = open_run(own_copy)
    assert found.judgement == before
    assert len(found.judgement.found.scores) == 5
    assert "that of the comparison over 5 training seeds" in said[-1]
    assert "(test split, 5 training seeds)" in export_loss(own_copy, None, "json")
    assert "5 training seeds" in " ".join(summarize(found).verdict.text)


def test_a_comparison_over_fewer_seeds_leaves_the_verdict_on_the_best_as_it_is(own_copy):
    compare(own_copy, task=QuickTask(), top=1, seeds=4, workers=0)
    compare(own_copy, task=QuickTask(), top=3, seeds=2, workers=0)
    assert {len(row.scores) for row in open_run(own_copy).comparison} == {4}
    compare(own_copy, task=QuickTask(), top=3, seeds=4, workers=0)
    assert len({row.entrant.number for row in open_run(own_copy).comparison}) > 3
