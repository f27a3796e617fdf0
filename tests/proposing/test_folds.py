"""A score that knows its noise, end to end: a proposer plans several folds or seeds, and all that follows reads one outcome."""

from __future__ import annotations

import statistics

import pytest

import autoloss
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.store.store import Store
from histories import as_text
from tests.run.quick import SETTINGS, QuickTask

FOLDS = (0, 1, 2)
QUICK = {**SETTINGS, "limits.charge_diverged": False}


class FoldedTask(QuickTask):
    """Three folds, which score a little differently; a loss diverges on all of them or on none."""

    folds = 3
    trained: list[tuple[int, int]]

    def __init__(self, **more) -> None:
        super().__init__(**more)
        self.trained = []

    def train(self, criterion, training, execution=None, observe=None):
        self.trained.append((training.seed, training.fold))
        found = super().train(criterion, training, execution, observe)
        if isinstance(found, autoloss.Diverged):
            return found
        return autoloss.Scored(found.score + training.fold / 100, {"fold": float(training.fold)})


class ThreeFolds(Proposer):
    """Trains every loss on three folds, and mutates the best mean."""

    def ask(self, k, visible):
        best = max(visible.scored(1.0), key=lambda one: visible.outcome(one).score, default=None)
        kind = Kind.FRESH if best is None else Kind.MUTATION
        return Plan(k, best, dict.fromkeys(visible.branches, kind), folds=FOLDS)


class Doubtful(Proposer):
    """Trains every loss that has a score, and was trained once, again with three further seeds."""

    def ask(self, k, visible):
        once = [one for one in visible.scored(1.0) if visible.outcome(one).count == 1]
        planned = {visible.candidate(one).parent for one in range(visible.count) if visible.candidate(one).promoted}
        if k % 5 == 4 and (again := [one for one in once if one not in planned]):
            return Plan(k, again[0], dict.fromkeys(visible.branches, Kind.PROMOTION), seeds=(1, 2, 3))
        return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))


def searched(directory, proposer, workers=0, evaluations=12, **more):
    task = FoldedTask()
    return task, autoloss.search(
        task, evaluations=evaluations, seed=3, workers=workers, directory=directory, settings=QUICK, final=False,
        proposer=proposer, **more,
    )  # fmt: skip


def test_a_candidate_of_three_folds_has_their_mean_deviation_and_count(tmp_path):
    task, found = searched(tmp_path / "run", ThreeFolds())
    scored = [one for one in found.history if one.outcome.score is not None and one.candidate.source is None]
    assert len(scored) == 4, "three trainings each are charged"
    with Store(tmp_path / "run") as store:
        stored = store.search_trainings()
    for one in scored:
        scores = [outcome.score for outcome in stored[one.id].values()]
        assert [training.fold for training in stored[one.id]] == list(FOLDS)
        assert one.outcome.score == pytest.approx(statistics.mean(scores))
        assert one.outcome.deviation == pytest.approx(statistics.stdev(scores)) == pytest.approx(0.01)
        assert (one.outcome.count, one.outcome.also["fold"], one.outcome.also_deviation["fold"]) == (3, 1.0, 1.0)
    assert len({seed for seed, _ in task.trained}) == 1
    assert found.best.score == found.top(1)[0].score == max(one.score for one in found.history)
    assert autoloss.replay(tmp_path / "run", proposer=ThreeFolds()).difference is None


@pytest.mark.parametrize("proposer", [ThreeFolds(), Doubtful()], ids=["folds", "seeds"])
def test_the_history_is_one_for_any_number_of_workers_and_after_a_resume(proposer, tmp_path, simulated_workers):
    _, found = searched(tmp_path / "a", proposer, evaluations=24)
    lines = list(as_text(found.history))
    assert list(as_text(searched(tmp_path / "b", proposer, 2, evaluations=24)[1].history)) == lines
    searched(tmp_path / "c", proposer, evaluations=6)
    again = FoldedTask()
    longer = autoloss.resume(tmp_path / "c", again, evaluations=24, workers=0, final=False, proposer=proposer)
    assert list(as_text(longer.history)) == lines
    assert len(longer.history) > 4
    assert any(one.outcome.count == 3 for one in longer.history)


def test_a_loss_trained_again_gives_way_to_the_candidate_that_it_is_now(tmp_path):
    _, found = searched(tmp_path / "run", Doubtful(), evaluations=24)
    again = [one for one in found.history if one.candidate.promoted and one.outcome.score is not None]
    assert again
    for one in again:
        assert one.outcome.count == 3
        before = found.history[one.candidate.parent]
        assert before.outcome.count == 1
        assert one.formula == before.formula
    replaced = {one.candidate.parent for one in again}
    assert not replaced & {one.id for one in found.top(100)}
    assert {one.id for one in again} <= {one.id for one in found.top(100)}
    assert autoloss.replay(tmp_path / "run", proposer=Doubtful()).difference is None


def test_a_training_that_is_missing_is_the_only_one_that_a_resumed_run_repeats(tmp_path):
    task, _ = searched(tmp_path / "run", ThreeFolds(), evaluations=6)
    import sqlite3

    database = sqlite3.connect(tmp_path / "run" / "run.sqlite")
    with database:
        database.execute("DELETE FROM training WHERE rowid = (SELECT max(rowid) FROM training)")
    database.close()
    missing = task.trained[-1]
    again = FoldedTask()
    autoloss.resume(tmp_path / "run", again, workers=0, final=False, proposer=ThreeFolds())
    assert again.trained == [missing]
