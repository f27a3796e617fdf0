"""What the best losses of a search are raced with on new seeds: the ladder's best, and the best loss it started from."""

from __future__ import annotations

from autoloss.comparison.entrant import CONFIRMATION, LADDER, Entrant, count_after_search, training_seeds
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.run.results import open_run
from autoloss.store.run_settings import StartVerdict
from autoloss.store.store import Store
from tests.report.written import POOLED, ROOT, scored, searched

TUNED = Entrant("baseline/ce (one norm)", "baseline/ce", baseline=True, step_rule="one_norm")


def make_run(tmp_path, confirm: int):
    directory = searched(tmp_path / "run", **{"final.confirm": confirm, "evolution.start": (ROOT,)})
    with Store(directory, write=True) as store:
        store.change_setting("ladder", Ladder((Rung(TUNED, 1.0, (0.8,)),), 2.0, "baseline/ce").to_dict())
    return directory


def test_the_best_known_loss_is_raced_where_it_is_not_among_the_best(tmp_path):
    found = open_run(make_run(tmp_path, confirm=1))
    assert [one.label for one in found.finalists] == ["#1"]
    assert [one.label for one in found.rivals] == ["#0", TUNED.label]
    assert found.rivals[0].known


def test_a_known_loss_among_the_best_is_raced_once(tmp_path):
    found = open_run(make_run(tmp_path, confirm=3))
    assert "#0" in [one.label for one in found.finalists]
    assert [one.label for one in found.rivals] == [TUNED.label]


def test_the_ladder_may_win_the_race_and_the_best_loss_is_still_a_candidate(tmp_path):
    directory = make_run(tmp_path, confirm=1)
    with Store(directory, write=True) as store:
        for seed in training_seeds(0, CONFIRMATION, 5):
            for entrant, score in ((Entrant("#1", POOLED), 0.7), (Entrant("#0", ROOT), 0.5), (TUNED, 0.8)):
                job = entrant.job(seed, "valid")
                store.add_training(job.loss, job.training, scored(score))
    found = open_run(directory)
    assert [row.entrant.label for row in found.confirmed] == [TUNED.label, "#1", "#0"]
    assert found.best.id == 1


def test_a_loss_that_the_search_started_from_stays_known_in_every_comparison(tmp_path):
    found = open_run(make_run(tmp_path, confirm=1))
    assert found.enter(0, ROOT).known
    assert found.enter(0, f"0.500 * {ROOT}").known
    assert not found.enter(1, POOLED).known


def test_a_known_loss_is_named_beside_its_number(tmp_path):
    directory = make_run(tmp_path, confirm=1)
    with Store(directory, write=True) as store:
        store.change_setting("start", (StartVerdict("shelf/root", ROOT, {"main": 1.0}, None),))
    found = open_run(directory)
    assert [found.enter(0, f"0.500 * {ROOT}").label, found.enter(1, POOLED).label] == ["#0 shelf/root", "#1"]
    assert found.enter(0, ROOT).number == 0


def test_trainings_of_the_ladder_are_none_of_those_that_follow_a_search():
    seeds = [training_seeds(0, purpose, 1)[0] for purpose in (LADDER, CONFIRMATION)]
    assert count_after_search([TUNED.job(seed, "valid") for seed in seeds], 0) == 1
