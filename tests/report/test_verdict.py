"""One judgement: only what beats the best baseline significantly, over several seeds and corrected, is called a winner."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from rich.console import Console
from scipy import stats

from autoloss.cli.searching import _conclude
from autoloss.comparison.entrant import COMPARISON, Entrant, Row, collect_rows, training_seeds
from autoloss.comparison.judgement import Recommendation, Standing, correct_by_holm, judge_comparison
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.proposing.records import Outcome, State
from autoloss.report import verdict
from autoloss.report.leaderboard import comparison_table
from autoloss.report.page.contents import gather_contents
from autoloss.report.page.rendering import page
from autoloss.report.readable import Readable
from autoloss.report.summary import comparison_rows, summarize
from autoloss.report.take_home import export_loss
from autoloss.report.verdict import evidence, headline
from autoloss.run.identities import Identity
from autoloss.run.results import Search, open_run
from autoloss.store.read import Reader
from autoloss.store.run_settings import Comparison, StartVerdict
from autoloss.store.store import Store, lock_run
from autoloss.training.recipe import Recipe
from autoloss.training.training import Replicates
from tests.report.written import POOLED, compared, scored, searched, words


def row(label: str, *scores: float | None, baseline: bool = False, **settings: float) -> Row:
    outcomes = tuple(
        Outcome(state=State.DIVERGED, reason="not finite")
        if score is None
        else Outcome(state=State.SCORED, score=score)
        for score in scores
    )
    return Row(Entrant(label, label, baseline=baseline, **settings), outcomes)


def ce(*scores: float | None) -> Row:
    return row("ce", *scores, baseline=True)


CASES = [
    ([row("#1", 0.5, 0.61, 0.7), ce(0.2, 0.3, 0.4)], Standing.BEATS, "Yes: #1 beats the best baseline."),
    ([row("#1", 0.5, 0.6, 0.3), ce(0.2, 0.3, 0.4)], Standing.AHEAD, "Perhaps: #1 is ahead"),
    # Without a spread of the differences there is no p-value, and nothing is claimed.
    ([row("#1", 0.5, 0.75), ce(0.25, 0.5)], Standing.AHEAD, "Perhaps: #1 is ahead"),
    ([row("#1", 0.5, 0.5), ce(0.5, 0.5)], Standing.EQUAL, "No: #1 does as well as the best baseline, not better."),
    # Far within the noise, none is ahead.
    ([row("#1", 0.5001, 0.4999, 0.50001), ce(0.5, 0.5, 0.5)], Standing.EQUAL, "No: #1 does as well as the best"),
    ([row("#1", 0.2, 0.6, 0.3), ce(0.4, 0.5, 0.4)], Standing.BEHIND, "behind, but not significantly"),
    ([row("#1", -0.05, -0.04), ce(0.0, 0.01)], Standing.BEHIND, "No: #1 does not beat the best baseline"),
    ([row("#1", 0.2, 0.21, 0.22), ce(0.4, 0.41, 0.43)], Standing.WORSE, "it is significantly worse."),
    ([row("#1", 0.9), ce(0.1)], Standing.ONE_SEED, "Not known yet: #1 and the baselines were trained on one seed"),
    ([row("#1", 0.9, None), ce(0.1, 0.2)], Standing.NO_SCORE, "No: #1 has no score on some training seeds"),
    ([row("#1", 0.9, 0.8), ce(0.1, None)], Standing.NO_BASELINE, "no baseline to compare #1 with"),
    ([row("#2", 0.9, 0.8), ce(0.1, 0.2)], Standing.NOT_COMPARED, "Not known yet"),
    ([], Standing.NOT_COMPARED, "Not known yet"),
    # The loss that was best on valid is judged, not the one that happens to be best on test.
    ([row("#2", 0.9, 0.91), row("#1", 0.1, 0.12), ce(0.5, 0.5)], Standing.WORSE, "#1 does not beat"),
    # At its tuned learning rate it is the same loss.
    ([row("#1 (lr × 3)", 0.5, 0.61, 0.7), ce(0.2, 0.3, 0.4)], Standing.BEATS, "Yes: #1 (lr × 3) beats"),
]


@pytest.mark.parametrize(("rows", "standing", "sentence"), CASES)
def test_each_case_has_its_sentence_and_only_one_is_a_win(rows, standing, sentence):
    judgement = judge_comparison(rows, 1)
    assert (judgement.standing, judgement.is_win) == (standing, standing is Standing.BEATS)
    assert sentence in headline(judgement)
    assert all("winner" not in text for text in [headline(judgement), *evidence(judgement)])
    assert json.dumps(judgement.to_dict(), allow_nan=False)


def test_p_values_are_those_of_scipy_corrected_by_holm():
    found = [0.80, 0.83, 0.85, 0.81, 0.84]
    baselines = {"a": [0.7, 0.75, 0.74, 0.7, 0.71], "b": [0.79, 0.8, 0.84, 0.8, 0.79], "c": [0.5, 0.8, 0.6, 0.7, 0.4]}
    raw = {name: float(stats.ttest_rel(found, scores).pvalue) for name, scores in baselines.items()}
    rows = [row("#1", *found), *(row(name, *scores, baseline=True) for name, scores in baselines.items())]
    judgement = judge_comparison(rows, 1)
    (first, p1), (second, p2), (third, p3) = sorted(raw.items(), key=lambda item: item[1])
    expected = {first: 3 * p1, second: max(3 * p1, 2 * p2), third: max(3 * p1, 2 * p2, p3)}
    assert judgement.p_values == pytest.approx(expected)
    assert judgement.rival is not None
    assert judgement.rival.entrant.label == "b"
    assert judgement.p_value == pytest.approx(expected["b"])
    half = stats.t.ppf(0.975, 4) * stats.sem([one - other for one, other in zip(found, baselines["b"], strict=True)])
    assert judgement.to_dict()["interval"] == pytest.approx(half)


def test_a_known_loss_is_one_hypothesis_by_its_name_and_as_a_candidate():
    named = row("ce", 0.4, 0.45, 0.6, baseline=True)
    named = replace(named, entrant=replace(named.entrant, loss="baseline/ce"))
    candidate = replace(named, entrant=Entrant("#0 cross entropy", "0.500 * neg(mul(y, log(p)))", known=True))
    assert judge_comparison([row("#1", 0.5, 0.6, 0.71), named, candidate], 1).baselines == 1


def test_what_is_significant_alone_may_not_be_among_many_baselines():
    one = [row("#1", 0.5, 0.6, 0.71), ce(0.4, 0.45, 0.6)]
    assert judge_comparison(one, 1).is_win
    noisy = [row(f"b{number}", 0.1, 0.7, 0.3 + number / 100, baseline=True) for number in range(5)]
    among = judge_comparison([*one, *noisy], 1)
    assert among.standing is Standing.AHEAD
    # The smallest of six p-values counts six times.
    assert among.p_value == pytest.approx(6 * (judge_comparison(one, 1).p_value or 0.0))
    assert "Holm-corrected for 6 baselines" in evidence(among)[1]
    assert correct_by_holm({"ce": 0.03, "b": 0.5, "c": 0.6})["ce"] == pytest.approx(0.09)


def test_a_baseline_and_its_tuned_forms_are_one_hypothesis():
    found, rival = row("#1", 0.5, 0.6, 0.71), row("dice", 0.3, 0.45, 0.4, baseline=True)
    alone = judge_comparison([found, ce(0.4, 0.45, 0.6), rival], 1)
    forms = [
        Row(replace(each.entrant, loss="ce"), each.outcomes)
        for each in (ce(0.4, 0.45, 0.6), *(row(f"ce (lr × {rate})", 0.3, 0.4, 0.45, baseline=True) for rate in (3, 10)))
    ]
    judgement = judge_comparison([found, *forms, rival], 1)
    assert alone.baselines == judgement.baselines == 2
    assert judgement.p_value == alone.p_value
    assert judgement.p_values.keys() == {"ce", "ce (lr × 3)", "ce (lr × 10)", "dice"}
    assert evidence(judgement)[-1] == "ce is the best of 2 baselines on the test split."


def resampled(one: Row, spread: float, examples: int = 113) -> Row:
    """Return a row whose scores on resamples of the split spread by so much, each seed alike."""
    shifts = [spread * math.sin(at) * math.sqrt(2) for at in range(64)]
    outcomes = [
        replace(outcome, replicates=Replicates(examples, tuple((outcome.score or 0.0) + shift for shift in shifts)))
        for outcome in one.outcomes
    ]
    return replace(one, outcomes=tuple(outcomes))


AHEAD = row("#1", 0.5, 0.61, 0.7), ce(0.45, 0.55, 0.66)


def test_a_lead_that_other_examples_would_turn_is_not_significant():
    assert judge_comparison(AHEAD, 1).standing is Standing.BEATS
    found, standard = AHEAD
    judgement = judge_comparison([resampled(found, 0.1), resampled(standard, 0.0)], 1)
    assert judgement.standing is Standing.AHEAD
    told = " ".join(evidence(judgement))
    assert "paired over 3 training seeds and 113 examples, two-sided" in told
    assert re.search(
        r"Differences below 0\.20\d+ cannot be detected on these 113 examples, however many training seeds", told
    )
    assert not judgement.can_seeds_tell


def test_three_examples_tell_nothing():
    found, standard = AHEAD
    judgement = judge_comparison([resampled(found, 0.03, examples=3), resampled(standard, 0.0, examples=3)], 1)
    assert judgement.standing is Standing.AHEAD
    # Student's t with two degrees of freedom, of a spread that three examples make too small.
    assert judgement.paired is not None
    assert judgement.paired.resolution == pytest.approx(4.3 * 0.03 * math.sqrt(3 / 2), rel=0.02)


def test_noise_of_examples_that_both_losses_share_is_no_noise_of_their_difference():
    found, standard = AHEAD
    judgement = judge_comparison([resampled(found, 0.1), resampled(standard, 0.1)], 1)
    assert judgement.standing is Standing.BEATS


def test_a_verdict_without_resamples_says_that_it_counts_seeds_only():
    told = " ".join(evidence(judge_comparison(AHEAD, 1)))
    assert "paired over 3 training seeds only" in told
    assert "The intervals ignore the sampling error of the test split" in told
    assert judge_comparison(AHEAD, 1).to_dict()["resolution"] is None


def judged(tmp_path, found, standard, learning_rate: float = 1.0):
    """Return a finished run whose best loss is compared with cross entropy at a learning rate."""
    directory = compared(searched(tmp_path / "run", evaluations=3), found=found, standard=standard)
    if learning_rate == 1:
        return directory
    label = f"baseline/ce (lr × {learning_rate:g})"
    entrants = [Entrant("#1", POOLED), Entrant(label, "baseline/ce", learning_rate, baseline=True)]
    listed = [
        {"label": one.label, "loss": one.loss, "learning_rate": one.learning_rate, "baseline": one.baseline}
        for one in entrants
    ]
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(len(found), listed))
        for score, seed in zip(standard, training_seeds(0, COMPARISON, len(found)), strict=True):
            job = entrants[1].job(seed, "test")
            store.add_training(job.loss, job.training, scored(score))
    return directory


def concluded(directory, capsys) -> str:
    _conclude(open_run(directory), as_json=False)
    return capsys.readouterr().out


LOST = ((0.6, 0.61, 0.62), (0.7, 0.72, 0.71))


def test_a_search_that_lost_says_which_baseline_to_use_and_at_which_rate(tmp_path, capsys):
    printed = concluded(judged(tmp_path, *LOST, learning_rate=3.0), capsys)
    assert "\nNo: #1 does not beat the best baseline; it is significantly worse.\n" in printed
    assert "Use baseline/ce (lr × 3): on the test split it has 0.7100 ± 0.0248." in printed
    # Another rate was better: that is the next thing to try, not a longer search.
    assert "A longer search may find a better loss" not in printed
    assert re.search(r"Export the best loss found, #1: autoloss export \S+ 1 --out my_loss.py", printed)
    assert "inner" not in printed
    assert "Export it" not in printed


def test_a_search_that_lost_to_the_standard_loss_as_given_is_told_to_search_longer(tmp_path, capsys, monkeypatch):
    directory = judged(tmp_path, *LOST)
    assert "A longer search may find a better loss: autoloss resume " in concluded(directory, capsys)
    advice = Recommendation("baseline/dice", 1.0, "shelf", "Nothing is better.")
    monkeypatch.setattr(Search, "recommendation", advice)
    assert "A longer search may find a better loss" not in concluded(directory, capsys)


def test_no_other_way_of_training_than_the_recommended_one_is_advised(
    tmp_path, capsys, monkeypatch: pytest.MonkeyPatch
):
    directory = judged(tmp_path, *LOST, learning_rate=3.0)
    for recipe, advised in (({}, True), ({"tuned_threshold": True}, False), ({"step_rule": "one_norm"}, False)):
        advice = Recommendation("baseline/ce", 3.0, "standard", "Nothing is better.", recipe)
        monkeypatch.setattr(Search, "recommendation", advice)
        assert ("Use baseline/ce (lr × 3): on the test split" in concluded(directory, capsys)) is advised


def test_an_export_of_another_loss_than_the_recommended_one_says_so(tmp_path, monkeypatch: pytest.MonkeyPatch):
    directory, said = judged(tmp_path, *LOST), list[str]()
    advice = Recommendation("baseline/dice", 3.0, "shelf", "Nothing is better.", name="Dice")
    monkeypatch.setattr(Search, "recommendation", advice)
    assert "recommended instead: Dice, 3 × the learning rate (a known loss)" in export_loss(
        directory, None, "python", said.append
    )
    assert said[-1].startswith("Recommended is another loss: Dice, 3 × the learning rate (a known loss).")
    known = open_run(directory).choose(None).formula
    monkeypatch.setattr(Search, "recommendation", Recommendation(known, 3.0, "found", "It is ahead."))
    assert "recommended instead" not in export_loss(directory, None, "python", said.append)


def test_a_search_that_won_says_how_to_take_the_loss_home(tmp_path, capsys):
    directory = judged(tmp_path, (0.9, 0.91, 0.92), (0.7, 0.72, 0.71))
    printed = concluded(directory, capsys)
    assert "\nYes: #1 beats the best baseline.\n" in printed
    assert "Train with #1.\nExport it: autoloss export " in printed
    exported = export_loss(directory, None, "python")
    assert "beats the best baseline" in exported


@pytest.mark.parametrize(
    ("found", "standard", "step"),
    [
        ((0.9, 0.7, 0.8), (0.7, 0.72, 0.71), "--seeds 10"),
        ((0.6, 0.8, 0.6), (0.7, 0.72, 0.71), "--seeds 10"),
        ((0.9,), (0.7,), "--seeds 10"),
        ((0.7, 0.7, 0.7), (0.7, 0.7, 0.7), "--evaluations +3"),
    ],
)
def test_where_chance_is_not_ruled_out_more_seeds_are_advised(found, standard, step, tmp_path):
    search = open_run(judged(tmp_path, found, standard))
    steps = summarize(search).verdict.steps
    assert any(step in each.command for each in steps)
    # What is ahead is not given up for the baseline.
    is_ahead = search.judgement.standing in (Standing.AHEAD, Standing.ONE_SEED)
    assert any(each.text.startswith("Use baseline/ce") for each in steps) != is_ahead


def test_more_test_data_are_not_asked_for_where_the_loss_is_the_best_baseline(tmp_path):
    judgement = open_run(judged(tmp_path, STANDARD, STANDARD)).judgement
    assert judgement.paired is not None
    resampled = replace(judgement, paired=replace(judgement.paired, examples=120, examples_error=0.0))
    told = "The scores are equal on all resamples of these 120 examples"
    assert told in " ".join(verdict.evidence(resampled))
    assert told not in " ".join(verdict.evidence(resampled, repeats=True))


STANDARD = (0.7, 0.72, 0.71)


@pytest.mark.parametrize(
    ("name", "scores", "standing", "repeats"),
    [
        ("baseline/ce", (0.9, 0.7, 0.8), Standing.AHEAD, True),
        ("baseline/ce", (0.6, 0.71, 0.7), Standing.BEHIND, True),
        ("baseline/ce", STANDARD, Standing.EQUAL, True),
        # That is another learning rate, and no chance.
        ("baseline/ce", (0.5, 0.53, 0.51), Standing.WORSE, False),
        ("baseline/focal", (0.9, 0.7, 0.8), Standing.AHEAD, False),
        ("baseline/focal", (0.6, 0.71, 0.7), Standing.BEHIND, False),
    ],
)
def test_a_loss_that_is_the_best_baseline_up_to_a_factor_is_not_compared_with_it(
    name, scores, standing, repeats, tmp_path, monkeypatch
):
    identity = Identity(name, "cross entropy", 2.0)
    monkeypatch.setattr(
        verdict,
        "simplify_formulas",
        lambda search, formulas: {one: Readable(one, one, one, {"main": identity}) for one in formulas},
    )
    search = open_run(judged(tmp_path, scores, STANDARD))
    found = summarize(search).verdict
    assert search.judgement.standing is standing
    is_repeated = "has the gradient of the best baseline, up to a factor" in found.headline
    assert is_repeated == repeats
    advice = " ".join(map(str, found.steps))
    if repeats:
        assert found.headline.startswith("No: #1 (cross entropy × 2)")
        assert found.tone == "bad"
        assert "Use baseline/ce: on the test split" in advice
        assert "--seeds" not in advice
    else:
        assert ("--seeds" in advice) == (standing is not Standing.WORSE)


@pytest.mark.parametrize(
    ("name", "loss", "repeats"),
    [
        ("10 % quantile loss", "baseline/quantile_10", True),
        # The candidate may have other factors of the branches, and so another gradient.
        ("squared error + Welsch loss", "low: baseline/mse; high: shelf/welsch", False),
    ],
)
def test_a_known_candidate_that_is_the_best_baseline_is_not_behind_it(name, loss, repeats, tmp_path):
    search = open_run(judged(tmp_path, (0.6, 0.71, 0.7), STANDARD))
    known = replace(row(name, *STANDARD), entrant=Entrant(name, loss, baseline=True))
    found = replace(row("", 0.6, 0.71, 0.7), entrant=Entrant(f"#1 {name} (3 × the learning rate)", "", known=True))
    judgement = judge_comparison([known, found], 1)
    assert judgement.standing is Standing.BEHIND
    search.__dict__["judgement"] = judgement
    assert ("has the gradient of the best baseline" in summarize(search).verdict.headline) == repeats


@pytest.mark.parametrize("longer", [0.6, 0.9])
def test_a_search_that_lost_is_not_told_to_search_longer_where_training_longer_does_better(longer: float, tmp_path):
    run = searched(tmp_path / "run", evaluations=3)
    compared(run, found=LOST[0], standard=LOST[1])
    given = Entrant("baseline/ce", "baseline/ce", baseline=True)
    ladder = Ladder((Rung(given, 1.0, (0.7,)), Rung(replace(given, length=2.0), 1.0, (longer,))), 3.0, "baseline/ce")
    with Store(run, write=True) as store:
        store.change_setting("ladder", ladder.to_dict())
    advice = " ".join(map(str, summarize(open_run(run)).verdict.steps))
    assert ("A longer search may find a better loss: autoloss resume" in advice) == (longer < 0.7)
    assert ("Train longer" in advice) == (longer > 0.7)


def test_a_search_that_lost_is_not_told_to_search_longer_where_another_rate_does_better(tmp_path):
    run = searched(tmp_path / "run", evaluations=3)
    compared(run, found=LOST[0], standard=LOST[1])
    given = Entrant("baseline/ce", "baseline/ce", baseline=True)
    tuned = replace(given, label="baseline/ce (lr × 3)", learning_rate=3.0)
    with Store(run, write=True) as store:
        store.change_setting(
            "ladder", Ladder((Rung(tuned, 1.0, (0.8,)), Rung(given, 1.0, (0.7,))), 3.0, "baseline/ce").to_dict()
        )
    assert "longer search" not in " ".join(map(str, summarize(open_run(run)).verdict.steps))


def test_a_run_that_was_not_compared_is_told_to(tmp_path, capsys):
    printed = concluded(searched(tmp_path / "run", evaluations=3), capsys)
    assert "\nNot known yet" in printed
    assert "Compare it with the baselines: autoloss compare " in printed


def test_a_stopped_run_is_resumed_before_it_is_compared(tmp_path):
    verdict = summarize(open_run(searched(tmp_path / "run"))).verdict
    assert [step.command.split()[:2] for step in verdict.steps] == [["autoloss", "resume"]]


def test_the_process_that_drove_a_run_says_what_is_next_although_it_still_owns_the_run(tmp_path):
    directory = searched(tmp_path / "run", evaluations=3)
    owner = lock_run(directory)
    try:
        assert not summarize(open_run(directory)).verdict.steps
        driver = Search(Reader(directory), "the budget is spent", branches={})
        assert any("autoloss compare" in step.command for step in summarize(driver).verdict.steps)
    finally:
        owner.close()


def test_terminal_json_and_page_show_the_same_judgement(tmp_path, capsys):
    directory = judged(tmp_path, *LOST)
    found = open_run(directory)
    _conclude(found, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert next(iter(values)) == "verdict"
    assert values["verdict"] == found.judgement.to_dict()
    text = page(gather_contents(Reader(directory)))
    for sentence in (headline(found.judgement), *evidence(found.judgement)):
        assert sentence in text
        assert sentence in concluded(directory, capsys)


def test_a_table_has_one_kind_of_interval_and_one_test_and_says_which():
    rows = [row("#1", 0.5, 0.61, 0.7), ce(0.2, 0.3, 0.4), row("dice", 0.1, 0.2, 0.4, baseline=True)]
    judgement = judge_comparison(rows, 1)
    console = Console(record=True, width=200)
    console.print(comparison_table("x", rows, (), judgement))
    printed = " ".join(console.export_text().split())
    assert "± 95 %" in printed
    assert "±: half the width of the 95 % confidence interval" in printed
    assert "p: #1 against this baseline, two-sided, paired over the same training seeds" in printed
    assert "Holm-corrected for 2 baselines" in printed
    values = {each["label"]: each for each in comparison_rows(rows, judgement)}
    assert values["#1"]["p_value"] is None
    assert values["ce"]["p_value"] == judgement.p_values["ce"]


def test_losses_that_are_scored_side_by_side_keep_the_first_baseline_as_their_reference():
    entrants = [Entrant("a", "mul(y, p)"), Entrant("ce", "baseline/ce", baseline=True)]
    recorded = {
        entrant.job(seed, "valid"): Outcome(state=State.SCORED, score=score + seed / (1 + score))
        for entrant, score in zip(entrants, (0.1, 0.2), strict=True)
        for seed in (1, 2)
    }
    console = Console(record=True, width=200)
    console.print(comparison_table("x", collect_rows(entrants, (1, 2), "valid", recorded)))
    assert (
        "p: against ce, two-sided, paired over the same training seeds and, where resampled, examples, not corrected"
        in " ".join(console.export_text().split())
    )


def test_the_exported_file_says_all_that_a_training_elsewhere_needs(tmp_path):
    directory = searched(tmp_path / "run", evaluations=3)
    entrant = Entrant("#1 (one norm)", POOLED, learning_rate=3.0, step_rule="one_norm", tuned_threshold=True)
    recipe = Recipe(epochs=4, batch_size=16, learning_rate=0.1, schedule="steps", warmup_share=0.1)
    with Store(directory, write=True) as store:
        store.write_settings(
            replace(store.settings(), recipe=json.loads(json.dumps(dict(recipe.as_values())))), replace=True
        )
        store.change_setting("comparison", Comparison(2, [asdict(entrant)]))
        for seed in training_seeds(0, COMPARISON, 2):
            job = entrant.job(seed, "test")
            store.add_training(job.loss, job.training, replace(scored(0.9), also={"threshold": 0.15}))
    exported = export_loss(directory, 1, "python")
    said = " ".join(line.strip(" #") for line in exported.splitlines())
    assert (
        "SGD with momentum 0.9, learning rate 0.3, schedule steps (the rate is divided by 10 after 0.667, 0.917 of the"
        in said
    )
    assert "batches of 16" in said
    assert "warm-up over 10 % of the steps" in said
    assert "decide for yes from a probability of: 0.15" in said
    step = said[said.index("grads = [") : said.index("1e-30]") + len("1e-30]")]
    (tmp_path / "scaling.py").write_text(f"import torch\n\n\ndef scale(model):\n    {step}\n")
    specification = spec_from_file_location("scaling", tmp_path / "scaling.py")
    specification.loader.exec_module(scaling := module_from_spec(specification))
    model = torch.nn.Linear(2, 1)
    for gradient, norm in ((3.0, 1.0), (0.0, 0.0)):
        for weights in model.parameters():
            weights.grad = torch.full_like(weights, gradient)
        scaling.scale(model)
        grads = [weights.grad for weights in model.parameters() if weights.grad is not None]
        assert torch.nn.utils.get_total_norm(grads).item() == pytest.approx(norm)


def test_a_known_loss_that_is_recommended_has_its_name_its_formula_and_the_command_to_use_it(tmp_path, capsys):
    directory = searched(tmp_path / "run", **{"evolution.start": (POOLED,)})
    compared(directory, found=(0.9, 0.8, 0.91), standard=(0.7, 0.75, 0.9))
    with Store(directory, write=True) as store:
        known, standard = store.settings().comparison.entrants
        entrants = [{**known, "label": "#1 shelf/pooled (lr × 1)", "known": True}, standard]
        store.change_setting("comparison", Comparison(3, entrants))
        store.change_setting("standard_loss", {"main": "baseline/ce"})
        store.change_setting("start", (StartVerdict("shelf/pooled", POOLED, {"main": 1.0}, None),))
    _conclude(open_run(directory), as_json=False)
    printed = capsys.readouterr().out
    advice = printed[printed.index("Recommended:") :]
    assert advice.startswith("Recommended: #1 shelf/pooled (a known loss)")
    assert "it is ahead of baseline/ce by" in " ".join(advice.split())
    assert "\nIts formula: max_pool(mean_c(p) - y * log(p))\n" in advice
    assert re.search(r"Use: autoloss export \S+ 1 --out my_loss.py", advice)
    assert POOLED not in advice
    assert "Export the known loss #1 shelf/pooled: " in printed
    assert "best loss found, #1" not in printed
    assert summarize(open_run(directory)).to_dict()["recommendation"]["name"] == "#1 shelf/pooled"
    text = words(page(gather_contents(Reader(directory))))
    assert "Recommended: #1 shelf/pooled (a known loss)" in text
    assert "Its formula: max_pool(" in text
    assert "#1 shelf/pooled (lr × 1) best of the search" in text
    assert "best found" not in text


def test_a_comparison_that_was_stopped_before_a_baseline_was_trained_is_none(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.7, 0.72, 0.71), standard=())
    assert [row.entrant.label for row in open_run(directory).comparison] == ["#1"]
    assert open_run(directory).judgement.standing is Standing.NOT_COMPARED
