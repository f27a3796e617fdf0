"""Retraining: who trains, what is kept, what goes on after a kill, and what the table says."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
import torch

import autoloss
from autoloss import recipes
from autoloss.comparison.baselines import baselines
from autoloss.comparison.entrant import COMPARISON, VALIDATION, VALIDATION_SEEDS, Entrant, training_seeds
from autoloss.comparison.judgement import Recommendation
from autoloss.comparison.retrain import FILE, Pace, Retraining, choose_baselines
from autoloss.errors import OwnedError, RequestError, RunError
from autoloss.proposing.records import Outcome, State
from autoloss.report.take_home import export_loss
from autoloss.report.trainings import retraining_table, to_markdown, write
from autoloss.run import retraining
from autoloss.run.results import find_learning_rate, open_run
from autoloss.run.retraining import retrain
from autoloss.store.run_settings import Comparison, TaskReference
from autoloss.store.store import Store, StoreError, lock_run
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.checkpoints import NETWORK, list_checkpoints
from autoloss.training.loop import one_thread
from autoloss.training.recipe import Recipe
from autoloss.training.training import Training
from tests.run.quick import SETTINGS, QuickTask
from tests.training.drawing import STEPS, Augmented, certainty, network


class Killed(BaseException):
    """Stands in for a kill: nothing may catch it."""


def small_task(learning_rate: float = 0.02) -> SupervisedTask:
    return SupervisedTask(
        network,
        Augmented(32, 0, 0.5),
        Augmented(32, 1, 0.0),
        "softmax",
        certainty,
        test=Augmented(32, 2, 0.0),
        also={"accuracy": lambda prediction, target: (prediction.argmax(1) == target).float().mean()},
        data=Data(rows_per_sample=8),
        recipe=Recipe(epochs=1, batch_size=8),
        full=FullSchedule(recipe=Recipe(epochs=6, batch_size=8, optimizer="adam", learning_rate=learning_rate)),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("retraining") / "run"
    autoloss.search(QuickTask(), evaluations=4, seed=1, workers=0, directory=path, settings=SETTINGS, final=False)
    return path


@pytest.fixture(scope="module")
def done(run, tmp_path_factory) -> Retraining:
    out = tmp_path_factory.mktemp("done")
    return retrain(run, task=small_task(), out=out, training_seeds=2, against=["ce"])


def kill_at(training: int, step: int):
    """Return an observer that kills at a step of the training of that number."""
    seen: list[str] = []

    def observe(pace: Pace) -> None:
        if pace.label not in seen:
            seen.append(pace.label)
        if (len(seen), pace.step) == (training, step):
            raise Killed

    return observe


def test_the_best_loss_and_the_baselines_are_trained_on_the_same_seeds(run, done):
    best = open_run(run).best
    assert {(row.entrant.label, row.entrant.loss) for row in done.rows} == {
        (f"#{best.id}", best.formula),
        ("cross entropy", "baseline/ce"),
    }
    assert len(set(done.seeds)) == 2
    assert all(len(row.outcomes) == 2 for row in done.rows)
    assert done.figures == ("score", "accuracy")


def test_each_training_is_that_of_the_task_with_the_full_schedule(done):
    row = next(row for row in done.rows if row.entrant.baseline)
    task = small_task()
    criterion = autoloss.bind(autoloss.zoo.resolve("baseline/ce", task.branches)[1], task.branches)
    for seed, outcome in zip(done.seeds, row.outcomes, strict=True):
        # As a retraining: batch normalisation sums per thread, so another number of threads rounds differently.
        with one_thread():
            expected = task.train(criterion, Training(seed=seed, split="test", schedule="full"))
        assert (outcome.score, outcome.also, outcome.curve) == (expected.score, expected.also, expected.curve)
        assert len(outcome.curve) == STEPS


@pytest.fixture
def compared(run, tmp_path) -> Path:
    """A run whose comparison chose another learning rate for its best loss, and one for the standard loss."""
    directory = tmp_path / "compared"
    shutil.copytree(run, directory)
    best = open_run(directory).best
    entrants = [
        Entrant(f"#{best.id} (lr × 0.3)", best.formula, learning_rate=0.3),
        Entrant("baseline/ce", "baseline/ce", baseline=True),
        Entrant("baseline/ce (lr × 3)", "baseline/ce", learning_rate=3.0, baseline=True),
    ]
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(2, [asdict(entrant) for entrant in entrants]))
    return directory


def test_each_loss_is_retrained_at_the_learning_rate_that_it_was_compared_at(compared, tmp_path):
    best, task = open_run(compared).best, small_task()
    found = retrain(compared, task=task, out=tmp_path / "out", training_seeds=1, against=["ce", "dice"])
    rates = {row.entrant.label: row.entrant.learning_rate for row in found.rows}
    assert rates == {f"#{best.id} (lr × 0.3)": 0.3, "baseline/ce (lr × 3)": 3.0, "Dice": 1.0}
    for row in found.rows:
        criterion = autoloss.bind(autoloss.zoo.resolve(row.entrant.loss, task.branches)[1], task.branches)
        rate = row.entrant.learning_rate
        with one_thread():
            expected = task.train(
                criterion, Training(seed=found.seeds[0], split="test", schedule="full", learning_rate=rate)
            )
        assert row.scores == (expected.score,)
        assert row.outcomes[0].curve == expected.curve


def test_an_export_tells_the_training_that_has_the_score_from_that_which_is_best(compared, run):
    assert "proxy training: as the recipe says" in export_loss(compared, None, "python")
    assert "proxy training" not in export_loss(run, None, "python").replace("score of the proxy training", "")


def test_the_baselines_of_the_comparison_are_retrained_as_they_were_compared(compared, tmp_path):
    with Store(compared, write=True) as store:
        entrants = [Entrant(**values) for values in store.settings().comparison.entrants]
        # The standard loss at the recipe's rate is the better one on the valid split, and the worse one on the test split.
        for role, split, seeds, gain in ((COMPARISON, "test", 2, 0.1), (VALIDATION, "valid", VALIDATION_SEEDS, -0.1)):
            for seed in training_seeds(open_run(compared).configuration.seed, role, seeds):
                for rank, one in enumerate(entrants):
                    job, outcome = one.job(seed, split), Outcome(state=State.SCORED, score=gain * rank)
                    store.add_training(job.loss, job.training, outcome)
        # A known loss that the search had as a candidate, and another loss that it found.
        further = [Entrant("#98 Dice", "baseline/dice", known=True), Entrant("#99", "neg(p)")]
        listed = [asdict(one) for one in (*entrants, *further)]
        store.change_setting("comparison", Comparison(2, listed))
    usual = retrain(compared, task=small_task(), out=tmp_path / "usual", training_seeds=1)
    assert {row.entrant for row in usual.rows} == {*entrants, further[0]}
    rate = retrain(compared, task=small_task(), out=tmp_path / "rate", training_seeds=1, learning_rate=2.0)
    assert {row.entrant.learning_rate for row in rate.rows} == {2.0}
    named = retrain(compared, task=small_task(), out=tmp_path / "named", training_seeds=1, against=["ce"])
    # On both splits together, the other rate is as good, and on the test split it is better: it is recommended.
    assert open_run(compared).recommendation.learning_rate == 3.0
    assert {row.entrant for row in named.rows} == {entrants[0], entrants[2]}


def test_of_several_ways_the_recommended_one_is_retrained():
    ways = [
        Entrant("ce", "baseline/ce", baseline=True),
        Entrant("ce (3 × the learning rate)", "baseline/ce", 3.0, baseline=True),
        Entrant("ce (tuned threshold)", "baseline/ce", 3.0, baseline=True, tuned_threshold=True),
    ]
    rows = [
        SimpleNamespace(entrant=one, valid=SimpleNamespace(mean=mean))
        for one, mean in zip(ways, (0.7, 0.8, 0.9), strict=True)
    ]
    advised = Recommendation("baseline/ce", 3.0, "standard", "", {}, "cross entropy")
    for recommendation, expected in ((None, ways[2]), (advised, ways[1])):
        compared = SimpleNamespace(entrants=[asdict(one) for one in ways])
        found = SimpleNamespace(
            settings=SimpleNamespace(comparison=compared), comparison=rows, recommendation=recommendation
        )
        assert find_learning_rate(found, Entrant("ce", "baseline/ce", baseline=True)) == expected


def test_a_loss_is_retrained_at_the_scale_that_it_was_compared_at(run, tmp_path):
    best, task = open_run(run).best, small_task()
    entrants = [
        Entrant(f"#{best.id} (scale × 10)", best.formula, scale=10.0),
        Entrant("baseline/ce", "baseline/ce", baseline=True),
    ]
    directory = tmp_path / "compared"
    shutil.copytree(run, directory)
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(2, [asdict(entrant) for entrant in entrants]))
    found = retrain(directory, task=task, out=tmp_path / "out", training_seeds=1, against=["ce"])
    (row,) = [row for row in found.rows if row.entrant.number == best.id]
    bound = autoloss.bind(autoloss.Loss(best.formula), task.branches)["main"]
    with one_thread():
        expected = task.train(
            {"main": lambda prediction, context: 10 * bound(prediction, context)},
            Training(seed=found.seeds[0], split="test", schedule="full"),
        )
    assert row.scores == (expected.score,)
    assert row.outcomes[0].curve == expected.curve


def test_a_loss_that_the_run_did_not_compare_is_named_beside_those_that_it_did(compared, tmp_path):
    said: list[str] = []
    retrain(compared, task=small_task(), out=tmp_path / "a", training_seeds=1, against=["ce"], say=said.append)
    assert not [text for text in said if "not known" in text]
    retrain(compared, task=small_task(), out=tmp_path / "b", training_seeds=1, against=["dice"], say=said.append)
    assert [text for text in said if text.startswith("The best learning rate of Dice is not known")]


def test_factors_that_differ_in_the_sign_of_their_exponent_have_their_own_folders(run, tmp_path):
    for rate in (1e6, 1e-6):
        retrain(run, task=small_task(), out=tmp_path, training_seeds=1, against=["ce"], learning_rate=rate)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 4


def test_all_losses_are_retrained_at_the_learning_rate_that_is_asked_for(compared, run, done, tmp_path):
    best = open_run(compared).best
    same = retrain(compared, task=small_task(), out=tmp_path / "a", training_seeds=2, against=["ce"], learning_rate=1.0)
    assert same.rows == done.rows
    twice = retrain(compared, task=small_task(), out=tmp_path / "b", training_seeds=1, against=["ce"], learning_rate=2)
    assert {row.entrant.label for row in twice.rows} == {
        f"#{best.id} (2 × the learning rate)",
        "cross entropy (2 × the learning rate)",
    }
    assert twice.to_dict()["rows"][0]["learning_rate"] == 2


def test_a_loss_that_was_not_compared_is_retrained_at_the_learning_rate_of_the_search(tmp_path):
    settings = {**SETTINGS, "search.learning_rate": 0.5}
    found = autoloss.search(
        small_task(), evaluations=2, workers=0, directory=tmp_path / "run", settings=settings, final=False
    )
    again = retrain(tmp_path / "run", task=small_task(), training_seeds=1, against=["ce"])
    rates = {row.entrant.label: row.entrant.learning_rate for row in again.rows}
    assert rates == {
        f"#{found.best.id} (0.5 × the learning rate)": 0.5,
        "cross entropy (0.5 × the learning rate)": 0.5,
    }


def test_the_threads_of_the_process_change_no_training(run, done, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = retrain(run, task=small_task(), out=tmp_path, training_seeds=2, against=["ce"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert [row.scores for row in again.rows] == [row.scores for row in done.rows]


def test_a_retraining_killed_anywhere_goes_on_to_the_same_table(run, done, tmp_path):
    for observe in (kill_at(1, 11), kill_at(1, 20), kill_at(2, 3)):
        with pytest.raises(Killed):
            retrain(
                run,
                task=small_task(),
                out=tmp_path,
                training_seeds=2,
                against=["ce"],
                checkpoint_seconds=0,
                observe=observe,
            )
    with Store(tmp_path, file=FILE) as store:
        assert len(store.trainings()) == 1
    assert [bool(list_checkpoints(folder)) for folder in sorted(tmp_path.glob("*/seed-*"))].count(True) == 1
    found = retrain(run, task=small_task(), out=tmp_path, training_seeds=2, against=["ce"])
    assert [row.outcomes for row in found.rows] == [row.outcomes for row in done.rows]
    assert not list(tmp_path.rglob("checkpoint*"))
    for path in tmp_path.rglob(NETWORK):
        assert path.read_bytes() == (done.directory / path.relative_to(tmp_path)).read_bytes()


def test_what_is_finished_is_never_trained_again(run, done, monkeypatch):
    monkeypatch.setattr(SupervisedTask, "train", lambda *arguments, **options: pytest.fail("trained again"))
    again = retrain(run, task=small_task(), out=done.directory, training_seeds=2, against=["ce"])
    assert again == done
    fewer = retrain(run, task=small_task(), out=done.directory, training_seeds=1, against=[])
    assert [len(row.outcomes) for row in fewer.rows] == [1]


def test_more_seeds_and_losses_are_added_to_what_is_there(run, done, tmp_path):
    shutil.copytree(done.directory, tmp_path / "out")
    lines: list[str] = []
    more = retrain(
        run, task=small_task(), out=tmp_path / "out", training_seeds=3, against=["ce", "dice"], say=lines.append
    )
    assert {row.entrant.label for row in more.rows} > {row.entrant.label for row in done.rows}
    assert sum(line.startswith("Training") for line in lines) == 2 + 3
    first = {row.entrant.label: row.outcomes for row in done.rows}
    assert all(row.outcomes[:2] == first[row.entrant.label] for row in more.rows if row.entrant.label in first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": small_task(0.03)}, r"recipe\.learning_rate is 0\.02 there and 0\.03 here"),
        ({"split": "valid"}, "split is 'test' there and 'valid' here"),
        ({"precision": "bfloat16"}, "precision is 'float32' there and 'bfloat16' here"),
    ],
    ids=["recipe", "split", "precision"],
)
def test_another_retraining_in_the_same_folder_is_refused_by_what_differs(run, done, change, message):
    with pytest.raises(RequestError, match=message):
        retrain(run, **{"task": small_task(), "out": done.directory, "training_seeds": 2, "against": ["ce"], **change})


def test_a_damaged_training_is_named(run, done, tmp_path):
    shutil.copytree(done.directory, tmp_path / "out")
    with sqlite3.connect(tmp_path / "out" / FILE) as connection:
        connection.execute("UPDATE training SET score = 0.99 WHERE rowid = 2")
    connection.close()
    with pytest.raises(StoreError, match="row 2 of training is damaged"):
        retrain(run, task=small_task(), out=tmp_path / "out", training_seeds=2, against=["ce"])


def test_a_folder_has_one_owner(run, done):
    owner = lock_run(done.directory)
    try:
        with pytest.raises(OwnedError, match="is driven by process"):
            retrain(run, task=small_task(), out=done.directory, training_seeds=2, against=["ce"])
    finally:
        owner.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"individual": 999}, "no finished loss #999"),
        ({"against": ["lovas"]}, "no loss in the zoo named 'lovas'"),
        ({"split": "tset"}, "Did you mean 'test'"),
        ({"training_seeds": 0}, "training_seeds is 0; expected a whole number, at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a number, above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; expected"),
        ({"precision": "float8"}, "no precision named 'float8'"),
        ({"device": "gpu"}, "There is no device 'gpu'"),
        ({"options": {"epochs": "3"}}, "A task object takes no options and no recipe; found epochs"),
        ({"task": None}, "was given as an object; give it again, as in autoloss.resume"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_before_anything_is_written(run, tmp_path, wrong, message):
    with pytest.raises(RequestError, match=message):
        retrain(run, **{"task": small_task(), "out": tmp_path / "out", **wrong})
    assert not (tmp_path / "out").exists()


def test_a_training_that_raises_ends_with_its_name_and_keeps_the_others(run, tmp_path):
    def broken(prediction, target):
        raise OSError("the disk is gone")

    task = small_task()
    task._also["accuracy"] = broken
    with pytest.raises(RunError, match=r"Training #\d+, seed 1 fails: OSError: the disk is gone"):
        retrain(run, task=task, out=tmp_path, training_seeds=1)


def test_a_task_of_ones_own_is_trained_without_checkpoints(run, tmp_path, monkeypatch):
    """What cannot be kept midway is trained whole; what it cannot be told is refused."""
    for module in ("run.retraining", "comparison.retrain"):
        monkeypatch.setattr(f"autoloss.{module}.FULL", "proxy")
    found = retrain(run, task=QuickTask(diverging=1), out=tmp_path, training_seeds=1, split="valid", against=["ce"])
    assert {outcome.state for row in found.rows for outcome in row.outcomes} == {State.DIVERGED}
    assert "diverged: a hash said so" in to_markdown(found)
    with pytest.raises(RequestError, match="declares no `execution`"):
        retrain(run, task=QuickTask(), out=tmp_path, precision="bfloat16")


def test_the_file_and_the_values_say_the_same(done):
    path = write(done)
    assert path.name == "table.md"
    row = done.rows[0]
    scores = [outcome.score for outcome in row.outcomes]
    assert f"| {row.entrant.label} | 2 | {mean(scores):.4f} ± {stdev(scores):.4f} |" in path.read_text()
    values = done.to_dict()
    assert values["rows"][0]["figures"]["score"] == {"mean": mean(scores), "sd": stdev(scores), "values": scores}
    assert len(values["rows"]) == 2


def test_rows_come_best_first_and_a_loss_without_a_score_last(done):
    means = [mean(outcome.score for outcome in row.outcomes) for row in done.rows]
    assert means == sorted(means, reverse=True)


def test_the_papers_rows_stand_beside():
    recipe = recipes.RECIPES["voc-r101-pspnet"]
    name, published = retraining.asked(
        TaskReference("voc-seg", {"metric": "miou", "loaders": "2"}), recipe.name, {"data": "d"}
    )
    assert name == TaskReference("voc-seg", {"metric": "miou", "loaders": "2", **recipe.options, "data": "d"})
    found = Retraining(Path("x"), {"task": "voc-seg", "split": "test"}, "miou", (), [], published)
    assert "| found for miou (published) |  | 0.7850 | 0.6490 |" in to_markdown(found)
    assert {row["label"]: row["figures"] for row in found.to_dict()["published"]}["found for bf1"]["bf1"] == 0.713
    assert retraining_table(found).row_count == 5


def test_a_recipe_of_another_task_takes_over_the_metric_alone():
    run = TaskReference("voc-seg", {"metric": "bf1", "data": "voc", "loaders": "2"})
    name, _ = retraining.asked(run, "cityscapes-r101-deeplabv3+", {"data": "cityscapes"})
    assert name.name == "cityscapes-seg"
    assert name.options["metric"] == "bf1"
    assert name.options["data"] == "cityscapes"
    assert "loaders" not in name.options


def test_a_recipe_that_is_none_of_a_retraining_is_refused():
    with pytest.raises(RequestError, match="no recipe of a retraining named 'voc-seg'"):
        retraining.asked(TaskReference("voc-seg"), "voc-seg", {})


def test_a_baseline_of_another_kind_of_prediction_is_told(run, tmp_path):
    said: list[str] = []
    retrain(run, task=small_task(), out=tmp_path / "out", training_seeds=1, against=["mse"], say=said.append)
    assert "baseline/mse is a loss of values, but the task predicts probabilities." in said


def test_a_loss_must_fit_the_task_that_it_is_retrained_on(run, tmp_path):
    with pytest.raises(RequestError, match="kind, place"):
        retrain(run, task=QuickTask(("kind", "place")), out=tmp_path / "out", against=[])


def test_all_baselines_are_those_of_a_full_comparison():
    task = small_task()
    assert choose_baselines(["all"], task) == baselines(task, every=True)
    assert len(choose_baselines(["all"], task)) > len(choose_baselines(None, task))
