"""An explanation names what a loss owes its gain to, on losses that were made to owe it to one thing."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from autoloss.comparison.entrant import Entrant, Measurements, Row
from autoloss.comparison.explain import explain_loss, list_forms
from autoloss.comparison.explanation import (
    CLASSES,
    CONFIDENCE,
    NONE,
    STEPS,
    Control,
    Explanation,
    Plan,
    divide,
    read_explanation,
)
from autoloss.comparison.record import Record
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.proposing.records import Outcome, State
from autoloss.run.request import make_request, prepare
from autoloss.space.parsing import parse
from autoloss.tasks.task import Task
from autoloss.zoo.entries import say_loss
from tests.comparison import constructed

SEEDS = 4


def explain(task: Task, loss: str) -> tuple[Explanation, Plan, Record]:
    evaluator = prepare(make_request(task, {"rejection.engine": "reference"}))
    with start_workers(evaluator, Machines(workers=0)) as dispatcher:
        record = Record(dispatcher)
        return *explain_loss(Entrant("#1", loss), evaluator, SEEDS, record), record


def test_class_weights_are_the_cause_of_weighted_cross_entropy():
    found, _, _ = explain(constructed.rare_class(), "-y * log(p) / mean_nhw(y)")
    assert found.cause is not None
    assert found.cause.name == CLASSES
    weights = next(control.entrant.item_weights for control, _ in found.controls if control.name == CLASSES)[0].weights
    assert weights[1] / weights[0] == pytest.approx(0.9 / 0.1, rel=0.3)
    known = [control for control, _ in found.controls if control.kind == "known"]
    assert known
    for control in known:
        untold = replace(control.entrant, label=say_loss(control.name))
        assert control.text == control.entrant.label == untold.spell_out().label


def test_step_sizes_are_the_cause_of_cross_entropy_times_a_growing_factor():
    # The gradient of log m is that of m times 1 / m, which grows as the loss falls.
    found, _, _ = explain(constructed.slow_network(), "log(mean_c(mean_nhw(-y * log(p))))")
    assert found.causes[0].name == STEPS
    assert found.cause is not None
    assert found.cause.share == pytest.approx(1, abs=0.01)
    assert found.recommendation is not None
    assert found.recommendation.origin == "standard"
    assert "The whole gain comes from the size of the steps" in " ".join(found.describe())


def test_confidence_weights_are_the_cause_of_focal_loss():
    found, _, _ = explain(constructed.easy_cue(), "-(1 - p)**2 * y * log(p)")
    assert found.cause is not None
    assert found.cause.name == CONFIDENCE


def test_none_of_these_is_the_cause_of_an_asymmetric_loss():
    found, plan, record = explain(constructed.high_quantile(), "exp(y - p) + p")
    assert found.is_gain
    assert found.cause is None
    assert found.to_dict()["cause"] == NONE
    assert found.causes[-1].name == NONE
    assert found.causes[-1].share == pytest.approx(1, abs=0.3)
    assert "None of these explains" in " ".join(found.describe())
    # A stored plan and the recorded trainings make the same explanation again.
    again = read_explanation(Plan.from_dict(asdict(plan)), 0, record.outcomes)
    assert again is not None
    assert again.to_dict() == found.to_dict()


def test_what_two_seeds_cannot_exclude_is_not_excluded():
    def row(name: str, *scores: float) -> Row:
        return Row(Entrant(name, name), tuple(Outcome(state=State.SCORED, score=score) for score in scores))

    standard, loss, noisy = row("ce", 0.50, 0.52), row("#1", 0.70, 0.721), row("steps", 0.4, 0.8)
    control = Control("steps", STEPS, "ce with the steps of #1", noisy.entrant)
    text = " ".join(Explanation(loss, standard, [(control, noisy)], "test").describe())
    assert "ahead of ce, trained as the recipe says, by" in text
    assert "None of these" not in text
    assert f"too few to tell how much of the gain comes from: {STEPS}. Take more: --seeds." in text


def test_a_loss_that_is_the_standard_loss_has_no_gain_to_explain():
    found, _, _ = explain(constructed.rare_class(), "-y * log(p)")
    assert not found.is_gain
    assert found.to_dict()["cause"] is None
    assert "no gain to explain" in " ".join(found.describe())


def row(label: str, *scores: float | None) -> Row:
    outcomes = [
        Outcome(state=State.DIVERGED, reason="the loss is not finite")
        if score is None
        else Outcome(state=State.SCORED, score=score)
        for score in scores
    ]
    return Row(Entrant(label, label, baseline=label == "ce"), tuple(outcomes))


def test_more_seeds_are_advised_only_where_they_may_show_a_gain():
    def describe(*scores: float) -> str:
        return " ".join(Explanation(row("#1", *scores), row("ce", 0.5, 0.6, 0.55), [], "test").describe())

    assert "More seeds may show one" in describe(0.52, 0.61, 0.54)
    assert describe(0.3, 0.41, 0.35).endswith("so there is no gain to explain.")


def test_without_a_score_nothing_is_explained_and_the_reason_is_named():
    found = Explanation(row("#1", None, None), row("ce", 0.5, 0.6), [], "test")
    assert found.gain is None
    assert found.recommendation is None
    (said,) = found.describe()
    assert "no score" in said
    assert "the loss is not finite" in said


def test_too_few_seeds_make_a_cause_likely_only():
    loss, standard = row("#1", 0.8, 0.83, 0.79), row("ce", 0.6, 0.62, 0.59)
    wide = Control("steps", STEPS, "ce with the steps of #1", Entrant("steps", "ce"))
    found = Explanation(loss, standard, [(wide, row("steps", 0.95, 0.66, 0.81))], "test")
    assert found.is_gain
    assert found.cause is None
    assert found.likely_cause is not None
    assert any(said.startswith("The cause may be the step sizes") for said in found.describe())


def test_a_control_that_comes_a_little_short_on_every_seed_is_the_cause_all_the_same():
    """Weights are read off in steps: an exact measurement of those of the cause excludes the whole gain."""
    loss, standard = row("#1", 0.8, 0.83, 0.79), row("ce", 0.6, 0.62, 0.59)
    control = Control("steps", STEPS, "ce with the steps of #1", Entrant("steps", "ce"))

    def explain_with(short: float) -> Explanation:
        scores = [score - short for score in (0.8, 0.8301, 0.79)]
        return Explanation(loss, standard, [(control, row("steps", *scores))], "test")

    found = explain_with(0.002)
    share = found.causes[0]
    assert share.high is not None
    assert share.high < 1
    assert found.cause is not None
    assert explain_with(0.03).cause is None


def test_of_known_losses_the_best_takes_the_place_of_the_loss_and_of_recipes_the_plainest():
    loss, standard = row("#1", 0.8, 0.83, 0.79), row("ce", 0.6, 0.62, 0.59)
    controls = [
        (Control(kind, name, name, Entrant(name, name)), row(name, *scores))
        for kind, name, scores in (
            ("known", "root", (0.79, 0.81, 0.78)),
            ("known", "balanced", (0.81, 0.83, 0.79)),
            ("known", "weighted", (0.8, 0.82, 0.79)),
        )
    ]
    found = Explanation(loss, standard, controls, "test").plainest
    assert found is not None
    assert found[0].name == "balanced"
    steps = [(Control("recipe", control.name, control.name, control.entrant), one) for control, one in controls]
    found = Explanation(loss, standard, steps, "test").plainest
    assert found is not None
    assert found[0].name == "root"


def test_a_control_without_a_score_has_no_share():
    loss, standard = row("#1", 0.8, 0.83, 0.79), row("ce", 0.6, 0.62, 0.59)
    broken = Control("steps", STEPS, "ce with the steps of #1", Entrant("steps", "ce"))
    found = Explanation(loss, standard, [(broken, row("steps", 0.8, None, 0.8))], "test")
    assert found.causes[0].share is None
    assert found.cause is None
    assert "No cause was identified. ce with the steps of #1 has no score." in list(found.describe())


def test_the_interval_of_a_share_holds_what_a_paired_test_does_not_reject():
    found = divide("steps", Measurements((0.5, 0.7, 0.3, 0.5)), Measurements((1.0, 1.1, 0.9, 1.0)))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.share == 0.5 < found.high  # type: ignore[comparison-overlap]
    assert divide("steps", Measurements((0.1, 0.2)), Measurements((1.0, -0.5))).low is None


def test_simpler_forms_lack_one_operator_or_subtree():
    assert {str(one) for one in list_forms(parse("neg(mul(y, log(p)))"))} == {
        "mul(y, log(p))",
        "neg(y)",
        "neg(log(p))",
        "neg(1)",
        "neg(mul(y, p))",
        "neg(mul(y, 1))",
    }
