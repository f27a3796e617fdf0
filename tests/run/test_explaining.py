"""`autoloss explain`: what it keeps of a run, what it prints, and what bad input gets."""

from __future__ import annotations

import json
import shutil

import pytest

import autoloss
from autoloss.comparison.entrant import Entrant, Row
from autoloss.comparison.explanation import CLASSES, CONFIDENCE, NONE, STEPS, Control, Explanation
from autoloss.comparison.judgement import Recommendation
from autoloss.errors import RequestError
from autoloss.proposing.records import Outcome, State
from autoloss.report.page.writing import write_report
from autoloss.run.loop import Finale
from autoloss.store.store import Store
from tests.run.quick import SETTINGS, QuickTask
from tests.screens import exit_code, refusal

QUICK = {**SETTINGS, "rejection.engine": "reference", "rejection.threshold": 0.01}


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """A run with an explanation of its best loss."""
    path = tmp_path_factory.mktemp("explained") / "run"
    options = {"data": "iris", "steps": 4}
    autoloss.search("tabular", options=options, evaluations=2, workers=0, final=False, settings=QUICK, directory=path)
    return path, autoloss.explain(path, seeds=2, workers=0)


def test_an_explanation_is_kept_with_its_run_and_made_again_from_its_trainings(explained):
    directory, found = explained
    kept = autoloss.open_run(directory).explanation
    assert kept is not None
    assert kept.to_dict() == found.to_dict()


def test_nothing_is_trained_twice(explained, tmp_path):
    directory, found = explained
    path = shutil.copytree(directory, tmp_path / "run")
    before = len(Store(path).trainings())
    assert autoloss.explain(path, seeds=2, workers=0).to_dict() == found.to_dict()
    assert len(Store(path).trainings()) == before


def test_trainings_are_counted_without_those_of_the_run(explained, tmp_path):
    path = shutil.copytree(explained[0], tmp_path / "run")
    before, seen = len(Store(path).trainings()), list[Finale]()
    autoloss.explain(path, seeds=3, workers=0, observe=seen.append)
    added = len(Store(path).trainings()) - before
    assert added > 0
    assert seen[0].done == 1
    assert (seen[-1].done, seen[-1].expected) == (added, added)
    # All controls are asked for at once.
    assert seen[0].expected > 2
    assert seen[0].eta_seconds is not None
    assert seen[-1].describe().startswith(f"explaining: {added} of about {added} trainings")


def test_every_cause_is_listed_with_its_share(explained):
    names = [cause.name for cause in explained[1].causes]
    assert {STEPS, CLASSES, CONFIDENCE, "one norm", "AdamW", "warm-up", "cosine", "longer training"} <= set(names)
    assert names[-1] == NONE


def test_json_holds_the_causes(explained, tmp_path, capsys):
    path = shutil.copytree(explained[0], tmp_path / "run")
    assert exit_code("explain", path, "--seeds", "2", "--workers", "0", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert all(cause.keys() == {"name", "share", "low", "high"} for cause in printed["causes"])
    assert printed["seeds"] == 2
    assert printed["split"] == "test"


def test_the_terminal_shows_the_answer_then_controls_and_causes_where_there_is_a_gain(explained, tmp_path, capsys):
    path = shutil.copytree(explained[0], tmp_path / "run")
    assert exit_code("explain", path, "--seeds", "2", "--workers", "0") == 0
    shown = capsys.readouterr().out
    answer = next(explained[1].describe())
    assert shown.startswith(answer[:40])
    assert "Controls, test split" in shown
    assert ("Causes of the gain" in shown) == explained[1].is_gain


def test_the_page_has_a_section_of_it(explained, tmp_path):
    path = shutil.copytree(explained[0], tmp_path / "run")
    page, _ = write_report(path, None)
    assert 'id="explanation"' in page.read_text()


def row(entrant: Entrant, *scores: float) -> Row:
    return Row(entrant, tuple(Outcome(state=State.SCORED, score=score) for score in scores))


def test_what_is_plainer_and_as_good_is_recommended_in_place_of_the_loss(explained):
    loss = row(Entrant(f"#{autoloss.open_run(explained[0]).best.id}", "mul(y, p)"), 0.8, 0.82, 0.81)
    standard = row(Entrant("baseline/ce", "baseline/ce", baseline=True), 0.6, 0.61, 0.62)
    plain = row(Entrant("ce (one norm)", "baseline/ce", baseline=True, step_rule="one_norm"), 0.81, 0.81, 0.82)
    control = Control("recipe", "one norm", "ce, one norm", plain.entrant)

    def recommend(*controls: tuple[Control, Row]) -> Recommendation | None:
        run = autoloss.open_run(explained[0])
        vars(run).update(comparison=[loss, standard], explanation=Explanation(loss, standard, controls, "test"))
        return run.recommendation

    kept, plainer = recommend(), recommend((control, plain))
    assert kept is not None
    assert kept.origin == "found"
    assert plainer is not None
    assert (plainer.origin, plainer.loss, plainer.recipe) == ("standard", "baseline/ce", {"step_rule": "one_norm"})
    assert "as good" in plainer.reason


@pytest.mark.parametrize("branches", [("main",), ("a", "b")])
def test_a_task_that_replays_no_norms_and_tunes_no_rate_is_explained_with_a_note(branches, tmp_path):
    task = QuickTask(branches, diverging=256)
    task.standard = dict.fromkeys(branches, "baseline/ce")
    autoloss.search(task, evaluations=4, seed=1, workers=0, final=False, directory=tmp_path, settings=SETTINGS)
    found = autoloss.explain(tmp_path, task=task, seeds=2, workers=0)
    # Of several branches, the standard loss also takes the place of the loss on one of them.
    assert sum("baseline/ce" in control.text for control, _ in found.controls if control.kind == "simpler") == (
        len(branches) if len(branches) > 1 else 0
    )
    assert "cannot replay the norms" in " ".join(found.notes)
    assert not {"reverse"} & {control.kind for control, _ in found.controls}


def test_bad_input_is_named(explained, tmp_path):
    with pytest.raises(RequestError, match="no finished loss #99"):
        autoloss.explain(explained[0], 99, workers=0)
    assert "There is no run" in refusal("explain", tmp_path)
